"""Index objects, with parsers of the checker's own.

| V1 ``DE47DE47``                     | V2 ``3D1FB0BC``                                         |
|-------------------------------------|---------------------------------------------------------|
| magic:4 · index_len:4 · data_object_length:8 · data_header_length:8 | the same                |
| count:4 · metadata_len:4            | per ledger: ledger_id:8 · count:4 · metadata_len:4      |
| ``LedgerMetadataFormat`` {3: length, 4: lastEntryId, 11: {1: key, 2: value}} | ``LedgerInfo`` {1: ledgerId, 2: entries, 3: size, 6: {1: key, 2: value}} |
| count times first_entry_id:8 · part_id:4 · offset:8 | the same                                |
"""  # noqa: E501 - a table

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from afterglow.errors import FormatError
from afterglow.verify.statistics import parse_statistics
from afterglow.verify.wire import Message

if TYPE_CHECKING:
    from afterglow.verify.statistics import Statistics

V1_MAGIC: Final = 0xDE47DE47
V2_MAGIC: Final = 0x3D1FB0BC
STATISTICS: Final = "afterglow/blocks"

_HEAD: Final = struct.Struct(">Iiqq")
_V1_GROUP: Final = struct.Struct(">ii")
_V2_GROUP: Final = struct.Struct(">qii")
_BLOCK: Final = struct.Struct(">qiq")


@dataclass(frozen=True, slots=True)
class Block:
    """Where one block begins, by the index."""

    first_entry_id: int
    part_id: int
    offset: int
    """Of its header in the data object."""
    end: int
    """Offset behind it: where the next one begins, or where the object ends."""


@dataclass(frozen=True, slots=True)
class Group:
    """The blocks of one ledger."""

    ledger_id: int | None
    """None in V1."""
    last_entry_id: int
    """Of the ledger, by its metadata in the index. A V2 object need not reach it."""
    length_bytes: int | None
    """Payload bytes of the whole ledger, by the same; None where it is not told."""
    blocks: tuple[Block, ...]
    """In the order of the index."""
    statistics: Statistics | None
    """None in objects that others wrote."""


@dataclass(frozen=True, slots=True)
class Index:
    """An index that parses. Whether it makes sense is not told yet."""

    version: int
    """1 or 2."""
    data_bytes: int
    """Length of the data object."""
    header_bytes: int
    """Of each block."""
    groups: tuple[Group, ...]

    @property
    def blocks(self) -> list[tuple[Group, int]]:
        """Each block in the order of the object: its group, and its number there."""
        every = ((group, number) for group in self.groups for number in range(len(group.blocks)))
        return sorted(every, key=lambda item: item[0].blocks[item[1]].offset)


def parse_index(data: bytes) -> Index:
    """Read an index object.

    Raises:
        FormatError: The bytes are torn, of no known kind, or a part of them does not parse.
    """
    if len(data) < _HEAD.size:
        raise FormatError(f"{len(data)} bytes are too few for an index")
    magic, length, data_bytes, header_bytes = _HEAD.unpack_from(data)
    if magic not in {V1_MAGIC, V2_MAGIC}:
        raise FormatError(f"no index begins with {magic:08x}")
    if length != len(data):
        raise FormatError(f"it says that it has {length} bytes and has {len(data)}")
    if data_bytes < 0 or header_bytes < 0:
        raise FormatError(f"it tells of an object of {data_bytes} bytes with block headers of {header_bytes}")
    version = 1 if magic == V1_MAGIC else 2
    at = _HEAD.size
    parts: list[tuple[int | None, bytes, list[tuple[int, int, int]]]] = []
    while at < len(data) if version == 2 else not parts:
        part, at = _parse_group(data, at, version)
        parts.append(part)
    if at != len(data):
        raise FormatError(f"{len(data) - at} bytes stand behind its end")
    starts = sorted({offset for _, _, blocks in parts for _, _, offset in blocks})
    ends = dict(pairwise([*starts, data_bytes]))
    return Index(version, data_bytes, header_bytes, tuple(_group(version, *part, ends) for part in parts))


def _parse_group(
    data: bytes, at: int, version: int
) -> tuple[tuple[int | None, bytes, list[tuple[int, int, int]]], int]:
    head = _V1_GROUP if version == 1 else _V2_GROUP
    if len(data) - at < head.size:
        raise FormatError(f"it is torn at offset {at}")
    *ledger, count, metadata_bytes = head.unpack_from(data, at)
    at += head.size
    end = at + metadata_bytes + count * _BLOCK.size
    if count < 0 or metadata_bytes < 0 or end > len(data):
        raise FormatError(f"{count} blocks and {metadata_bytes} bytes of metadata at offset {at} pass its end")
    metadata = data[at : at + metadata_bytes]
    blocks = list(_BLOCK.iter_unpack(data[at + metadata_bytes : end]))
    return (ledger[0] if ledger else None, metadata, blocks), end


def _group(
    version: int,
    ledger_id: int | None,
    metadata: bytes,
    rows: list[tuple[int, int, int]],
    ends: dict[int, int],
) -> Group:
    blocks = tuple(Block(first, part, offset, ends[offset]) for first, part, offset in rows)
    message = Message(metadata)
    table: bytes | None = None
    if version == 1:
        last_entry_id = message.integer(4, -1)
        length = message.integer_or_none(3)
        for pair in message.messages(11):
            if pair.text(1) == STATISTICS:
                table = b"".join(pair.values(2))
    else:
        if message.integer(1) != ledger_id:
            raise FormatError(f"the metadata of ledger {ledger_id} is that of ledger {message.integer(1)}")
        last_entry_id = message.integer(2) - 1
        length = message.integer_or_none(3)
        for pair in message.messages(6):
            if pair.text(1) == STATISTICS:
                table = _base64(pair.text(2))
    statistics = None if table is None else parse_statistics(table, len(blocks))
    return Group(ledger_id, last_entry_id, length, blocks, statistics)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise FormatError(f"its statistics are no base64: {error}") from error
