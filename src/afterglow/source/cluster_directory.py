"""Topics of an Apache Pulsar cluster, from its ZooKeeper and from the brokers that run."""

from __future__ import annotations

import logging
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from afterglow.config import Origin, OriginKind
from afterglow.errors import AfterglowError, ConfigError, NotSupported, TopicMissing
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.admin_responses import last_confirmed, schema_versions
from afterglow.policy import offload_json
from afterglow.policy.resolver import resolve_stored
from afterglow.read.hot_readers import HotLocation, NoHot, RemoteHot
from afterglow.source.directory import Look

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.format.schema import SchemaVersion
    from afterglow.metadata.cluster_credentials import ClusterCredentials
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.pulsar_cluster import PulsarCluster
    from afterglow.source.directory import SourceSegment

_log = logging.getLogger(__name__)


class ClusterBrokers:
    """Whichever brokers have registered themselves. Thread-safe.

    Args:
        cluster: Its metadata.
        credentials: Credentials for the brokers.
        service_url: Where they are reached, if not where they say.
    """

    def __init__(self, cluster: PulsarCluster, credentials: ClusterCredentials, service_url: str | None) -> None:
        self._cluster = cluster
        self._credentials = credentials
        self._service_url = service_url

    def service_url(self) -> str | None:
        """Where they speak the binary protocol; None where none runs."""
        if self._service_url is not None:
            return self._service_url
        return next((url for broker in self._cluster.brokers() if (url := _url(broker, "pulsarServiceUrl"))), None)

    def admin(self) -> AdminClient | None:
        """The admin API of one of them; None where none runs."""
        for broker in self._cluster.brokers():
            url = _url(broker, "webServiceUrl")
            if url is not None:
                return AdminClient(url, self._credentials)
        return None

    def last_confirmed(self, topic: TopicName) -> Position | None:
        """The last entry of a topic; None where no broker tells."""
        try:
            api = self.admin()
            stats = None if api is None else api.internal_stats(topic)
            return None if stats is None else last_confirmed(stats, str(topic))
        except AfterglowError as error:
            _log.warning("%s: the end of its last ledger is not known, which is left out: %s", topic, error)
            return None


def _url(broker: Mapping[str, Any], name: str) -> str | None:
    """One of a broker's addresses, that by TLS where there is no other."""
    found = broker.get(name) or broker.get(f"{name}Tls")
    return str(found) if found else None


_DYNAMIC: Final = Origin(OriginKind.FILE, "dynamic configuration of the cluster")


class ClusterDirectory:
    """A :class:`~afterglow.source.directory.TopicDirectory` over a cluster's metadata.

    Policies of single topics are in a topic of the cluster's own and not known here: those of namespaces hold, and
    objects are looked for where each ledger's metadata says they are.

    Args:
        source: Its address, as it was given.
        cluster: The metadata.
        brokers: Asked for the end of the ledger that is written, and for what no tier has, where any run.
        credentials: Credentials for the brokers.
        config: The settings of this process: they hold where the cluster says nothing.
    """

    def __init__(
        self,
        source: str,
        cluster: PulsarCluster,
        brokers: ClusterBrokers,
        credentials: ClusterCredentials,
        config: BrokerConfig,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._brokers = brokers
        self._credentials = credentials
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
        location = HotLocation(topic=str(topic), service_url=service_url, credentials=self._credentials)
        entries, written = _extents(info, end)
        return Look(info, RemoteHot(location.address(), str(topic), entries, written), location)

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
        given = offload_json.read({key: shown[key] for key in offload_json.POLICY_SETTINGS if key in shown})
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
