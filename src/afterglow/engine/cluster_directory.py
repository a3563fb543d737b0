"""The topics of an Apache Pulsar cluster as its metadata has them, whether or not its brokers run."""

from __future__ import annotations

import logging
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.config import Origin, OriginKind
from afterglow.engine.source_directory import Look
from afterglow.errors import ConfigError, NotSupported, TopicMissing
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.pulsar_views import schema_versions
from afterglow.offload import policy_json
from afterglow.offload.policies import resolve_stored
from afterglow.read.hot_places import HotPlace
from afterglow.read.remote_hot import NoHot, RemoteHot

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.engine.cluster_brokers import ClusterBrokers
    from afterglow.engine.source_records import SourceSegment
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.format.schema_version import SchemaVersion
    from afterglow.metadata.cluster_proof import ClusterProof
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.pulsar_cluster import PulsarCluster

_log = logging.getLogger(__name__)

_DYNAMIC: Final = Origin(OriginKind.FILE, "dynamic configuration of the cluster")


class ClusterDirectory:
    """A :class:`~afterglow.engine.source_directory.TopicDirectory` over a cluster's metadata.

    Policies of single topics are in a topic of the cluster's own and not known here: those of namespaces hold, and
    objects are looked for where each ledger's metadata says they are.

    Args:
        source: Its address, as it was given.
        cluster: The metadata.
        brokers: Asked for the end of the ledger that is written, and for what no tier has, where any run.
        proof: What brokers are shown.
        config: The settings of this process: they hold where the cluster says nothing.
    """

    def __init__(
        self,
        source: str,
        cluster: PulsarCluster,
        brokers: ClusterBrokers,
        proof: ClusterProof,
        config: BrokerConfig,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._brokers = brokers
        self._proof = proof
        self._config = config
        self._lock = Lock()
        self._policies: dict[TopicName, BrokerConfig] = {}

    @property
    def source(self) -> str:
        """Its address, for messages."""
        return self._source

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics; see the protocol."""
        return tuple(
            str(topic) for namespace in self._cluster.namespaces() for topic in self._cluster.topics(namespace)
        )

    def names_beside(self, topic: TopicName) -> tuple[str, ...]:
        """Full names in the topic's namespace; see the protocol."""
        topics = self._cluster.topics(topic.namespace)
        return tuple(sorted({*map(str, topics), *(str(each.base) for each in topics)}))

    def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has; see the protocol.

        Raises:
            CorruptMetadata: What is stored of it makes no sense.
        """
        return self._cluster.partitions(topic)

    def exists(self, topic: TopicName) -> bool:
        """Whether there is such a topic; see the protocol."""
        return self._cluster.managed_ledger(topic) is not None

    def look(self, topic: TopicName) -> Look:
        """A topic as it is now; see the protocol.

        Raises:
            TopicMissing: There is no such topic any more.
            CorruptMetadata: Its list is damaged.
        """
        service_url = self._brokers.service_url()
        end = None if service_url is None else self._brokers.last_confirmed(topic)
        value = self._cluster.managed_ledger(topic)
        if value is None:
            raise TopicMissing(f"source {self._source} has no topic {topic} any more")
        info = parse_managed_ledger(value)
        with self._lock:
            self._policies.pop(topic, None)
        if service_url is None:
            return Look(
                info, NoHot(f"no broker of {self._source} runs; start one, or leave it out with hot=skip"), None
            )
        place = HotPlace(topic=str(topic), service_url=service_url, proof=self._proof)
        entries, written = _extents(info, end)
        return Look(info, RemoteHot(place.address(), str(topic), entries, written), place)

    def policy(self, topic: TopicName) -> BrokerConfig:
        """What holds for a topic; see the protocol.

        Raises:
            CorruptMetadata: What is stored makes no sense.
        """
        with self._lock:
            known = self._policies.get(topic)
        if known is None:
            known, problems = resolve_stored(self._broker_settings(), self._namespace(topic), {})
            for problem in problems:
                _log.info("policies of %s: passed over: %s", topic, problem)
            with self._lock:
                self._policies[topic] = known
        return known

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """Its offloaded segments, which Apache Pulsar has none of; see the protocol."""
        del topic
        return ()

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Every version of its schema, which only brokers tell; see the protocol.

        Raises:
            NotSupported: No broker runs.
        """
        api = self._brokers.admin()
        if api is None:
            raise NotSupported(
                f"source {self._source}: a cluster's metadata does not hold the schemas of {topic}, and none of its "
                "brokers runs to be asked; start one, or read without decode"
            )
        answer = api.schemas(topic.base)
        return () if answer is None else schema_versions(answer, str(topic))

    # --- inside ---

    def _namespace(self, topic: TopicName) -> dict[str, object]:
        return self._cluster.namespace_policies(topic.namespace)

    def _broker_settings(self) -> BrokerConfig:
        shown = self._cluster.dynamic_configuration()
        given = policy_json.read({key: shown[key] for key in policy_json.POLICY_SETTINGS if key in shown})
        try:
            return self._config.overridden(given.values, _DYNAMIC)
        except ConfigError as error:
            _log.info("the dynamic configuration of %s is passed over: %s", self._source, error)
            return self._config


def _extents(info: ManagedLedgerInfo, end: Position | None) -> tuple[dict[int, int], int | None]:
    """How many entries each ledger has that may be asked for, and the ledger that is still written."""
    entries = {row.ledgerId: row.entries for row in info.ledgerInfo if row.HasField("entries")}
    open_ids = [row.ledgerId for row in info.ledgerInfo if not row.HasField("entries")]
    if end is not None:
        entries |= {ledger_id: end.entry_id + 1 for ledger_id in open_ids if ledger_id == end.ledger_id}
    return entries, max(open_ids, default=None)
