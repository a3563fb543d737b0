"""Read-only view of an Apache Pulsar cluster's metadata, at Pulsar's own paths."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Protocol

from afterglow.errors import CorruptMetadata, InvalidName
from afterglow.metadata.names import Domain, NamespaceName, TopicName, decode_name, encode_name
from afterglow.metadata.paths import MANAGED_LEDGERS, managed_ledger_path, topics_path

if TYPE_CHECKING:
    from afterglow.metadata.store import Versioned

    Json = dict[str, Any]

_POLICIES: Final = "/admin/policies"
_PARTITIONED: Final = "/admin/partitioned-topics"
_CONFIGURATION: Final = "/admin/configuration"
_CLUSTERS: Final = "/admin/clusters"
_BROKERS: Final = "/loadbalance/brokers"
_GLOBAL: Final = "global"
"""Listed among the clusters, but not a cluster."""


class MetadataReader(Protocol):
    """The read methods of a metadata store."""

    def get(self, path: str) -> Versioned | None:
        """Return the node at ``path``, or None if it does not exist."""
        ...

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the nodes directly below ``path``."""
        ...


class PulsarCluster:
    """The metadata of one cluster. Thread-safe.

    Policies and numbers of partitions may be in a separate configuration store, which is not read: the number of
    partitions then follows from the names of topics.

    Args:
        store: The cluster's metadata store; the caller closes it.
    """

    def __init__(self, store: MetadataReader) -> None:
        self._store = store

    # --- names ---

    def clusters(self) -> tuple[str, ...]:
        """Return the names of all known clusters, including this one."""
        return tuple(name for name in self._store.children(_CLUSTERS) if name != _GLOBAL)

    def namespaces(self) -> tuple[NamespaceName, ...]:
        """Return every namespace that has topics."""
        found = []
        for tenant in self._store.children(MANAGED_LEDGERS):
            for name in self._store.children(f"{MANAGED_LEDGERS}/{tenant}"):
                try:
                    found.append(NamespaceName(tenant, name))
                except InvalidName:
                    continue  # not a namespace of Pulsar
        return tuple(found)

    def topics(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """Return the persistent topics of a namespace; each partition is a topic."""
        names = self._store.children(topics_path(namespace))
        return tuple(TopicName(namespace, decode_name(name), Domain.PERSISTENT) for name in sorted(names))

    def partitions(self, topic: TopicName) -> int:
        """Return the number of partitions of a topic; 0 if it is not partitioned.

        Raises:
            CorruptMetadata: The stored value is invalid.
        """
        path = f"{_PARTITIONED}/{topic.namespace}/{topic.domain}/{encode_name(topic.local_name)}"
        stored = self._object(path)
        if stored is not None:
            count = stored.get("partitions", 0)
            if not isinstance(count, int):
                raise CorruptMetadata(f"invalid number of partitions at {path}: {count!r}")
            return count
        if self._store.get(_PARTITIONED) is not None or self.managed_ledger(topic) is not None:
            return 0
        parts = (name.partition_index for name in self.topics(topic.namespace) if name.base == topic)
        return 1 + max((index for index in parts if index is not None), default=-1)

    # --- what is stored ---

    def managed_ledger(self, topic: TopicName) -> bytes | None:
        """Return a topic's ledger list as stored; None if the topic does not exist."""
        stored = self._store.get(managed_ledger_path(topic.managed_ledger_name))
        return None if stored is None or not stored.value else stored.value

    def tenant(self, tenant: str) -> Json:
        """Return the settings of a tenant; empty if this store has none.

        Raises:
            CorruptMetadata: The stored value is not a JSON object.
        """
        return self._object(f"{_POLICIES}/{tenant}") or {}

    def namespace_policies(self, namespace: NamespaceName) -> Json:
        """Return all policies of a namespace; empty if this store has none.

        Raises:
            CorruptMetadata: The stored value is not a JSON object.
        """
        return self._object(f"{_POLICIES}/{namespace}") or {}

    def dynamic_configuration(self) -> Json:
        """Return the dynamic configuration of the brokers.

        Raises:
            CorruptMetadata: The stored value is not a JSON object.
        """
        return self._object(_CONFIGURATION) or {}

    def brokers(self) -> tuple[Json, ...]:
        """Return the load balancer's record of each running broker.

        Raises:
            CorruptMetadata: A stored value is not a JSON object.
        """
        found = (self._object(f"{_BROKERS}/{name}") for name in self._store.children(_BROKERS))
        return tuple(broker for broker in found if broker)

    def _object(self, path: str) -> Json | None:
        stored = self._store.get(path)
        if stored is None or not stored.value:
            return None
        try:
            parsed = json.loads(stored.value)
        except ValueError as error:
            raise CorruptMetadata(f"the value at {path} is not valid JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise CorruptMetadata(f"the value at {path} is not a JSON object")
        return parsed
