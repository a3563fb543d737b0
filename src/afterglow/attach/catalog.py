"""Catalog of the attached topics: their namespaces and tenants, with what the cluster stores about these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.attach.topics import AttachedTopics
    from afterglow.metadata.names import NamespaceName, TopicName
    from afterglow.metadata.pulsar_cluster import PulsarCluster


class AttachedCatalog:
    """A :class:`~afterglow.pipeline.server_handle.TopicCatalog` of attached topics; it has nothing else. Thread-safe.

    Args:
        topics: The attached topics.
        cluster: Metadata of the cluster, in which tenants and namespaces name roles.
    """

    def __init__(self, topics: AttachedTopics, cluster: PulsarCluster) -> None:
        self._topics = topics
        self._cluster = cluster

    def tenants(self) -> tuple[str, ...]:
        """Tenants with attached topics."""
        return tuple(sorted({topic.namespace.tenant for topic in self._topics.all_topics()}))

    def tenant(self, tenant: str) -> dict[str, Any]:
        """Settings of a tenant, as the cluster stores them; empty if its policies are in another store.

        Raises:
            NotFound: It has no attached topics.
            MetadataError: They cannot be read.
        """
        self.namespaces(tenant)
        return self._cluster.tenant(tenant)

    def namespaces(self, tenant: str) -> tuple[NamespaceName, ...]:
        """Namespaces of a tenant with attached topics.

        Raises:
            NotFound: There are none.
        """
        found = {topic.namespace for topic in self._topics.all_topics() if topic.namespace.tenant == tenant}
        if not found:
            raise NotFound(f"tenant {tenant} has no attached topics")
        return tuple(sorted(found, key=str))

    def policies(self, namespace: NamespaceName) -> dict[str, Any]:
        """Policies of a namespace, as the cluster stores them; empty if they are in another store.

        Raises:
            NotFound: It has no attached topics.
            MetadataError: They cannot be read.
        """
        if not self.topics(namespace):
            raise NotFound(f"namespace {namespace} has no attached topics")
        return self._cluster.namespace_policies(namespace)

    def topics(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """Attached topics of a namespace; each partition is one."""
        return tuple(topic for topic in self._topics.all_topics() if topic.namespace == namespace)

    def partitioned_topics(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """Topics of a namespace that have attached partitions."""
        partitions = (topic for topic in self.topics(namespace) if topic.partition_index is not None)
        return tuple(sorted({topic.base for topic in partitions}, key=str))

    def partitions(self, topic: TopicName) -> int:
        """Number of partitions of a topic up to the last one that is attached; 0 if it is not partitioned."""
        return 1 + max(_indexes_of(topic, self.topics(topic.namespace)), default=-1)


def _indexes_of(topic: TopicName, topics: Iterable[TopicName]) -> Iterable[int]:
    return (found.partition_index for found in topics if found.partition_index is not None and found.base == topic)
