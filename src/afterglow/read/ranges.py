"""Ranges of entries in the tier: which object holds an entry of a ledger, and in which tier location it is.

A ledger that was offloaded whole (V1) has one object of its own. A ledger in segments (V2) has a range in each of them:
from behind the previous segment to the segment's ``endEntryId``. Entries behind the last complete segment are in the
hot log alone.

:func:`tiered_only` and :func:`with_segments` derive ledger lists: without what only the hot log has, and of a cluster
that Afterglow is attached to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptMetadata
from afterglow.format.objects import get_uuid
from afterglow.format.position import Position
from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.ledger_list import is_fully_offloaded
from afterglow.read.cache import ByteCache
from afterglow.read.mapfile import mapfile_key
from afterglow.read.objects import Located, data_key
from afterglow.read.pruning import TimeBounds
from afterglow.tier.locations import (
    FILESYSTEM,
    MAPFILES,
    location_of_driver,
    location_of_policy,
    location_of_record,
    mapfiles_of_driver,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import OffloadContext, OffloadDriverMetadata
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.tier.locations import TierLocation

    LedgerInfo = ManagedLedgerInfo.LedgerInfo

_MAX_RECORDS: Final = 10_000
"""Records of segments that are remembered; records never change."""
_VERSION: Final = 1
"""Of segment records."""


@dataclass(frozen=True, slots=True)
class OffloadedRange:
    """Entries of a ledger that one object holds."""

    uuid: UUID
    ledger_id: int | None
    """The ledger whose own object it is; None for a segment."""
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    driver: OffloadDriverMetadata | None
    """The driver that the ledger list names; None where it names none."""

    @property
    def key(self) -> str:
        """Of the data object."""
        return data_key(self.uuid, self.ledger_id)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The fields of a segment's record that readers need."""

    located: Located
    times: TimeBounds


def offloaded_range_at(row: ManagedLedgerInfo.LedgerInfo, entry_id: int) -> OffloadedRange | None:
    """The range in a tier that holds an entry of a ledger; None where no tier has it."""
    return next(offloaded_ranges_from(row, entry_id), None)


def offloaded_ranges_from(row: ManagedLedgerInfo.LedgerInfo, entry_id: int) -> Iterator[OffloadedRange]:
    """The range that holds an entry of a ledger, and those behind it as long as each follows the one before."""
    context = row.offloadContext
    if context.complete:
        uuid = get_uuid(context)
        driver = context.driverMetadata if context.HasField("driverMetadata") else None
        if uuid is not None:
            yield OffloadedRange(uuid, row.ledgerId, 0, row.entries - 1, driver)
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
            yield OffloadedRange(uuid, None, first, end, driver)
            entry_id = end + 1
        first = end + 1


class Locator:
    """Finds the tier locations of objects. Thread-safe.

    Args:
        metadata: Holds the records of segments; None: there are no segments.
        paths: Of the records in it.
        own: The server's own tier, for ledgers whose metadata names no driver.
        explicit: Where all objects are, whatever metadata and policies say.
    """

    def __init__(
        self,
        metadata: MetadataStore | None = None,
        paths: AfterglowPaths | None = None,
        *,
        own: TierLocation | None = None,
        explicit: TierLocation | None = None,
    ) -> None:
        self._metadata = metadata
        self._paths = paths
        self._own = own
        self._explicit = explicit
        self._records: ByteCache[UUID, _Recorded] = ByteCache(
            _MAX_RECORDS, lambda _: 1, idle_s=0, monotonic=lambda: 0.0
        )

    def locate(self, name: str, offloaded: OffloadedRange, policy: BrokerConfig) -> Located:
        """The object that holds a range.

        Args:
            name: The topic's managed-ledger name.
            offloaded: The range.
            policy: The topic's.

        Raises:
            NotSupported: Its writer used a driver or a format that cannot be read.
            CorruptMetadata: Metadata does not name its location.
            ConfigError: Metadata names no driver, and neither does the policy.
            MetadataUnavailable: The segment's record cannot be read now.
        """
        if self._explicit is not None:
            return self._mapfile_in(self._explicit, name, offloaded) or Located(self._explicit, offloaded.key)
        if offloaded.driver is not None:
            mapfiles = mapfiles_of_driver(offloaded.driver)
            if mapfiles is not None and offloaded.ledger_id is not None:
                return Located(mapfiles, mapfile_key(name, offloaded.ledger_id, offloaded.uuid))
            return Located(location_of_driver(offloaded.driver), offloaded.key)
        if offloaded.ledger_id is not None:
            location = location_of_policy(policy, self._own)
            return self._mapfile_in(location, name, offloaded) or Located(location, offloaded.key)
        return self._record(name, offloaded.uuid).located

    @staticmethod
    def _mapfile_in(location: TierLocation, name: str, offloaded: OffloadedRange) -> Located | None:
        """The MapFile of a ledger in a directory that may hold these as well as objects; None where it has none."""
        if location.driver != FILESYSTEM or offloaded.ledger_id is None:
            return None
        key = mapfile_key(name, offloaded.ledger_id, offloaded.uuid)
        found = Path(location.bucket, location.prefix, key).is_dir()
        return Located(replace(location, driver=MAPFILES), key) if found else None

    def times(self, name: str, offloaded: OffloadedRange) -> TimeBounds | None:
        """Times of the entries in a range's object, from its record; None where they are not recorded.

        Raises:
            CorruptMetadata: The record is damaged or missing.
            MetadataUnavailable: It cannot be read now.
        """
        if offloaded.ledger_id is not None or self._metadata is None:
            return None
        return self._record(name, offloaded.uuid).times

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
        if record.version != _VERSION or not record.location.key:
            raise CorruptMetadata(
                f"{name}: the record {path} has version {record.version}; this release reads version {_VERSION}"
            )
        located = Located(location_of_record(record.location), record.location.key)
        fields = ("min_broker_time", "max_broker_time", "min_publish_time", "max_publish_time")
        known = {field.name: value for field, value in record.ListFields()}
        return _Recorded(located, TimeBounds(*(known.get(field) for field in fields)))


def tiered_only(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
    """The same list as if the hot log were gone: of each ledger what a tier has from its first entry on.

    Segments are committed in order, so that nothing in a tier stands behind a hole of a ledger that is in segments.
    """
    left = ManagedLedgerInfo()
    left.CopyFrom(info)
    del left.ledgerInfo[:]
    for row in info.ledgerInfo:
        context = row.offloadContext
        entries = row.entries if context.complete else _covered(context)
        if entries:
            kept = left.ledgerInfo.add()
            kept.CopyFrom(row)
            kept.entries = entries
            kept.offloadContext.bookkeeperDeleted = True
    return left


def tiered_end(info: ManagedLedgerInfo) -> Position | None:
    """Where the first entry of a topic stands that no tier has; None where a tier has every ledger whole."""
    for row in sorted(info.ledgerInfo, key=lambda row: row.ledgerId):
        if not is_fully_offloaded(row):
            return Position(row.ledgerId, _covered(row.offloadContext))
    return None


def _covered(context: OffloadContext) -> int:
    """Entries of a ledger that complete segments hold, from its first one on."""
    entries = 0
    for segment in context.offloadSegment:
        if not segment.complete:
            break
        entries = segment.endEntryId + 1
    return entries


def with_segments(theirs: ManagedLedgerInfo, ours: ManagedLedgerInfo) -> ManagedLedgerInfo:
    """The cluster's list with the segments that we have written of its ledgers.

    A ledger that the cluster itself has offloaded is read from its own object. One that it has dropped since is there
    as far as segments hold it.
    """
    united = ManagedLedgerInfo()
    united.CopyFrom(theirs)
    known: Mapping[int, LedgerInfo] = {row.ledgerId: row for row in ours.ledgerInfo}
    for row in united.ledgerInfo:
        segments = known[row.ledgerId].offloadContext.offloadSegment if row.ledgerId in known else ()
        if segments and not row.offloadContext.complete:
            del row.offloadContext.offloadSegment[:]
            row.offloadContext.offloadSegment.extend(segments)
    first = min((row.ledgerId for row in theirs.ledgerInfo), default=1 << 63)
    for row in tiered_only(ours).ledgerInfo:
        if row.ledgerId < first:
            united.ledgerInfo.add().CopyFrom(row)
    return united
