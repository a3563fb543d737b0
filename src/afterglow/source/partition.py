"""One topic of a source's hot log: a topic that is not partitioned, or a partition.

Whatever is asked looks at the topic anew, and then keeps to what was there at that moment: entries that come later are
not given. A ledger that leaves the hot log while it is read is read on from the tier; one that retention has dropped
meanwhile is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.config.choices import DamagePolicy
from afterglow.format.marks import find_marks
from afterglow.format.position import Position
from afterglow.ledger.ledger_list import records
from afterglow.metadata.names import TopicName
from afterglow.read.hot_readers import NoHot
from afterglow.read.neighbours import ViewNeighbours
from afterglow.read.ranges import tiered_end, tiered_only
from afterglow.read.retained import RetainedRange
from afterglow.read.split_planner import SplitPlanner
from afterglow.read.splits import WHOLE
from afterglow.read.tiered import TieredSource
from afterglow.read.topic_reader import TopicReader, TopicView
from afterglow.read.transactions import Transactions
from afterglow.source.directory import Look, source_ledgers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.config.choices import ReadPriority
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.format.schema import SchemaVersion
    from afterglow.read.copies import ServedRun
    from afterglow.read.counters import ReadCounters
    from afterglow.read.hot_readers import HotLocation
    from afterglow.read.retained import OnMissing
    from afterglow.read.splits import PlannedRange, Split
    from afterglow.read.tier_source import TierSource
    from afterglow.read.window import Window
    from afterglow.source.directory import SourceLedger, SourceSegment, TopicDirectory


_SNAPSHOTS: Final = ("__transaction_buffer_snapshot", "__transaction_buffer_snapshot_segments")
"""Topics of which Pulsar makes one in a namespace before it takes the first message of a transaction there."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What the topics of a source are read with."""

    directory: TopicDirectory
    """Knows the topics."""
    tiers: TierSource
    """Reads objects."""
    counters: ReadCounters
    skips_hot: bool = False
    """Whether what no tier has is left out."""

    def look(self, topic: TopicName) -> Look:
        """A topic as it is now, without its hot log where that is left out.

        Raises:
            TopicMissing: It was deleted.
            MetadataError: The metadata cannot be read.
        """
        return self.shown(self.directory.look(topic))

    def shown(self, look: Look) -> Look:
        """A topic without its hot log where that is left out."""
        return Look(tiered_only(look.info), NoHot("hot=skip leaves it out"), None) if self.skips_hot else look


@dataclass(frozen=True, slots=True)
class Pinned:
    """A topic as it was at one moment."""

    info: ManagedLedgerInfo
    reader: TopicReader
    hot_location: HotLocation | None
    retained: RetainedRange


class Part:
    """A topic by its own name. Every method raises ``TopicMissing`` if it was deleted. Thread-safe."""

    def __init__(self, topic: TopicName, rooms: Rooms) -> None:
        self.name = str(topic)
        self._topic = topic
        self._rooms = rooms

    def ledgers(self) -> tuple[SourceLedger, ...]:
        """Its ledgers, by id."""
        pinned = self.pin()
        return source_ledgers(self.name, pinned.info, pinned.reader.view)

    def segments(self) -> tuple[SourceSegment, ...]:
        """Its offloaded segments, by position."""
        return self._rooms.directory.segments(self._topic)

    def schemas(self) -> tuple[SchemaVersion, ...]:
        """Every version of its schema, oldest first."""
        return self._rooms.directory.schemas(self._topic)

    def seek(self, time_ms: int) -> Position:
        """The first entry that was written at or after a moment, else the position behind the last one."""
        return self.pin().reader.find_by_time(time_ms)

    def tiered_end(self) -> Position | None:
        """Where its first entry stands that no tier has; None where there is none."""
        return tiered_end(self._rooms.directory.look(self._topic).info)

    def skips_damage(self) -> bool:
        """Whether damaged entries are left out and reported."""
        policy = self._rooms.directory.policy(self._topic)
        return policy.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT

    def read_threads(self) -> int:
        """Reads from the tier that may be under way at a time."""
        return self._rooms.directory.policy(self._topic).managed_ledger_offload_read_threads

    def runs(self, window: Window, priority: ReadPriority | None, pinned: Pinned, *, scan: bool) -> Iterator[ServedRun]:
        """Its entries in a window of positions, in runs; what a window of time cannot touch is left out."""
        planner = self._planner(pinned)
        for start, end in window.ranges(records(pinned.info)):
            if not window.timed:
                yield from pinned.reader.read(start, end, priority=priority, scan=scan)
                continue
            for each in planner.ranges(start, end, window, priority=priority, split_bytes=WHOLE):
                yield from pinned.reader.read(each.start, each.end, priority=priority, scan=scan)

    def ranges(
        self, window: Window, priority: ReadPriority | None, range_bytes: int, pinned: Pinned
    ) -> Iterator[PlannedRange]:
        """The same entries, cut for threads of this process to read."""
        planner = self._planner(pinned)
        for start, end in window.ranges(records(pinned.info)):
            yield from planner.ranges(start, end, window, priority=priority, split_bytes=range_bytes)

    def splits(self, window: Window, priority: ReadPriority | None, split_bytes: int) -> Iterator[Split]:
        """The same entries, cut for other processes to read."""
        pinned = self.pin()
        planner = self._planner(pinned)
        for start, end in window.ranges(records(pinned.info)):
            yield from planner.splits(start, end, window, priority=priority, split_bytes=split_bytes)

    def first_undecided(self, start: Position, end: Position) -> Position | None:
        """The first entry in a stretch whose transaction is still open; reads the stretch."""
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
        directory = self._rooms.directory
        snapshots = [TopicName(self._topic.namespace, name) for name in _SNAPSHOTS]
        return any(directory.exists(topic) or directory.partitions(topic) for topic in snapshots)

    def _planner(self, pinned: Pinned) -> SplitPlanner:
        rooms = self._rooms
        policy = rooms.directory.policy(self._topic)
        return SplitPlanner(self.name, pinned.reader, rooms.tiers, policy, pinned.hot_location, rooms.counters)

    def pin(self) -> Pinned:
        """What there is of it now."""
        rooms, topic = self._rooms, self._topic
        directory, name = rooms.directory, topic.managed_ledger_name
        found = directory.look(topic)
        look = rooms.shown(found)
        source = TieredSource(name, look.hot, rooms.tiers, lambda: directory.policy(topic), rooms.counters)
        view = TopicView.pin(name, look.info, look.hot)
        return Pinned(
            look.info,
            TopicReader(view, source, lambda: rooms.look(topic).info),
            look.hot_location,
            RetainedRange.of(self.name, found.info, view.layout, hot=not rooms.skips_hot),
        )

    def pin_for(self, window: Window, missing: OnMissing) -> Pinned:
        """What there is of it now, for reading a window.

        Args:
            window: What is to be read.
            missing: Is told where positions of the window are not there.
        """
        pinned = self.pin()
        if window.bounded and (error := pinned.retained.missing(window)) is not None:
            missing(error)
        return pinned
