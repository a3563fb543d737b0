"""Listing of a topic's segments: assigned, offloaded or failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from afterglow.offload.segments import records
from afterglow.tier.locations import location_of_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.format.position import Position
    from afterglow.format.proto.afterglow_pb2 import ObjectLocation, SegmentRecord, UploadRecord
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.tier.locations import TierLocation


class SegmentStatus(StrEnum):
    """State of a segment, in the words of PIP-76."""

    ASSIGNED = "Assigned"
    OFFLOADED = "Offloaded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of a listing."""

    id: str
    """Its UUID."""
    status: SegmentStatus
    begin: Position
    """First entry, inclusive."""
    end: Position | None
    """Last entry, inclusive; None while it is live."""
    assigned_ms: int
    offloaded_ms: int | None
    """Time of its completion, epoch milliseconds; None before."""
    entries: int
    """Number of uploaded entries."""
    bytes: int
    """Number of uploaded bytes."""
    planned_bytes: int
    """Number of bytes that are uploaded or being uploaded."""
    driver: str
    bucket: str
    key: str
    error: str | None
    """Error of the last attempt; None if it did not fail."""
    first_ms: int | None = None
    """Time of its first entry, epoch milliseconds; None if it is not known."""
    last_ms: int | None = None
    """Time of its last entry; None if it is not known, or before the segment is offloaded."""
    planned_entries: int | None = None
    """Number of entries that it will have, as far as it is planned; None if it spans ledgers and is not uploaded."""


def list_segments(
    metadata: MetadataStore,
    paths: AfterglowPaths,
    name: str,
    outage_of: Callable[[TierLocation], str | None] = lambda _location: None,
) -> tuple[SegmentView, ...]:
    """The segments of a topic in the order of positions. Waits for metadata.

    Args:
        metadata: Holds the records.
        paths: Paths of the records.
        name: The managed-ledger name.
        outage_of: Describes the outage of a tier, which makes its assigned segments fail; None if it is available.

    Raises:
        CorruptMetadata: A record cannot be parsed.
        MetadataUnavailable: The store cannot be reached.
    """
    found = {
        record.uuid: _assigned(record, outage_of(location_of_record(record.location)))
        for record in list_uploads(metadata, paths, name)
    }
    for record in list_records(metadata, paths, name):
        # A segment that has an upload record too is not committed yet.
        found.setdefault(record.uuid, _offloaded(record))
    return tuple(sorted(found.values(), key=lambda view: view.begin))


def list_records(metadata: MetadataStore, paths: AfterglowPaths, name: str) -> Iterator[SegmentRecord]:
    """The records of segments whose objects are complete, in no order. Waits for metadata.

    Raises:
        CorruptMetadata: A record cannot be parsed.
        MetadataUnavailable: The store cannot be reached.
    """
    node = paths.segments(name)
    for child in metadata.children(node):
        value = metadata.get(f"{node}/{child}")
        if value is not None:
            yield records.parse_segment(value.value, f"{node}/{child}")


def _offloaded(record: SegmentRecord) -> SegmentView:
    return SegmentView(
        record.uuid,
        SegmentStatus.OFFLOADED,
        records.position_of(record.begin),
        records.position_of(record.end),
        record.assigned_ms,
        record.offloaded_ms,
        record.entries,
        record.bytes,
        record.bytes,
        *_object_of(record.location),
        None,
        *_entry_times(record),
        planned_entries=record.entries,
    )


def list_uploads(metadata: MetadataStore, paths: AfterglowPaths, name: str) -> tuple[UploadRecord, ...]:
    """The records of assigned segments, in the order of positions. Waits for metadata.

    Raises:
        CorruptMetadata: A record cannot be parsed.
        MetadataUnavailable: The store cannot be reached.
    """
    node = paths.uploads(name)
    found = [
        records.parse_upload(value.value, f"{node}/{child}")
        for child in metadata.children(node)
        if (value := metadata.get(f"{node}/{child}")) is not None
    ]
    return tuple(sorted(found, key=lambda record: records.position_of(record.begin)))


def _assigned(record: UploadRecord, outage: str | None) -> SegmentView:
    error = "; ".join(filter(None, (outage, record.last_error))) or None
    return SegmentView(
        record.uuid,
        SegmentStatus.FAILED if error else SegmentStatus.ASSIGNED,
        records.position_of(record.begin),
        records.end_of(record),
        record.assigned_ms,
        None,
        sum(sum(ledger_part.statistics.entries) for part in record.done for ledger_part in part.ledgers),
        sum(part.bytes for part in record.done),
        records.planned_bytes(record),
        *_object_of(record.location),
        error,
        record.first_entry_ms or None,
        planned_entries=_planned_entries(record),
    )


def _planned_entries(record: UploadRecord) -> int | None:
    begin, end = records.position_of(record.begin), records.end_of(record) or records.planned_end(record)
    if end is None:
        return 0
    return end.entry_id - begin.entry_id + 1 if begin.ledger_id == end.ledger_id else None


def _entry_times(record: SegmentRecord) -> tuple[int | None, int | None]:
    """Times of its first and last entry: broker times, or else publish times."""
    if record.HasField("min_broker_time"):
        return record.min_broker_time, record.max_broker_time
    return (record.min_publish_time, record.max_publish_time) if record.HasField("min_publish_time") else (None, None)


def _object_of(location: ObjectLocation) -> tuple[str, str, str]:
    return location.driver, location.bucket, location.key
