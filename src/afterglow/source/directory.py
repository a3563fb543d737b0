"""Topic directory: the protocol by which sources list topics, ledgers, segments, policies and schemas."""

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
    from afterglow.format.position import LedgerRange
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
    """Readable entries. 0 for the newest ledger until the end of the one before is known."""
    size_bytes: int | None
    """Bytes of all its entries; None while it is open."""
    closed_ms: int | None
    """Time of closing, epoch milliseconds; None while it is open, or if the source does not have it."""
    last_broker_time_ms: int | None
    """Broker time of its last entry; None if it was not recorded."""
    hot: bool
    """Whether the hot log should have it."""
    tiered: bool
    """Whether a tier has it whole."""


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """One offloaded segment of a topic."""

    topic: str
    """Full name, with the partition."""
    id: UUID
    begin: Position
    """First entry, inclusive."""
    end: Position
    """Last entry, inclusive."""
    entries: int
    size_bytes: int
    """Bytes of the data object."""
    location: TierLocation
    key: str
    """Key of the data object in its location."""
    assigned_ms: int
    """Time of opening, epoch milliseconds."""
    offloaded_ms: int
    """Time when its object was complete, epoch milliseconds."""

    @classmethod
    def parse(cls, topic: str, value: bytes, path: str) -> Self:
        """Parse a segment record.

        Raises:
            CorruptMetadata: The record is damaged.
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
            (record.closed_ms or None) if record.finished else None,
            record.last_broker_time_ms,
            not record.hot_deleted,
            is_fully_offloaded(view.ledgers[record.ledger_id]),
        )
        for record in records(info)
    )


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """Ledger list and hot log of a topic at one moment."""

    info: ManagedLedgerInfo
    """The ledger list."""
    hot: HotReader
    """The hot log, which has the ends of open ledgers."""
    hot_location: HotLocation | None
    """Location of the hot log, for other processes; None: they cannot reach it."""
    missing: tuple[LedgerRange, ...] = ()
    """Entries of these ledgers that exist nowhere; readers skip them. Ascending."""


class TopicDirectory(Protocol):
    """The topics of a source. Thread-safe. Every method raises ``MetadataError`` if the source cannot be read."""

    @property
    def source(self) -> str:
        """Its address, for messages."""
        ...

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics, each partition by itself."""
        ...

    def names_in_namespace(self, topic: TopicName) -> tuple[str, ...]:
        """Full names of the topics in a topic's namespace, partitioned topics included."""
        ...

    def partitions(self, topic: TopicName) -> int:
        """Number of partitions of a topic; 0 if it is not partitioned."""
        ...

    def exists(self, topic: TopicName) -> bool:
        """Whether a topic exists that is not partitioned, or is a partition."""
        ...

    def snapshot(self, topic: TopicName) -> SourceSnapshot:
        """The current state of a topic; refreshes its :meth:`policy` too.

        Raises:
            TopicMissing: The topic does not exist any more.
            CorruptMetadata: Its ledger list is damaged.
        """
        ...

    def policy(self, topic: TopicName) -> BrokerConfig:
        """Effective policy of a topic."""
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
            NotSupported: The source has no schemas.
        """
        ...
