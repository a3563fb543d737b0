"""Time index of the tier: narrows a search by time in a ledger, by segment records, object indexes and blocks.

Segment records in metadata hold the greatest time of each segment; bisection finds the segment. Its index holds the
same for each block, and that block is fetched. So a search costs one index and one ranged get, however many segments
there are. Blocks of whole ledgers are large: of these one or two stripes are fetched, usually the right ones at once.
Where no times are recorded, as in objects that Apache Pulsar wrote, the first entries of blocks are read, again by
bisection.

Entries without broker times follow no order, so that bisection is impossible. But the greatest time of each segment and
of each block is known: the first that reaches the time is the one to scan.

The result of a search is the same without this index, which only reduces the entries to read. Fetched blocks stay in
the stripe cache, where a consumer that reads on after the seek finds them.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from afterglow.errors import AfterglowError, CorruptEntry, StoreUnavailable
from afterglow.format.frames import FRAME_BYTES
from afterglow.ledger.time_search import entry_time
from afterglow.read.objects import locate_frames
from afterglow.read.ranges import offloaded_range_at, offloaded_ranges_from
from afterglow.read.tier_copy import TierCopy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.counters import ReadCounters
    from afterglow.read.ranges import OffloadedRange
    from afterglow.read.stripes import BlockSpan, LedgerStripes
    from afterglow.read.tier_reader import TierReader

_MAX_GUESSES: Final = 3
"""Guesses by interpolation, which assume evenly spaced entries; after them, bisection bounds the number of probes."""
_STRIPES_PER_PROBE: Final = 2
"""Stripes that one probe fetches: two, so that an entry that spans both is complete."""


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """Narrows searches over one topic."""

    name: str
    """Its managed-ledger name."""
    tiers: TierReader
    policy: BrokerConfig
    """The topic's."""
    counters: ReadCounters
    """Count every request."""

    def narrow(self, ledger: ManagedLedgerInfo.LedgerInfo, entries: range, time_ms: int, *, stamped: bool) -> range:
        """Narrow a search; see :meth:`afterglow.ledger.entry_source.EntrySource.narrow`.

        If an object cannot be read, the range is not narrowed: reading the entries will raise the error.

        Raises:
            StoreUnavailable: The tier has the only copy and cannot be reached.
        """
        if not stamped:
            return self._first_segment_or_block(ledger, entries, time_ms)
        with suppress(AfterglowError):
            entries = self._by_records(ledger, entries, time_ms)
        with _optional_index(ledger):
            offloaded = offloaded_range_at(ledger, entries.start)
            if offloaded is None or offloaded.last < entries.stop - 1:
                return entries
            copy = self._copy(ledger, offloaded)
            if copy is not None:
                entries = _by_blocks(copy, entries, time_ms)
                entries = _in_block(copy, entries, time_ms)
        return entries

    def _first_segment_or_block(self, ledger: ManagedLedgerInfo.LedgerInfo, entries: range, time_ms: int) -> range:
        """The entries in the first segment or block whose greatest time reaches the given time."""
        start = entries.start
        for offloaded in offloaded_ranges_from(ledger, start):
            if start >= entries.stop:
                break
            within = range(start, min(offloaded.last + 1, entries.stop))
            start = within.stop
            with suppress(AfterglowError):
                times = self.tiers.locator.times(self.name, offloaded)
                if times is not None and times.is_before(time_ms):
                    continue
            with _optional_index(ledger):
                copy = self._copy(ledger, offloaded)
                stripes = None if copy is None else copy.ledger.stripes
                if stripes is not None and stripes.times is not None:
                    greatest = stripes.times[:, 1::2].max(axis=1)  # broker or publish time
                    within = _first_block_reaching(stripes, greatest, within, time_ms)
            if within:
                return within
        return range(start, entries.stop)

    def _by_records(self, ledger: ManagedLedgerInfo.LedgerInfo, entries: range, time_ms: int) -> range:
        """The entries in one segment, if segment records have times."""
        low, end, stop = entries.start, entries.stop, entries.stop
        while low < end:
            offloaded = offloaded_range_at(ledger, (low + end) // 2)
            times = None if offloaded is None else self.tiers.locator.times(self.name, offloaded)
            if offloaded is None or times is None or times.max_broker is None:
                break
            if times.max_broker < time_ms:
                low = offloaded.last + 1
            else:
                end, stop = offloaded.first, min(offloaded.last + 1, stop)
        return range(low, stop) if low < stop else entries

    def _copy(self, ledger: ManagedLedgerInfo.LedgerInfo, offloaded: OffloadedRange) -> TierCopy | None:
        tier_object = self.tiers.locator.locate(self.name, offloaded, self.policy)
        fail_fast = not ledger.offloadContext.bookkeeperDeleted
        copy = self.tiers.copy(
            tier_object, ledger.ledgerId, self.policy, self.counters, allow_truncated=True, fail_fast=fail_fast
        )
        return copy if isinstance(copy, TierCopy) else None


@contextmanager
def _optional_index(ledger: ManagedLedgerInfo.LedgerInfo) -> Iterator[None]:
    """Ignore errors of the index, except an unreachable store that has the only copy.

    A search without the index would wait for the same store, with all retries, once more.
    """
    try:
        yield
    except StoreUnavailable:
        if ledger.offloadContext.bookkeeperDeleted:
            raise
    except AfterglowError:
        pass


def _first_block_reaching(stripes: LedgerStripes, greatest: NDArray[np.int64], entries: range, time_ms: int) -> range:
    """The entries in the first block whose greatest time reaches the given time; empty if no block does."""
    low, high = stripes.block_number(entries.start), stripes.block_number(entries.stop - 1)
    if low < 0:
        return entries
    reaching = np.flatnonzero(greatest[low : high + 1] >= time_ms)
    if not reaching.size:
        return entries[:0]
    number = low + int(reaching[0])
    following = stripes.block(number + 1)
    stop = entries.stop if following is None else following.first_entry_id
    return range(max(int(stripes.first_entries[number]), entries.start), min(stop, entries.stop))


def _by_blocks(copy: TierCopy, entries: range, time_ms: int) -> range:
    """The entries in the first block whose greatest broker time reaches the given time; all if no block does."""
    stripes = copy.ledger.stripes
    if stripes.times is not None:
        return _first_block_reaching(stripes, stripes.times[:, 1], entries, time_ms) or entries
    low, high = stripes.block_number(entries.start), stripes.block_number(entries.stop - 1)
    return entries if low < 0 else _by_first_entries(copy, entries, range(low, high + 1), time_ms)


def _by_first_entries(copy: TierCopy, entries: range, blocks: range, time_ms: int) -> range:
    """The same if the index has no times: reads the first entry with a broker time of each probed block."""
    start, stop = entries.start, entries.stop
    low, high = blocks.start, blocks.stop - 1
    while low < high:
        middle = (low + high + 1) // 2
        block = copy.ledger.stripes.block(middle)
        found = None if block is None else _ProbedFrames.of(copy, block).stamped(0)
        if found is None:
            return entries  # no entry in the first stripes of the block has a broker time
        entry_id, found_ms = found
        if found_ms < time_ms:
            low, start = middle, max(entry_id + 1, start)
        else:
            high, stop = middle - 1, min(entry_id + 1, stop)
    return range(start, stop) if start < stop else entries


def _in_block(copy: TierCopy, entries: range, time_ms: int) -> range:
    """The entry itself, if all are in one block whose index has the stripe in which each of them begins.

    Blocks of segments are fetched whole. Of larger blocks, the stripe is fetched that would hold the time if entries
    were evenly spaced, and the one after it; if they were not, the rest is interpolated again, then bisected.
    """
    stripes = copy.ledger.stripes
    block = stripes.find(entries.start)
    if (
        block is None
        or block.entries is None
        or stripes.times is None
        or not (stripes.has_entry_offsets or block.stripe_count == 1)
    ):
        return entries
    start, stop = entries.start, min(entries.stop, block.first_entry_id + block.entries)
    low_ms, high_ms = (int(time) for time in stripes.times[block.number, :2])
    guesses = _MAX_GUESSES
    # Half a stripe of entries: puts the guess inside the fetched stripes and not at their edge.
    margin = block.entries // block.stripe_count // 2
    candidate: int | None = None  # first entry seen so far that reaches the time, at ``stop`` or after it
    while start < stop:
        part = 0.5
        if guesses and low_ms < high_ms:
            part = min(max((time_ms - low_ms) / (high_ms - low_ms), 0.0), 1.0)
            guesses -= 1
        guess = max(start + int((stop - 1 - start) * part) - margin, start)
        frames = _ProbedFrames.of(copy, block, guess - block.first_entry_id)
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
class _ProbedFrames:
    """The frames that begin and end in one or two stripes of a block."""

    data: memoryview
    offsets: NDArray[np.int64]
    first_entry_id: int

    @classmethod
    def of(cls, copy: TierCopy, block: BlockSpan, entry: int = 0) -> Self:
        """Fetch the frames around an entry of a block.

        Raises:
            AfterglowError: They cannot be read, or are damaged.
        """
        ledger = copy.ledger
        frame = ledger.stripes.nearest(block, entry)
        number, start = divmod(frame.offset, block.stripe_bytes)
        begin = block.first_stripe + number
        wanted = range(begin, min(begin + _STRIPES_PER_PROBE, block.first_stripe + block.stripe_count))
        data = copy.source.joined(ledger, wanted)
        if not number:
            ledger.check_header(block, data)
        found = locate_frames(data, block.first_entry_id + frame.entry, start)
        if isinstance(found, str):
            raise ledger.broken(block, frame.entry, found)
        return cls(data, found.offsets, block.first_entry_id + frame.entry)

    def stamped(self, at: int) -> tuple[int, int] | None:
        """The first entry from index ``at`` on that has a broker time, and that time; None: no entry has one."""
        return next(self._stamps(range(at, self.offsets.size - 1)), None)

    def last_stamped(self, at: int) -> tuple[int, int] | None:
        """The last entry from index ``at`` on that has a broker time, and that time; None: no entry has one."""
        return next(self._stamps(range(self.offsets.size - 2, at - 1, -1)), None)

    def first_at_or_after(self, at: int, time_ms: int) -> int:
        """The first entry from index ``at`` on whose broker time reaches the given time, which one must."""
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
