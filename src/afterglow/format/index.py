"""The index object: where each block of a data object begins, and which entry it begins with.

V1 (``DE47DE47``) describes one ledger; V2 (``3D1FB0BC``) any number of them, a group each. They are told apart by their
magic. All integers are big-endian.

| V1                                  | V2                                                      |
|-------------------------------------|---------------------------------------------------------|
| magic:4 · index_len:4               | magic:4 · index_len:4                                   |
| data_object_length:8                | data_object_length:8                                    |
| data_header_length:8                | data_header_length:8                                    |
| count:4 · metadata_len:4            | per ledger: ledger_id:8 · count:4 · metadata_len:4      |
| ``LedgerMetadataFormat``            | ``ManagedLedgerInfo.LedgerInfo``                        |
| count times first_entry_id:8 · part_id:4 · offset:8 | the same                                    |
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import CorruptIndex
from afterglow.format.blocks import HEADER_BYTES, Format

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from afterglow.format.statistics import BlockStatistics

_MAGICS = {Format.V1: 0xDE47DE47, Format.V2: 0x3D1FB0BC}
_FORMATS = {magic: version for version, magic in _MAGICS.items()}
_HEAD = struct.Struct(">Iiqq")
_V1_GROUP = struct.Struct(">ii")
_V2_GROUP = struct.Struct(">qii")
_ENTRY = struct.Struct(">qiq")


@dataclass(frozen=True, slots=True)
class IndexBlock:
    """Where one block begins."""

    first_entry_id: int
    part_id: int
    """Ordinal of the block in the object, from 1."""
    offset: int
    """Of the block's header in the data object."""


@dataclass(frozen=True, slots=True)
class LedgerGroup:
    """The blocks of one ledger, ascending."""

    ledger_id: int | None
    """None in a V1 index, where only the object's key tells it."""
    metadata: bytes
    """The ledger's metadata as stored; see ``ledger_metadata``."""
    blocks: tuple[IndexBlock, ...]
    last_entry_id: int
    """Of the ledger when the index was written. A V2 object need not hold all entries up to it."""
    statistics: tuple[BlockStatistics, ...] | None = None
    """One per block, in objects that Afterglow wrote."""

    def find(self, entry_id: int) -> int | None:
        """Number of the block that holds ``entry_id`` if any does, by binary search."""
        found = bisect_right(self.blocks, entry_id, key=lambda block: block.first_entry_id) - 1
        return found if found >= 0 else None


@dataclass(frozen=True, slots=True)
class ObjectIndex:
    """The index of one data object."""

    format: Format
    data_bytes: int
    """Length of the data object."""
    groups: tuple[LedgerGroup, ...]
    """One per ledger, in the order of their blocks."""
    header_bytes: int = HEADER_BYTES
    """Of each block; its frames begin behind it."""

    def group(self, ledger_id: int | None) -> LedgerGroup | None:
        """The blocks of a ledger; a V1 index has one group, whatever the ledger."""
        if self.format is Format.V1:
            return self.groups[0]
        return next((group for group in self.groups if group.ledger_id == ledger_id), None)

    def extents(self) -> Iterator[tuple[LedgerGroup, int, int, int]]:
        """Each block in the order of the object: its group, its number there, its start and its end offset."""
        located = sorted(
            (
                (block.offset, at, number)
                for at, group in enumerate(self.groups)
                for number, block in enumerate(group.blocks)
            )
        )
        for i, (offset, at, number) in enumerate(located):
            end = located[i + 1][0] if i + 1 < len(located) else self.data_bytes
            yield self.groups[at], number, offset, end


def encode_index(index: ObjectIndex) -> bytes:
    """The bytes of an index object."""
    parts: list[bytes] = []
    for group in index.groups:
        if index.format is Format.V1:
            parts.append(_V1_GROUP.pack(len(group.blocks), len(group.metadata)))
        else:
            assert group.ledger_id is not None
            parts.append(_V2_GROUP.pack(group.ledger_id, len(group.blocks), len(group.metadata)))
        parts.append(group.metadata)
        parts.extend(_ENTRY.pack(block.first_entry_id, block.part_id, block.offset) for block in group.blocks)
    length = _HEAD.size + sum(map(len, parts))
    return _HEAD.pack(_MAGICS[index.format], length, index.data_bytes, index.header_bytes) + b"".join(parts)


def decode_index(data: Buffer) -> ObjectIndex:
    """Read an index object. Its structure is checked here; whether it makes sense is told by ``index_problems``.

    Raises:
        CorruptIndex: The bytes are torn, the magic is unknown, or a ledger's metadata does not parse.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < _HEAD.size:
        raise CorruptIndex(f"an index of {view.nbytes} bytes is too short")
    magic, length, data_bytes, header_bytes = _HEAD.unpack_from(view)
    version = _FORMATS.get(magic)
    if version is None:
        raise CorruptIndex(f"no index begins with {magic:08x}")
    if data_bytes < 0 or header_bytes < 0:
        raise CorruptIndex(f"an object of {data_bytes} bytes with block headers of {header_bytes} cannot be")
    if length != view.nbytes:
        raise CorruptIndex(f"the index says that it has {length} bytes; it has {view.nbytes}")
    groups: list[LedgerGroup] = []
    at = _HEAD.size
    while at < view.nbytes or (version is Format.V1 and not groups):
        group, at = _decode_group(view, at, version, data_bytes)
        groups.append(group)
        if version is Format.V1:
            break
    if at != view.nbytes:
        raise CorruptIndex(f"{view.nbytes - at} bytes stand behind the index")
    groups.sort(key=lambda group: group.blocks[0].offset if group.blocks else 0)
    return ObjectIndex(version, data_bytes, tuple(groups), header_bytes)


def _decode_group(view: memoryview, at: int, version: Format, data_bytes: int) -> tuple[LedgerGroup, int]:
    from afterglow.format.ledger_metadata import read_metadata  # noqa: PLC0415 (it needs the records above)

    head = _V1_GROUP if version is Format.V1 else _V2_GROUP
    if view.nbytes - at < head.size:
        raise CorruptIndex(f"the index is torn at offset {at}")
    fields = head.unpack_from(view, at)
    ledger_id = fields[0] if version is Format.V2 else None
    count, metadata_bytes = fields[-2:]
    at += head.size
    if count < 0 or metadata_bytes < 0 or metadata_bytes + count * _ENTRY.size > view.nbytes - at:
        raise CorruptIndex(f"{count} blocks and {metadata_bytes} bytes of metadata at offset {at} pass the index's end")
    metadata = bytes(view[at : at + metadata_bytes])
    at += metadata_bytes
    end = at + count * _ENTRY.size
    blocks = tuple(IndexBlock(*fields) for fields in _ENTRY.iter_unpack(view[at:end]))
    last_entry_id, statistics = read_metadata(version, metadata, blocks, data_bytes)
    return LedgerGroup(ledger_id, metadata, blocks, last_entry_id, statistics), end
