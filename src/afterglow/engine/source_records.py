"""What a source tells of a topic's ledgers and segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from uuid import UUID

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptMetadata
from afterglow.format.position import Position
from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.ledger.ledger_list import offloaded_whole, records
from afterglow.read.places import place_of_record

if TYPE_CHECKING:
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.handle import TopicView
    from afterglow.read.places import TierPlace


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
    place: TierPlace
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
            place_of_record(record.place),
            record.place.key,
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
            offloaded_whole(view.rows[record.ledger_id]),
        )
        for record in records(info)
    )
