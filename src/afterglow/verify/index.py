"""Parsers of index objects and of the block statistics in them.

| V1 ``DE47DE47``                     | V2 ``3D1FB0BC``                                         |
|-------------------------------------|---------------------------------------------------------|
| magic:4 · index_len:4 · data_object_length:8 · data_header_length:8 | the same                |
| count:4 · metadata_len:4            | per ledger: ledger_id:8 · count:4 · metadata_len:4      |
| ``LedgerMetadataFormat`` {3: length, 4: lastEntryId, 11: {1: key, 2: value}} | ``LedgerInfo`` {1: ledgerId, 2: entries, 3: size, 6: {1: key, 2: value}} |
| count times first_entry_id:8 · part_id:4 · offset:8 | the same                                |

Statistics are the value of a key in either metadata: {1: version, 2: entries, 3: bytes, 4/5: min and max broker time,
6/7: publish time, 8/9: first and last index, 10: crc32c, 11: stripe_bytes, 12: stripe_crc32c,
13: stripe_entries_before, 14: stripe_first_frame}.
"""  # noqa: E501 - a table

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from afterglow.errors import FormatError
from afterglow.verify.wire import Message, zigzag

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION: Final = 1
_RANGES: Final = (("broker time", 4, 5), ("publish time", 6, 7), ("index", 8, 9))
V1_MAGIC: Final = 0xDE47DE47
V2_MAGIC: Final = 0x3D1FB0BC
STATISTICS: Final = "afterglow/blocks"
_HEAD: Final = struct.Struct(">Iiqq")
_V1_LEDGER: Final = struct.Struct(">ii")
_V2_LEDGER: Final = struct.Struct(">qii")
_BLOCK: Final = struct.Struct(">qiq")


@dataclass(frozen=True, slots=True)
class IndexedStripe:
    """A stripe of a block, according to the index."""

    crc32c: int
    entries_before: int | None
    """Entries of the block that begin before it; None if the index does not have it."""
    first_frame: int | None
    """Offset in the stripe at which the next entry begins; the stripe's length if none does."""


@dataclass(frozen=True, slots=True)
class BlockTimeRange:
    """Minimum and maximum times of one block's entries, by which readers prune blocks.

    Both are -1 if no entry has such a time; None if the index does not have them.
    """

    broker_time: tuple[int, int] | None
    publish_time: tuple[int, int] | None

    def contains(self, broker_time: int | None, publish_time: int | None) -> bool:
        """Whether an entry's times are within the range; None and negative values mean that it has no such time."""
        return _within(broker_time, self.broker_time) and _within(publish_time, self.publish_time)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one ledger's blocks: one item per block in each column."""

    entries: tuple[int, ...]
    payload_bytes: tuple[int, ...]
    crc32c: tuple[int, ...]
    stripe_bytes: int
    """0: the blocks have no stripes."""
    stripes: tuple[IndexedStripe, ...]
    """Of all blocks, in order."""
    time_ranges: tuple[BlockTimeRange, ...]
    """Of each block."""

    def split(self, block_bytes: Sequence[int]) -> tuple[tuple[IndexedStripe, ...], ...]:
        """The stripes of each block, given the blocks' lengths; empty if the index has no stripes.

        Raises:
            FormatError: The number of stripes does not match the lengths.
        """
        if not self.stripes:
            return ((),) * len(block_bytes)
        counts = [-(-max(size, 0) // self.stripe_bytes) for size in block_bytes]
        if sum(counts) != len(self.stripes):
            raise FormatError(f"its statistics have {len(self.stripes)} stripes where the blocks have {sum(counts)}")
        ends = list(accumulate(counts))
        return tuple(self.stripes[end - count : end] for count, end in zip(counts, ends, strict=True))


def parse_statistics(data: bytes, blocks: int) -> Statistics:
    """Parse the statistics of one ledger's blocks.

    Raises:
        FormatError: It does not parse, or describes another number of blocks.
    """
    table = Message(data)
    if table.unsigned(1) != _VERSION:
        raise FormatError(f"its statistics have the unknown version {table.unsigned(1)}")
    entries, payload, checksums = table.column(2), table.column(3), table.fixed32_column(10)
    if {len(entries), len(payload), len(checksums)} != {blocks}:
        raise FormatError(f"its statistics do not describe {blocks} blocks")
    ranges: dict[str, list[tuple[int, int]]] = {}
    for what, lower, upper in _RANGES:
        low, high = ([zigzag(value) for value in table.column(number)] for number in (lower, upper))
        if len(low) != len(high) or len(low) not in {0, blocks}:
            raise FormatError(f"its statistics have {len(low)} and {len(high)} items of {what} for {blocks} blocks")
        if any(least > most for least, most in zip(low, high, strict=True)):
            raise FormatError(f"its statistics have a range of {what} that ends before it begins")
        ranges[what] = list(zip(low, high, strict=True))
    time_ranges = tuple(
        BlockTimeRange(*(ranges[what][i] if ranges[what] else None for what in ("broker time", "publish time")))
        for i in range(blocks)
    )
    return Statistics(entries, payload, checksums, table.unsigned(11), _stripes(table), time_ranges)


def _within(time: int | None, time_ranges: tuple[int, int] | None) -> bool:
    return time is None or time < 0 or time_ranges is None or time_ranges[0] <= time <= time_ranges[1]


def _stripes(table: Message) -> tuple[IndexedStripe, ...]:
    checksums, before, frames = table.fixed32_column(12), table.column(13), table.column(14)
    if checksums and not table.unsigned(11):
        raise FormatError(f"its statistics have {len(checksums)} checksums of stripes of no length")
    if not {len(before), len(frames)} <= {0, len(checksums)}:
        raise FormatError(
            f"its statistics have {len(before)} and {len(frames)} places of frames for {len(checksums)} stripes"
        )
    return tuple(
        IndexedStripe(checksum, before[i] if before else None, frames[i] if frames else None)
        for i, checksum in enumerate(checksums)
    )


@dataclass(frozen=True, slots=True)
class IndexedBlock:
    """One block, according to the index."""

    first_entry_id: int
    part_id: int
    offset: int
    """Of its header in the data object."""
    end: int
    """Offset behind it: that of the next block, or the length of the object."""


@dataclass(frozen=True, slots=True)
class IndexedLedger:
    """The blocks of one ledger."""

    ledger_id: int | None
    """None in V1."""
    last_entry_id: int
    """Of the ledger, by its metadata in the index. A V2 object may end before it."""
    length_bytes: int | None
    """Payload bytes of the whole ledger, by its metadata; None if that does not have it."""
    blocks: tuple[IndexedBlock, ...]
    """In the order of the index."""
    statistics: Statistics | None
    """None in objects that Pulsar wrote."""


@dataclass(frozen=True, slots=True)
class ParsedIndex:
    """An index that parses. Its structure is not verified yet."""

    version: int
    """1 or 2."""
    data_bytes: int
    """Length of the data object."""
    header_bytes: int
    """Of each block."""
    ledgers: tuple[IndexedLedger, ...]

    @property
    def blocks(self) -> list[tuple[IndexedLedger, int]]:
        """All blocks in the order of the object: the ledger, and the number of the block in it."""
        every = ((ledger, number) for ledger in self.ledgers for number in range(len(ledger.blocks)))
        return sorted(every, key=lambda item: item[0].blocks[item[1]].offset)


def parse_index(data: bytes) -> ParsedIndex:
    """Parse an index object.

    Raises:
        FormatError: The bytes are truncated, of an unknown format, or do not parse.
    """
    if len(data) < _HEAD.size:
        raise FormatError(f"{len(data)} bytes are too few for an index")
    magic, length, data_bytes, header_bytes = _HEAD.unpack_from(data)
    if magic not in {V1_MAGIC, V2_MAGIC}:
        raise FormatError(f"its magic number {magic:08x} is not that of an index")
    if length != len(data):
        raise FormatError(f"it says that it has {length} bytes and has {len(data)}")
    if data_bytes < 0 or header_bytes < 0:
        raise FormatError(f"it says that the object has {data_bytes} bytes and block headers of {header_bytes}")
    version = 1 if magic == V1_MAGIC else 2
    at = _HEAD.size
    sections: list[tuple[int | None, bytes, list[tuple[int, int, int]]]] = []
    while at < len(data) if version == 2 else not sections:
        section, at = _parse_section(data, at, version)
        sections.append(section)
    if at != len(data):
        raise FormatError(f"{len(data) - at} bytes follow its end")
    starts = sorted({offset for _, _, blocks in sections for _, _, offset in blocks})
    ends = dict(pairwise([*starts, data_bytes]))
    ledgers = tuple(_ledger(version, *section, ends) for section in sections)
    return ParsedIndex(version, data_bytes, header_bytes, ledgers)


def _parse_section(
    data: bytes, at: int, version: int
) -> tuple[tuple[int | None, bytes, list[tuple[int, int, int]]], int]:
    head = _V1_LEDGER if version == 1 else _V2_LEDGER
    if len(data) - at < head.size:
        raise FormatError(f"it is truncated at offset {at}")
    *ledger, count, metadata_bytes = head.unpack_from(data, at)
    at += head.size
    end = at + metadata_bytes + count * _BLOCK.size
    if count < 0 or metadata_bytes < 0 or end > len(data):
        raise FormatError(f"{count} blocks and {metadata_bytes} bytes of metadata at offset {at} pass its end")
    metadata = data[at : at + metadata_bytes]
    blocks = list(_BLOCK.iter_unpack(data[at + metadata_bytes : end]))
    return (ledger[0] if ledger else None, metadata, blocks), end


def _ledger(
    version: int,
    ledger_id: int | None,
    metadata: bytes,
    rows: list[tuple[int, int, int]],
    ends: dict[int, int],
) -> IndexedLedger:
    blocks = tuple(IndexedBlock(first, part_id, offset, ends[offset]) for first, part_id, offset in rows)
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
    return IndexedLedger(ledger_id, last_entry_id, length, blocks, statistics)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise FormatError(f"its statistics are not valid base64: {error}") from error
