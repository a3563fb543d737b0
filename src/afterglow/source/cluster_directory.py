"""Topic directory of an Apache Pulsar cluster, over its ZooKeeper and its running brokers."""

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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.format.schema import SchemaVersion
    from afterglow.metadata.cluster_credentials import ClusterCredentials
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.pulsar_cluster import PulsarCluster
    from afterglow.source.cluster_hot import ClusterHot
    from afterglow.source.directory import SourceSegment, SourceSnapshot

_log = logging.getLogger(__name__)


class ClusterBrokers:
    """The registered brokers of a cluster. Thread-safe.

    Args:
        cluster: Metadata of the cluster.
        credentials: Credentials for brokers.
        service_url: Address of the brokers; None: the registered addresses.
    """

    def __init__(self, cluster: PulsarCluster, credentials: ClusterCredentials, service_url: str | None) -> None:
        self._cluster = cluster
        self._credentials = credentials
        self._service_url = service_url

    def service_url(self) -> str | None:
        """Address of the binary protocol; None: no broker is running."""
        if self._service_url is not None:
            return self._service_url
        return next((url for broker in self._cluster.brokers() if (url := _url(broker, "pulsarServiceUrl"))), None)

    def admin(self) -> AdminClient | None:
        """The admin API of one broker; None: no broker is running."""
        for broker in self._cluster.brokers():
            url = _url(broker, "webServiceUrl")
            if url is not None:
                return AdminClient(url, self._credentials)
        return None

    def last_confirmed(self, topic: TopicName) -> Position | None:
        """The last entry of a topic; None: no broker reports it."""
        try:
            api = self.admin()
            stats = None if api is None else api.internal_stats(topic)
            return None if stats is None else last_confirmed(stats, str(topic))
        except AfterglowError as error:
            _log.warning("%s: no broker reports its last entry: %s", topic, error)
            return None


def _url(broker: Mapping[str, Any], name: str) -> str | None:
    """An address of a broker; the TLS address if there is no other."""
    found = broker.get(name) or broker.get(f"{name}Tls")
    return str(found) if found else None


_DYNAMIC: Final = Origin(OriginKind.FILE, "dynamic configuration of the cluster")


class ClusterDirectory:
    """A :class:`~afterglow.source.directory.TopicDirectory` over a cluster's metadata.

    Pulsar keeps topic policies in a system topic, which is not read here: namespace policies apply, and objects are
    read from the location in each ledger's metadata.

    Args:
        source: Its address, as it was given.
        cluster: Metadata of the cluster.
        brokers: Report the end of the open ledger, and serve entries that no tier has.
        hot: Reads entries that no tier has.
        config: The settings of this process, for everything that the cluster does not define.
    """

    def __init__(
        self, source: str, cluster: PulsarCluster, brokers: ClusterBrokers, hot: ClusterHot, config: BrokerConfig
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._brokers = brokers
        self._hot = hot
        self._config = config
        self._lock = Lock()
        self._policies: dict[TopicName, BrokerConfig] = {}

    @property
    def source(self) -> str:
        """Its address, for messages."""
        return self._source

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics; see :class:`TopicDirectory`."""
        return tuple(
            str(topic) for namespace in self._cluster.namespaces() for topic in self._cluster.topics(namespace)
        )

    def names_in_namespace(self, topic: TopicName) -> tuple[str, ...]:
        """Full names in the topic's namespace; see :class:`TopicDirectory`."""
        topics = self._cluster.topics(topic.namespace)
        return tuple(sorted({*map(str, topics), *(str(each.base) for each in topics)}))

    def partitions(self, topic: TopicName) -> int:
        """Number of partitions of a topic; see :class:`TopicDirectory`."""
        return self._cluster.partitions(topic)

    def exists(self, topic: TopicName) -> bool:
        """Whether a topic exists; see :class:`TopicDirectory`."""
        return self._cluster.managed_ledger(topic) is not None

    def snapshot(self, topic: TopicName) -> SourceSnapshot:
        """The current state of a topic; see :class:`TopicDirectory`."""
        service_url = self._brokers.service_url()
        end = None if service_url is None else self._brokers.last_confirmed(topic)
        value = self._cluster.managed_ledger(topic)
        if value is None:
            raise TopicMissing(f"topic does not exist any more: {topic} in source {self._source}")
        info = parse_managed_ledger(value)
        with self._lock:
            self._policies.pop(topic, None)
        without = f"no broker of {self._source} is running; start one, or set hot=skip"
        return self._hot.snapshot(topic, info, _open_entries(info, end), service_url, without=without)

    def policy(self, topic: TopicName) -> BrokerConfig:
        """Effective policy of a topic; see :class:`TopicDirectory`."""
        with self._lock:
            known = self._policies.get(topic)
        if known is None:
            namespace = self._cluster.namespace_policies(topic.namespace)
            known, problems = resolve_stored(self._broker_settings(), namespace, {})
            for problem in problems:
                _log.info("policies of %s: ignored: %s", topic, problem)
            with self._lock:
                self._policies[topic] = known
        return known

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """Its offloaded segments, which Apache Pulsar has none of; see :class:`TopicDirectory`."""
        del topic
        return ()

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Every version of its schema, from a broker; see :class:`TopicDirectory`."""
        api = self._brokers.admin()
        if api is None:
            raise NotSupported(
                f"source {self._source}: only brokers have the schemas of {topic}, and no broker is running; start "
                "one, or read without decode"
            )
        answer = api.schemas(topic.base)
        return () if answer is None else schema_versions(answer, str(topic))

    # --- inside ---

    def _broker_settings(self) -> BrokerConfig:
        shown = self._cluster.dynamic_configuration()
        given = offload_json.read({key: shown[key] for key in offload_json.POLICY_SETTINGS if key in shown})
        try:
            return self._config.overridden(given.values, _DYNAMIC)
        except ConfigError as error:
            _log.info("the dynamic configuration of %s is ignored: %s", self._source, error)
            return self._config


def _open_entries(info: ManagedLedgerInfo, end: Position | None) -> dict[int, int]:
    """Number of confirmed entries of the ledger that has the last one, if it is open."""
    open_ids = (ledger.ledgerId for ledger in info.ledgerInfo if not ledger.HasField("entries"))
    return {} if end is None else {ledger_id: end.entry_id + 1 for ledger_id in open_ids if ledger_id == end.ledger_id}
