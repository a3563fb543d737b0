"""Freeing of hot copies, once the copies in the tier have been verified.

1. Wait until the deletion lag since the offload has passed; see :func:`afterglow.offload.planner.freeable`.
2. Verify every object that holds entries of the ledger: it exists, has the length that its index states, and its index
   parses and has exactly the entries that the ledger list states. A hot copy is never deleted before that.
3. Commit that the hot copy is deleted, then delete it; see :meth:`afterglow.ledger.trimming.Trimmer.free`,
   which also describes the state after a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import CorruptIndex, CorruptMetadata, IndexMissing, ObjectMissing, WrongLength
from afterglow.format.checks import index_problems
from afterglow.format.index import decode_index
from afterglow.format.objects import INDEX_SUFFIX, ObjectKey, check_version, get_uuid, ledger_uuid
from afterglow.offload.segments.records import parse_segment
from afterglow.read.driver_copies import open_driver_copy
from afterglow.read.objects import TierObject
from afterglow.tier.locations import is_built_in, location_of_driver, location_of_record

if TYPE_CHECKING:
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.index import LedgerGroup, ObjectIndex
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.tier.locations import TierLocation, Tiers


class CopyVerifier:
    """Verifies the tier copies of a topic's ledgers. In the order of ledgers, a shared segment is read once.

    Args:
        name: The managed-ledger name.
        policy: The topic's policy, for credentials.
        tiers: Opens stores.
        metadata: Holds the segment records with their tier locations.
        paths: Paths of the records.
    """

    def __init__(
        self, name: str, policy: BrokerConfig, tiers: Tiers, metadata: MetadataStore, paths: AfterglowPaths
    ) -> None:
        self._name = name
        self._policy = policy
        self._tiers = tiers
        self._metadata = metadata
        self._paths = paths
        self._last: tuple[UUID, ObjectIndex | TierObject] | None = None
        """The segment that was verified last: the next ledger may begin in it."""

    def verify(self, ledger: ManagedLedgerInfo.LedgerInfo) -> None:
        """Verify that the tier holds all entries of a ledger. Waits for metadata and tier.

        Raises:
            AfterglowError: A copy is missing or damaged, or cannot be read now.
        """
        if ledger.offloadContext.offloadSegment:
            self._verify_segments(ledger)
            return
        uuid = ledger_uuid(ledger)
        if uuid is None:
            raise CorruptMetadata(f"the ledger list does not name the object of ledger {ledger.ledgerId}")
        location = location_of_driver(ledger.offloadContext.driverMetadata)
        key = str(ObjectKey(uuid, ledger.ledgerId))
        if not is_built_in(location.driver):
            self._read_ends(TierObject(location, key), ledger.ledgerId, 0, ledger.entries - 1)
            return
        index = self._verified_index(location, key, ledger.ledgerId)
        if (last := index.groups[0].last_entry_id) != ledger.entries - 1:
            raise WrongLength(
                f"object {key} in {location} ends with entry {last}, and its ledger with entry {ledger.entries - 1}"
            )

    def _read_ends(self, located: TierObject, ledger_id: int, first: int, last: int) -> None:
        """Read both ends of a copy through the external driver that wrote it: only the driver knows its format."""
        copy = open_driver_copy(located, ledger_id, self._policy, self._tiers)
        for entry_id in (first, last):
            copy.read(entry_id, entry_id, 1)

    def _verify_segments(self, ledger: ManagedLedgerInfo.LedgerInfo) -> None:
        first = 0
        for segment in ledger.offloadContext.offloadSegment:
            uuid = get_uuid(segment)
            if uuid is None or not segment.complete:
                raise CorruptMetadata(f"ledger {ledger.ledgerId} is not in committed segments from entry {first} on")
            if self._last is None or self._last[0] != uuid:
                self._last = uuid, self._verified_segment(uuid)
            if isinstance(self._last[1], TierObject):
                self._read_ends(self._last[1], ledger.ledgerId, first, segment.endEntryId)
                first = segment.endEntryId + 1
                continue
            group = self._last[1].group(ledger.ledgerId)
            held = None if group is None else _entry_range(group)
            if held != (first, segment.endEntryId):
                indexed = "none" if held is None else f"{held[0]} to {held[1]}"
                raise WrongLength(
                    f"segment {uuid} should hold entries {first} to {segment.endEntryId} of ledger {ledger.ledgerId}, "
                    f"and its index has {indexed}"
                )
            first = segment.endEntryId + 1
        if first != ledger.entries:
            raise WrongLength(f"segments hold {first} entries of ledger {ledger.ledgerId}, which has {ledger.entries}")

    def _verified_segment(self, uuid: UUID) -> ObjectIndex | TierObject:
        """The index of a segment's object, or the location to which an external driver wrote it."""
        path = self._paths.segment(self._name, uuid)
        found = self._metadata.get(path)
        if found is None:
            raise CorruptMetadata(f"segment record {path} is missing, so that the tier location is unknown")
        record = parse_segment(found.value, path)
        location = location_of_record(record.location)
        if not is_built_in(location.driver):
            return TierObject(location, record.location.key)
        index = self._verified_index(location, record.location.key, None)
        if record.bytes != index.data_bytes:
            raise WrongLength(
                f"object {record.location.key} in {location} has {index.data_bytes} bytes, "
                f"and its record says {record.bytes}"
            )
        return index

    def _verified_index(self, location: TierLocation, key: str, ledger_id: int | None) -> ObjectIndex:
        """The index of an object, if it is valid and states the length that the object has."""
        store = self._tiers.store(location, self._policy)
        what = f"object {key} in {location}"
        try:
            head = store.head(key)
        except ObjectMissing as error:
            raise ObjectMissing(f"{what} is missing: {error}") from error
        check_version(key, head.metadata)
        try:
            index = decode_index(store.get(key + INDEX_SUFFIX))
        except ObjectMissing as error:
            raise IndexMissing(f"{what} has no index: {error}") from error
        except CorruptIndex as error:
            raise CorruptIndex(f"{what} has a damaged index: {error}") from error
        for problem in index_problems(index, ledger_id=ledger_id):
            raise CorruptIndex(f"{what} has a damaged index: {problem}")
        if head.size_bytes != index.data_bytes:
            raise WrongLength(f"{what} has {head.size_bytes} bytes, and its index says {index.data_bytes}")
        return index


def _entry_range(group: LedgerGroup) -> tuple[int, int] | None:
    """First and last entry of a segment's blocks of one ledger; None if they have gaps or no statistics."""
    if group.statistics is None:
        return None
    next_id = group.blocks[0].first_entry_id
    for block, statistics in zip(group.blocks, group.statistics, strict=True):
        if block.first_entry_id != next_id:
            return None
        next_id += statistics.entries
    return group.blocks[0].first_entry_id, next_id - 1
