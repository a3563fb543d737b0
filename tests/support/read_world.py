"""Ledgers in a hot log in memory and in a tier in memory, in either format, under a test's control."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
from tests.support.assemble import assemble_blocks
from tests.support.clock import ManualClock

from afterglow.config import BrokerConfig
from afterglow.format.blocks import plan_v1, plan_v2
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.index import ClosedLedger, encode_index, index_v1, index_v2
from afterglow.format.objects import INDEX_SUFFIX, ObjectKey, set_uuid, user_metadata
from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadDriverMetadata
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.read.counters import ReadCounters
from afterglow.read.entry_source import TieredEntrySource
from afterglow.read.ranges import ObjectLocator
from afterglow.read.tier_reader import TierReader
from afterglow.storage import CountingStore, MemoryStore
from afterglow.testing.memory_hot import MemoryLog
from afterglow.tier.locations import Tiers, driver_metadata, location_of_url, location_record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from afterglow.format.blocks import BlockPlan
    from afterglow.storage import ObjectStore

TOPIC = "public/default/persistent/t"


def random_entries(sizes: Sequence[int], seed: int = 0) -> list[bytes]:
    """Entries of these sizes, no two alike as a rule."""
    rng = np.random.default_rng(seed)
    return [rng.bytes(size) for size in sizes]


@dataclass
class ReadWorld:
    """A topic with copies of its ledgers where a test puts them."""

    config: BrokerConfig = field(default_factory=BrokerConfig)
    policy: BrokerConfig = field(default_factory=BrokerConfig)
    clock: ManualClock = field(default_factory=ManualClock)
    info: ManagedLedgerInfo = field(default_factory=ManagedLedgerInfo)
    hot: MemoryLog = field(default_factory=MemoryLog)
    metadata: MemoryMetadataStore = field(default_factory=MemoryMetadataStore)
    entries: dict[int, list[bytes]] = field(default_factory=dict)
    store: ObjectStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        self.location = location_of_url(self.store.url)
        self.counting = CountingStore(self.store)
        self.counters = ReadCounters()
        paths = AfterglowPaths()
        self._paths = paths
        self.tiers = TierReader(
            Tiers(lambda _: self.counting), self.config, ObjectLocator(self.metadata, paths), clock=self.clock
        )
        self.source = TieredEntrySource(TOPIC, self.hot, self.tiers, lambda: self.policy, self.counters)

    @property
    def fetched_bytes(self) -> int:
        """What ``get`` has brought so far, indexes and all."""
        counts = self.counting.counts().get("get")
        return 0 if counts is None else counts.received_bytes

    # --- ledgers ---

    def add(self, entries: Sequence[bytes], *, closed: bool = True) -> ManagedLedgerInfo.LedgerInfo:
        """A ledger of the hot log and of the topic's list."""
        ledger = self.hot.create()
        for entry in entries:
            ledger.append((entry,), lambda _: None)
        row = self.info.ledgerInfo.add(ledgerId=ledger.ledger_id, timestamp=0)
        if closed:
            ledger.close()
            row.entries, row.size, row.timestamp = len(entries), sum(map(len, entries)), 1
        self.entries[ledger.ledger_id] = list(entries)
        return row

    def free(self, row: ManagedLedgerInfo.LedgerInfo, *, listed: bool = True) -> None:
        """Take the hot copy away; ``listed`` marks it as deleted in the ledger list, as freeing does."""
        self.hot.delete(row.ledgerId)
        if listed:
            row.offloadContext.bookkeeperDeleted = True

    # --- objects ---

    def offload_v1(
        self, row: ManagedLedgerInfo.LedgerInfo, *, block_bytes: int = 5 << 20, statistics: bool = True
    ) -> str:
        """Write a ledger's own object and name it in the list; returns its key."""
        entries = self.entries[row.ledgerId]
        frames = frame_entries(entries)
        offsets = scan_frames(frames, 0).offsets
        plans = plan_v1(offsets, block_bytes)
        data, measured = assemble_blocks(frames, offsets, plans)
        ledger = ClosedLedger(len(entries) - 1, sum(map(len, entries)), 1, TOPIC)
        uuid = uuid4()
        key = str(ObjectKey(uuid, row.ledgerId))
        self._put(key, data, encode_index(index_v1(ledger, plans, measured if statistics else ())))
        set_uuid(row.offloadContext, uuid)
        row.offloadContext.complete = True
        row.offloadContext.timestamp = 1
        row.offloadContext.driverMetadata.CopyFrom(self.driver())
        return key

    def offload_v2(
        self,
        ranges: Sequence[tuple[ManagedLedgerInfo.LedgerInfo, int, int]],
        *,
        block_bytes: int = 1 << 20,
        statistics: bool = True,
        recorded: bool = True,
        markers_stripped: bool = False,
    ) -> str:
        """Write a segment of ranges (ledger, first and last entry) and name it in the list; returns its key.

        ``recorded``: its place stands in a record of ours, else in the list. ``markers_stripped`` is for the record.
        """
        uuid = uuid4()
        out = bytearray()
        groups: list[tuple[ManagedLedgerInfo.LedgerInfo, Sequence[BlockPlan], Sequence[object]]] = []
        for row, first, last in ranges:
            frames = frame_entries(self.entries[row.ledgerId][first : last + 1], first)
            offsets = scan_frames(frames, first).offsets
            plans = plan_v2(offsets, row.ledgerId, first, block_bytes=block_bytes, offset=len(out))
            data, measured = assemble_blocks(frames, offsets, plans)
            out += data
            info = ManagedLedgerInfo.LedgerInfo(ledgerId=row.ledgerId, entries=last + 1, size=1, timestamp=1)
            groups.append((info, plans, measured if statistics else ()))
            segment = row.offloadContext.offloadSegment.add(complete=True, endEntryId=last, offloadedTimestamp=1)
            set_uuid(segment, uuid)
            if not recorded:
                segment.driverMetadata.CopyFrom(self.driver())
        key = str(ObjectKey(uuid))
        self._put(key, out, encode_index(index_v2(groups)))  # type: ignore[arg-type]  # statistics, seen as objects
        if recorded:
            times = [block.times for _, _, blocks in groups for block in blocks]  # type: ignore[attr-defined]
            self._record(uuid, key, times, markers_stripped=markers_stripped)
        return key

    def driver(self) -> OffloadDriverMetadata:
        """The place as the list names it."""
        driver = OffloadDriverMetadata(name=self.location.driver)
        for name, value in driver_metadata(self.location).items():
            driver.properties.add(key=name, value=value)
        return driver

    def damage(self, key: str, at: int) -> None:
        """Flip a bit of an object."""
        info = self.store.head(key)
        data = bytearray(self.store.get(key))
        data[at] ^= 0x10
        self.store.put(key, data, metadata=info.metadata)

    def truncate(self, key: str, size_bytes: int) -> None:
        """Cut an object short."""
        info = self.store.head(key)
        self.store.put(key, bytes(self.store.get(key, 0, size_bytes)), metadata=info.metadata)

    def _put(self, key: str, data: bytearray, index: bytes) -> None:
        for name, content, role in ((key, data, "data"), (key + INDEX_SUFFIX, index, "index")):
            metadata = user_metadata(role, TOPIC, cluster="c", instance="i", software_version="1")
            self.store.put(name, content, metadata=metadata)

    def _record(self, uuid: UUID, key: str, times: Sequence[tuple[int | None, ...]], *, markers_stripped: bool) -> None:
        location = location_record(self.location, key)
        record = SegmentRecord(version=1, uuid=str(uuid), location=location, markers_stripped=markers_stripped)
        names = ("min_broker_time", "max_broker_time", "min_publish_time", "max_publish_time")
        for name, column in zip(names, zip(*times, strict=True), strict=False):
            known = [time for time in column if time is not None]
            if known:
                setattr(record, name, min(known) if name.startswith("min") else max(known))
        self.metadata.put(self._paths.segment(TOPIC, uuid), record.SerializeToString(), MUST_NOT_EXIST)
