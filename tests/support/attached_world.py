"""Attached topics and their offload in one process, over metadata of a cluster that a test writes.

Bookies are not needed: what is in segments is put there directly.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from tests.support.clock import ManualClock, ManualExecutor
from tests.support.offloads import INSTANCE, ManualRunner

from afterglow.attach.cluster import AttachedCluster, ClusterSettings
from afterglow.attach.hot_ledgers import ClusterLedgers
from afterglow.attach.policies import AttachPolicies, PolicyFile
from afterglow.attach.tier_retention import TierRetention
from afterglow.attach.topics import AttachedTopics
from afterglow.config import BrokerConfig
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.objects import get_uuid, set_uuid
from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.hot.bookkeeper import BookKeeperClient, BookKeeperCluster, ReadLimits
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths, managed_ledger_path
from afterglow.metadata.pulsar_cluster import PulsarCluster
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.offload.service import OffloadService
from afterglow.storage.health import TierHealth
from afterglow.storage.memory import MemoryStore
from afterglow.tier.locations import MEMORY, TierLocation, Tiers, location_record

if TYPE_CHECKING:
    from uuid import UUID

    from afterglow.attach.topic import AttachedTopic
    from afterglow.metadata.store import MetadataStore

TOPIC: Final = "public/default/persistent/orders"
CLOSED_MS: Final = 1_700_000_000_000
"""Time at which every ledger of :meth:`AttachedWorld.write` was closed."""


class AttachedWorld:
    """A cluster, and a process that is attached to it.

    Args:
        config: Settings of the process.
        pattern: Which topics it attaches.
        metadata: Our metadata; by default in memory.
    """

    def __init__(
        self, config: BrokerConfig | None = None, pattern: str = ".*", metadata: MetadataStore | None = None
    ) -> None:
        self.cluster_store = MemoryMetadataStore()
        self.metadata: MetadataStore = metadata or MemoryMetadataStore()
        self.paths = AfterglowPaths("lab")
        self.tier = MemoryStore()
        self.location = TierLocation(MEMORY, self.tier.url.removeprefix("memory://"))
        self.clock = ManualClock()
        self._config = config or BrokerConfig()
        self._pattern = pattern
        self.boot()

    def boot(self) -> None:
        """Start a process over what is there."""
        self.executor = ManualExecutor()
        self.cluster = AttachedCluster(
            ClusterSettings("lab", "zk://none"),
            AdminClient("http://none.invalid", ClusterCredentials.of(None, None)),
            PulsarCluster(self.cluster_store),
            re.compile(self._pattern),
        )
        policies = AttachPolicies(self._config, PolicyFile())
        self.topics = AttachedTopics(
            cluster=self.cluster,
            hot=ClusterLedgers(BookKeeperClient(BookKeeperCluster(self.cluster_store), ReadLimits())),
            metadata=self.metadata,
            paths=self.paths,
            config=policies.config,
            clock=self.clock,
        )
        health = TierHealth(now_ms=self.clock.now_ms, monotonic=self.clock.monotonic, spawn=self.executor.submit)
        self.service = OffloadService(
            metadata=self.metadata,
            paths=self.paths,
            policies=policies,
            tiers=Tiers(health=health),
            own=self.location,
            runner=ManualRunner(lambda ledger_id: nullcontext(self.topics.hot.open(ledger_id))),
            executor=self.executor,
            clock=self.clock,
            instance=INSTANCE,
            home="",
            tasks_cut_blocks=True,
            ledger_list=self.paths.managed_ledger,
        )
        self.service.attach(self.topics)
        self.service.start()
        self.retention = TierRetention(topics=self.topics, hooks=self.service, policies=policies, clock=self.clock)

    def run(self, rounds: int = 5) -> None:
        """Let the offload do everything that is due."""
        for _ in range(rounds):
            self.service.tick()
            self.executor.run_all()

    # --- the cluster ---

    def write(self, *ledgers: tuple[int, int | None], name: str = TOPIC, size_bytes: int = 1 << 20) -> None:
        """Set the cluster's ledger list of a topic, by id and number of entries; None: it is being written."""
        info = ManagedLedgerInfo()
        for ledger_id, entries in ledgers:
            ledger = info.ledgerInfo.add(ledgerId=ledger_id)
            if entries is not None:
                ledger.entries, ledger.size, ledger.timestamp = entries, size_bytes, CLOSED_MS
        path = managed_ledger_path(name)
        found = self.cluster_store.get(path)
        version = MUST_NOT_EXIST if found is None else found.version
        self.cluster_store.put(path, info.SerializeToString(), version)

    def delete(self, name: str = TOPIC) -> None:
        """Delete a topic in the cluster."""
        path = managed_ledger_path(name)
        found = self.cluster_store.get(path)
        assert found is not None
        self.cluster_store.delete(path, found.version)

    # --- this process ---

    def follow(self, name: str = TOPIC) -> AttachedTopic:
        """Attach a topic, or take the newest state of the cluster's list."""
        topic = self.topics.opened(name)
        if topic is None:
            return self.topics.open(name, create=True)
        ledgers = self.cluster.ledgers(TopicName.from_managed_ledger_name(name))
        assert ledgers is not None
        topic.follow(ledgers, None)
        return topic

    def segment(self, *covered: tuple[int, int], name: str = TOPIC, offloaded_ms: int = CLOSED_MS) -> UUID:
        """Commit a segment with the entries of ledgers up to the given ends; returns its UUID."""
        uuid = uuid4()
        self.tier.put(str(uuid), b"data")
        self.tier.put(f"{uuid}-index", b"index")
        record = SegmentRecord(version=1, uuid=str(uuid), location=location_record(self.location, str(uuid)))
        self.metadata.put(self.paths.segment(name, uuid), record.SerializeToString(), MUST_NOT_EXIST)

        def edit(info: ManagedLedgerInfo) -> None:
            for ledger in info.ledgerInfo:
                for ledger_id, end in covered:
                    known = {get_uuid(segment) for segment in ledger.offloadContext.offloadSegment}
                    if ledger.ledgerId == ledger_id and uuid not in known:
                        segment = ledger.offloadContext.offloadSegment.add(complete=True, endEntryId=end)
                        segment.offloadedTimestamp = offloaded_ms
                        set_uuid(segment, uuid)

        topic = self.topics.opened(name)
        assert topic is not None
        topic.update(edit)
        return uuid

    def ids(self, name: str = TOPIC) -> list[int]:
        """Ids of the ledgers in our copy of a topic's list, as stored."""
        found = self.metadata.get(self.paths.managed_ledger(name))
        return [] if found is None else [ledger.ledgerId for ledger in parse_managed_ledger(found.value).ledgerInfo]

    def objects(self) -> set[str]:
        """Keys of the data objects in the tier."""
        return {found.key for found in self.tier.list() if not found.key.endswith("-index")}
