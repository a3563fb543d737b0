"""A cluster's topics together with the segments that an attached Afterglow has written of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.paths import AfterglowPaths
from afterglow.read.ranges import with_segments
from afterglow.source.home_directory import stored_segments

if TYPE_CHECKING:
    from collections.abc import Collection

    from afterglow.config import BrokerConfig
    from afterglow.format.schema import SchemaVersion
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.store import MetadataStore
    from afterglow.source.directory import Look, SourceSegment, TopicDirectory

_OURS: Final = "/afterglow"


@dataclass(frozen=True, slots=True)
class AttachedDirectory:
    """A :class:`~afterglow.source.directory.TopicDirectory` that adds our segments to another."""

    cluster: TopicDirectory
    metadata: MetadataStore
    """Holds our segments; closed by whoever opened it."""
    paths: AfterglowPaths
    """Where in it."""

    @property
    def source(self) -> str:
        """Its address, for messages."""
        return self.cluster.source

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics; see the protocol."""
        return self.cluster.topics()

    def names_beside(self, topic: TopicName) -> tuple[str, ...]:
        """Full names in the topic's namespace; see the protocol."""
        return self.cluster.names_beside(topic)

    def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has; see the protocol."""
        return self.cluster.partitions(topic)

    def exists(self, topic: TopicName) -> bool:
        """Whether there is such a topic; see the protocol."""
        return self.cluster.exists(topic)

    def look(self, topic: TopicName) -> Look:
        """A topic as it is now; see the protocol.

        Raises:
            TopicMissing: There is no such topic any more.
            CorruptMetadata: A list is damaged.
        """
        look = self.cluster.look(topic)
        stored = self.metadata.get(self.paths.managed_ledger(topic.managed_ledger_name))
        if stored is None or not stored.value:
            return look
        return replace(look, info=with_segments(look.info, parse_managed_ledger(stored.value)))

    def policy(self, topic: TopicName) -> BrokerConfig:
        """What holds for a topic; see the protocol."""
        return self.cluster.policy(topic)

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """Its offloaded segments; see the protocol.

        Raises:
            CorruptMetadata: A record is damaged.
        """
        return stored_segments(self.metadata, self.paths, topic)

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Every version of its schema; see the protocol."""
        return self.cluster.schemas(topic)


def attached_paths(metadata: MetadataStore, address: str, clusters: Collection[str]) -> AfterglowPaths:
    """Where our records of a cluster are.

    Args:
        metadata: The store.
        address: Its address, for messages.
        clusters: Names that the cluster goes by.

    Raises:
        ConfigError: It holds nothing of ours about the cluster.
    """
    known = metadata.children(_OURS)
    found = [name for name in known if name in clusters]
    if len(found) != 1:
        there = f"it has records of {', '.join(known)}" if known else "it has no records of any"
        raise ConfigError(
            f"metadata {address!r} holds nothing of an Afterglow that is attached to cluster "
            f"{' or '.join(clusters) or '(unknown)'}; {there}: give the address that `afterglow attach --metadata` has"
        )
    return AfterglowPaths(found[0])
