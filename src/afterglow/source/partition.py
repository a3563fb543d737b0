"""Partition of a source: a topic that is not partitioned, or one partition of a topic.

Every call takes a new snapshot of the topic, and returns nothing that is written later. A ledger that is freed from the
hot log during a read is read from the tier from there on; one that retention deletes meanwhile is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.config.choices import DamagePolicy
from afterglow.errors import EntriesMissing
from afterglow.format.marks import find_marks
from afterglow.format.position import Position
from afterglow.ledger.ledger_list import records
from afterglow.metadata.names import TopicName
from afterglow.read.entry_source import TieredEntrySource
from afterglow.read.hot_readers import UnavailableHotLog
from afterglow.read.neighbours import ViewNeighbours
from afterglow.read.ranges import tiered_end, tiered_only
from afterglow.read.retained import RetainedRange
from afterglow.read.split_planner import SplitPlanner
from afterglow.read.splits import UNDIVIDED
from afterglow.read.topic_reader import TopicReader, TopicView
from afterglow.read.transactions import Transactions
from afterglow.source.directory import SourceSnapshot, source_ledgers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from afterglow.config.choices import ReadPriority
    from afterglow.format.position import LedgerRange
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.format.schema import SchemaVersion
    from afterglow.read.copies import ServedRun
    from afterglow.read.counters import ReadCounters
    from afterglow.read.hot_readers import HotLocation
    from afterglow.read.retained import OnMissing
    from afterglow.read.scan_range import ScanRange
    from afterglow.read.splits import PlannedRange, Split
    from afterglow.read.tier_reader import TierReader
    from afterglow.source.directory import SourceLedger, SourceSegment, TopicDirectory


_SNAPSHOTS: Final = ("__transaction_buffer_snapshot", "__transaction_buffer_snapshot_segments")
"""Topics of which Pulsar creates one in a namespace before it accepts the first message of a transaction there."""


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Resources that all topics of a source share."""

    directory: TopicDirectory
    tiers: TierReader
    counters: ReadCounters
    skips_hot: bool = False
    """Whether entries that no tier has are skipped."""

    def visible(self, snapshot: SourceSnapshot) -> SourceSnapshot:
        """A snapshot without the hot log, if that is skipped."""
        if not self.skips_hot:
            return snapshot
        return SourceSnapshot(tiered_only(snapshot.info), UnavailableHotLog("hot=skip is set"), None)


@dataclass(frozen=True, slots=True)
class PinnedPartition:
    """A partition at one moment."""

    info: ManagedLedgerInfo
    reader: TopicReader
    hot_location: HotLocation | None
    retained: RetainedRange
    missing: tuple[LedgerRange, ...] = ()
    """Entries that exist nowhere."""

    def ranges(self, scan_range: ScanRange) -> list[tuple[Position, Position]]:
        """The ranges of positions to read, in order, without entries that exist nowhere."""
        return without(scan_range.ranges(records(self.info)), self.missing)

    def check_gaps(self, scan_range: ScanRange) -> None:
        """Verify that all entries of a range exist.

        Raises:
            EntriesMissing: Entries between others exist nowhere.
        """
        skipped = [
            each
            for each in self.missing
            if Position(each.ledger_id, each.first) < scan_range.end_entry
            and scan_range.start <= Position(each.ledger_id, each.last)
        ]
        if skipped:
            raise EntriesMissing(
                f"entries of the requested range are missing: {self.retained.topic}: {', '.join(map(str, skipped))} "
                "are in no object of the source; restore the objects, or read the ranges around them"
            )


class SourcePartition:
    """A topic by its own name. Every method raises ``TopicMissing`` if it was deleted. Thread-safe."""

    def __init__(self, topic: TopicName, context: SourceContext) -> None:
        self.name = str(topic)
        self._topic = topic
        self._context = context

    def ledgers(self) -> tuple[SourceLedger, ...]:
        """Its ledgers, by id."""
        pinned = self.pin()
        return source_ledgers(self.name, pinned.info, pinned.reader.view)

    def segments(self) -> tuple[SourceSegment, ...]:
        """Its offloaded segments, by position."""
        return self._context.directory.segments(self._topic)

    def schemas(self) -> tuple[SchemaVersion, ...]:
        """Every version of its schema, oldest first."""
        return self._context.directory.schemas(self._topic)

    def seek(self, time_ms: int) -> Position:
        """Position of the first entry written at or after a time, else the position after the last entry."""
        return self.pin().reader.find_by_time(time_ms)

    def tiered_end(self) -> Position | None:
        """Position of the first entry that no tier has; None if the tier has every ledger whole."""
        return tiered_end(self._context.directory.snapshot(self._topic).info)

    def skips_damage(self) -> bool:
        """Whether damaged entries are skipped and reported."""
        policy = self._context.directory.policy(self._topic)
        return policy.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT

    def read_threads(self) -> int:
        """Limit of concurrent reads from the tier."""
        return self._context.directory.policy(self._topic).managed_ledger_offload_read_threads

    def runs(
        self, scan_range: ScanRange, priority: ReadPriority | None, pinned: PinnedPartition, *, scan: bool
    ) -> Iterator[ServedRun]:
        """Its entries in a range of positions, in runs; blocks out of the range of times are pruned."""
        planner = self._planner(pinned)
        for start, end in pinned.ranges(scan_range):
            if not scan_range.has_times:
                yield from pinned.reader.read(start, end, priority=priority, scan=scan)
                continue
            for each in planner.ranges(start, end, scan_range, priority=priority, split_bytes=UNDIVIDED):
                yield from pinned.reader.read(each.start, each.end, priority=priority, scan=scan)

    def ranges(
        self, scan_range: ScanRange, priority: ReadPriority | None, range_bytes: int, pinned: PinnedPartition
    ) -> Iterator[PlannedRange]:
        """The same entries as ranges for threads of this process."""
        planner = self._planner(pinned)
        for start, end in pinned.ranges(scan_range):
            yield from planner.ranges(start, end, scan_range, priority=priority, split_bytes=range_bytes)

    def splits(self, scan_range: ScanRange, priority: ReadPriority | None, split_bytes: int) -> Iterator[Split]:
        """The same entries as splits for other processes."""
        pinned = self.pin()
        planner = self._planner(pinned)
        for start, end in pinned.ranges(scan_range):
            yield from planner.splits(start, end, scan_range, priority=priority, split_bytes=split_bytes)

    def first_undecided(self, start: Position, end: Position) -> Position | None:
        """The first entry in [start, end) whose transaction is still open; reads the range."""
        if not self._may_hold_transactions():
            return None
        reader = self.pin().reader
        transactions = Transactions(ViewNeighbours(reader))
        for served in reader.read(start, end):
            entries = transactions.undecided(served.run, find_marks(served.run.data, served.run.frames))
            if len(entries):
                return Position(served.run.ledger_id, int(entries[0]))
        return None

    def _may_hold_transactions(self) -> bool:
        directory = self._context.directory
        snapshots = [TopicName(self._topic.namespace, name) for name in _SNAPSHOTS]
        return any(directory.exists(topic) or directory.partitions(topic) for topic in snapshots)

    def _planner(self, pinned: PinnedPartition) -> SplitPlanner:
        context = self._context
        policy = context.directory.policy(self._topic)
        return SplitPlanner(self.name, pinned.reader, context.tiers, policy, pinned.hot_location, context.counters)

    def pin(self) -> PinnedPartition:
        """Pin its current state."""
        context, topic = self._context, self._topic
        directory, name = context.directory, topic.managed_ledger_name
        found = directory.snapshot(topic)
        snapshot = context.visible(found)
        source = TieredEntrySource(name, snapshot.hot, context.tiers, lambda: directory.policy(topic), context.counters)
        view = TopicView.pin(name, snapshot.info, snapshot.hot)
        return PinnedPartition(
            snapshot.info,
            TopicReader(view, source, lambda: context.visible(directory.snapshot(topic)).info),
            snapshot.hot_location,
            RetainedRange.of(self.name, found.info, view.layout, hot=not context.skips_hot),
            snapshot.missing,
        )

    def pin_for(self, scan_range: ScanRange, missing: OnMissing) -> PinnedPartition:
        """Pin its current state, and report missing positions of a range.

        Args:
            scan_range: The range to read.
            missing: Called with an error where positions of the range are missing.
        """
        pinned = self.pin()
        if scan_range.has_positions and (error := pinned.retained.missing(scan_range)) is not None:
            missing(error)
        return pinned


def without(
    ranges: Iterable[tuple[Position, Position]], missing: Iterable[LedgerRange]
) -> list[tuple[Position, Position]]:
    """Ranges of positions without those of some entries; all ascending."""
    found = list(ranges)
    for each in missing:
        first, end = Position(each.ledger_id, each.first), Position(each.ledger_id, each.last + 1)
        cut = [part for start, stop in found for part in ((start, min(stop, first)), (max(start, end), stop))]
        found = [(start, stop) for start, stop in dict.fromkeys(cut) if start < stop]
    return found
