"""Tenants, namespaces, partitioned topics and clusters, at Pulsar's own paths and in its own JSON.

A namespace's policies are stored as the JSON object that the admin API shows. Unknown fields are preserved: another
release, or Pulsar itself, may know them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from afterglow.catalog.json_nodes import JsonNode, check_properties_size
from afterglow.errors import AlreadyExists, NotEmpty, WouldLoseData
from afterglow.metadata.names import Domain, NamespaceName, TopicName, check_entity, decode_name, encode_name
from afterglow.metadata.paths import AfterglowPaths, topics_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from afterglow.metadata.store import MetadataStore

    Json = dict[str, Any]

_CLUSTERS: Final = "/admin/clusters"
_POLICIES: Final = "/admin/policies"
_PARTITIONED: Final = "/admin/partitioned-topics"


class ClusterRecords:
    """Records of clusters. Every change is one compare-and-set.

    Pulsar uses them for replication, which is not supported here: they are stored for tools. The broker's own cluster
    always exists, with or without a record.
    """

    def __init__(self, metadata: MetadataStore, own: str) -> None:
        self._metadata = metadata
        self._own = own

    def names(self) -> list[str]:
        """Names of all clusters, including the broker's own."""
        stored = (name for name in self._metadata.children(_CLUSTERS) if self._node(name).exists())
        return sorted({self._own, *stored})

    def get(self, cluster: str) -> Json:
        """The record of a cluster; empty if the broker's own cluster has none.

        Raises:
            NotFound: The cluster is unknown.
        """
        node = self._node(cluster)
        return node.read_optional() or {} if cluster == self._own else node.read()

    def create(self, cluster: str, data: Json) -> None:
        """Add the record of a cluster.

        Raises:
            AlreadyExists: The cluster has one.
        """
        self._node(cluster).create(data)

    def update(self, cluster: str, change: Callable[[Json], Json]) -> None:
        """Change the record of a cluster.

        Raises:
            NotFound: The cluster has none.
        """
        self._node(cluster).update(change)

    def delete(self, cluster: str) -> None:
        """Delete the record of a cluster.

        Raises:
            NotFound: The cluster has none.
        """
        self._node(cluster).delete()

    def _node(self, cluster: str) -> JsonNode:
        return JsonNode(self._metadata, f"{_CLUSTERS}/{check_entity('cluster', cluster)}", f"cluster {cluster}")


class Catalog:
    """Tenants, namespaces and partitioned topics. Every change is one compare-and-set, retried on conflict."""

    def __init__(self, metadata: MetadataStore, cluster: str) -> None:
        self._metadata = metadata
        self._cluster = cluster
        self.clusters = ClusterRecords(metadata, cluster)
        self._paths = AfterglowPaths(cluster)

    # --- tenants ---

    def tenants(self) -> tuple[str, ...]:
        """Names of all tenants."""
        return self._metadata.children(_POLICIES)

    def tenant(self, tenant: str) -> Json:
        """A tenant's settings.

        Raises:
            NotFound: The tenant does not exist.
        """
        return self._tenant_node(tenant).read()

    def create_tenant(self, tenant: str, info: Mapping[str, Any] | None = None) -> None:
        """Create a tenant.

        Raises:
            AlreadyExists: It exists.
        """
        settings = {"adminRoles": [], "allowedClusters": [self._cluster], **(info or {})}
        self._tenant_node(tenant).create(settings)

    def update_tenant(self, tenant: str, change: Callable[[Json], Json]) -> None:
        """Change a tenant's settings.

        Raises:
            NotFound: The tenant does not exist.
        """
        self._tenant_node(tenant).update(change)

    def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant without namespaces.

        Raises:
            NotFound: The tenant does not exist.
            NotEmpty: It has namespaces.
        """
        node = self._tenant_node(tenant)
        if self._metadata.children(f"{_POLICIES}/{tenant}"):
            raise NotEmpty(f"tenant {tenant} has namespaces; delete them first")
        node.delete()

    def _tenant_node(self, tenant: str) -> JsonNode:
        return JsonNode(self._metadata, f"{_POLICIES}/{check_entity('tenant', tenant)}", f"tenant {tenant}")

    # --- namespaces ---

    def namespaces(self, tenant: str) -> tuple[NamespaceName, ...]:
        """The namespaces of a tenant.

        Raises:
            NotFound: The tenant does not exist.
        """
        self.tenant(tenant)
        return tuple(NamespaceName(tenant, name) for name in self._metadata.children(f"{_POLICIES}/{tenant}"))

    def policies(self, namespace: NamespaceName) -> Json:
        """A namespace's policies.

        Raises:
            NotFound: The namespace does not exist.
        """
        return self._namespace_node(namespace).read()

    def create_namespace(self, namespace: NamespaceName, policies: Mapping[str, Any] | None = None) -> None:
        """Create a namespace.

        Raises:
            NotFound: Its tenant does not exist.
            AlreadyExists: It exists.
        """
        self.tenant(namespace.tenant)
        self._namespace_node(namespace).create(dict(policies or {}))

    def update_policies(self, namespace: NamespaceName, change: Callable[[Json], Json]) -> None:
        """Change a namespace's policies.

        Raises:
            NotFound: The namespace does not exist.
        """
        self._namespace_node(namespace).update(change)

    def delete_namespace(self, namespace: NamespaceName) -> None:
        """Delete a namespace without topics.

        Raises:
            NotFound: The namespace does not exist.
            NotEmpty: It has topics.
        """
        if self.topics(namespace) or self.partitioned_topics(namespace):
            raise NotEmpty(f"namespace {namespace} has topics; delete them first")
        self._namespace_node(namespace).delete()

    def ensure_defaults(self) -> None:
        """Create ``public/default`` if it does not exist: every client assumes it."""
        with suppress(AlreadyExists):
            self.create_tenant("public")
        with suppress(AlreadyExists):
            self.create_namespace(NamespaceName("public", "default"))

    def _namespace_node(self, namespace: NamespaceName) -> JsonNode:
        return JsonNode(self._metadata, f"{_POLICIES}/{namespace}", f"namespace {namespace}")

    # --- topics ---

    def topics(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """The persistent topics of a namespace; each partition is a topic."""
        return _topic_names(namespace, self._metadata.children(topics_path(namespace)))

    def partitioned_topics(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """The partitioned topics of a namespace."""
        return _topic_names(namespace, self._metadata.children(f"{_PARTITIONED}/{namespace}/persistent"))

    def partitions(self, topic: TopicName) -> int:
        """Number of partitions of a topic; 0 if it is not partitioned."""
        return int((self._partitioned_node(topic).read_optional() or {}).get("partitions", 0))

    def create_partitioned(
        self, topic: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create the record of a partitioned topic.

        Raises:
            NotFound: Its namespace does not exist.
            AlreadyExists: The topic is partitioned already.
        """
        self.policies(topic.namespace)
        value = {"partitions": partitions, **({"properties": dict(properties)} if properties else {})}
        self._partitioned_node(topic).create(value)

    def update_partitions(self, topic: TopicName, partitions: int) -> None:
        """Raise the number of partitions, or leave it.

        Raises:
            NotFound: The topic is not partitioned.
            WouldLoseData: It has more partitions: nothing would read those above the new number.
        """

        def change(old: Json) -> Json:
            known = int(old.get("partitions", 0))
            if known > partitions:  # a concurrent call may have raised it
                raise WouldLoseData(f"{topic} has {known} partitions: their number cannot be lowered to {partitions}")
            return {**old, "partitions": partitions}

        self._partitioned_node(topic).update(change)

    def partitioned_properties(self, topic: TopicName) -> dict[str, str]:
        """The properties of a partitioned topic.

        Raises:
            NotFound: The topic is not partitioned.
        """
        return dict(self._partitioned_node(topic).read().get("properties") or {})

    def update_partitioned_properties(self, topic: TopicName, properties: Mapping[str, str | None]) -> None:
        """Set properties of a partitioned topic, or remove those whose value is None.

        Raises:
            NotFound: The topic is not partitioned.
            ValueTooLarge: All its properties together would be too large.
        """

        def change(old: Json) -> Json:
            merged = {**(old.get("properties") or {}), **properties}
            kept = {key: value for key, value in merged.items() if value is not None}
            if any(value is not None for value in properties.values()):
                check_properties_size(kept)
            return {**old, "properties": kept}

        self._partitioned_node(topic).update(change)

    def delete_partitioned(self, topic: TopicName) -> None:
        """Delete the record of a partitioned topic; its partitions are topics of their own, and stay.

        Raises:
            NotFound: The topic is not partitioned.
        """
        self._partitioned_node(topic).delete()

    def _partitioned_node(self, topic: TopicName) -> JsonNode:
        path = f"{_PARTITIONED}/{topic.namespace}/{topic.domain}/{encode_name(topic.local_name)}"
        return JsonNode(self._metadata, path, f"partitioned topic {topic}")

    # --- policies of topics ---

    def topic_policies(self, topic: TopicName) -> Json:
        """A topic's own policies; empty if it has none. A partition has those of its partitioned topic."""
        return self._topic_policies_node(topic).read_optional() or {}

    def topics_with_policies(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """The topics of a namespace that have policies of their own; a partitioned topic instead of its partitions."""
        names = self._metadata.children(self._paths.topic_policies(f"{namespace}/{Domain.PERSISTENT}"))
        return _topic_names(namespace, names)

    def update_topic_policies(self, topic: TopicName, change: Callable[[Json], Json]) -> None:
        """Change a topic's own policies; an empty object is not stored."""
        self._topic_policies_node(topic).update_optional(change)

    def delete_topic_policies(self, topic: TopicName) -> None:
        """Delete a topic's own policies, with the topic. Those of a partition stay: they belong to its topic."""
        if topic.partition_index is None:
            self.update_topic_policies(topic, lambda _old: {})

    def _topic_policies_node(self, topic: TopicName) -> JsonNode:
        path = self._paths.topic_policies(topic.base.managed_ledger_name)
        return JsonNode(self._metadata, path, f"policies of topic {topic.base}")


def _topic_names(namespace: NamespaceName, names: Iterable[str]) -> tuple[TopicName, ...]:
    return tuple(TopicName(namespace, decode_name(name), Domain.PERSISTENT) for name in names)
