"""Tenants, namespaces and partitioned topics, at Pulsar's own paths and in its own JSON.

A namespace's policies are kept as the JSON object that the admin API shows, with fields that we do not know left as
they are: an older release, or Pulsar itself, may know them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from afterglow.catalog import json_nodes
from afterglow.catalog.clusters import ClusterRecords
from afterglow.catalog.json_nodes import JsonNodes, check_given
from afterglow.errors import AlreadyExists, NotEmpty, VersionConflict, WouldLoseData
from afterglow.metadata.names import Domain, NamespaceName, TopicName, check_entity, decode_name, encode_name
from afterglow.metadata.paths import AfterglowPaths, topics_path
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.metadata.store import MetadataStore

    Json = dict[str, Any]

_POLICIES: Final = "/admin/policies"
_PARTITIONED: Final = "/admin/partitioned-topics"


class Catalog:
    """What exists. Every change is one compare-and-set; concurrent changes of one object are applied in turn."""

    def __init__(self, metadata: MetadataStore, cluster: str) -> None:
        self._metadata = metadata
        self._nodes = JsonNodes(metadata)
        self._cluster = cluster
        self.clusters = ClusterRecords(metadata, cluster)
        """The clusters that are known."""
        self._paths = AfterglowPaths(cluster)

    # --- tenants ---

    def tenants(self) -> tuple[str, ...]:
        """Names of all tenants."""
        return self._metadata.children(_POLICIES)

    def tenant(self, tenant: str) -> Json:
        """A tenant's settings.

        Raises:
            NotFound: There is no such tenant.
        """
        return self._nodes.read(f"{_POLICIES}/{check_entity('tenant', tenant)}", f"tenant {tenant}")[0]

    def create_tenant(self, tenant: str, info: Mapping[str, Any] | None = None) -> None:
        """Create a tenant.

        Raises:
            AlreadyExists: It exists.
        """
        settings = {"adminRoles": [], "allowedClusters": [self._cluster], **(info or {})}
        self._nodes.create(f"{_POLICIES}/{check_entity('tenant', tenant)}", settings, f"tenant {tenant}")

    def update_tenant(self, tenant: str, change: Callable[[Json], Json]) -> None:
        """Change a tenant's settings.

        Raises:
            NotFound: There is no such tenant.
        """
        self._nodes.update(f"{_POLICIES}/{check_entity('tenant', tenant)}", change, f"tenant {tenant}")

    def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant without namespaces.

        Raises:
            NotFound: There is no such tenant.
            NotEmpty: It has namespaces.
        """
        path = f"{_POLICIES}/{check_entity('tenant', tenant)}"
        if self._metadata.children(path):
            raise NotEmpty(f"tenant {tenant} still has namespaces; delete them first")
        self._nodes.delete(path, f"tenant {tenant}")

    # --- namespaces ---

    def namespaces(self, tenant: str) -> tuple[NamespaceName, ...]:
        """The namespaces of a tenant.

        Raises:
            NotFound: There is no such tenant.
        """
        self.tenant(tenant)
        return tuple(NamespaceName(tenant, name) for name in self._metadata.children(f"{_POLICIES}/{tenant}"))

    def policies(self, namespace: NamespaceName) -> Json:
        """A namespace's policies.

        Raises:
            NotFound: There is no such namespace.
        """
        return self._nodes.read(f"{_POLICIES}/{namespace}", f"namespace {namespace}")[0]

    def create_namespace(self, namespace: NamespaceName, policies: Mapping[str, Any] | None = None) -> None:
        """Create a namespace.

        Raises:
            NotFound: Its tenant does not exist.
            AlreadyExists: It exists.
        """
        self.tenant(namespace.tenant)
        self._nodes.create(f"{_POLICIES}/{namespace}", dict(policies or {}), f"namespace {namespace}")

    def update_policies(self, namespace: NamespaceName, change: Callable[[Json], Json]) -> None:
        """Change a namespace's policies.

        Raises:
            NotFound: There is no such namespace.
        """
        self._nodes.update(f"{_POLICIES}/{namespace}", change, f"namespace {namespace}")

    def delete_namespace(self, namespace: NamespaceName) -> None:
        """Delete a namespace without topics.

        Raises:
            NotFound: There is no such namespace.
            NotEmpty: It has topics.
        """
        if self.topics(namespace) or self.partitioned_topics(namespace):
            raise NotEmpty(f"namespace {namespace} still has topics; delete them first")
        self._nodes.delete(f"{_POLICIES}/{namespace}", f"namespace {namespace}")

    def ensure_defaults(self) -> None:
        """Create ``public/default`` where it is absent, as every client assumes it."""
        with suppress(AlreadyExists):
            self.create_tenant("public")
        with suppress(AlreadyExists):
            self.create_namespace(NamespaceName("public", "default"))

    # --- topics ---

    def topics(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """The persistent topics of a namespace, each partition by itself."""
        names = self._metadata.children(topics_path(namespace))
        return tuple(TopicName(namespace, decode_name(name), Domain.PERSISTENT) for name in names)

    def partitioned_topics(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """The partitioned topics of a namespace."""
        names = self._metadata.children(f"{_PARTITIONED}/{namespace}/persistent")
        return tuple(TopicName(namespace, decode_name(name), Domain.PERSISTENT) for name in names)

    def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has; 0 if it is not partitioned."""
        stored = self._metadata.get(_partitioned_path(topic))
        return 0 if stored is None else int(json_nodes.parse(stored.value, f"topic {topic}").get("partitions", 0))

    def create_partitioned(
        self, topic: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic a partitioned one.

        Raises:
            NotFound: Its namespace does not exist.
            AlreadyExists: It is one.
        """
        self.policies(topic.namespace)
        value = {"partitions": partitions, **({"properties": dict(properties)} if properties else {})}
        self._nodes.create(_partitioned_path(topic), value, f"partitioned topic {topic}")

    def update_partitions(self, topic: TopicName, partitions: int) -> None:
        """Raise the number of partitions; the one that it has changes nothing.

        Raises:
            NotFound: It is not partitioned.
            WouldLoseData: It has more: nobody would look for what is in those above.
        """

        def change(old: Json) -> Json:
            known = int(old.get("partitions", 0))
            if known > partitions:  # maybe only now: another raised it at the same time
                raise WouldLoseData(f"{topic} has {known} partitions: their number cannot be lowered to {partitions}")
            return {**old, "partitions": partitions}

        self._nodes.update(_partitioned_path(topic), change, f"partitioned topic {topic}")

    def partitioned_properties(self, topic: TopicName) -> dict[str, str]:
        """The properties that a partitioned topic was given.

        Raises:
            NotFound: It is not partitioned.
        """
        return _properties(self._nodes.read(_partitioned_path(topic), f"partitioned topic {topic}")[0])

    def update_partitioned_properties(self, topic: TopicName, properties: Mapping[str, str | None]) -> None:
        """Set properties of a partitioned topic, or remove those whose value is None.

        Raises:
            NotFound: It is not partitioned.
            ValueTooLarge: With those that it has, they are too large to keep.
        """

        def change(old: Json) -> Json:
            merged = {**_properties(old), **properties}
            kept = {key: value for key, value in merged.items() if value is not None}
            if any(value is not None for value in properties.values()):
                check_given(kept)
            return {**old, "properties": kept}

        self._nodes.update(_partitioned_path(topic), change, f"partitioned topic {topic}")

    def delete_partitioned(self, topic: TopicName) -> None:
        """Forget that a topic is partitioned; its partitions are topics of their own.

        Raises:
            NotFound: It is not partitioned.
        """
        self._nodes.delete(_partitioned_path(topic), f"partitioned topic {topic}")

    # --- policies of single topics ---

    def topic_policies(self, topic: TopicName) -> Json:
        """A topic's own policies; empty where it has none. A partition has those of its partitioned topic."""
        stored = self._metadata.get(self._topic_policies_path(topic))
        return (
            {}
            if stored is None or not stored.value
            else json_nodes.parse(stored.value, f"policies of topic {topic.base}")
        )

    def topics_with_policies(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """The topics of a namespace that have policies of their own; a partitioned topic stands for its partitions."""
        names = self._metadata.children(self._paths.topic_policies(f"{namespace}/{Domain.PERSISTENT}"))
        return tuple(TopicName(namespace, decode_name(name), Domain.PERSISTENT) for name in names)

    def update_topic_policies(self, topic: TopicName, change: Callable[[Json], Json]) -> None:
        """Change a topic's own policies; nothing is stored where none are left."""
        path = self._topic_policies_path(topic)
        while True:
            stored = self._metadata.get(path)
            version = MUST_NOT_EXIST if stored is None else stored.version
            value = (
                {}
                if stored is None or not stored.value
                else json_nodes.parse(stored.value, f"policies of topic {topic}")
            )
            changed = change(value)
            try:
                if changed:
                    self._metadata.put(path, json_nodes.dump(changed), version)
                elif stored is not None:
                    self._metadata.delete(path, version)
            except VersionConflict:
                continue
            return

    def delete_topic_policies(self, topic: TopicName) -> None:
        """Forget a topic's own policies, with the topic. Those of partitions stay: they are the partitioned topic's."""
        if topic.partition_index is None:
            self.update_topic_policies(topic, lambda _old: {})

    def _topic_policies_path(self, topic: TopicName) -> str:
        return self._paths.topic_policies(topic.base.managed_ledger_name)


def _partitioned_path(topic: TopicName) -> str:
    return f"{_PARTITIONED}/{topic.namespace}/{topic.domain}/{encode_name(topic.local_name)}"


def _properties(partitioned: Json) -> dict[str, str]:
    return dict(partitioned.get("properties") or {})
