"""Topic directory of a cluster, with the segments that an attached Afterglow wrote."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError, TopicMissing
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.metadata.paths import AfterglowPaths
from afterglow.read.hot_readers import UnavailableHotLog
from afterglow.read.ranges import tiered_only, with_segments
from afterglow.source.directory import SourceSnapshot
from afterglow.source.home_directory import stored_segments

if TYPE_CHECKING:
    from collections.abc import Collection

    from afterglow.config import BrokerConfig
    from afterglow.format.schema import SchemaVersion
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.store import MetadataStore
    from afterglow.source.directory import SourceSegment, TopicDirectory

_ROOT: Final = "/afterglow"


@dataclass(frozen=True, slots=True)
class AttachedDirectory:
    """A :class:`~afterglow.source.directory.TopicDirectory` that adds Afterglow's segments to that of a cluster.

    A topic that the cluster has deleted has the entries in segments.
    """

    cluster: TopicDirectory
    metadata: MetadataStore
    """Store of the segment records; closed by the caller."""
    paths: AfterglowPaths
    """Paths in the store."""

    @property
    def source(self) -> str:
        """Its address, for messages."""
        return self.cluster.source

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics; see :class:`TopicDirectory`."""
        return self.cluster.topics()

    def names_in_namespace(self, topic: TopicName) -> tuple[str, ...]:
        """Full names in the topic's namespace; see :class:`TopicDirectory`."""
        return self.cluster.names_in_namespace(topic)

    def partitions(self, topic: TopicName) -> int:
        """Number of partitions of a topic; see :class:`TopicDirectory`."""
        return self.cluster.partitions(topic)

    def exists(self, topic: TopicName) -> bool:
        """Whether a topic exists; see :class:`TopicDirectory`."""
        return self.cluster.exists(topic) or bool(tiered_only(self._attached(topic)).ledgerInfo)

    def snapshot(self, topic: TopicName) -> SourceSnapshot:
        """The current state of a topic; see :class:`TopicDirectory`."""
        try:
            snapshot = self.cluster.snapshot(topic)
        except TopicMissing:
            segments = with_segments(ManagedLedgerInfo(), self._attached(topic))
            if not segments.ledgerInfo:
                raise
            return SourceSnapshot(segments, UnavailableHotLog("the cluster has deleted the topic"), None)
        return replace(snapshot, info=with_segments(snapshot.info, self._attached(topic)))

    def _attached(self, topic: TopicName) -> ManagedLedgerInfo:
        """Our copy of a ledger list; empty if the topic was not attached."""
        stored = self.metadata.get(self.paths.managed_ledger(topic.managed_ledger_name))
        return ManagedLedgerInfo() if stored is None else parse_managed_ledger(stored.value)

    def policy(self, topic: TopicName) -> BrokerConfig:
        """Effective policy of a topic; see :class:`TopicDirectory`."""
        return self.cluster.policy(topic)

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """Its offloaded segments; see :class:`TopicDirectory`."""
        return stored_segments(self.metadata, self.paths, topic)

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Every version of its schema; see :class:`TopicDirectory`."""
        return self.cluster.schemas(topic)


def attached_paths(metadata: MetadataStore, address: str, clusters: Collection[str]) -> AfterglowPaths:
    """Paths of Afterglow's records of a cluster.

    Args:
        metadata: The store.
        address: Its address, for messages.
        clusters: Names of the cluster.

    Raises:
        ConfigError: The store has no records of the cluster.
    """
    known = metadata.children(_ROOT)
    found = [name for name in known if name in clusters]
    if len(found) != 1:
        existing = f"it has records of {', '.join(known)}" if known else "it has records of no cluster"
        raise ConfigError(
            f"metadata {address!r} has no records of an Afterglow attached to cluster "
            f"{' or '.join(clusters) or '(unknown)'}, {existing}; give the address of `afterglow attach --metadata`"
        )
    return AfterglowPaths(found[0])
