"""The topics of a metadata store: that of an engine's home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.engine.announcement import announced
from afterglow.engine.source_directory import Look
from afterglow.engine.source_records import SourceSegment
from afterglow.errors import TopicMissing
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.hot.local.shared import read_instance
from afterglow.ledger.catalog import Catalog
from afterglow.metadata.paths import managed_ledger_path
from afterglow.offload.policies import Policies
from afterglow.read.handle import SharedHot
from afterglow.read.hot_places import HotPlace

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.config import BrokerConfig
    from afterglow.format.schema_version import SchemaVersion
    from afterglow.metadata.cluster_proof import ClusterProof
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore


class HomeDirectory:
    """A :class:`~afterglow.engine.source_directory.TopicDirectory` over an engine's home.

    Args:
        source: The home, as it was given.
        home: The same.
        metadata: Its metadata; closed by whoever opened it.
        paths: Where records of ours are in it.
        config: The settings of this process.
        proof: What the engine's broker is shown by those who do not find the home on their disk.
        service_url: Where that broker is reached, if not where it says.
    """

    def __init__(
        self,
        source: str,
        home: Path,
        metadata: MetadataStore,
        paths: AfterglowPaths,
        config: BrokerConfig,
        *,
        proof: ClusterProof,
        service_url: str | None = None,
    ) -> None:
        self._source = source
        self._metadata = metadata
        self._paths = paths
        self._catalog = Catalog(metadata, config.cluster_name)
        self._policies = Policies(config, self._catalog)
        self._home = home
        self._hot = SharedHot(home)
        self._proof = proof
        self._service_url = service_url

    @property
    def source(self) -> str:
        """Its address, for messages."""
        return self._source

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics; see the protocol."""
        catalog = self._catalog
        return tuple(
            str(topic)
            for tenant in catalog.tenants()
            for namespace in catalog.namespaces(tenant)
            for topic in catalog.topics(namespace)
        )

    def names_beside(self, topic: TopicName) -> tuple[str, ...]:
        """Full names in the topic's namespace; see the protocol."""
        known = (*self._catalog.topics(topic.namespace), *self._catalog.partitioned_topics(topic.namespace))
        return tuple(sorted({str(other) for other in known}))

    def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has; see the protocol."""
        return self._catalog.partitions(topic)

    def exists(self, topic: TopicName) -> bool:
        """Whether there is such a topic; see the protocol."""
        return self._stored(topic) is not None

    def look(self, topic: TopicName) -> Look:
        """A topic as it is now; see the protocol.

        Raises:
            TopicMissing: There is no such topic any more.
            CorruptMetadata: Its list is damaged.
        """
        value = self._stored(topic)
        if value is None:
            raise TopicMissing(f"source {self._source} has no topic {topic} any more")
        self._policies.changed(None)
        place = HotPlace(
            str(self._home.absolute()),
            str(topic),
            self._service_url or announced(self._home),
            read_instance(self._home) or "",
            self._proof,
        )
        return Look(parse_managed_ledger(value), self._hot, place)

    def policy(self, topic: TopicName) -> BrokerConfig:
        """What holds for a topic; see the protocol."""
        return self._policies.of(topic.managed_ledger_name)

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """Its offloaded segments; see the protocol.

        Raises:
            CorruptMetadata: A record is damaged.
        """
        return stored_segments(self._metadata, self._paths, topic)

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Every version of its schema; see the protocol.

        Raises:
            CorruptMetadata: A version is damaged.
        """
        from afterglow.engine.source_schemas import stored_schemas  # noqa: PLC0415 - only who decodes waits for it

        return stored_schemas(self._metadata, self._paths, topic)

    def _stored(self, topic: TopicName) -> bytes | None:
        stored = self._metadata.get(managed_ledger_path(topic.managed_ledger_name))
        return None if stored is None or not stored.value else stored.value


def stored_segments(metadata: MetadataStore, paths: AfterglowPaths, topic: TopicName) -> tuple[SourceSegment, ...]:
    """The offloaded segments of a topic that a store has records of, by position.

    Raises:
        MetadataError: It cannot be read.
        CorruptMetadata: A record is damaged.
    """
    parent = paths.segments(topic.managed_ledger_name)
    found = []
    for child in metadata.children(parent):
        node = metadata.get(f"{parent}/{child}")
        if node is not None:
            found.append(SourceSegment.parse(str(topic), node.value, f"{parent}/{child}"))
    return tuple(sorted(found, key=lambda segment: segment.begin))
