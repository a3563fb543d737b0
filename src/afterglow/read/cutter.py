"""Cutting a pinned view of a topic into ranges and splits, without what a window of time cannot touch."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from afterglow.config.choices import DamagePolicy, ReadPriority
from afterglow.errors import AfterglowError
from afterglow.format.position import Position
from afterglow.ledger.properties import BROKER_TIME, get_number
from afterglow.read.copies import ReadableLedger, Tier
from afterglow.read.neighbours import BEFORE, BEHIND, GROUP, Neighbour, Neighbourhood
from afterglow.read.pruning import TimeProbe, timely_blocks
from afterglow.read.splits import SPLIT_BYTES, Range, Split
from afterglow.read.stretches import stretches_from
from afterglow.read.tier_copy import TierCopy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from afterglow.config import BrokerConfig
    from afterglow.read.counters import ReadCounters
    from afterglow.read.handle import TopicReader, TopicView
    from afterglow.read.hot_places import HotPlace
    from afterglow.read.objects import Located
    from afterglow.read.pieces import LedgerPieces
    from afterglow.read.stretches import Stretch
    from afterglow.read.tier_source import TierSource
    from afterglow.read.window import Window

_AHEAD: Final = 16
"""Objects opened at once while splits are cut: one behind the other, thousands of segments would take minutes."""


@runtime_checkable
class MeasuredLedger(ReadableLedger, Protocol):
    """A ledger of a hot log that knows how large its entries are."""

    def frame_bytes(self, first: int, last: int) -> int:
        """Bytes of the frames of entries, both ends inclusive.

        Raises:
            AfterglowError: They cannot be measured.
        """
        ...


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts a pinned view of one topic.

    Where the priority is the tier, the hot log gives what no tier has; where it is the hot log, a tier gives what has
    left the hot log.
    """

    topic: str
    """Full name, with the partition."""
    reader: TopicReader
    """Of the pinned view."""
    tiers: TierSource
    """Knows where objects are."""
    policy: BrokerConfig
    """The topic's."""
    hot: HotPlace | None
    """How anybody comes to the hot log; None: nobody does."""
    counters: ReadCounters

    @property
    def view(self) -> TopicView:
        """What is cut."""
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
        """The splits of a stretch of the topic, in order. Asks the tier for the indexes of its objects.

        Args:
            start: First position, inclusive; it need not be an entry.
            end: End position, exclusive.
            window: Which messages are wanted. What can hold none of them by its times is left out.
            priority: Which copy is read while both exist; None: what the policy says.
            split_bytes: Bytes of blocks in a split of an object, unless a single block is larger.

        Raises:
            AfterglowError: Metadata does not tell where an object is.
        """
        skips = self.policy.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT
        surroundings = _Surroundings(self)
        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="cut") as executor:
            wholes = self._opened_ahead(self._wholes(start, end, priority), window, executor)
            for each in self._ranges(wholes, window, priority, split_bytes):
                yield Split(
                    self.topic,
                    each.ledger_id,
                    each.first,
                    each.last,
                    window,
                    each.wanted,
                    self.locate(each.stretch),
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
    ) -> Iterator[Range]:
        """The same for whoever reads them in this process; arguments as of :meth:`splits`."""
        return self._ranges(self._wholes(start, end, priority), window, priority, split_bytes)

    def _ranges(
        self, wholes: Iterable[Range], window: Window, priority: ReadPriority | None, split_bytes: int
    ) -> Iterator[Range]:
        probe = TimeProbe(self.reader, priority)
        for whole in wholes:
            for timely in self._timely(whole, window, probe) if window.prunes else (whole,):
                yield from self._cut(timely, split_bytes)

    def _wholes(self, start: Position, end: Position, priority: ReadPriority | None) -> Iterator[Range]:
        """What one object holds of a ledger, or the hot log alone, in order."""
        for span in self.view.spans(start, end):
            for stretch, first, last in self.stretches(span.ledger_id, span.first, span.last):
                wanted = self._wanted(span.ledger_id, stretch, priority)
                yield Range(span.ledger_id, first, last, stretch, wanted, 0)

    def _opened_ahead(self, wholes: Iterable[Range], window: Window, executor: Executor) -> Iterator[Range]:
        """The same, with the objects behind each being opened meanwhile."""

        def open_object(whole: Range, stretch: Stretch) -> None:
            if not self._ruled_out(whole, stretch, window):
                self._pieces(whole.ledger_id, stretch)

        waiting: deque[Range] = deque()
        for whole in wholes:
            if whole.wanted is Tier.TIERED and whole.stretch is not None:
                executor.submit(open_object, whole, whole.stretch)
            waiting.append(whole)
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
        yield from waiting

    def stretches(self, ledger_id: int, first: int, last: int) -> Iterator[tuple[Stretch | None, int, int]]:
        """Entries of a ledger by what holds them: the stretch in a tier, None for the hot log alone; both inclusive."""
        for stretch in stretches_from(self.view.rows[ledger_id], first):
            if first > last:
                return
            until = min(stretch.last, last)
            yield stretch, first, until
            first = until + 1
        if first <= last:
            yield None, first, last

    def has_hot(self, ledger_id: int) -> bool:
        """Whether the hot log is to have a ledger, and can be reached."""
        return self.hot is not None and not self.view.rows[ledger_id].offloadContext.bookkeeperDeleted

    def locate(self, stretch: Stretch | None) -> Located | None:
        """Where the object of a stretch is.

        Raises:
            AfterglowError: Metadata does not tell.
        """
        return None if stretch is None else self.tiers.locate(self.view.name, stretch, self.policy)

    def _wanted(self, ledger_id: int, stretch: Stretch | None, priority: ReadPriority | None) -> Tier:
        hot_first = (priority or self.policy.managed_ledger_offloaded_read_priority) is ReadPriority.BOOKKEEPER_FIRST
        return Tier.HOT if stretch is None or (hot_first and self.has_hot(ledger_id)) else Tier.TIERED

    def _timely(self, whole: Range, window: Window, probe: TimeProbe) -> Iterator[Range]:
        """What of a range may hold a message of a window of time."""
        try:
            kept = self._times(whole, window, probe)
        except AfterglowError:
            kept = None  # whoever reads it will find out what is wrong
        if kept is None:
            yield whole
            return
        for part in kept:
            if part:
                yield replace(whole, first=part.start, last=part.stop - 1)

    def _times(self, whole: Range, window: Window, probe: TimeProbe) -> Iterable[range] | None:
        """The same as ranges of entries; None: all."""
        ledger_id, first, last, stretch = whole.ledger_id, whole.first, whole.last, whole.stretch
        stamped = self._stamped(ledger_id)
        if stretch is not None and self._ruled_out(whole, stretch, window):
            return ()
        borders: Sequence[int]
        if whole.wanted is Tier.TIERED:
            pieces = None if stretch is None else self._pieces(ledger_id, stretch)
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
            if not window.timed or not isinstance(self._hot_ledger(ledger_id), MeasuredLedger):
                return None  # a look at a single entry is dear where brokers must be asked
            borders = range(first, last + 1)
            if probe.time(Position(ledger_id, last)) is None:
                return None
        narrowed = probe.narrow(ledger_id, borders, last, window)
        return None if narrowed is None else (narrowed,)

    def _stamped(self, ledger_id: int) -> bool:
        """Whether every entry of a ledger has a broker time."""
        return get_number(self.view.rows[ledger_id], BROKER_TIME) is not None

    def _ruled_out(self, whole: Range, stretch: Stretch, window: Window) -> bool:
        """Whether the record of an object tells that it has nothing of a window of time."""
        if not window.prunes:
            return False
        with suppress(AfterglowError):  # no record is needed where the list says where the object is
            bounds = self.tiers.times(self.view.name, stretch)
            return bounds is not None and not bounds.may_match(window, stamped=self._stamped(whole.ledger_id))
        return False

    def _older(self, ledger_id: int, window: Window, probe: TimeProbe) -> bool:
        """Whether all of a ledger was written before a window begins, as the first entry behind it tells."""
        if window.since_ms is None or probe.time(Position(ledger_id, 0)) is None:
            return False
        following = self.view.layout.at_or_after(Position(ledger_id + 1, -1))
        time_ms = None if following is None else probe.time(following)
        return time_ms is not None and time_ms < window.since_ms

    def _cut(self, whole: Range, split_bytes: int) -> Iterator[Range]:
        if whole.wanted is Tier.TIERED and whole.stretch is not None:
            pieces = self._pieces(whole.ledger_id, whole.stretch)
            if pieces is not None:
                yield from _cut_blocks(pieces, whole, split_bytes)
                return
        size_bytes = self._measure(whole)
        count = whole.last - whole.first + 1
        cuts = min(max(-(-size_bytes // split_bytes), 1), count)
        for number in range(cuts):
            low, high = (whole.first + count * at // cuts for at in (number, number + 1))
            yield replace(whole, first=low, last=high - 1, size_bytes=size_bytes * (high - low) // count)

    def _pieces(self, ledger_id: int, stretch: Stretch) -> LedgerPieces | None:
        """The blocks of a stretch; None where they cannot be known, which whoever reads it will find out too."""
        try:
            located = self.tiers.locate(self.view.name, stretch, self.policy)
            copy = self.tiers.copy(located, ledger_id, self.policy, self.counters, lenient=True, impatient=True)
        except AfterglowError:
            return None
        pieces = copy.ledger.pieces if isinstance(copy, TierCopy) else None
        return None if pieces is None or pieces.find(stretch.first) is None else pieces

    def _measure(self, whole: Range) -> int:
        """Bytes of some entries of the hot log; of the average entry where it does not tell, 0 where none does."""
        ledger_id, first, last = whole.ledger_id, whole.first, whole.last
        row = self.view.rows[ledger_id]
        try:
            ledger = self._hot_ledger(ledger_id)
            if isinstance(ledger, MeasuredLedger):
                return ledger.frame_bytes(first, last)
        except AfterglowError:
            pass  # whoever reads it will say so
        return (last - first + 1) * row.size // row.entries if row.entries else 0

    def _hot_ledger(self, ledger_id: int) -> ReadableLedger | None:
        return None if self.hot is None or not self.has_hot(ledger_id) else self.hot.open().open(ledger_id)


class _Surroundings:
    """The neighbourhoods of a view's stretches, each made once."""

    def __init__(self, cutter: Cutter) -> None:
        self._cutter = cutter
        layout = cutter.view.layout
        self._stretches = [
            (ledger_id, first, last, stretch)
            for ledger_id in layout.ids
            for stretch, first, last in cutter.stretches(ledger_id, 0, (layout.entries_of(ledger_id) or 0) - 1)
        ]
        self._group = -1
        self._made: Neighbourhood | None = None

    def of(self, ledger_id: int, entry_id: int) -> Neighbourhood:
        """What is around an entry."""
        at = bisect_right(self._stretches, (ledger_id, entry_id), key=lambda each: each[:2]) - 1
        group = at // GROUP
        if self._made is None or group != self._group:
            low, high = max(group * GROUP - BEFORE, 0), min((group + 1) * GROUP + BEHIND, len(self._stretches))
            self._made = Neighbourhood.of(
                [self._neighbour(*each) for each in self._stretches[low:high]],
                self._cutter.hot,
                first=not low,
                last=high == len(self._stretches),
            )
            self._group = group
        return self._made

    def _neighbour(self, ledger_id: int, first: int, last: int, stretch: Stretch | None) -> Neighbour:
        cutter = self._cutter
        try:
            located = cutter.locate(stretch)
        except AfterglowError:
            located = None  # few splits look at their neighbours, and theirs is the error then
        return Neighbour(ledger_id, first, last, located, cutter.has_hot(ledger_id))


def _cut_blocks(pieces: LedgerPieces, whole: Range, split_bytes: int) -> Iterator[Range]:
    """A range in stretches of whole blocks."""
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
