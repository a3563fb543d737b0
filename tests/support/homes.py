"""A server's home without the server's process: topics in ledgers on disk, and some of them in a tier."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from tests.support.assemble import assemble_blocks
from tests.support.clock import ManualClock
from tests.support.ledgers import settings

from afterglow.catalog.catalog import Catalog
from afterglow.errors import AfterglowError
from afterglow.format.blocks import plan_v2
from afterglow.format.entry import encode_batch, encode_entry
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.index import encode_index, index_v2
from afterglow.format.objects import INDEX_SUFFIX, ObjectKey, set_uuid, user_metadata
from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata
from afterglow.hot.local import LocalLog
from afterglow.ledger.ledger_list import drop_ledgers
from afterglow.ledger.store import LedgerStore
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.offload.block_offloader import BlockOffloader
from afterglow.offload.offloader import extra_metadata
from afterglow.tier.locations import Tiers, driver_metadata, location_of_url, location_record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from afterglow.format.position import Position
    from afterglow.ledger.managed_ledger import ManagedLedger

APART_MS = 1_000
"""Between the broker times of two entries."""
CLUSTER = "c"
INSTANCE = "i"
"""Cluster and instance that offloaded objects name."""
_WAIT_S = 30.0


def batch(payloads: Sequence[bytes], publish_time_ms: int = 0) -> bytes:
    """An entry with several messages, as a client sends it."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=publish_time_ms, num_messages_in_batch=len(payloads)
    )
    return encode_entry(metadata, encode_batch((SingleMessageMetadata(), payload) for payload in payloads))


class ServerHome:
    """A home and what a server does to it, for the time of a ``with``.

    Args:
        path: The directory; must exist.
        changes: Of the server's settings, by attribute.

    Attributes:
        clock: Gives the broker times; moves by ``APART_MS`` with every entry.
        location: The tier in the home.
        metadata: Of the server.
        catalog: Of its topics.
    """

    def __init__(self, path: Path, **changes: object) -> None:
        self.path = path
        self.config = settings(managed_ledger_cache_size_mb=0, **changes)
        self.clock = ManualClock()
        (path / "tier").mkdir(exist_ok=True)
        self.location = location_of_url((path / "tier").as_uri())
        with ExitStack() as stack:
            self.metadata = metadata = SqliteMetadataStore(path / "metadata.db")
            stack.callback(metadata.close)
            self.catalog = Catalog(metadata, self.config.cluster_name)
            self.catalog.ensure_defaults()
            self.hot = stack.enter_context(LocalLog(path))
            executor = stack.enter_context(ThreadPoolExecutor(2))
            self._store = LedgerStore(
                hot=self.hot,
                states=self.hot,
                metadata=metadata,
                config=self.config,
                executor=executor,
                clock=self.clock,
            )
            stack.callback(self._store.close)
            self._store.start()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop as a server does."""
        self._stack.close()

    def open(self, topic: str) -> ManagedLedger:
        """A topic by any spelling of its name, made if it is not there."""
        return self._store.open(TopicName.parse(topic).managed_ledger_name)

    def write(self, topic: str, *ledgers: Sequence[bytes]) -> list[int]:
        """Append entries to a topic, each group in a ledger of its own; returns the ledgers' ids.

        Raises:
            AfterglowError: An append failed.
        """
        opened = self.open(topic)
        found: list[int] = []
        for entries in ledgers:
            if opened.layout.total_entries:
                opened.roll()
            for entry in entries:
                position = _append(opened, entry, 1)
                self.clock.advance(APART_MS / 1000)
            found.append(position.ledger_id)
        return found

    def append(self, topic: str, entry: bytes, messages: int = 1) -> Position:
        """Append one entry of so many messages where the topic is; no time passes. Returns where it stands.

        Raises:
            AfterglowError: The append failed.
        """
        return _append(self.open(topic), entry, messages)

    def offload(self, topic: str, ledger_id: int, *, block_bytes: int | None = None) -> str:
        """Copy a closed ledger to the tier, and say so in the list; returns the data object's key."""
        uuid = uuid4()
        offloader = BlockOffloader(self.location, self.config, Tiers(), block_bytes=block_bytes)
        name = TopicName.parse(topic).managed_ledger_name
        offloader.offload(self.hot.open(ledger_id), uuid, extra_metadata(name, cluster=CLUSTER, instance=INSTANCE))

        def edit(info: ManagedLedgerInfo) -> None:
            context = next(row for row in info.ledgerInfo if row.ledgerId == ledger_id).offloadContext
            set_uuid(context, uuid)
            context.driverMetadata.name = self.location.driver
            for key, value in offloader.driver_metadata().items():
                context.driverMetadata.properties.add(key=key, value=value)
            context.complete = True

        self.open(topic).update(edit)
        return str(ObjectKey(uuid, ledger_id))

    def offload_segment(
        self,
        topic: str,
        *ranges: tuple[int, int, int],
        block_bytes: int = 1 << 20,
        recorded: bool = True,
        statistics: bool = True,
    ) -> str:
        """Copy ranges (ledger, first and last entry) to the tier as one segment; returns the data object's key.

        A ledger's segments must be given in order. ``recorded``: its place stands in a record of ours, else in the
        list, as Pulsar would put it. ``statistics``: its index tells of the times in its blocks, which Pulsar's does
        not.
        """
        uuid, out, groups = uuid4(), bytearray(), []
        managed = TopicName.parse(topic).managed_ledger_name
        for ledger_id, first, last in ranges:
            frames = frame_entries(self.hot.open(ledger_id).read(first, last), first)
            offsets = scan_frames(frames, first).offsets
            plans = plan_v2(offsets, ledger_id, first, block_bytes=block_bytes, offset=len(out))
            data, measured = assemble_blocks(frames, offsets, plans)
            out += data
            row = ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, entries=last + 1, size=1, timestamp=1)
            groups.append((row, plans, measured if statistics else ()))
        key = str(ObjectKey(uuid))
        store = Tiers().store(self.location, self.config)
        for name, content, role in ((key, out, "data"), (key + INDEX_SUFFIX, encode_index(index_v2(groups)), "index")):
            metadata = user_metadata(role, managed, cluster=CLUSTER, instance=INSTANCE, software_version="1")
            store.put(name, content, metadata=metadata)
        record = SegmentRecord(version=1, uuid=str(uuid), location=location_record(self.location, key), bytes=len(out))
        record.begin.ledger_id, record.begin.entry_id = ranges[0][:2]
        record.end.ledger_id, record.end.entry_id = ranges[-1][0], ranges[-1][2]
        record.entries = sum(last - first + 1 for _, first, last in ranges)
        for name in ("min_broker_time", "max_broker_time", "min_publish_time", "max_publish_time"):
            known = [time for _, _, blocks in groups for block in blocks if (time := getattr(block, name)) is not None]
            if known:
                setattr(record, name, min(known) if name.startswith("min") else max(known))
        if recorded:
            name = TopicName.parse(topic).managed_ledger_name
            path = AfterglowPaths(self.config.cluster_name).segment(name, uuid)
            self.metadata.put(path, record.SerializeToString(), MUST_NOT_EXIST)

        def edit(info: ManagedLedgerInfo) -> None:
            ends = {ledger_id: last for ledger_id, _, last in ranges}
            for row in info.ledgerInfo:
                if row.ledgerId in ends:
                    segment = row.offloadContext.offloadSegment.add(complete=True, endEntryId=ends[row.ledgerId])
                    set_uuid(segment, uuid)
                    if not recorded:
                        segment.driverMetadata.name = self.location.driver
                        for each, value in driver_metadata(self.location).items():
                            segment.driverMetadata.properties.add(key=each, value=value)

        self.open(topic).update(edit)
        return key

    def trim(self, topic: str, ledger_id: int) -> None:
        """Drop a ledger from the topic, as retention does."""
        self.open(topic).trimmer.discard([ledger_id], partial(drop_ledgers, ledger_ids={ledger_id}))

    def free(self, topic: str, ledger_id: int) -> None:
        """Delete the hot copy of an offloaded ledger."""
        self.open(topic).trimmer.free([ledger_id])
        assert ledger_id not in self.hot.ledgers()


def _append(opened: ManagedLedger, entry: bytes, messages: int) -> Position:
    outcome: Future[Position | AfterglowError] = Future()
    opened.append((entry,), messages, outcome.set_result)
    position = outcome.result(_WAIT_S)
    if isinstance(position, AfterglowError):
        raise position
    return position
