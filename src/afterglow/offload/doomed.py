"""Which objects a list, or an attempt, would leave behind: what is put on record before either lets go of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.format.offload_context import get_uuid, ledger_uuid
from afterglow.format.proto.afterglow_pb2 import SegmentRecord, UploadRecord
from afterglow.offload.deletion import Doomed
from afterglow.read.places import TierPlace, place_of_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadDriverMetadata
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.attempts import Attempt


def doomed_attempt(attempt: Attempt) -> Doomed:
    """What an attempt may have written."""
    offloader = attempt.offloader
    return Doomed(attempt.uuid, offloader.place, attempt.ledger_id, dict(offloader.driver_metadata()))


def doomed_row(row: ManagedLedgerInfo.LedgerInfo) -> Doomed | None:
    """What the list names as a ledger's own object, whole or attempted; None where it names none."""
    uuid = ledger_uuid(row)
    return None if uuid is None else _of_driver(uuid, row.ledgerId, row.offloadContext.driverMetadata)


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
        MetadataUnavailable: The store cannot be reached.
    """
    for row in rows:
        for segment in row.offloadContext.offloadSegment:
            uuid = get_uuid(segment)
            if uuid is None or uuid in kept:
                continue
            place = None
            if (found := metadata.get(paths.segment(name, uuid))) is not None:
                place = SegmentRecord.FromString(found.value).place
            elif (found := metadata.get(paths.upload(name, uuid))) is not None:
                place = UploadRecord.FromString(found.value).place
            if place is not None:
                yield Doomed(uuid, place_of_record(place))
            else:
                own = segment.driverMetadata if segment.HasField("driverMetadata") else None
                yield _of_driver(uuid, None, own or row.offloadContext.driverMetadata)


def _of_driver(uuid: UUID, ledger_id: int | None, driver: OffloadDriverMetadata) -> Doomed:
    """An object where the list says that it is. Whether that place can be reached is for later to find out."""
    given = {pair.key: pair.value for pair in driver.properties}
    place = TierPlace(
        driver.name,
        given.get("storageBasePath") or given.get("bucket", ""),
        given.get("region", ""),
        given.get("serviceEndpoint", ""),
        given.get("afterglowPrefix", ""),
    )
    return Doomed(uuid, place, ledger_id, given)
