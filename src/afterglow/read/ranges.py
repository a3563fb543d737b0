"""Ranges of entries in the tier: the object that holds an entry of a ledger, and its tier location.

A ledger that was offloaded whole (V1) has its own object. A ledger in segments (V2) has a range in each of them: from
the end of the previous segment to the segment's ``endEntryId``. Entries after the last complete segment are only in the
hot log.

:func:`tiered_only` and :func:`with_segments` derive ledger lists: without entries that only the hot log has, and of a
cluster that Afterglow is attached to.
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
from afterglow.read.objects import TierObject, data_key
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
"""Cached segment records; records never change."""
_VERSION: Final = 1
"""Version of segment records."""


@dataclass(frozen=True, slots=True)
class OffloadedRange:
    """Entries of a ledger that one object holds."""

    uuid: UUID
    ledger_id: int | None
    """The ledger of a whole-ledger object; None for a segment."""
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    driver: OffloadDriverMetadata | None
    """Driver metadata of the ledger list; None if it has none."""

    @property
    def key(self) -> str:
        """Key of the data object."""
        return data_key(self.uuid, self.ledger_id)


@dataclass(frozen=True, slots=True)
class _SegmentInfo:
    """The fields of a segment record that readers need."""

    tier_object: TierObject
    times: TimeBounds


def offloaded_range_at(ledger: ManagedLedgerInfo.LedgerInfo, entry_id: int) -> OffloadedRange | None:
    """The range in a tier that holds an entry of a ledger; None if no tier has it."""
    return next(offloaded_ranges_from(ledger, entry_id), None)


def offloaded_ranges_from(ledger: ManagedLedgerInfo.LedgerInfo, entry_id: int) -> Iterator[OffloadedRange]:
    """The range that holds an entry of a ledger, and the ranges that follow it without a gap."""
    context = ledger.offloadContext
    if context.complete:
        uuid = get_uuid(context)
        driver = context.driverMetadata if context.HasField("driverMetadata") else None
        if uuid is not None:
            yield OffloadedRange(uuid, ledger.ledgerId, 0, ledger.entries - 1, driver)
        return
    first = 0
    for segment in context.offloadSegment:
        if not segment.HasField("endEntryId"):
            return  # it is still open, so that the start of the next one is not known
        end = segment.endEntryId
        if entry_id <= end:
            uuid = get_uuid(segment) if segment.complete else None
            if uuid is None:
                return
            driver = segment.driverMetadata if segment.HasField("driverMetadata") else None
            yield OffloadedRange(uuid, None, first, end, driver)
            entry_id = end + 1
        first = end + 1


class ObjectLocator:
    """Finds the tier locations of objects. Thread-safe.

    Args:
        metadata: Store of the segment records; None: there are no segments.
        paths: Paths of the records in it.
        server_tier: The server's tier, for ledgers whose metadata names no driver.
        explicit: Location of all objects, which overrides metadata and policies.
    """

    def __init__(
        self,
        metadata: MetadataStore | None = None,
        paths: AfterglowPaths | None = None,
        *,
        server_tier: TierLocation | None = None,
        explicit: TierLocation | None = None,
    ) -> None:
        self._metadata = metadata
        self._paths = paths
        self._server_tier = server_tier
        self._explicit = explicit
        self._records: ByteCache[UUID, _SegmentInfo] = ByteCache(
            _MAX_RECORDS, lambda _: 1, idle_s=0, monotonic=lambda: 0.0
        )

    def locate(self, name: str, offloaded: OffloadedRange, policy: BrokerConfig) -> TierObject:
        """The object that holds a range.

        Args:
            name: The topic's managed-ledger name.
            offloaded: The range.
            policy: Policy of the topic.

        Raises:
            NotSupported: Its writer used a driver or a format that cannot be read.
            CorruptMetadata: Metadata does not name its location.
            ConfigError: Neither metadata nor the policy names a driver.
            MetadataUnavailable: The segment record cannot be read now.
        """
        if self._explicit is not None:
            found = self._find_mapfile(self._explicit, name, offloaded)
            return found or TierObject(self._explicit, offloaded.key, self._is_stripped(name, offloaded))
        if offloaded.driver is not None:
            mapfiles = mapfiles_of_driver(offloaded.driver)
            if mapfiles is not None and offloaded.ledger_id is not None:
                return TierObject(mapfiles, mapfile_key(name, offloaded.ledger_id, offloaded.uuid))
            return TierObject(location_of_driver(offloaded.driver), offloaded.key, self._is_stripped(name, offloaded))
        if offloaded.ledger_id is not None:
            location = location_of_policy(policy, self._server_tier)
            return self._find_mapfile(location, name, offloaded) or TierObject(location, offloaded.key)
        return self._record(name, offloaded.uuid).tier_object

    @staticmethod
    def _find_mapfile(location: TierLocation, name: str, offloaded: OffloadedRange) -> TierObject | None:
        """The MapFile of a ledger, in a directory that may hold MapFiles and block objects; None if it has none."""
        if location.driver != FILESYSTEM or offloaded.ledger_id is None:
            return None
        key = mapfile_key(name, offloaded.ledger_id, offloaded.uuid)
        found = Path(location.bucket, location.prefix, key).is_dir()
        return TierObject(replace(location, driver=MAPFILES), key) if found else None

    def times(self, name: str, offloaded: OffloadedRange) -> TimeBounds | None:
        """Times of the entries in the object of a range, from its record; None if they are not recorded.

        Raises:
            CorruptMetadata: The record is damaged or missing.
            MetadataUnavailable: The record cannot be read now.
        """
        if offloaded.ledger_id is not None or self._metadata is None:
            return None
        return self._record(name, offloaded.uuid).times

    def _is_stripped(self, name: str, offloaded: OffloadedRange) -> bool:
        """Whether a segment that is located without its record was read through a broker, by its record if it has one.

        Raises:
            MetadataUnavailable: The record cannot be read now.
        """
        if offloaded.ledger_id is not None or self._metadata is None:
            return False
        try:
            return self._record(name, offloaded.uuid).tier_object.markers_stripped
        except CorruptMetadata:
            return False  # a location was given because of that, or the ledger list has it

    def _record(self, name: str, uuid: UUID) -> _SegmentInfo:
        return self._records.get(uuid, lambda: self._read_record(name, uuid))

    def _read_record(self, name: str, uuid: UUID) -> _SegmentInfo:
        if self._metadata is None or self._paths is None:
            raise CorruptMetadata(f"{name}: the metadata has no location of segment {uuid}")
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
        tier_object = TierObject(location_of_record(record.location), record.location.key, record.markers_stripped)
        fields = ("min_broker_time", "max_broker_time", "min_publish_time", "max_publish_time")
        known = {field.name: value for field, value in record.ListFields()}
        return _SegmentInfo(tier_object, TimeBounds(*(known.get(field) for field in fields)))


def tiered_only(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
    """The ledger list without the hot log: of each ledger, the entries from the first on that a tier has.

    Segments are committed in order, so that the tier has no entries of a ledger after a gap.
    """
    left = ManagedLedgerInfo()
    left.CopyFrom(info)
    del left.ledgerInfo[:]
    for ledger in info.ledgerInfo:
        context = ledger.offloadContext
        entries = ledger.entries if context.complete else tiered_entries(context)
        if entries:
            kept = left.ledgerInfo.add()
            kept.CopyFrom(ledger)
            kept.entries = entries
            kept.offloadContext.bookkeeperDeleted = True
    return left


def tiered_end(info: ManagedLedgerInfo) -> Position | None:
    """Position of the first entry of a topic that no tier has; None if the tier has every ledger whole."""
    for ledger in sorted(info.ledgerInfo, key=lambda ledger: ledger.ledgerId):
        if not is_fully_offloaded(ledger):
            return Position(ledger.ledgerId, tiered_entries(ledger.offloadContext))
    return None


def tiered_entries(context: OffloadContext) -> int:
    """Number of entries of a ledger, from the first on, that complete segments hold."""
    entries = 0
    for segment in context.offloadSegment:
        if not segment.complete:
            break
        entries = segment.endEntryId + 1
    return entries


def with_segments(cluster: ManagedLedgerInfo, attached: ManagedLedgerInfo) -> ManagedLedgerInfo:
    """The ledger list of a cluster, with the segments that an attached Afterglow wrote.

    A ledger that the cluster itself offloaded is read from the cluster's object. Of a ledger that the cluster deleted,
    the entries in segments remain.
    """
    merged = ManagedLedgerInfo()
    merged.CopyFrom(cluster)
    known: Mapping[int, LedgerInfo] = {ledger.ledgerId: ledger for ledger in attached.ledgerInfo}
    for ledger in merged.ledgerInfo:
        segments = known[ledger.ledgerId].offloadContext.offloadSegment if ledger.ledgerId in known else ()
        if segments and not ledger.offloadContext.complete:
            del ledger.offloadContext.offloadSegment[:]
            ledger.offloadContext.offloadSegment.extend(segments)
    first = min((ledger.ledgerId for ledger in cluster.ledgerInfo), default=1 << 63)
    for ledger in tiered_only(attached).ledgerInfo:
        was_left = (
            ledger.offloadContext.complete and get_uuid(ledger.offloadContext) is None
        )  # to the cluster's offload
        if ledger.ledgerId < first and not was_left:
            merged.ledgerInfo.add().CopyFrom(ledger)
    return merged
