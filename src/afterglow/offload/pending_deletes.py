"""Pending deletes of objects: the intent is recorded first, then carried out, and retried until it succeeds.

1. Record which object is to be deleted. *Crash: the ledger list or record that named the object still names it, and
   nothing happens.*
2. Remove the name: commit a ledger list without the ledger, or with a fresh UUID. *Crash: the next start finds the
   intent.*
3. Read the intent, and then the ledger list. A UUID that the ledger list does not name now will never be named again,
   since no UUID is used twice. If the ledger list names it, or a task of this process still writes it, nothing happens.
4. Abort uploads of the key, delete data and index. *Crash: again from 3; deleting twice is harmless.*
5. Once a listing shows no object or upload of the key, delete the records of a segment: its upload record and its
   segment record. *Crash: again from 3, since the intent holds the tier location too.*
6. Remove the intent. *Crash: done.* The intent of an object that was never committed is kept for some time, and 3 to 6
   are repeated then: the store may execute a late request of a former owner, or of this one, and create an upload that
   no record names. Every owner checks its ownership right before such a request, and intents are recorded after the
   take-over.

After an error the intent is kept. After an unknown outcome the step is repeated.

Of a deleted topic every recorded segment is deleted: an owner that was about to begin one may have written its record
after the intents of the topic were recorded.

Step 4 is :meth:`afterglow.offload.block_offloader.BlockOffloader.delete_offloaded`, or that of an external driver. Only
:mod:`afterglow.verify.sweep` deletes objects besides, at the request of an operator: orphans that no record names.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final
from uuid import UUID

from google.protobuf.message import DecodeError

from afterglow.errors import (
    AfterglowError,
    CommitFailed,
    CommitUnknown,
    CorruptMetadata,
    InvalidName,
    VersionConflict,
)
from afterglow.events import log_event
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.objects import ObjectKey, get_uuid, ledger_uuid, named_uuids
from afterglow.format.proto.afterglow_pb2 import DeleteRecord
from afterglow.metadata.names import TopicName
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.offload.backoff import failure_level
from afterglow.offload.drivers import offloader_at
from afterglow.offload.offloader import recorded_location
from afterglow.offload.segments.records import parse_segment, parse_upload
from afterglow.storage.health import FAILURES
from afterglow.tier.locations import (
    TierLocation,
    driver_metadata,
    external_location,
    is_built_in,
    location_of_record,
    location_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from afterglow.format.proto.afterglow_pb2 import ObjectLocation
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadDriverMetadata
    from afterglow.ledger.environment import Clock
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.ledger_commit import LedgerAttempt
    from afterglow.offload.topics import OffloadPolicies
    from afterglow.tier.locations import Tiers


_log = logging.getLogger(__name__)

_VERSION: Final = 1
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_ATTEMPTS: Final = 8
"""Attempts to record an intent whose outcomes are unknown."""
_LATE_S: Final = 600.0
"""Seconds after an intent in which the store may still create an upload of its key, or a listing may not show it. A
request ends within ``offloadRequestTimeoutSeconds``, at most 300 s; the rest covers the time between the owner's check
and its request."""


@dataclass(frozen=True, slots=True)
class PendingDelete:
    """An object to be deleted."""

    uuid: UUID
    location: TierLocation
    ledger_id: int | None = None
    """The ledger of a whole-ledger object; None for a segment."""
    unfinished: bool = False
    """Whether it was never committed, as far as is known: an upload of its key may be created right now."""
    reason: str = field(default="", compare=False)
    """The reason in its record, for the log."""

    @property
    def key(self) -> str:
        """Key of the data object."""
        return str(ObjectKey(self.uuid, self.ledger_id))


@dataclass(frozen=True, slots=True)
class DeleteCounts:
    """Results of the intents of a topic."""

    done: int = 0
    waiting: int = 0
    """Intents whose objects are still named, or written."""
    failed: int = 0
    kept: int = 0
    """Intents without objects that are kept in case the store creates an upload late."""

    @property
    def left(self) -> int:
        """Number of intents to be retried."""
        return self.waiting + self.failed


class _DeleteResult(Enum):
    DONE = auto()
    WAITING = auto()
    KEPT = auto()


class PendingDeletes:
    """Recorded intents to delete objects. Thread-safe, if one thread at a time carries out those of a topic.

    Args:
        metadata: Holds ledger lists and records.
        paths: Paths of the records.
        policies: Effective policies of topics, for credentials.
        tiers: Opens stores.
        clock: Time of the records.
        instance: Id of the server, for the records.
        is_writing: Whether a task of this process may still write an object of a UUID.
        ledger_list: Path of a topic's ledger list, which names its objects, by the managed-ledger name.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        paths: AfterglowPaths,
        policies: OffloadPolicies,
        tiers: Tiers,
        clock: Clock,
        instance: str,
        is_writing: Callable[[str, UUID], bool],
        ledger_list: Callable[[str], str],
    ) -> None:
        self._metadata = metadata
        self._paths = paths
        self._policies = policies
        self._tiers = tiers
        self._clock = clock
        self._instance = instance
        self._is_writing = is_writing
        self._ledger_list = ledger_list
        self._cleared: dict[str, set[str]] = {}
        """Paths of intents that are kept though their objects are deleted, by topic; found again after a restart."""
        self._seen_s: dict[str, float] = {}
        """Time at which this process first saw each intent of an object that was never committed, by the monotonic
        clock. The time of day in the record may have been wrong, or be wrong now."""

    def record(self, name: str, pending: PendingDelete, reason: str) -> None:
        """Step 1: record an intent, unless it is recorded already.

        Raises:
            MetadataError: It is not recorded, or the outcome is unknown.
        """
        record = DeleteRecord(
            version=_VERSION,
            uuid=str(pending.uuid),
            location=location_record(pending.location, pending.key),
            reason=reason,
            recorded_ms=self._clock.now_ms(),
            instance=self._instance,
            ledger_id=pending.ledger_id,
            unfinished=pending.unfinished,
        )
        path = self._paths.delete(name, pending.uuid)
        value = record.SerializeToString(deterministic=True)
        for _ in range(_MAX_ATTEMPTS):
            try:
                self._metadata.put(path, value, MUST_NOT_EXIST)
            except VersionConflict:
                return
            except CommitUnknown:
                if self._metadata.get(path) is not None:
                    return
            else:
                return
        raise CommitUnknown(f"{path}: the outcome of {_MAX_ATTEMPTS} attempts in a row is unknown")

    def names(self) -> Iterator[str]:
        """Managed-ledger names of all topics with a recorded intent, and of deleted topics with a recorded segment.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        yield from names_below(self._metadata, f"{self._paths.root}/deletes")
        for kind in ("uploads", "segments"):
            below = names_below(self._metadata, f"{self._paths.root}/{kind}")
            yield from (name for name in below if self._is_deleted(name))

    def uploading(self) -> Iterator[str]:
        """Managed-ledger names of all existing topics with an upload record.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        for name in names_below(self._metadata, f"{self._paths.root}/uploads"):
            if self._metadata.children(self._paths.uploads(name)) and not self._is_deleted(name):
                yield name

    def carry_out(self, name: str) -> DeleteCounts:
        """Steps 3 to 6 for every intent of a topic.

        Raises:
            MetadataError: The records or the ledger list cannot be read.
            CorruptMetadata: A segment record of a deleted topic cannot be parsed.
        """
        is_deleted = self._is_deleted(name)
        if is_deleted:
            for pending in pending_deletes_of_topic(name, self._metadata, self._paths):
                self.record(name, pending, "its topic is gone")
        node = self._paths.deletes(name)
        results: Counter[_DeleteResult] = Counter()
        failed = 0
        unavailable: set[str] = set()
        cleared, self._cleared[name] = self._cleared.get(name, set()), set()
        for child in self._metadata.children(node):
            path = f"{node}/{child}"
            try:
                result = self._carry_out_one(name, path, unavailable, was_cleared=path in cleared)
            except AfterglowError as error:
                failed += 1
                level = failure_level(self._tiers.health, error, unavailable)
                _log.log(level, "the delete of an object of %s failed and is retried later: %s", name, error)
            else:
                results[result] += 1
                if result is _DeleteResult.KEPT:
                    self._cleared[name].add(path)
        if not self._cleared[name]:
            del self._cleared[name]
        counts = DeleteCounts(
            results[_DeleteResult.DONE], results[_DeleteResult.WAITING], failed, results[_DeleteResult.KEPT]
        )
        if not counts.left + counts.kept:
            for empty in (node, *((self._paths.uploads(name), self._paths.segments(name)) if is_deleted else ())):
                self._remove_node(empty)
        return counts

    def _carry_out_one(self, name: str, path: str, unavailable: set[str], *, was_cleared: bool) -> _DeleteResult:
        """Steps 3 to 6 for one intent.

        Args:
            name: The managed-ledger name.
            path: Path of the intent.
            unavailable: Tiers that are skipped: each request would take its deadline to fail. Tiers are added to it.
            was_cleared: Whether the objects were deleted before.
        """
        found = self._metadata.get(path)
        if found is None:
            self._seen_s.pop(path, None)
            return _DeleteResult.DONE
        pending = _parse(path, found.value)
        now_s = self._clock.monotonic()
        may_come = pending.unfinished and now_s < self._seen_s.setdefault(path, now_s) + _LATE_S
        if was_cleared and may_come:
            return _DeleteResult.KEPT
        tier = str(pending.location)
        if tier in unavailable or pending.uuid in self._named(name) or self._is_writing(name, pending.uuid):
            return _DeleteResult.WAITING
        try:
            self._delete(name, pending)
        except FAILURES:
            if self._tiers.health.outage(tier) is not None:
                unavailable.add(tier)
            raise
        if pending.ledger_id is None:
            self._remove_record(self._paths.upload(name, pending.uuid))
            self._remove_record(self._paths.segment(name, pending.uuid))
        if not was_cleared:
            topic, tier = str(TopicName.from_managed_ledger_name(name)), str(pending.location)
            log_event(_log, "object deleted", topic=topic, key=pending.key, tier=tier, reason=pending.reason)
        if may_come:
            return _DeleteResult.KEPT
        self._remove(path, found.version)
        self._seen_s.pop(path, None)
        return _DeleteResult.DONE

    def _is_deleted(self, name: str) -> bool:
        return self._metadata.get(self._ledger_list(name)) is None

    def _named(self, name: str) -> set[UUID]:
        found = self._metadata.get(self._ledger_list(name))
        return set() if found is None else named_uuids(parse_managed_ledger(found.value))

    def _delete(self, name: str, pending: PendingDelete) -> None:
        offloader = offloader_at(pending.location, self._policies.of(name), self._tiers)
        offloader.delete_offloaded(pending.ledger_id, pending.uuid, driver_metadata(pending.location))

    def _remove_record(self, path: str) -> None:
        """Remove a record, if it exists. A record that changes meanwhile still has an owner: it is removed later."""
        if (found := self._metadata.get(path)) is not None:
            self._remove(path, found.version)

    def _remove(self, path: str, version: int) -> None:
        try:
            self._metadata.delete(path, version)
        except (VersionConflict, CommitUnknown):
            if self._metadata.get(path) is not None:
                raise

    def _remove_node(self, node: str) -> None:
        """Remove an empty node; a node that has a child again is kept."""
        found = self._metadata.get(node)
        if found is not None:
            with suppress(CommitFailed, CommitUnknown):
                self._metadata.delete(node, found.version)


def _parse(path: str, value: bytes) -> PendingDelete:
    try:
        record = DeleteRecord.FromString(value)
        uuid = UUID(record.uuid)
    except (DecodeError, ValueError) as error:
        raise CorruptMetadata(f"{path} is not a valid intent to delete: {error}") from error
    if record.version != _VERSION:
        raise CorruptMetadata(f"{path} has version {record.version}, {_VERSION} is supported: use a newer release")
    ledger_id = record.ledger_id if record.HasField("ledger_id") else None
    location = location_of_record(record.location)
    if not location.properties and not is_built_in(location.driver):
        location = external_location(location.driver, record.driver_metadata)
    pending = PendingDelete(uuid, location, ledger_id, unfinished=record.unfinished, reason=record.reason)
    if record.location.key != pending.key:
        raise InvalidName(f"{path} names the key {record.location.key!r}, which is not that of UUID {uuid}")
    return pending


def names_below(metadata: MetadataReader, root: str) -> Iterator[str]:
    """Managed-ledger names of all topics with records below a node, or with an empty node that a crash has left.

    Raises:
        MetadataUnavailable: The store cannot be reached.
    """
    waiting = [root]
    while waiting:
        path = waiting.pop()
        children = metadata.children(path)
        name = path.removeprefix(f"{root}/")
        if any(map(_is_uuid, children)) or (not children and _is_topic(name)):
            yield name
        waiting += [f"{path}/{child}" for child in reversed(children) if not _is_uuid(child)]


def _is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def _is_topic(name: str) -> bool:
    try:
        TopicName.from_managed_ledger_name(name)
    except InvalidName:
        return False
    return True


def pending_delete_of_attempt(attempt: LedgerAttempt) -> PendingDelete:
    """The objects that an attempt may have written."""
    return PendingDelete(attempt.uuid, recorded_location(attempt.offloader), attempt.ledger_id, unfinished=True)


def pending_delete_of_ledger(ledger: ManagedLedgerInfo.LedgerInfo) -> PendingDelete | None:
    """The whole-ledger object that the ledger list names, complete or not; None if it names none."""
    uuid = ledger_uuid(ledger)
    if uuid is None:
        return None
    found = _of_driver(uuid, ledger.ledgerId, ledger.offloadContext.driverMetadata)
    return replace(found, unfinished=not ledger.offloadContext.complete)


def pending_deletes_of_segments(
    name: str,
    ledgers: Sequence[ManagedLedgerInfo.LedgerInfo],
    kept: set[UUID],
    metadata: MetadataStore,
    paths: AfterglowPaths,
) -> Iterator[PendingDelete]:
    """Segments that only these ledgers name.

    Args:
        name: The managed-ledger name.
        ledgers: The ledgers.
        kept: UUIDs that other ledgers of the ledger list name.
        metadata: Holds the records of segments with their tier locations.
        paths: Paths of the records.

    Raises:
        CorruptMetadata: A record cannot be read, so that its tier location is unknown.
        MetadataUnavailable: The store cannot be reached.
    """
    for ledger in ledgers:
        for segment in ledger.offloadContext.offloadSegment:
            uuid = get_uuid(segment)
            if uuid is None or uuid in kept:
                continue
            location = _recorded_location(name, uuid, metadata, paths)
            if location is not None:
                yield PendingDelete(uuid, location_of_record(location), unfinished=not segment.complete)
            elif segment.HasField("driverMetadata"):
                yield replace(_of_driver(uuid, None, segment.driverMetadata), unfinished=not segment.complete)


def pending_deletes_of_topic(name: str, metadata: MetadataStore, paths: AfterglowPaths) -> Iterator[PendingDelete]:
    """Every recorded segment of a topic, also if the ledger list does not name it.

    Raises:
        CorruptMetadata: A record cannot be read, so that its tier location is unknown.
        MetadataUnavailable: The store cannot be reached.
    """
    uploads = metadata.children(paths.uploads(name))
    for child in dict.fromkeys((*uploads, *metadata.children(paths.segments(name)))):
        uuid = UUID(child)
        location = _recorded_location(name, uuid, metadata, paths)
        if location is not None:
            yield PendingDelete(uuid, location_of_record(location), unfinished=child in uploads)


def _recorded_location(name: str, uuid: UUID, metadata: MetadataStore, paths: AfterglowPaths) -> ObjectLocation | None:
    path = paths.segment(name, uuid)
    if (found := metadata.get(path)) is not None:
        return parse_segment(found.value, path).location
    path = paths.upload(name, uuid)
    if (found := metadata.get(path)) is not None:
        return parse_upload(found.value, path).location
    return None


def _of_driver(uuid: UUID, ledger_id: int | None, driver: OffloadDriverMetadata) -> PendingDelete:
    """An object at the tier location in the ledger list, which is not validated: its delete will report errors."""
    given = {pair.key: pair.value for pair in driver.properties}
    if not is_built_in(driver.name):
        return PendingDelete(uuid, external_location(driver.name, given), ledger_id)
    location = TierLocation(
        driver.name,
        given.get("storageBasePath") or given.get("bucket", ""),
        given.get("region", ""),
        given.get("serviceEndpoint", ""),
        given.get("afterglowPrefix", ""),
    )
    return PendingDelete(uuid, location, ledger_id)
