"""Which object holds an entry of a ledger, and where it lies.

A ledger that was offloaded whole (V1) has one object of its own. A ledger in segments (V2) has a stretch in each of
them: from behind the segment before to the segment's ``endEntryId``. What stands behind the last complete one is in the
hot log alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptMetadata
from afterglow.format.offload_context import get_uuid
from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.read.caching import ByteCache
from afterglow.read.mapfile import mapfile_key
from afterglow.read.objects import Located, data_key
from afterglow.read.places import (
    FILESYSTEM,
    MAPFILES,
    mapfiles_of_driver,
    place_of_driver,
    place_of_policy,
    place_of_record,
)
from afterglow.read.pruning import TimeBounds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadDriverMetadata
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.read.places import TierPlace

_MAX_RECORDS: Final = 10_000
"""Records of segments that are remembered; records never change."""
_VERSION: Final = 1
"""Of segment records."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries of a ledger that one object holds."""

    uuid: UUID
    ledger_id: int | None
    """The ledger whose own object it is; None for a segment."""
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    driver: OffloadDriverMetadata | None
    """Where the ledger's own metadata says it is; None where that says nothing."""

    @property
    def key(self) -> str:
        """Of the data object."""
        return data_key(self.uuid, self.ledger_id)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What is kept of a segment's record."""

    located: Located
    times: TimeBounds


def stretch_at(row: ManagedLedgerInfo.LedgerInfo, entry_id: int) -> Stretch | None:
    """The stretch in a tier that holds an entry of a ledger; None where no tier has it."""
    return next(stretches_from(row, entry_id), None)


def stretches_from(row: ManagedLedgerInfo.LedgerInfo, entry_id: int) -> Iterator[Stretch]:
    """The stretch that holds an entry of a ledger, and those behind it as long as each follows the one before."""
    context = row.offloadContext
    if context.complete:
        uuid = get_uuid(context)
        driver = context.driverMetadata if context.HasField("driverMetadata") else None
        if uuid is not None:
            yield Stretch(uuid, row.ledgerId, 0, row.entries - 1, driver)
        return
    first = 0
    for segment in context.offloadSegment:
        if not segment.HasField("endEntryId"):
            return  # it is being written; where those behind it begin is not known yet
        end = segment.endEntryId
        if entry_id <= end:
            uuid = get_uuid(segment) if segment.complete else None
            if uuid is None:
                return
            driver = segment.driverMetadata if segment.HasField("driverMetadata") else None
            yield Stretch(uuid, None, first, end, driver)
            entry_id = end + 1
        first = end + 1


class Locator:
    """Finds the places of objects. Thread-safe.

    Args:
        metadata: Holds the records of segments; None where there are none.
        paths: Where in it.
        own: The engine's own tier, for ledgers whose metadata names no driver.
        explicit: Where all objects are, whatever metadata and policies say.
    """

    def __init__(
        self,
        metadata: MetadataStore | None = None,
        paths: AfterglowPaths | None = None,
        *,
        own: TierPlace | None = None,
        explicit: TierPlace | None = None,
    ) -> None:
        self._metadata = metadata
        self._paths = paths
        self._own = own
        self._explicit = explicit
        self._records: ByteCache[UUID, _Recorded] = ByteCache(
            _MAX_RECORDS, lambda _: 1, idle_s=0, monotonic=lambda: 0.0
        )

    def locate(self, name: str, stretch: Stretch, policy: BrokerConfig) -> Located:
        """The object of a stretch.

        Args:
            name: The topic's managed-ledger name.
            stretch: The entries.
            policy: The topic's.

        Raises:
            NotSupported: Whoever wrote it used a driver or a format that cannot be read.
            CorruptMetadata: Metadata does not tell where it is.
            ConfigError: Metadata names no driver, and neither does the policy.
            MetadataUnavailable: The segment's record cannot be read now.
        """
        if self._explicit is not None:
            return self._mapfile_in(self._explicit, name, stretch) or Located(self._explicit, stretch.key)
        if stretch.driver is not None:
            mapfiles = mapfiles_of_driver(stretch.driver)
            if mapfiles is not None and stretch.ledger_id is not None:
                return Located(mapfiles, mapfile_key(name, stretch.ledger_id, stretch.uuid))
            return Located(place_of_driver(stretch.driver), stretch.key)
        if stretch.ledger_id is not None:
            place = place_of_policy(policy, self._own)
            return self._mapfile_in(place, name, stretch) or Located(place, stretch.key)
        return self._record(name, stretch.uuid).located

    @staticmethod
    def _mapfile_in(place: TierPlace, name: str, stretch: Stretch) -> Located | None:
        """The MapFile of a ledger in a directory that may hold these as well as objects; None where it has none."""
        if place.driver != FILESYSTEM or stretch.ledger_id is None:
            return None
        key = mapfile_key(name, stretch.ledger_id, stretch.uuid)
        found = Path(place.bucket, place.prefix, key).is_dir()
        return Located(replace(place, driver=MAPFILES), key) if found else None

    def times(self, name: str, stretch: Stretch) -> TimeBounds | None:
        """Which times the entries of a stretch's object have, as its record tells; None where nobody recorded it.

        Raises:
            CorruptMetadata: The record is damaged or missing.
            MetadataUnavailable: It cannot be read now.
        """
        if stretch.ledger_id is not None or self._metadata is None:
            return None
        return self._record(name, stretch.uuid).times

    def _record(self, name: str, uuid: UUID) -> _Recorded:
        return self._records.get(uuid, lambda: self._recorded(name, uuid))

    def _recorded(self, name: str, uuid: UUID) -> _Recorded:
        if self._metadata is None or self._paths is None:
            raise CorruptMetadata(f"metadata of {name} does not tell where segment {uuid} is")
        path = self._paths.segment(name, uuid)
        node = self._metadata.get(path)
        if node is None:
            raise CorruptMetadata(f"{name}: the record {path} of segment {uuid} is missing")
        try:
            record = SegmentRecord.FromString(node.value)
        except DecodeError as error:
            raise CorruptMetadata(f"{name}: the record {path} of segment {uuid} does not parse: {error}") from error
        if record.version != _VERSION or not record.place.key:
            raise CorruptMetadata(
                f"{name}: the record {path} has version {record.version}; this release reads version {_VERSION}"
            )
        located = Located(place_of_record(record.place), record.place.key)
        fields = ("min_broker_time", "max_broker_time", "min_publish_time", "max_publish_time")
        known = {field.name: value for field, value in record.ListFields()}
        return _Recorded(located, TimeBounds(*(known.get(field) for field in fields)))
