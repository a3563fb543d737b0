"""A topic whose ledgers lie in a tier, written by the production writers of the formats, without a server.

For tests of readers, the verifier and sweep: each step puts bytes and metadata where the server would, and a test
spoils what it wants spoilt. The topic's list is written whenever it changes.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from tests.support.assemble import assemble_blocks

from afterglow.format.blocks import V1_BLOCK_BYTES, V2_BLOCK_BYTES, plan_v1, plan_v2
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.index import ClosedLedger, encode_index, index_v1, index_v2
from afterglow.format.metadata_envelope import parse_managed_ledger, serialize_managed_ledger
from afterglow.format.objects import ObjectKey, set_uuid, user_metadata
from afterglow.format.proto import afterglow_pb2 as records
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.paths import AfterglowPaths, managed_ledger_path
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.storage.memory import MemoryStore
from afterglow.tier.locations import driver_metadata, location_of_url, location_record
from afterglow.verify import sweep, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from google.protobuf.message import Message

    from afterglow.metadata.store import MetadataStore
    from afterglow.storage.store import ObjectStore
    from afterglow.tier.locations import TierLocation
    from afterglow.verify import Finding, ParsedLocation, Swept

TOPIC: Final = "public/default/persistent/t"
"""The managed-ledger name of the topic."""
INSTANCE: Final = "ours"
HOUR_MS: Final = 3_600_000


@dataclass(slots=True)
class OffloadedTopic:
    """One topic, its metadata and its tier."""

    tier: ObjectStore = field(default_factory=MemoryStore)
    metadata: MetadataStore = field(default_factory=MemoryMetadataStore)
    topic: str = TOPIC
    entries: dict[int, list[bytes]] = field(default_factory=dict)
    """Of every ledger that was ever made."""
    hot: set[int] = field(default_factory=set)
    """Ledgers that the hot log has."""
    instance: str = INSTANCE
    """Of the server that the objects are written for."""

    @property
    def paths(self) -> AfterglowPaths:
        """Where our records are."""
        return AfterglowPaths()

    @property
    def location(self) -> TierLocation:
        """Where metadata says that objects are put."""
        return location_of_url(self.tier.url)

    # --- the topic's list ---

    @property
    def info(self) -> ManagedLedgerInfo:
        """The list as it stands."""
        node = self.metadata.get(managed_ledger_path(self.topic))
        return parse_managed_ledger(node.value) if node else ManagedLedgerInfo()

    def edit(self, change: Callable[[ManagedLedgerInfo], object]) -> None:
        """Change the list."""
        info = self.info
        change(info)
        self.put(managed_ledger_path(self.topic), serialize_managed_ledger(info))

    def edit_row(self, ledger_id: int, change: Callable[[ManagedLedgerInfo.LedgerInfo], object]) -> None:
        """Change one ledger of the list."""
        self.edit(lambda info: change(next(row for row in info.ledgerInfo if row.ledgerId == ledger_id)))

    def put(self, path: str, value: bytes) -> None:
        """Write a value, whatever stands there."""
        node = self.metadata.get(path)
        self.metadata.put(path, value, MUST_NOT_EXIST if node is None else node.version)

    def ledger(self, ledger_id: int, entries: Sequence[bytes], *, closed: bool = True) -> None:
        """A ledger in the list and in the hot log."""
        self.entries[ledger_id] = list(entries)
        self.hot.add(ledger_id)

        def add(info: ManagedLedgerInfo) -> None:
            row = info.ledgerInfo.add(ledgerId=ledger_id, timestamp=0)
            if closed:
                row.entries, row.size, row.timestamp = len(entries), sum(map(len, entries)), 1_700_000_000_000

        self.edit(add)

    def free(self, ledger_id: int) -> None:
        """Drop the hot copy of an offloaded ledger."""
        self.hot.discard(ledger_id)
        self.edit_row(ledger_id, lambda row: setattr(row.offloadContext, "bookkeeperDeleted", True))

    # --- V1 ---

    def assign(self, ledger_id: int, uuid: UUID | None = None) -> str:
        """Begin an offload: the UUID is in the list. Returns the key of the data object to be."""
        uuid = uuid or uuid4()

        def change(row: ManagedLedgerInfo.LedgerInfo) -> None:
            set_uuid(row.offloadContext, uuid)
            driver = row.offloadContext.driverMetadata
            driver.name = self.location.driver
            for name, value in driver_metadata(self.location).items():
                driver.properties.add(key=name, value=value)

        self.edit_row(ledger_id, change)
        return str(ObjectKey(uuid, ledger_id))

    def write_v1(self, key: str, ledger_id: int, *, block_bytes: int = V1_BLOCK_BYTES, statistics: bool = True) -> None:
        """Write the data object and the index of a ledger."""
        entries = self.entries[ledger_id]
        frames = frame_entries(entries)
        offsets = scan_frames(frames, 0).offsets
        plans = plan_v1(offsets, block_bytes)
        data, measured = assemble_blocks(frames, offsets, plans)
        ledger = ClosedLedger(len(entries) - 1, sum(map(len, entries)), 1_700_000_000_000, self.topic)
        index = index_v1(ledger, plans, measured if statistics else ())
        self.write(key, data, encode_index(index))

    def offload(self, ledger_id: int, *, block_bytes: int = V1_BLOCK_BYTES, statistics: bool = True) -> str:
        """Offload a closed ledger into an object of its own. Returns the data object's key."""
        key = self.assign(ledger_id)
        self.write_v1(key, ledger_id, block_bytes=block_bytes, statistics=statistics)
        self.edit_row(ledger_id, lambda row: setattr(row.offloadContext, "complete", True))
        return key

    def write(self, key: str, data: bytes | bytearray, index: bytes, instance: str | None = None) -> None:
        """Write a data object and its index with the user metadata of ours."""
        self.tier.put(key, data, metadata=self.object_metadata("data", instance))
        self.tier.put(f"{key}-index", index, metadata=self.object_metadata("index", instance))

    def object_metadata(self, role: str = "data", instance: str | None = None) -> Mapping[str, str]:
        """User metadata as the server puts it."""
        return user_metadata(
            role, self.topic, cluster="standalone", instance=instance or self.instance, software_version="0"
        )

    # --- V2 ---

    def segment(
        self,
        ranges: Sequence[tuple[int, int, int]],
        *,
        block_bytes: int = V2_BLOCK_BYTES,
        statistics: bool = True,
        record: bool = True,
    ) -> str:
        """Write and commit a segment that holds entries ``first`` to ``last`` of each ledger. Returns its key."""
        uuid = uuid4()
        rows = {row.ledgerId: row for row in self.info.ledgerInfo}
        data = bytearray()
        groups = []
        for ledger_id, first, last in ranges:
            frames = frame_entries(self.entries[ledger_id][first : last + 1], first)
            offsets = scan_frames(frames, first).offsets
            plans = plan_v2(offsets, ledger_id, first, block_bytes=block_bytes, offset=len(data))
            blocks, measured = assemble_blocks(frames, offsets, plans)
            data += blocks
            row = ManagedLedgerInfo.LedgerInfo(
                ledgerId=ledger_id, entries=rows[ledger_id].entries or last + 1, size=rows[ledger_id].size
            )
            groups.append((row, plans, measured if statistics else ()))
        self.write(str(uuid), data, encode_index(index_v2(groups)))
        if record:
            blocks_in_all = sum(len(plans) for _, plans, _ in groups)
            self.record_segment(uuid, ranges, len(data), blocks_in_all)
        for ledger_id, _, last in ranges:
            self.edit_row(ledger_id, partial(self.add_stub, uuid=uuid, last=last))
        return str(uuid)

    def record_segment(self, uuid: UUID, ranges: Sequence[tuple[int, int, int]], size_bytes: int, blocks: int) -> None:
        """Write a segment's record."""
        begin, end = ranges[0], ranges[-1]
        record = records.SegmentRecord(
            version=1,
            uuid=str(uuid),
            location=location_record(self.location, str(uuid)),
            begin=records.Position(ledger_id=begin[0], entry_id=begin[1]),
            end=records.Position(ledger_id=end[0], entry_id=end[2]),
            bytes=size_bytes,
            entries=sum(last - first + 1 for _, first, last in ranges),
            blocks=blocks,
            instance=self.instance,
        )
        self.put_record(self.paths.segment(self.topic, uuid), record)

    @staticmethod
    def add_stub(row: ManagedLedgerInfo.LedgerInfo, uuid: UUID, last: int | None, *, complete: bool = True) -> None:
        """Add a segment to a ledger's context."""
        context = row.offloadContext
        if not context.offloadSegment:
            set_uuid(context, uuid)
        stub = context.offloadSegment.add(complete=complete)
        set_uuid(stub, uuid)
        if last is not None:
            stub.endEntryId = last

    def put_record(self, path: str, record: Message) -> None:
        """Write one of our records."""
        self.put(path, record.SerializeToString())

    # --- judging ---

    def store(self, location: ParsedLocation) -> ObjectStore:
        """The tier, whatever the place."""
        del location
        return self.tier

    def verify(self, *, deep: bool = True, age_ms: int = 2 * HOUR_MS, hot: bool = True) -> list[Finding]:
        """Findings of the verifier, ``age_ms`` from now with an hour of grace."""
        return list(
            verify(
                self.metadata,
                self.store,
                tiers=[self.tier],
                instance=self.instance,
                now_ms=_now_ms() + age_ms,
                grace_ms=HOUR_MS,
                deep=deep,
                hot=self.hot.__contains__ if hot else None,
            )
        )

    def sweep(self, *, age_ms: int = 2 * HOUR_MS, dry_run: bool = False) -> list[Swept]:
        """Results of a sweep, ``age_ms`` from now with an hour of grace."""
        return list(
            sweep(
                self.metadata,
                tiers=[self.tier],
                instance=self.instance,
                now_ms=_now_ms() + age_ms,
                grace_ms=HOUR_MS,
                dry_run=dry_run,
            )
        )

    def spoil(self, key: str, offset: int, flip: int = 1) -> None:
        """Flip bits of one byte of an object."""
        data = bytearray(self.tier.get(key))
        data[offset] ^= flip
        self.replace(key, data)

    def replace(self, key: str, data: bytes | bytearray) -> None:
        """Put other bytes under a key, with the user metadata as it was."""
        self.tier.put(key, data, metadata=self.tier.head(key).metadata)


def random_entries(count: int, size_bytes: int = 300, seed: int = 0) -> list[bytes]:
    """Entries of any bytes, each at least half and at most all of a size."""
    draw = random.Random(seed)
    return [draw.randbytes(draw.randint(size_bytes // 2, size_bytes)) for _ in range(count)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
