"""Planner that divides a pinned view of a topic into ranges and splits, pruned by a window of time."""

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
from afterglow.read.copies import Tier
from afterglow.read.hot_readers import HomeLedger
from afterglow.read.neighbours import BEFORE, BEHIND, GROUP, Neighbour, Neighbourhood
from afterglow.read.priority import copy_order
from afterglow.read.pruning import TimeProbe, timely_blocks
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
    from afterglow.read.objects import Located
    from afterglow.read.pieces import LedgerPieces
    from afterglow.read.ranges import OffloadedRange
    from afterglow.read.tier_source import TierSource
    from afterglow.read.topic_reader import TopicReader, TopicView
    from afterglow.read.window import Window

_AHEAD: Final = 16
"""Objects opened concurrently: one after the other, thousands of segments would take minutes."""


@dataclass(frozen=True, slots=True)
class SplitPlanner:
    """Plans the ranges and splits of a pinned view of one topic.

    Where the tier is preferred, the hot log gives what no tier has; where the hot log is, a tier gives the ledgers that
    were deleted from the hot log.
    """

    topic: str
    """Full name, with the partition."""
    reader: TopicReader
    """Of the pinned view."""
    tiers: TierSource
    """Knows where objects are."""
    policy: BrokerConfig
    """The topic's."""
    hot: HotLocation | None
    """Where the hot log is; None: it cannot be reached."""
    counters: ReadCounters

    @property
    def view(self) -> TopicView:
        """What is planned."""
        return self.reader.view

    def splits(
        self,
        start: Position,
        end: Position,
        window: Window,
        *,
        priority: ReadPriority | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> Iterator[Split]:
        """The splits of a range of the topic, in order. Fetches the indexes of its objects from the tier.

        Args:
            start: First position, inclusive; it need not be an entry.
            end: End position, exclusive.
            window: Which messages are wanted. What can hold none of them by its times is left out.
            priority: Which copy is read while both exist; None: what the policy says.
            split_bytes: Bytes of blocks in a split of an object, unless a single block is larger.

        Raises:
            AfterglowError: Metadata does not name the location of an object.
        """
        priority = priority or self.policy.managed_ledger_offloaded_read_priority
        skips = self.policy.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT
        surroundings = _Surroundings(self)
        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="afterglow-split") as executor:
            wholes = self._prefetched(self._wholes(start, end, priority), window, executor)
            for each in self._ranges(wholes, window, priority, split_bytes):
                yield Split(
                    self.topic,
                    each.ledger_id,
                    each.first,
                    each.last,
                    window,
                    priority,
                    self.locate(each.offloaded),
                    self.hot if self.has_hot(each.ledger_id) else None,
                    each.size_bytes,
                    skips,
                    surroundings.of(each.ledger_id, each.first),
                )

    def ranges(
        self,
        start: Position,
        end: Position,
        window: Window,
        *,
        priority: ReadPriority | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> Iterator[PlannedRange]:
        """The same for readers in this process; arguments as of :meth:`splits`."""
        return self._ranges(self._wholes(start, end, priority), window, priority, split_bytes)

    def _ranges(
        self, wholes: Iterable[PlannedRange], window: Window, priority: ReadPriority | None, split_bytes: int
    ) -> Iterator[PlannedRange]:
        probe = TimeProbe(self.reader, priority)
        for whole in wholes:
            for timely in self._timely(whole, window, probe) if window.prunes else (whole,):
                yield from self._cut(timely, split_bytes)

    def _wholes(self, start: Position, end: Position, priority: ReadPriority | None) -> Iterator[PlannedRange]:
        """What one object holds of a ledger, or the hot log alone, in order."""
        for span in self.view.spans(start, end):
            for offloaded, first, last in self.by_object(span.ledger_id, span.first, span.last):
                wanted = self._preferred(span.ledger_id, offloaded, priority)
                yield PlannedRange(span.ledger_id, first, last, offloaded, wanted, 0)

    def _prefetched(self, wholes: Iterable[PlannedRange], window: Window, executor: Executor) -> Iterator[PlannedRange]:
        """The same, with the objects behind each being opened meanwhile."""

        def open_object(whole: PlannedRange, offloaded: OffloadedRange) -> None:
            if not self._ruled_out(whole, offloaded, window):
                self._pieces(whole.ledger_id, offloaded)

        waiting: deque[PlannedRange] = deque()
        for whole in wholes:
            if whole.wanted is Tier.TIERED and whole.offloaded is not None:
                executor.submit(open_object, whole, whole.offloaded)
            waiting.append(whole)
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
        yield from waiting

    def by_object(self, ledger_id: int, first: int, last: int) -> Iterator[tuple[OffloadedRange | None, int, int]]:
        """Entries of a ledger by what holds them: the range in a tier, None for the hot log alone; both inclusive."""
        for offloaded in offloaded_ranges_from(self.view.rows[ledger_id], first):
            if first > last:
                return
            until = min(offloaded.last, last)
            yield offloaded, first, until
            first = until + 1
        if first <= last:
            yield None, first, last

    def has_hot(self, ledger_id: int) -> bool:
        """Whether the hot log is to have a ledger, and can be reached."""
        return self.hot is not None and not self.view.rows[ledger_id].offloadContext.bookkeeperDeleted

    def locate(self, offloaded: OffloadedRange | None) -> Located | None:
        """Location of the object that holds a range.

        Raises:
            AfterglowError: Metadata does not name it.
        """
        return None if offloaded is None else self.tiers.locate(self.view.name, offloaded, self.policy)

    def _preferred(self, ledger_id: int, offloaded: OffloadedRange | None, priority: ReadPriority | None) -> Tier:
        priority = priority or self.policy.managed_ledger_offloaded_read_priority
        order = copy_order(priority, has_hot=self.has_hot(ledger_id), has_tiered=offloaded is not None)
        return order[0] if order else Tier.HOT  # reading it will report that the hot log cannot be reached

    def _timely(self, whole: PlannedRange, window: Window, probe: TimeProbe) -> Iterator[PlannedRange]:
        """What of a range may hold a message of a window of time."""
        try:
            kept = self._times(whole, window, probe)
        except AfterglowError:
            kept = None  # reading it will show what is wrong
        if kept is None:
            yield whole
            return
        for part in kept:
            if part:
                yield replace(whole, first=part.start, last=part.stop - 1)

    def _times(self, whole: PlannedRange, window: Window, probe: TimeProbe) -> Iterable[range] | None:
        """The same as ranges of entries; None: all."""
        ledger_id, first, last, offloaded = whole.ledger_id, whole.first, whole.last, whole.offloaded
        stamped = self._stamped(ledger_id)
        if offloaded is not None and self._ruled_out(whole, offloaded, window):
            return ()
        borders: Sequence[int]
        if whole.wanted is Tier.TIERED:
            pieces = None if offloaded is None else self._pieces(ledger_id, offloaded)
            if pieces is None:
                return None
            if pieces.times is not None:
                return timely_blocks(pieces, first, last, window, stamped=stamped)
            if not window.timed:
                return None  # publish times follow no order that could be searched
            if self._older(ledger_id, window, probe):
                return ()
            borders = [first, *(at for at in pieces.first_entries.tolist() if first < at <= last)]
        else:
            if not window.timed or not isinstance(self._hot_ledger(ledger_id), HomeLedger):
                return None  # reading a single entry is expensive where brokers must be asked
            borders = range(first, last + 1)
            if probe.time(Position(ledger_id, last)) is None:
                return None
        narrowed = probe.narrow(ledger_id, borders, last, window)
        return None if narrowed is None else (narrowed,)

    def _stamped(self, ledger_id: int) -> bool:
        """Whether every entry of a ledger has a broker time."""
        return get_number(self.view.rows[ledger_id], BROKER_TIME) is not None

    def _ruled_out(self, whole: PlannedRange, offloaded: OffloadedRange, window: Window) -> bool:
        """Whether the record of an object shows that it has nothing in a window of time."""
        if not window.prunes:
            return False
        with suppress(AfterglowError):  # no record is needed where the list says where the object is
            bounds = self.tiers.times(self.view.name, offloaded)
            return bounds is not None and not bounds.may_match(window, stamped=self._stamped(whole.ledger_id))
        return False

    def _older(self, ledger_id: int, window: Window, probe: TimeProbe) -> bool:
        """Whether all of a ledger was written before a window begins, by the time of the first entry behind it."""
        if window.since_ms is None or probe.time(Position(ledger_id, 0)) is None:
            return False
        following = self.view.layout.at_or_after(Position(ledger_id + 1, -1))
        time_ms = None if following is None else probe.time(following)
        return time_ms is not None and time_ms < window.since_ms

    def _cut(self, whole: PlannedRange, split_bytes: int) -> Iterator[PlannedRange]:
        if whole.wanted is Tier.TIERED and whole.offloaded is not None:
            pieces = self._pieces(whole.ledger_id, whole.offloaded)
            if pieces is not None:
                yield from _cut_blocks(pieces, whole, split_bytes)
                return
        size_bytes = self._measure(whole)
        count = whole.last - whole.first + 1
        cuts = min(max(-(-size_bytes // split_bytes), 1), count)
        for number in range(cuts):
            low, high = (whole.first + count * at // cuts for at in (number, number + 1))
            yield replace(whole, first=low, last=high - 1, size_bytes=size_bytes * (high - low) // count)

    def _pieces(self, ledger_id: int, offloaded: OffloadedRange) -> LedgerPieces | None:
        """The blocks of a range; None where they cannot be read, which reading the range will report."""
        try:
            located = self.tiers.locate(self.view.name, offloaded, self.policy)
            copy = self.tiers.copy(located, ledger_id, self.policy, self.counters, lenient=True, impatient=True)
        except AfterglowError:
            return None
        pieces = copy.ledger.pieces if isinstance(copy, TierCopy) else None
        return None if pieces is None or pieces.find(offloaded.first) is None else pieces

    def _measure(self, whole: PlannedRange) -> int:
        """Bytes of some entries of the hot log; estimated by the average entry where they are not known, else 0."""
        ledger_id, first, last = whole.ledger_id, whole.first, whole.last
        row = self.view.rows[ledger_id]
        try:
            ledger = self._hot_ledger(ledger_id)
            if isinstance(ledger, HomeLedger):
                return ledger.frame_bytes(first, last)
        except AfterglowError:
            pass  # reading it will report that
        return (last - first + 1) * row.size // row.entries if row.entries else 0

    def _hot_ledger(self, ledger_id: int) -> FrameLedger | None:
        return None if self.hot is None or not self.has_hot(ledger_id) else self.hot.open().open(ledger_id)


class _Surroundings:
    """The neighbourhoods of a view's ranges, each made once."""

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
        """What is around an entry."""
        at = bisect_right(self._ranges, (ledger_id, entry_id), key=lambda each: each[:2]) - 1
        group = at // GROUP
        if self._made is None or group != self._group:
            low, high = max(group * GROUP - BEFORE, 0), min((group + 1) * GROUP + BEHIND, len(self._ranges))
            self._made = Neighbourhood.of(
                [self._neighbour(*each) for each in self._ranges[low:high]],
                self._planner.hot,
                first=not low,
                last=high == len(self._ranges),
            )
            self._group = group
        return self._made

    def _neighbour(self, ledger_id: int, first: int, last: int, offloaded: OffloadedRange | None) -> Neighbour:
        planner = self._planner
        try:
            located = planner.locate(offloaded)
        except AfterglowError:
            located = None  # few splits read their neighbours, and those raise the error then
        return Neighbour(ledger_id, first, last, located, planner.has_hot(ledger_id))


def _cut_blocks(pieces: LedgerPieces, whole: PlannedRange, split_bytes: int) -> Iterator[PlannedRange]:
    """A range divided at the borders of blocks."""
    block = pieces.find(whole.first)
    first, size_bytes = whole.first, 0
    while block is not None and block.first_entry_id <= whole.last:
        length = block.end - block.start
        if size_bytes and size_bytes + length > split_bytes:
            yield replace(whole, first=first, last=block.first_entry_id - 1, size_bytes=size_bytes)
            first, size_bytes = block.first_entry_id, 0
        size_bytes += length
        block = pieces.block(block.number + 1)
    yield replace(whole, first=first, size_bytes=size_bytes)
