"""One topic of a source's hot log: a topic that is not partitioned, or a partition.

Whatever is asked looks at the topic anew, and then keeps to what was there at that moment: entries that come later are
not given. A ledger that leaves the hot log while it is read is read on from the tier; one that retention has dropped
meanwhile is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from afterglow.config.choices import DamagePolicy
from afterglow.engine.source_records import SourceSegment, source_ledgers
from afterglow.errors import TopicMissing
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.ledger.ledger_list import records
from afterglow.metadata.paths import managed_ledger_path
from afterglow.read.handle import TopicReader, TopicView
from afterglow.read.hot_places import HotPlace
from afterglow.read.seek import seek
from afterglow.read.splits import Cutter
from afterglow.read.tiered import TieredSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.config.choices import ReadPriority
    from afterglow.engine.source_records import SourceLedger
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.policies import Policies
    from afterglow.read.copies import HotReader, ServedRun
    from afterglow.read.counters import ReadCounters
    from afterglow.read.splits import Split
    from afterglow.read.tier_source import TierSource
    from afterglow.read.window import Window


@dataclass(frozen=True, slots=True)
class Rooms:
    """What the topics of a source are read with."""

    source: str
    """The source's address: a home."""
    metadata: MetadataStore
    paths: AfterglowPaths
    policies: Policies
    hot: HotReader
    tiers: TierSource
    counters: ReadCounters


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A topic as it was at one moment."""

    info: ManagedLedgerInfo
    reader: TopicReader


class Part:
    """A topic by its own name. Every method raises ``TopicMissing`` if it was deleted. Thread-safe."""

    def __init__(self, topic: TopicName, rooms: Rooms) -> None:
        self.name = str(topic)
        self._ledger_name = topic.managed_ledger_name
        self._rooms = rooms

    def ledgers(self) -> tuple[SourceLedger, ...]:
        """Its ledgers, by id."""
        pinned = self._pin()
        return source_ledgers(self.name, pinned.info, pinned.reader.view)

    def segments(self) -> tuple[SourceSegment, ...]:
        """Its offloaded segments, by position."""
        metadata, parent = self._rooms.metadata, self._rooms.paths.segments(self._ledger_name)
        found = []
        for child in metadata.children(parent):
            node = metadata.get(f"{parent}/{child}")
            if node is not None:
                found.append(SourceSegment.parse(self.name, node.value, f"{parent}/{child}"))
        return tuple(sorted(found, key=lambda segment: segment.begin))

    def seek(self, time_ms: int) -> Position:
        """The first entry that was written at or after a moment, else the position behind the last one."""
        pinned = self._pin()
        return seek(pinned.reader, records(pinned.info), time_ms)

    def skips_damage(self) -> bool:
        """Whether damaged entries are left out and reported."""
        policy = self._rooms.policies.of(self._ledger_name)
        return policy.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT

    def runs(self, window: Window, priority: ReadPriority | None, *, scan: bool) -> Iterator[ServedRun]:
        """Its entries in a window of positions, in runs; whole ledgers outside the window of time are left out."""
        pinned = self._pin()
        for start, end in window.stretches(records(pinned.info)):
            yield from pinned.reader.read(start, end, priority=priority, scan=scan)

    def splits(self, window: Window, priority: ReadPriority | None, split_bytes: int) -> Iterator[Split]:
        """The same entries, cut for other processes to read."""
        rooms = self._rooms
        pinned = self._pin()
        policy = rooms.policies.of(self._ledger_name)
        hot = HotPlace(str(Path(rooms.source).absolute()))
        cutter = Cutter(self.name, pinned.reader.view, rooms.tiers, policy, hot, rooms.counters)
        for start, end in window.stretches(records(pinned.info)):
            yield from cutter.splits(start, end, window, priority=priority, split_bytes=split_bytes)

    def _pin(self) -> _Pinned:
        rooms = self._rooms
        info = self._info()
        rooms.policies.changed(None)
        source = TieredSource(
            self._ledger_name, rooms.hot, rooms.tiers, lambda: rooms.policies.of(self._ledger_name), rooms.counters
        )
        return _Pinned(info, TopicReader(TopicView.pin(self._ledger_name, info, rooms.hot), source, self._info))

    def _info(self) -> ManagedLedgerInfo:
        stored = self._rooms.metadata.get(managed_ledger_path(self._ledger_name))
        if stored is None or not stored.value:
            raise TopicMissing(f"source {self._rooms.source} has no topic {self.name} any more")
        return parse_managed_ledger(stored.value)
