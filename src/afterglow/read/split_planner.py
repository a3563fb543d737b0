"""Planner that divides a pinned view of a topic into ranges and splits, and prunes them by time."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from afterglow.config.choices import DamagePolicy
from afterglow.errors import AfterglowError
from afterglow.format.position import Position
from afterglow.ledger.properties import BROKER_TIME, get_number
from afterglow.read.bookie_log import BookieLedger
from afterglow.read.copies import StorageTier
from afterglow.read.hot_readers import SharedLedger
from afterglow.read.neighbours import RANGES_AFTER, RANGES_BEFORE, RANGES_PER_GROUP, Neighbourhood, NeighbourRange
from afterglow.read.priority import copy_order
from afterglow.read.pruning import TimeProbe, matching_blocks
from afterglow.read.ranges import offloaded_ranges_from
from afterglow.read.splits import SPLIT_BYTES, PlannedRange, Split
from afterglow.read.tier_copy import TierCopy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from afterglow.config import BrokerConfig
    from afterglow.config.choices import ReadPriority
    from afterglow.read.copies import FrameLedger
    from afterglow.read.counters import ReadCounters
    from afterglow.read.hot_readers import HotLocation
    from afterglow.read.objects import TierObject
    from afterglow.read.ranges import OffloadedRange
    from afterglow.read.scan_range import ScanRange
    from afterglow.read.stripes import LedgerStripes
    from afterglow.read.tier_reader import TierReader
    from afterglow.read.topic_reader import TopicReader, TopicView

_PREFETCH_OBJECTS: Final = 16
"""Objects opened concurrently: one at a time, thousands of segments would take minutes."""


@dataclass(frozen=True, slots=True)
class SplitPlanner:
    """Plans the ranges and splits of a pinned view of one topic."""

    topic: str
    """Full name, with the partition."""
    reader: TopicReader
    """Reader of the pinned view."""
    tiers: TierReader
    policy: BrokerConfig
    """Policy of the topic."""
    hot: HotLocation | None
    """Location of the hot log; None: it cannot be reached."""
    counters: ReadCounters

    @property
    def view(self) -> TopicView:
        """The pinned view."""
        return self.reader.view

    def splits(
        self,
        start: Position,
        end: Position,
        scan_range: ScanRange,
        *,
        priority: ReadPriority | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> Iterator[Split]:
        """The splits of a range of the topic, in order. Fetches the indexes of its objects from the tier.

        Args:
            start: First position, inclusive; it need not be an entry.
            end: End position, exclusive.
            scan_range: The messages to read; blocks that cannot hold any of them by time are pruned.
            priority: Read priority; None: that of the policy.
            split_bytes: Bytes of blocks in a split of an object, unless a single block is larger.

        Raises:
            AfterglowError: Metadata does not name the location of an object.
        """
        priority = priority or self.policy.managed_ledger_offloaded_read_priority
        skips = self.policy.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT
        neighbourhoods = _NeighbourhoodCache(self)
        with ThreadPoolExecutor(_PREFETCH_OBJECTS, thread_name_prefix="afterglow-split") as executor:
            object_ranges = self._prefetched(self._object_ranges(start, end, priority), scan_range, executor)
            for each in self._ranges(object_ranges, scan_range, priority, split_bytes):
                yield Split(
                    self.topic,
                    each.ledger_id,
                    each.first,
                    each.last,
                    scan_range,
                    priority,
                    self.locate(each.offloaded),
                    self.hot if self.has_hot(each.ledger_id) else None,
                    each.size_bytes,
                    skips,
                    neighbourhoods.of(each.ledger_id, each.first),
                )

    def ranges(
        self,
        start: Position,
        end: Position,
        scan_range: ScanRange,
        *,
        priority: ReadPriority | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> Iterator[PlannedRange]:
        """The same for readers in this process; arguments as for :meth:`splits`."""
        return self._ranges(self._object_ranges(start, end, priority), scan_range, priority, split_bytes)

    def _ranges(
        self,
        object_ranges: Iterable[PlannedRange],
        scan_range: ScanRange,
        priority: ReadPriority | None,
        split_bytes: int,
    ) -> Iterator[PlannedRange]:
        probe = TimeProbe(self.reader, priority)
        for planned in object_ranges:
            for matching in self._prune(planned, scan_range, probe) if scan_range.can_prune else (planned,):
                yield from self._divide(matching, split_bytes)

    def _object_ranges(self, start: Position, end: Position, priority: ReadPriority | None) -> Iterator[PlannedRange]:
        """The ranges of entries that one object, or only the hot log, holds, in order."""
        for ledger_range in self.view.ranges(start, end):
            for offloaded, first, last in self.by_object(ledger_range.ledger_id, ledger_range.first, ledger_range.last):
                preferred = self._preferred(ledger_range.ledger_id, offloaded, priority)
                yield PlannedRange(ledger_range.ledger_id, first, last, offloaded, preferred, 0)

    def _prefetched(
        self, object_ranges: Iterable[PlannedRange], scan_range: ScanRange, executor: Executor
    ) -> Iterator[PlannedRange]:
        """The same, while threads open the objects of the next ranges."""

        def open_object(planned: PlannedRange, offloaded: OffloadedRange) -> None:
            if not self._is_pruned_by_record(planned, offloaded, scan_range):
                self._stripes(planned.ledger_id, offloaded)

        waiting: deque[PlannedRange] = deque()
        for planned in object_ranges:
            if planned.preferred is StorageTier.TIERED and planned.offloaded is not None:
                executor.submit(open_object, planned, planned.offloaded)
            waiting.append(planned)
            if len(waiting) > _PREFETCH_OBJECTS:
                yield waiting.popleft()
        yield from waiting

    def by_object(self, ledger_id: int, first: int, last: int) -> Iterator[tuple[OffloadedRange | None, int, int]]:
        """Entries of a ledger by object: range in a tier, None for the hot log alone; first and last entry."""
        for offloaded in offloaded_ranges_from(self.view.ledgers[ledger_id], first):
            if first > last:
                return
            until = min(offloaded.last, last)
            yield offloaded, first, until
            first = until + 1
        if first <= last:
            yield None, first, last

    def has_hot(self, ledger_id: int) -> bool:
        """Whether the hot log should have a ledger, and can be reached."""
        return self.hot is not None and not self.view.ledgers[ledger_id].offloadContext.bookkeeperDeleted

    def locate(self, offloaded: OffloadedRange | None) -> TierObject | None:
        """Location of the object that holds a range.

        Raises:
            AfterglowError: Metadata does not name it.
        """
        return None if offloaded is None else self.tiers.locator.locate(self.view.name, offloaded, self.policy)

    def _preferred(
        self, ledger_id: int, offloaded: OffloadedRange | None, priority: ReadPriority | None
    ) -> StorageTier:
        priority = priority or self.policy.managed_ledger_offloaded_read_priority
        order = copy_order(priority, has_hot=self.has_hot(ledger_id), has_tiered=offloaded is not None)
        return order[0] if order else StorageTier.HOT  # reading it will raise that the hot log cannot be reached

    def _prune(self, planned: PlannedRange, scan_range: ScanRange, probe: TimeProbe) -> Iterator[PlannedRange]:
        """The parts of a range that may hold a message of the scan range, by time."""
        try:
            kept = self._matching(planned, scan_range, probe)
        except AfterglowError:
            kept = None  # reading the range will raise the error
        if kept is None:
            yield planned
            return
        for part in kept:
            if part:
                yield replace(planned, first=part.start, last=part.stop - 1)

    def _matching(self, planned: PlannedRange, scan_range: ScanRange, probe: TimeProbe) -> Iterable[range] | None:
        """The same as ranges of entry ids; None: all."""
        ledger_id, first, last, offloaded = planned.ledger_id, planned.first, planned.last, planned.offloaded
        stamped = self._stamped(ledger_id)
        if offloaded is not None and self._is_pruned_by_record(planned, offloaded, scan_range):
            return ()
        boundaries: Sequence[int]
        if planned.preferred is StorageTier.TIERED:
            stripes = None if offloaded is None else self._stripes(ledger_id, offloaded)
            if stripes is None:
                return None
            if stripes.times is not None:
                return matching_blocks(stripes, first, last, scan_range, stamped=stamped)
            if not scan_range.has_times:
                return None  # publish times follow no order, so that they cannot be bisected
            if self._is_older(ledger_id, scan_range, probe):
                return ()
            boundaries = [first, *(at for at in stripes.first_entries.tolist() if first < at <= last)]
        else:
            if not scan_range.has_times:
                return None
            if not isinstance(self._hot_ledger(ledger_id, last), SharedLedger | BookieLedger):
                return None  # each probe through brokers would be a subscription
            boundaries = range(first, last + 1)
            if probe.time(Position(ledger_id, last)) is None:
                return None
        narrowed = probe.narrow(ledger_id, boundaries, last, scan_range)
        return None if narrowed is None else (narrowed,)

    def _stamped(self, ledger_id: int) -> bool:
        """Whether every entry of a ledger has a broker time."""
        return get_number(self.view.ledgers[ledger_id], BROKER_TIME) is not None

    def _is_pruned_by_record(self, planned: PlannedRange, offloaded: OffloadedRange, scan_range: ScanRange) -> bool:
        """Whether the segment record shows that an object holds no message of the scan range."""
        if not scan_range.can_prune:
            return False
        with suppress(AfterglowError):  # the record is not needed if the ledger list has the location of the object
            bounds = self.tiers.locator.times(self.view.name, offloaded)
            return bounds is not None and not bounds.may_match(scan_range, stamped=self._stamped(planned.ledger_id))
        return False

    def _is_older(self, ledger_id: int, scan_range: ScanRange, probe: TimeProbe) -> bool:
        """Whether a whole ledger is older than the scan range, by the time of the first entry after the ledger."""
        if scan_range.since_ms is None or probe.time(Position(ledger_id, 0)) is None:
            return False
        following = self.view.layout.at_or_after(Position(ledger_id + 1, -1))
        time_ms = None if following is None else probe.time(following)
        return time_ms is not None and time_ms < scan_range.since_ms

    def _divide(self, planned: PlannedRange, split_bytes: int) -> Iterator[PlannedRange]:
        if planned.preferred is StorageTier.TIERED and planned.offloaded is not None:
            stripes = self._stripes(planned.ledger_id, planned.offloaded)
            if stripes is not None:
                yield from _divide_at_blocks(stripes, planned, split_bytes)
                return
        size_bytes = self._estimate_bytes(planned)
        count = planned.last - planned.first + 1
        parts = min(max(-(-size_bytes // split_bytes), 1), count)
        for number in range(parts):
            low, high = (planned.first + count * at // parts for at in (number, number + 1))
            yield replace(planned, first=low, last=high - 1, size_bytes=size_bytes * (high - low) // count)

    def _stripes(self, ledger_id: int, offloaded: OffloadedRange) -> LedgerStripes | None:
        """The blocks of a range; None if they cannot be read: reading the range will raise the error."""
        try:
            tier_object = self.tiers.locator.locate(self.view.name, offloaded, self.policy)
            copy = self.tiers.copy(
                tier_object, ledger_id, self.policy, self.counters, allow_truncated=True, fail_fast=True
            )
        except AfterglowError:
            return None
        stripes = copy.ledger.stripes if isinstance(copy, TierCopy) else None
        return None if stripes is None or stripes.find(offloaded.first) is None else stripes

    def _estimate_bytes(self, planned: PlannedRange) -> int:
        """Bytes of entries of the hot log; estimated by the average entry where they are not known, else 0."""
        first, last = planned.first, planned.last
        ledger = self.view.ledgers[planned.ledger_id]
        average = (last - first + 1) * ledger.size // ledger.entries if ledger.entries else 0
        if average and self.hot is not None and self.hot.bookies is not None:
            return average  # exact sizes would take two reads of a bookie
        try:
            copy = self._hot_ledger(planned.ledger_id, last)
            if isinstance(copy, SharedLedger | BookieLedger):
                return copy.frame_bytes(first, last)
        except AfterglowError:
            pass  # reading the range will raise the error
        return average

    def _hot_ledger(self, ledger_id: int, last: int) -> FrameLedger | None:
        if self.hot is None or not self.has_hot(ledger_id):
            return None
        return self.hot.open(ledger_id, last).open(ledger_id)


class _NeighbourhoodCache:
    """Neighbourhoods of the ranges of a view; that of the last group is cached."""

    def __init__(self, planner: SplitPlanner) -> None:
        self._planner = planner
        layout = planner.view.layout
        self._ranges = [
            (ledger_id, first, last, offloaded)
            for ledger_id in layout.ids
            for offloaded, first, last in planner.by_object(ledger_id, 0, (layout.entries_of(ledger_id) or 0) - 1)
        ]
        self._group = -1
        self._made: Neighbourhood | None = None

    def of(self, ledger_id: int, entry_id: int) -> Neighbourhood:
        """The neighbourhood of an entry."""
        at = bisect_right(self._ranges, (ledger_id, entry_id), key=lambda each: each[:2]) - 1
        group = at // RANGES_PER_GROUP
        if self._made is None or group != self._group:
            low = max(group * RANGES_PER_GROUP - RANGES_BEFORE, 0)
            high = min((group + 1) * RANGES_PER_GROUP + RANGES_AFTER, len(self._ranges))
            self._made = Neighbourhood.of(
                [self._neighbour(*each) for each in self._ranges[low:high]],
                self._planner.hot,
                has_first=not low,
                has_last=high == len(self._ranges),
            )
            self._group = group
        return self._made

    def _neighbour(self, ledger_id: int, first: int, last: int, offloaded: OffloadedRange | None) -> NeighbourRange:
        planner = self._planner
        try:
            tier_object = planner.locate(offloaded)
        except AfterglowError:
            tier_object = None  # few splits read their neighbours; those will raise the error
        return NeighbourRange(ledger_id, first, last, tier_object, planner.has_hot(ledger_id))


def _divide_at_blocks(stripes: LedgerStripes, planned: PlannedRange, split_bytes: int) -> Iterator[PlannedRange]:
    """A range divided at block boundaries."""
    block = stripes.find(planned.first)
    first, size_bytes = planned.first, 0
    while block is not None and block.first_entry_id <= planned.last:
        length = block.end - block.start
        if size_bytes and size_bytes + length > split_bytes:
            yield replace(planned, first=first, last=block.first_entry_id - 1, size_bytes=size_bytes)
            first, size_bytes = block.first_entry_id, 0
        size_bytes += length
        block = stripes.block(block.number + 1)
    yield replace(planned, first=first, size_bytes=size_bytes)
