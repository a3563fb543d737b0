"""Verification of every byte of a data object, block by block: header, frames, padding, checksums.

Memory is bounded by one buffer of :data:`READ_BYTES`, however large the blocks are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from afterglow.errors import FormatError
from afterglow.verify.entries import BlockParser, EntryVerifier
from afterglow.verify.findings import Finding, FindingKind, format_position

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from afterglow.storage.store import ObjectStore
    from afterglow.verify.index import IndexedBlock, IndexedLedger, IndexedStripe, ParsedIndex, Statistics

READ_BYTES: Final = 8 << 20
"""Bytes of one request: large enough for a store's bandwidth, small enough for a worker's memory."""

_MAGICS: Final = {1: 0xFBDBABCB, 2: 0x26A66D32}
_HEADER: Final = struct.Struct(">Iqqq")
_LEDGER: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of an object. It selects the blocks that begin in it."""

    start: int
    """Offset in the object, inclusive."""
    end: int | None
    """Exclusive; None: to the object's end."""

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset and (self.end is None or offset < self.end)


WHOLE_OBJECT: Final = ByteRange(0, None)


class _Defect(NamedTuple):
    entry_id: int
    """First affected entry."""
    detail: str


class SequentialReader:
    """Reads an object from its beginning to its end, in large requests."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int) -> None:
        self._store = store
        self._key = key
        self._size_bytes = size_bytes
        self._start = 0
        self._data = memoryview(b"")

    def buffers(self, start: int, end: int) -> Iterator[memoryview]:
        """The bytes ``[start, end)`` in consecutive buffers, up to the end of the object."""
        while start < min(end, self._size_bytes):
            if not self._start <= start < self._start + len(self._data):
                self._start = start
                self._data = self._store.get(self._key, start, min(start + READ_BYTES, self._size_bytes))
            buffer = self._data[start - self._start : end - self._start]
            start += len(buffer)
            yield buffer


def verify_blocks(
    store: ObjectStore,
    key: str,
    size_bytes: int,
    index: ParsedIndex,
    *,
    topic: str | None,
    ledger_id: int,
    ends: Mapping[int, int],
    byte_range: ByteRange = WHOLE_OBJECT,
) -> Generator[Finding, None, int]:
    """Read a data object and report each damaged block.

    Args:
        store: Holds the object.
        key: Its key.
        size_bytes: Its length; the caller has reported a difference from the length in the index.
        index: Its index; the caller has verified its structure.
        topic: For the findings.
        ledger_id: The ledger of a V1 object.
        ends: Last entry that the object must hold, by ledger.
        byte_range: The blocks to read.

    Returns:
        Bytes of entries in these blocks that no checksum covers, neither the index's nor their own.

    Raises:
        ObjectMissing: The object was deleted meanwhile.
        StorageError: The store fails.
    """
    reader = SequentialReader(store, key, size_bytes)
    uncovered_bytes = 0
    order = index.blocks
    stripes = {id(ledger): _stripes(ledger) for ledger in index.ledgers}
    for ordinal, (ledger, number) in enumerate(order):
        block = ledger.blocks[number]
        block_ledger_id = ledger_id if ledger.ledger_id is None else ledger.ledger_id
        end = size_bytes if ordinal + 1 == len(order) else block.end
        if block.offset >= size_bytes:
            break  # the object is truncated before it, which its length has shown
        if block.offset not in byte_range:
            continue
        is_last = number + 1 == len(ledger.blocks)
        last = ends.get(block_ledger_id) if is_last else ledger.blocks[number + 1].first_entry_id - 1
        entries = EntryVerifier(None if ledger.statistics is None else ledger.statistics.time_ranges[number])
        defects = list(
            _verify_block(
                reader, index, ledger, number, end=end, stripes=stripes[id(ledger)][number], last=last, entries=entries
            )
        )
        if ledger.statistics is None:
            uncovered_bytes += entries.uncovered_bytes
        if defects:
            first = min(defect.entry_id for defect in defects)
            detail = f"block {ordinal + 1} at {block.offset}: " + "; ".join(defect.detail for defect in defects)
            yield Finding(FindingKind.DAMAGED_BLOCK, topic, key, format_position(block_ledger_id, first), detail)
    return uncovered_bytes


def _stripes(ledger: IndexedLedger) -> tuple[tuple[IndexedStripe, ...], ...]:
    none: tuple[tuple[IndexedStripe, ...], ...] = ((),) * len(ledger.blocks)
    if ledger.statistics is None:
        return none
    try:
        return ledger.statistics.split([block.end - block.offset for block in ledger.blocks])
    except FormatError:  # reported as damage of the index
        return none


def _verify_block(
    reader: SequentialReader,
    index: ParsedIndex,
    ledger: IndexedLedger,
    number: int,
    *,
    end: int,
    stripes: tuple[IndexedStripe, ...],
    last: int | None,
    entries: EntryVerifier,
) -> Iterator[_Defect]:
    block, statistics = ledger.blocks[number], ledger.statistics
    stripe_bytes = statistics.stripe_bytes if statistics is not None and stripes else 0
    parser = BlockParser(end - block.offset, index.header_bytes, block.first_entry_id, stripe_bytes, entries)
    header = b""
    for buffer in reader.buffers(block.offset, end):
        if len(header) < index.header_bytes:
            header += bytes(buffer[: index.header_bytes - len(header)])
        parser.feed(buffer)
    parser.end()
    if problem := _header_problem(header, index, ledger, block, end - block.offset):
        yield _Defect(block.first_entry_id, problem)
    if parser.damage:
        yield _Defect(parser.next_entry_id, parser.damage)
    elif last is not None and parser.next_entry_id <= last:
        yield _Defect(parser.next_entry_id, f"it lacks the entries {parser.next_entry_id} to {last}")
    elif last is not None and parser.next_entry_id > last + 1:
        yield _Defect(last + 1, f"entries {last + 1} to {parser.next_entry_id - 1} follow its last one")
    elif index.version == 1 and number + 1 == len(ledger.blocks) and parser.frames_end != end - block.offset:
        yield _Defect(parser.next_entry_id - 1, "it is the last block of a ledger, yet it is padded")
    if wrong := entries.wrong_checksum:
        yield _Defect(wrong.first, f"the bytes of {wrong} do not match its own checksum")
    if torn := entries.truncated:
        yield _Defect(torn.first, f"the broker's metadata of {torn} passes its end")
    if statistics is None and entries.unparsable and entries.with_checksum:
        unparsable = entries.unparsable
        yield _Defect(unparsable.first, f"{unparsable} cannot be read as a message, though others of the block can")
    if outside := entries.outside_times:
        yield _Defect(outside.first, f"the times of {outside} are outside the range in the index")
    if statistics is not None:
        yield from _compare_statistics(parser, block, number, statistics, stripes)


def _header_problem(
    header: bytes, index: ParsedIndex, ledger: IndexedLedger, block: IndexedBlock, block_bytes: int
) -> str | None:
    fields = _HEADER.size + (_LEDGER.size if index.version == 2 else 0)
    if len(header) < index.header_bytes or index.header_bytes < fields:
        return "its header is truncated"
    magic, header_bytes, length, first = _HEADER.unpack_from(header)
    if magic != _MAGICS[index.version]:
        return f"its header begins with {magic:08x}"
    if header_bytes != index.header_bytes:
        return f"its header says that it has {header_bytes} bytes"
    if length != block_bytes:
        return f"its header says {length} bytes, the block has {block_bytes}"
    if first != block.first_entry_id:
        return f"its header says that it begins with entry {first}"
    if index.version == 2 and (found := _LEDGER.unpack_from(header, _HEADER.size)[0]) != ledger.ledger_id:
        return f"its header says ledger {found}"
    if any(header[fields:]):
        return "the rest of its header is not zero"
    return None


def _compare_statistics(
    parser: BlockParser, block: IndexedBlock, number: int, statistics: Statistics, stripes: tuple[IndexedStripe, ...]
) -> Iterator[_Defect]:
    first = block.first_entry_id
    bad = [i for i, stripe in enumerate(stripes) if [stripe.crc32c] != parser.stripe_crc32c[i : i + 1]]
    if parser.crc32c != statistics.crc32c[number]:
        detail = f"CRC32C {parser.crc32c:08x}, the index says {statistics.crc32c[number]:08x}"
        if bad:
            detail += f", stripes {', '.join(map(str, bad))} of {statistics.stripe_bytes} bytes"
        affected = _first_entry_of(parser, first, bad[0]) if bad else first
        known = parser.entries.wrong_checksum
        yield _Defect(known.first if known else affected, detail)
    elif bad:
        yield _Defect(first, f"the block matches its checksum, but its stripes {bad} do not match theirs")
    if parser.damage is not None:
        return
    if parser.next_entry_id - first != statistics.entries[number]:
        yield _Defect(first, f"{parser.next_entry_id - first} entries, the index says {statistics.entries[number]}")
    wrong = [
        i
        for i, (stripe, location) in enumerate(zip(stripes, parser.stripe_positions, strict=False))
        if stripe.entries_before not in {None, location[0]} or stripe.first_frame not in {None, location[1]}
    ]
    if wrong:
        yield _Defect(first, f"the index misplaces the first entry of stripes {', '.join(map(str, wrong))}")


def _first_entry_of(parser: BlockParser, first_entry_id: int, stripe: int) -> int:
    """The first entry that has bytes in a stripe, as far as the frames could be parsed."""
    if stripe >= len(parser.stripe_positions):
        return parser.next_entry_id
    before, frame = parser.stripe_positions[stripe]
    return first_entry_id + (before - 1 if before and frame else before)
