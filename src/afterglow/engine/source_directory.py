"""What a source knows of its topics, whoever keeps it: an engine's metadata, an admin API, a cluster's ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.engine.source_records import SourceSegment
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.format.schema_version import SchemaVersion
    from afterglow.metadata.names import TopicName
    from afterglow.read.copies import HotReader
    from afterglow.read.hot_places import HotPlace


@dataclass(frozen=True, slots=True)
class Look:
    """A topic as it was at one moment."""

    info: ManagedLedgerInfo
    """Its list of ledgers."""
    hot: HotReader
    """Its hot log; tells the ends of ledgers that the list leaves open."""
    hot_place: HotPlace | None
    """The same for other processes; None: none of them comes to it."""


class TopicDirectory(Protocol):
    """The topics of a source. Thread-safe. Every method raises a ``MetadataError`` where it cannot be asked."""

    @property
    def source(self) -> str:
        """Its address, for messages."""
        ...

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics, each partition by itself."""
        ...

    def names_beside(self, topic: TopicName) -> tuple[str, ...]:
        """Full names of the topics in a topic's namespace, also of partitioned ones."""
        ...

    def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has; 0 where it is not partitioned."""
        ...

    def exists(self, topic: TopicName) -> bool:
        """Whether there is such a topic, by its own name: one that is not partitioned, or a partition."""
        ...

    def look(self, topic: TopicName) -> Look:
        """A topic as it is now; what :meth:`policy` says afterwards is as new.

        Raises:
            TopicMissing: There is no such topic any more.
            CorruptMetadata: Its list is damaged.
        """
        ...

    def policy(self, topic: TopicName) -> BrokerConfig:
        """What holds for a topic."""
        ...

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """Its offloaded segments, by position.

        Raises:
            CorruptMetadata: A record is damaged.
        """
        ...

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Every version of its schema, oldest first.

        Raises:
            NotSupported: The source cannot tell.
        """
        ...
