"""Directories: what a source knows of its topics, their ledgers and segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self
from uuid import UUID

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptMetadata
from afterglow.format.position import Position
from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.ledger.ledger_list import is_fully_offloaded, records
from afterglow.tier.locations import location_of_record

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.format.schema import SchemaVersion
    from afterglow.metadata.names import TopicName
    from afterglow.read.copies import HotReader
    from afterglow.read.hot_readers import HotLocation
    from afterglow.read.topic_reader import TopicView
    from afterglow.tier.locations import TierLocation


@dataclass(frozen=True, slots=True)
class SourceLedger:
    """One ledger of a topic."""

    topic: str
    """Full name, with the partition."""
    ledger_id: int
    entries: int
    """That can be read now. 0 of the newest, for a moment, while the end of the one before is not known."""
    size_bytes: int | None
    """Of all its entries; None while it is written."""
    closed_ms: int | None
    """When it was closed, epoch milliseconds; None while it is written."""
    last_broker_time_ms: int | None
    """Broker time of its last entry; None where it was not recorded."""
    hot: bool
    """Whether the hot log is to have it."""
    tiered: bool
    """Whether a tier has it whole."""


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """One segment of a topic that was offloaded."""

    topic: str
    """Full name, with the partition."""
    id: UUID
    begin: Position
    """First entry, inclusive."""
    end: Position
    """Last entry, inclusive."""
    entries: int
    size_bytes: int
    """Of the data object."""
    location: TierLocation
    key: str
    """Of the data object in its place."""
    assigned_ms: int
    """When it was opened, epoch milliseconds."""
    offloaded_ms: int
    """When its object was complete, epoch milliseconds."""

    @classmethod
    def parse(cls, topic: str, value: bytes, path: str) -> Self:
        """Read a segment's record.

        Raises:
            CorruptMetadata: It does not parse.
        """
        try:
            record = SegmentRecord.FromString(value)
            uuid = UUID(record.uuid)
        except (DecodeError, ValueError) as error:
            raise CorruptMetadata(f"the segment record at {path} does not parse: {error}") from error
        return cls(
            topic,
            uuid,
            Position(record.begin.ledger_id, record.begin.entry_id),
            Position(record.end.ledger_id, record.end.entry_id),
            record.entries,
            record.bytes,
            location_of_record(record.location),
            record.location.key,
            record.assigned_ms,
            record.offloaded_ms,
        )


def source_ledgers(topic: str, info: ManagedLedgerInfo, view: TopicView) -> tuple[SourceLedger, ...]:
    """The ledgers of a topic, ascending by id."""
    return tuple(
        SourceLedger(
            topic,
            record.ledger_id,
            view.layout.entries_of(record.ledger_id) or 0,
            record.size_bytes,
            record.closed_ms if record.finished else None,
            record.last_broker_time_ms,
            not record.hot_deleted,
            is_fully_offloaded(view.rows[record.ledger_id]),
        )
        for record in records(info)
    )


@dataclass(frozen=True, slots=True)
class Look:
    """A topic as it was at one moment."""

    info: ManagedLedgerInfo
    """Its list of ledgers."""
    hot: HotReader
    """Its hot log; tells the ends of ledgers that the list leaves open."""
    hot_location: HotLocation | None
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
