"""End of an attachment: the subscriptions that hold back trimming are deleted, and everything else stays.

1. Become the owner of the records below ``/afterglow/<cluster>/``. *Crash: an earlier process is fenced.*
2. Delete the subscriptions of all topics, by the names that were recorded before they were created. *Crash: some are
   left, and so is the record; the next call deletes them.*
3. Remove the record of their names. *Crash: the next call finds no subscription, and removes it.*

Segments and their records stay, so that the tier can be read, and a later attachment continues behind them.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from afterglow.attach.cluster import check_cluster, cluster_settings
from afterglow.attach.cluster_instance import check_instance, read_instance
from afterglow.attach.ledger_merge import committed_end
from afterglow.attach.records import clear_subscriptions, recorded_subscriptions, recorded_topics
from afterglow.errors import AfterglowError, MetadataInUse
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.address import open_metadata
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.admin_responses import last_confirmed
from afterglow.metadata.lease import become_owner, open_lease
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.pulsar_cluster import PulsarCluster

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.metadata.cluster_credentials import ClusterCredentials
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class AttachedTopicEnd:
    """What is to be known about a topic before it is detached."""

    topic: TopicName
    subscriptions: tuple[str, ...]
    """Names of its subscriptions that hold back trimming; empty if they are deleted already, or the topic is."""
    in_tier: Position | None
    """The last entry up to which all are in segments, or left to the cluster's own offloader; None: none is."""
    last: Position | None
    """Its last confirmed entry; None if the cluster has deleted the topic, or no broker serves it now."""

    @property
    def is_behind(self) -> bool:
        """Whether the cluster has entries that are in no segment."""
        if self.last is None or self.last.entry_id < 0:
            return False
        return self.in_tier is None or self.in_tier < self.last


class Detachment:
    """Detaches a cluster; a context manager. Created by :meth:`open`, which changes nothing."""

    def __init__(
        self, admin: AdminClient, metadata: MetadataStore, paths: AfterglowPaths, address: str, stack: ExitStack
    ) -> None:
        self.paths = paths
        self._admin = admin
        self._metadata = metadata
        self._address = address
        self._stack = stack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @classmethod
    def open(
        cls,
        admin_url: str,
        metadata: str,
        credentials: ClusterCredentials,
        config: BrokerConfig,
        *,
        zookeeper: str | None = None,
        cluster: str | None = None,
    ) -> Self:
        """Open the records of the attachment to a cluster, and check that they are of this cluster.

        Args:
            admin_url: Admin API of the cluster.
            metadata: Address of the records.
            credentials: Credentials for the admin API.
            config: Timeouts of metadata stores.
            zookeeper: Address of the cluster's metadata; None: the one that its brokers report.
            cluster: Name of the cluster; None: the one that its brokers report.

        Raises:
            ConfigError: An address is not valid, or the records are of another cluster of the same name.
            MetadataUnavailable: A store, or the admin API, cannot be reached.
            AccessDenied: The token is not accepted.
        """
        with ExitStack() as stack:
            admin = AdminClient(admin_url, credentials)
            settings = cluster_settings(admin, zookeeper, cluster)
            cluster_store = open_metadata(settings.zookeeper, config)
            stack.callback(cluster_store.close)
            check_cluster(PulsarCluster(cluster_store), settings, admin_url)
            # Read-only, so that a wrong path creates no file.
            options = {"read_only": True} if metadata.startswith("sqlite:") else {}
            opened = open_metadata(metadata, config, **options)
            stack.callback(opened.close)
            paths = AfterglowPaths(settings.name)
            check_instance(opened, paths, read_instance(cluster_store), metadata)
            return cls(admin, opened, paths, metadata, stack.pop_all())
        raise AssertionError("unreachable: the block returns or raises")

    def topics(self) -> tuple[AttachedTopicEnd, ...]:
        """Every topic that was attached and has records. Only reads.

        Raises:
            MetadataUnavailable: A store, or the admin API, cannot be reached.
            CorruptMetadata: A record, or a response, cannot be parsed.
            AccessDenied: The token may not list subscriptions.
        """
        names = recorded_subscriptions(self._metadata, self.paths)
        return tuple(self._topic(topic, names) for topic in recorded_topics(self._metadata, self.paths))

    def detach(self, config: BrokerConfig) -> dict[TopicName, AfterglowError | None]:
        """Carry out all steps; returns the topics whose subscriptions were deleted, each with the error if it failed.

        The record of names stays while one failed.

        Raises:
            MetadataInUse: A process of ``afterglow attach`` runs.
            MetadataError: The store failed; the next call continues.
        """
        with ExitStack() as stack:
            opened = open_metadata(self._address, config)
            stack.callback(opened.close)
            lease = open_lease(self._address, opened, self.paths.lease)
            stack.callback(lease.release)
            stop, holders = threading.Event(), list[str]()

            def refuse(holder: str) -> None:
                holders.append(holder)
                stop.set()

            metadata = become_owner(opened, lease, self.paths.owners, stop, refuse)
            if metadata is None:
                raise MetadataInUse(
                    f"metadata {self._address} is in use by {holders[0]}; stop it, and every standby, before detach"
                )
            results: dict[TopicName, AfterglowError | None] = {}
            for found in self.topics():
                if found.subscriptions:
                    results[found.topic] = self._delete(found)
            if not any(results.values()):
                clear_subscriptions(metadata, self.paths)
            return results

    def _delete(self, found: AttachedTopicEnd) -> AfterglowError | None:
        try:
            for name in found.subscriptions:
                self._admin.delete_subscription(found.topic, name)
        except AfterglowError as error:
            return error
        return None

    def _topic(self, topic: TopicName, names: tuple[str, ...]) -> AttachedTopicEnd:
        existing = self._admin.subscriptions(topic)
        stats = self._admin.internal_stats(topic)
        return AttachedTopicEnd(
            topic,
            tuple(name for name in names if name in existing),
            _end_of(self._metadata, self.paths.managed_ledger(topic.managed_ledger_name)),
            None if stats is None else last_confirmed(stats, str(topic)),
        )


def _end_of(metadata: MetadataReader, path: str) -> Position | None:
    found = metadata.get(path)
    return None if found is None or not found.value else committed_end(parse_managed_ledger(found.value).ledgerInfo)
