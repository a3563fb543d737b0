"""Time index of the tier: narrows a search by time in a ledger, by segment records, object indexes and blocks.

Records of segments, which are in metadata, have the greatest time of each; the segment of the time is found by
bisection. Its index has the same of each block, and that block is fetched. So a search costs one index and one ranged
get, however many segments there are. Blocks of whole ledgers are large: of these a piece or two is fetched, usually the
right one at once. Where no times are recorded, as in objects that Apache Pulsar wrote, the first entries of blocks are
read, by bisection again.

Entries without broker times follow no order, so that bisection is impossible. But the greatest time of each segment and
of each block is known: the first that reaches the time is the one to scan.

The result of a search is the same without this index, which only reduces the entries to read. Fetched blocks stay in
the cache of pieces: a consumer that sought reads on from there.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from afterglow.errors import AfterglowError, CorruptEntry, StoreUnavailable
from afterglow.format.frames import FRAME_BYTES
from afterglow.ledger.time_search import entry_time
from afterglow.read.objects import cut_frames
from afterglow.read.ranges import offloaded_range_at, offloaded_ranges_from
from afterglow.read.tier_copy import TierCopy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.counters import ReadCounters
    from afterglow.read.pieces import BlockSpan, LedgerPieces
    from afterglow.read.ranges import OffloadedRange
    from afterglow.read.tier_source import TierSource

_GUESSES: Final = 3
"""At where entries are if they came evenly; then halves, which end soon whatever came."""
_TOGETHER: Final = 2
"""Pieces that one probe fetches: an entry that ends behind the first of them is seen whole."""


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """Narrows searches over one topic."""

    name: str
    """Its managed-ledger name."""
    tiers: TierSource
    policy: BrokerConfig
    """The topic's."""
    counters: ReadCounters
    """Count every request."""

    def narrow(self, row: ManagedLedgerInfo.LedgerInfo, entries: range, time_ms: int, *, stamped: bool) -> range:
        """Some of the entries of a ledger; see :meth:`afterglow.ledger.entry_source.EntrySource.narrow`.

        Where an object cannot be read, these are all: reading them will show what is wrong.

        Raises:
            StoreUnavailable: The tier has the only copy and cannot be reached.
        """
        if not stamped:
            return self._reaching(row, entries, time_ms)
        with suppress(AfterglowError):
            entries = self._by_records(row, entries, time_ms)
        with _only_narrowing(row):
            offloaded = offloaded_range_at(row, entries.start)
            if offloaded is None or offloaded.last < entries.stop - 1:
                return entries
            copy = self._copy(row, offloaded)
            if copy is not None:
                entries = _by_blocks(copy, entries, time_ms)
                entries = _in_block(copy, entries, time_ms)
        return entries

    def _reaching(self, row: ManagedLedgerInfo.LedgerInfo, entries: range, time_ms: int) -> range:
        """What the first segment or block holds of them whose greatest time is at or after the moment."""
        start = entries.start
        for offloaded in offloaded_ranges_from(row, start):
            if start >= entries.stop:
                break
            within = range(start, min(offloaded.last + 1, entries.stop))
            start = within.stop
            with suppress(AfterglowError):
                times = self.tiers.times(self.name, offloaded)
                if times is not None and times.is_before(time_ms):
                    continue
            with _only_narrowing(row):
                copy = self._copy(row, offloaded)
                if copy is not None and copy.ledger.pieces.times is not None:
                    within = _reaching_block(copy.ledger.pieces, within, time_ms)
            if within:
                return within
        return range(start, entries.stop)

    def _by_records(self, row: ManagedLedgerInfo.LedgerInfo, entries: range, time_ms: int) -> range:
        """What one segment holds of them, where records have the times of segments."""
        low, end, stop = entries.start, entries.stop, entries.stop
        while low < end:
            offloaded = offloaded_range_at(row, (low + end) // 2)
            times = None if offloaded is None else self.tiers.times(self.name, offloaded)
            if offloaded is None or times is None or times.max_broker is None:
                break
            if times.max_broker < time_ms:
                low = offloaded.last + 1
            else:
                end, stop = offloaded.first, min(offloaded.last + 1, stop)
        return range(low, stop) if low < stop else entries

    def _copy(self, row: ManagedLedgerInfo.LedgerInfo, offloaded: OffloadedRange) -> TierCopy | None:
        located = self.tiers.locate(self.name, offloaded, self.policy)
        impatient = not row.offloadContext.bookkeeperDeleted
        copy = self.tiers.copy(located, row.ledgerId, self.policy, self.counters, lenient=True, impatient=impatient)
        return copy if isinstance(copy, TierCopy) else None


@contextmanager
def _only_narrowing(row: ManagedLedgerInfo.LedgerInfo) -> Iterator[None]:
    """Go on without the index where it cannot be read, unless the store that has the only copy is out of reach.

    A search without the index would have to wait for the same store, and for all retries, once more.
    """
    try:
        yield
    except StoreUnavailable:
        if row.offloadContext.bookkeeperDeleted:
            raise
    except AfterglowError:
        pass


def _reaching_block(pieces: LedgerPieces, entries: range, time_ms: int) -> range:
    """What the first block holds of them whose greatest time, of either kind, is at or after the moment."""
    assert pieces.times is not None
    low, high = pieces.block_number(entries.start), pieces.block_number(entries.stop - 1)
    if low < 0:
        return entries
    reaching = np.flatnonzero(pieces.times[low : high + 1, 1::2].max(axis=1) >= time_ms)
    return _of_block(pieces, low + int(reaching[0]), entries) if reaching.size else entries[:0]


def _of_block(pieces: LedgerPieces, number: int, entries: range) -> range:
    """Those entries that are in a block."""
    following = pieces.block(number + 1)
    stop = entries.stop if following is None else following.first_entry_id
    return range(max(int(pieces.first_entries[number]), entries.start), min(stop, entries.stop))


def _by_blocks(copy: TierCopy, entries: range, time_ms: int) -> range:
    """What one block holds of them."""
    pieces = copy.ledger.pieces
    low, high = pieces.block_number(entries.start), pieces.block_number(entries.stop - 1)
    if low < 0:
        return entries
    if pieces.times is None:
        return _by_first_entries(copy, entries, range(low, high + 1), time_ms)
    reaching = np.flatnonzero(pieces.times[low : high + 1, 1] >= time_ms)
    if not reaching.size:
        return entries
    return _of_block(pieces, low + int(reaching[0]), entries)


def _by_first_entries(copy: TierCopy, entries: range, blocks: range, time_ms: int) -> range:
    """The same where the index has no times: the first entry of a block that has one is read."""
    start, stop = entries.start, entries.stop
    low, high = blocks.start, blocks.stop - 1
    while low < high:
        middle = (low + high + 1) // 2
        block = copy.ledger.pieces.block(middle)
        found = None if block is None else _Frames.of(copy, block).stamped(0)
        if found is None:
            return entries  # more entries without a time than its first piece holds
        entry_id, found_ms = found
        if found_ms < time_ms:
            low, start = middle, max(entry_id + 1, start)
        else:
            high, stop = middle - 1, min(entry_id + 1, stop)
    return range(start, stop) if start < stop else entries


def _in_block(copy: TierCopy, entries: range, time_ms: int) -> range:
    """The entry itself, where they are in one block whose index has the piece in which each of them begins.

    Blocks of segments are fetched as one. Of larger ones the piece is fetched in which the moment would be if entries
    came evenly, and the one behind it; where they did not, the rest is guessed at again, then halved.
    """
    pieces = copy.ledger.pieces
    block = pieces.find(entries.start)
    if block is None or block.entries is None or pieces.times is None or not (pieces.located or block.pieces == 1):
        return entries
    start, stop = entries.start, min(entries.stop, block.first_entry_id + block.entries)
    low_ms, high_ms = (int(time) for time in pieces.times[block.number, :2])
    guesses = _GUESSES
    margin = block.entries // block.pieces // 2  # so that the guess stands within what is fetched, not at its border
    candidate: int | None = None  # of entries at or after the moment the first that was seen, at ``stop`` or behind it
    while start < stop:
        part = 0.5
        if guesses and low_ms < high_ms:
            part = min(max((time_ms - low_ms) / (high_ms - low_ms), 0.0), 1.0)
            guesses -= 1
        guess = max(start + int((stop - 1 - start) * part) - margin, start)
        frames = _Frames.of(copy, block, guess - block.first_entry_id)
        skipped = max(start - frames.first_entry_id, 0)
        first, last = frames.stamped(skipped), frames.last_stamped(skipped)
        if first is None or last is None:
            return range(start, entries.stop if candidate is None else candidate + 1)
        if last[1] < time_ms:
            start, low_ms = last[0] + 1, last[1]
        elif first[1] < time_ms or frames.first_entry_id <= start:
            found = frames.first_at_or_after(skipped, time_ms)
            return range(found, found + 1)
        else:
            stop, candidate, high_ms = frames.first_entry_id, *first
    return entries if candidate is None else range(candidate, candidate + 1)


@dataclass(frozen=True, slots=True)
class _Frames:
    """The frames that begin and end in one or two pieces of a block."""

    data: memoryview
    offsets: NDArray[np.int64]
    first_entry_id: int

    @classmethod
    def of(cls, copy: TierCopy, block: BlockSpan, entry: int = 0) -> Self:
        """Those around an entry of a block.

        Raises:
            AfterglowError: They cannot be read, or are damaged.
        """
        ledger = copy.ledger
        mark = ledger.pieces.nearest(block, entry)
        number, start = divmod(mark.offset, block.piece_bytes)
        begin = block.first_piece + number
        wanted = range(begin, min(begin + _TOGETHER, block.first_piece + block.pieces))
        data = copy.source.joined(ledger, wanted)
        if not number:
            ledger.check_header(block, data)
        cut = cut_frames(data, block.first_entry_id + mark.entry, start)
        if isinstance(cut, str):
            raise ledger.broken(block, mark.entry, cut)
        return cls(data, cut.offsets, block.first_entry_id + mark.entry)

    def stamped(self, at: int) -> tuple[int, int] | None:
        """The first entry from one on, counted from 0, that has a broker time, and that time; None: none has."""
        return next(self._stamps(range(at, self.offsets.size - 1)), None)

    def last_stamped(self, at: int) -> tuple[int, int] | None:
        """The last entry that has a broker time, and that time; None: none from ``at`` on has."""
        return next(self._stamps(range(self.offsets.size - 2, at - 1, -1)), None)

    def first_at_or_after(self, at: int, time_ms: int) -> int:
        """The first entry from one on, counted from 0, whose broker time is at or after a moment; there is one."""
        low, high = at, self.offsets.size - 1
        while low < high:
            middle = (low + high) // 2
            found = self.stamped(middle)
            if found is not None and found[1] < time_ms:
                low = found[0] + 1 - self.first_entry_id
            else:
                high = middle
        found = self.stamped(low)
        assert found is not None
        return found[0]

    def _stamps(self, numbers: range) -> Iterator[tuple[int, int]]:
        for number in numbers:
            with suppress(CorruptEntry):  # an entry that is not a message has no time
                found = entry_time(self.data[self.offsets[number] + FRAME_BYTES : self.offsets[number + 1]])
                if found.by_broker:
                    yield self.first_entry_id + number, found.time_ms
