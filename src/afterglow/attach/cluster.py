"""The cluster that this process is attached to: its addresses, topics and ledger lists. Everything here only reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from afterglow.attach.attachable import is_attachable
from afterglow.errors import AccessDenied, ConfigError
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.admin_responses import last_confirmed, zookeeper_address

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.metadata.admin_client import AdminClient
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.pulsar_cluster import PulsarCluster


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What the brokers of a cluster report of themselves."""

    name: str
    """Name of the cluster."""
    zookeeper: str
    """Address of its metadata, ``zk://host:2181[/chroot]``."""


def cluster_settings(admin: AdminClient, zookeeper: str | None, name: str | None) -> ClusterSettings:
    """Ask a broker for the settings of its cluster.

    Args:
        admin: The admin API.
        zookeeper: Address of the cluster's metadata; None: the one that the broker reports.
        name: Name of the cluster; None: the one that the broker reports.

    Raises:
        ConfigError: The role may not read them and they are not given, or the cluster has no ZooKeeper.
        MetadataUnavailable: The API does not respond.
        AccessDenied: The token is not accepted.
    """
    reported: Mapping[str, Any]
    try:
        reported = admin.runtime_configuration() or {}
    except AccessDenied:
        if zookeeper is None or name is None:
            raise
        reported = {}
    name = name or str(reported.get("clusterName") or "")
    if not name:
        raise ConfigError(f"{admin.url} does not report the name of its cluster; give --cluster-name NAME")
    address = zookeeper_address({"metadataStoreUrl": zookeeper} if zookeeper else reported)
    if address is None:
        raise ConfigError(f"{admin.url} does not report its metadata store; give --zookeeper zk://HOST:2181")
    if not address.startswith("zk:"):
        raise ConfigError(f"the metadata of {admin.url} is in {address}; only ZooKeeper is supported")
    return ClusterSettings(name, address)


def check_cluster(metadata: PulsarCluster, settings: ClusterSettings, admin_url: str) -> None:
    """Check that the metadata is that of the brokers' cluster.

    Raises:
        ConfigError: It is another cluster's.
        MetadataUnavailable: The store cannot be reached.
    """
    known = metadata.clusters()
    if settings.name not in known:
        raise ConfigError(
            f"{settings.zookeeper} has the metadata of cluster {', '.join(known) or '(none)'}, and {admin_url} belongs "
            f"to cluster {settings.name}; give --zookeeper of that cluster"
        )


class AttachedCluster:
    """A cluster. Thread-safe.

    Args:
        settings: Its settings.
        admin: The admin API of its brokers.
        metadata: Its metadata.
        pattern: Regular expression of names of topics, such as ``public/default/.*``, without ``persistent://``. A
            partition matches by the name of its partitioned topic.
    """

    def __init__(
        self, settings: ClusterSettings, admin: AdminClient, metadata: PulsarCluster, pattern: re.Pattern[str]
    ) -> None:
        self.settings = settings
        self.admin = admin
        self._metadata = metadata
        self._pattern = pattern

    def topics(self) -> tuple[TopicName, ...]:
        """The topics to attach: each partition is one.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        return tuple(
            topic
            for namespace in self._metadata.namespaces()
            for topic in self._metadata.topics(namespace)
            if is_attachable(topic) and self._pattern.fullmatch(f"{topic.namespace}/{topic.base.local_name}")
        )

    def ledgers(self, topic: TopicName) -> ManagedLedgerInfo | None:
        """The ledger list of a topic; None if the topic does not exist.

        Raises:
            CorruptMetadata: The list does not parse.
            MetadataUnavailable: The store cannot be reached.
        """
        stored = self._metadata.managed_ledger(topic)
        return None if stored is None else parse_managed_ledger(stored)

    def open_end(self, topic: TopicName) -> tuple[Position, int] | None:
        """The last confirmed entry, markers included, and the bytes of the ledger that is being written.

        From the broker that owns the topic; None if the topic is gone.

        A topic that no broker owns is loaded by this call.

        Raises:
            MetadataUnavailable: No broker responds.
            AccessDenied: The role may not read statistics.
        """
        stats = self.admin.internal_stats(topic)
        return None if stats is None else (last_confirmed(stats, str(topic)), int(stats.get("currentLedgerSize") or 0))
