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
"""Stands among the clusters, and is none."""


class MetadataReader(Protocol):
    """The reading half of a metadata store."""

    def get(self, path: str) -> Versioned | None:
        """A node; None where there is none."""
        ...

    def children(self, path: str) -> tuple[str, ...]:
        """Names of the nodes below a node."""
        ...


class PulsarCluster:
    """The metadata of one cluster. Thread-safe.

    Policies and the numbers of partitions may be in a store of their own, that of the configuration: then this one
    does not have them, and the names of topics tell what they can.

    Args:
        store: Where it is; closed by whoever opened it.
    """

    def __init__(self, store: MetadataReader) -> None:
        self._store = store

    # --- names ---

    def clusters(self) -> tuple[str, ...]:
        """Names of the clusters that it knows, itself among them."""
        return tuple(name for name in self._store.children(_CLUSTERS) if name != _GLOBAL)

    def namespaces(self) -> tuple[NamespaceName, ...]:
        """Every namespace that has topics."""
        found = []
        for tenant in self._store.children(MANAGED_LEDGERS):
            for name in self._store.children(f"{MANAGED_LEDGERS}/{tenant}"):
                try:
                    found.append(NamespaceName(tenant, name))
                except InvalidName:
                    continue  # what is no name of Pulsar's is somebody else's
        return tuple(found)

    def topics(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """The persistent topics of a namespace, each partition by itself."""
        names = self._store.children(topics_path(namespace))
        return tuple(TopicName(namespace, decode_name(name), Domain.PERSISTENT) for name in sorted(names))

    def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has; 0 where it is not partitioned.

        Raises:
            CorruptMetadata: What is stored of it makes no sense.
        """
        path = f"{_PARTITIONED}/{topic.namespace}/{topic.domain}/{encode_name(topic.local_name)}"
        stored = self._object(path)
        if stored is not None:
            count = stored.get("partitions", 0)
            if not isinstance(count, int):
                raise CorruptMetadata(f"the number of partitions at {path} is {count!r}")
            return count
        if self._store.get(_PARTITIONED) is not None or self.managed_ledger(topic) is not None:
            return 0
        parts = (name.partition_index for name in self.topics(topic.namespace) if name.base == topic)
        return 1 + max((index for index in parts if index is not None), default=-1)

    # --- what is stored ---

    def managed_ledger(self, topic: TopicName) -> bytes | None:
        """A topic's list of ledgers as it is stored, by the topic's own name; None where there is no such topic."""
        stored = self._store.get(managed_ledger_path(topic.managed_ledger_name))
        return None if stored is None or not stored.value else stored.value

    def namespace_policies(self, namespace: NamespaceName) -> Json:
        """All policies of a namespace; empty where none are here.

        Raises:
            CorruptMetadata: They are no JSON object.
        """
        return self._object(f"{_POLICIES}/{namespace}") or {}

    def dynamic_configuration(self) -> Json:
        """The brokers' settings that were changed while they ran.

        Raises:
            CorruptMetadata: They are no JSON object.
        """
        return self._object(_CONFIGURATION) or {}

    def brokers(self) -> tuple[Json, ...]:
        """What each broker that runs has said of itself.

        Raises:
            CorruptMetadata: It is no JSON object.
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
            raise CorruptMetadata(f"what is stored at {path} is no JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise CorruptMetadata(f"what is stored at {path} is no JSON object")
        return parsed
