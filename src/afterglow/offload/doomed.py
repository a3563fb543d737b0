"""Objects that are to go, and which a list, an attempt or a record would leave behind.

They are put on record before whatever names them lets go of them; see :mod:`afterglow.offload.deletion`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from afterglow.format.objects import ObjectKey
from afterglow.format.offload_context import get_uuid, ledger_uuid
from afterglow.offload.offloader import recorded_place
from afterglow.offload.segments.records import parse_segment, parse_upload
from afterglow.read.places import TierPlace, external_place, is_built_in, place_of_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.format.proto.afterglow_pb2 import Place
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadDriverMetadata
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.attempts import Attempt


@dataclass(frozen=True, slots=True)
class Doomed:
    """An object that is to go."""

    uuid: UUID
    place: TierPlace
    ledger_id: int | None = None
    """Of a ledger's own object; None for a segment."""
    unfinished: bool = False
    """Whether it was never committed, as far as is known: an upload of its key may just be created."""

    @property
    def key(self) -> str:
        """Of the data object."""
        return str(ObjectKey(self.uuid, self.ledger_id))


def doomed_attempt(attempt: Attempt) -> Doomed:
    """What an attempt may have written."""
    return Doomed(attempt.uuid, recorded_place(attempt.offloader), attempt.ledger_id, unfinished=True)


def doomed_row(row: ManagedLedgerInfo.LedgerInfo) -> Doomed | None:
    """What the list names as a ledger's own object, whole or attempted; None where it names none."""
    uuid = ledger_uuid(row)
    if uuid is None:
        return None
    found = _of_driver(uuid, row.ledgerId, row.offloadContext.driverMetadata)
    return replace(found, unfinished=not row.offloadContext.complete)


def doomed_segments(
    name: str,
    rows: Sequence[ManagedLedgerInfo.LedgerInfo],
    kept: set[UUID],
    metadata: MetadataStore,
    paths: AfterglowPaths,
) -> Iterator[Doomed]:
    """Segments that only these ledgers name.

    Args:
        name: The managed-ledger name.
        rows: The ledgers.
        kept: UUIDs that other ledgers of the list name.
        metadata: Where records of segments are, which know their places.
        paths: Where in it.

    Raises:
        CorruptMetadata: The record of one cannot be read, so that nobody knows where it is.
        MetadataUnavailable: The store cannot be reached.
    """
    for row in rows:
        for segment in row.offloadContext.offloadSegment:
            uuid = get_uuid(segment)
            if uuid is None or uuid in kept:
                continue
            place = _recorded_place(name, uuid, metadata, paths)
            if place is not None:
                yield Doomed(uuid, place_of_record(place), unfinished=not segment.complete)
            elif segment.HasField("driverMetadata"):
                yield replace(_of_driver(uuid, None, segment.driverMetadata), unfinished=not segment.complete)


def doomed_records(name: str, metadata: MetadataStore, paths: AfterglowPaths) -> Iterator[Doomed]:
    """Every segment that is on record for a topic, whether or not a list names it.

    Raises:
        CorruptMetadata: The record of one cannot be read, so that nobody knows where it is.
        MetadataUnavailable: The store cannot be reached.
    """
    uploads = metadata.children(paths.uploads(name))
    for child in dict.fromkeys((*uploads, *metadata.children(paths.segments(name)))):
        uuid = UUID(child)
        place = _recorded_place(name, uuid, metadata, paths)
        if place is not None:
            yield Doomed(uuid, place_of_record(place), unfinished=child in uploads)


def _recorded_place(name: str, uuid: UUID, metadata: MetadataStore, paths: AfterglowPaths) -> Place | None:
    path = paths.segment(name, uuid)
    if (found := metadata.get(path)) is not None:
        return parse_segment(found.value, path).place
    path = paths.upload(name, uuid)
    if (found := metadata.get(path)) is not None:
        return parse_upload(found.value, path).place
    return None


def _of_driver(uuid: UUID, ledger_id: int | None, driver: OffloadDriverMetadata) -> Doomed:
    """An object where the list says that it is. Whether that place can be reached is for later to find out."""
    given = {pair.key: pair.value for pair in driver.properties}
    if not is_built_in(driver.name):
        return Doomed(uuid, external_place(driver.name, given), ledger_id)
    place = TierPlace(
        driver.name,
        given.get("storageBasePath") or given.get("bucket", ""),
        given.get("region", ""),
        given.get("serviceEndpoint", ""),
        given.get("afterglowPrefix", ""),
    )
    return Doomed(uuid, place, ledger_id)
