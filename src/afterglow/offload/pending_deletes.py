"""Pending deletes: objects to be deleted. The intent is recorded first, then carried out, as often as it takes.

1. Record which object is to be deleted. *Crash: the ledger list or record that named the object still names it, and
   nothing happens.*
2. That list or record stops naming it: a list without the ledger, a fresh UUID in its place. *Crash: the intent is
   found at the next start.*
3. Read the intent, and after it the ledger list. A UUID that the list does not name now will never be named again,
   since none is used twice. If the list names it, or a task of this process still writes it, nothing happens.
4. Abort uploads of the key, delete data and index. *Crash: again from 3; deleting twice is harmless.*
5. Once a listing shows nothing of the key, delete the records of a segment: its upload record and its segment record.
   *Crash: again from 3, since the intent holds the tier location too.*
6. Remove the intent. *Crash: done.* The intent of an object that was never committed stays for a while, and 3 to 6 are
   repeated then: a request of a former owner, or of this one, that the store carries out only now would create an
   upload that no record names. Every owner checks its ownership right before such a request, and intents come after
   the take-over.

An error anywhere leaves the intent in place. An unknown outcome is met by repeating the step.

Of a deleted topic every recorded segment is deleted: an owner that was about to begin one may have written its record
after the intents of the topic were made.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
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
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.objects import ObjectKey, get_uuid, ledger_uuid, named_uuids
from afterglow.format.proto.afterglow_pb2 import DeleteRecord
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import managed_ledger_path
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
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.ledgers import LedgerAttempt
    from afterglow.policy.resolver import Policies
    from afterglow.tier.locations import Tiers


_log = logging.getLogger(__name__)

_VERSION: Final = 1
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TRIES: Final = 8
"""Unknown outcomes in a row that are met by trying again."""
_LATE_S: Final = 600.0
"""How long after an intent the store may still create an upload of its key, or a listing not show it. A store client
gives up after 120 s with all its retries; the rest is for what lies between the owner's check and its request."""


@dataclass(frozen=True, slots=True)
class PendingDelete:
    """An object that is to go."""

    uuid: UUID
    location: TierLocation
    ledger_id: int | None = None
    """Of a ledger's own object; None for a segment."""
    unfinished: bool = False
    """Whether it was never committed, as far as is known: an upload of its key may just be created."""

    @property
    def key(self) -> str:
        """Of the data object."""
        return str(ObjectKey(self.uuid, self.ledger_id))


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """What came of the intents of a topic."""

    done: int = 0
    waiting: int = 0
    """Their objects are still named, or written."""
    failed: int = 0
    kept: int = 0
    """Nothing is there of their objects, and they stay on record in case something comes."""

    @property
    def left(self) -> int:
        """How many are left for later."""
        return self.waiting + self.failed


class _Outcome(Enum):
    DONE = auto()
    WAITING = auto()
    KEPT = auto()


class PendingDeletes:
    """Intents to delete, on record. Thread-safe, as long as one thread at a time carries out those of a topic.

    Args:
        metadata: Where lists and records are.
        paths: Where in it.
        policies: Give credentials.
        tiers: Open stores.
        clock: Dates the records.
        instance: Of the server, for the records.
        is_writing: Whether a task of this process may still write an object of a UUID.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        paths: AfterglowPaths,
        policies: Policies,
        tiers: Tiers,
        clock: Clock,
        instance: str,
        is_writing: Callable[[str, UUID], bool],
    ) -> None:
        self._metadata = metadata
        self._paths = paths
        self._policies = policies
        self._tiers = tiers
        self._clock = clock
        self._instance = instance
        self._is_writing = is_writing
        self._cleared: dict[str, set[str]] = {}
        """By topic the intents that stay on record though nothing was there of their objects; found again after a
        restart."""
        self._seen_s: dict[str, float] = {}
        """When each intent to delete what was never committed was first seen here, by the clock that never jumps. The
        time of day in the record may have been wrong, or be wrong now."""

    def record(self, name: str, pending: PendingDelete, reason: str) -> None:
        """Step 1: put on record that an object is to go; one that is on record stays so.

        Raises:
            MetadataError: It is not on record, or the outcome is unknown.
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
        for _ in range(_TRIES):
            try:
                self._metadata.put(path, value, MUST_NOT_EXIST)
            except VersionConflict:
                return
            except CommitUnknown:
                if self._metadata.get(path) is not None:
                    return
            else:
                return
        raise CommitUnknown(f"{path}: {_TRIES} tries in a row had no known outcome")

    def names(self) -> Iterator[str]:
        """Managed-ledger names of all topics with an intent on record, and of those that are gone with a segment.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        yield from self._named_below("deletes")
        for kind in ("uploads", "segments"):
            yield from (name for name in self._named_below(kind) if self._is_gone(name))

    def uploading(self) -> Iterator[str]:
        """Managed-ledger names of all topics that are there and have an upload on record.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        for name in self._named_below("uploads"):
            if self._metadata.children(self._paths.uploads(name)) and not self._is_gone(name):
                yield name

    def _named_below(self, kind: str) -> Iterator[str]:
        """Managed-ledger names of all topics with records of a kind, or of which a crash has left the empty node."""
        root = f"{self._paths.root}/{kind}"
        waiting = [root]
        while waiting:
            path = waiting.pop()
            children = self._metadata.children(path)
            name = path.removeprefix(f"{root}/")
            if any(map(_is_uuid, children)) or (not children and _is_topic(name)):
                yield name
            waiting += [f"{path}/{child}" for child in reversed(children) if not _is_uuid(child)]

    def carry_out(self, name: str) -> CarriedOut:
        """Steps 3 to 6 for every intent of a topic.

        Raises:
            MetadataError: The records or the list cannot be read.
            CorruptMetadata: A record of a segment of a topic that is gone does not parse.
        """
        gone = self._is_gone(name)
        if gone:
            for pending in pending_deletes_of_topic(name, self._metadata, self._paths):
                self.record(name, pending, "its topic is gone")
        node = self._paths.deletes(name)
        counts: Counter[_Outcome] = Counter()
        failed = 0
        unavailable: set[str] = set()
        cleared, self._cleared[name] = self._cleared.get(name, set()), set()
        for child in self._metadata.children(node):
            path = f"{node}/{child}"
            try:
                outcome = self._carry_out_one(name, path, unavailable, was_cleared=path in cleared)
            except AfterglowError as error:
                failed += 1
                level = failure_level(self._tiers.health, error, unavailable)
                _log.log(level, "an object of %s is deleted later: %s", name, error)
            else:
                counts[outcome] += 1
                if outcome is _Outcome.KEPT:
                    self._cleared[name].add(path)
        if not self._cleared[name]:
            del self._cleared[name]
        carried = CarriedOut(counts[_Outcome.DONE], counts[_Outcome.WAITING], failed, counts[_Outcome.KEPT])
        if not carried.left + carried.kept:
            for empty in (node, *((self._paths.uploads(name), self._paths.segments(name)) if gone else ())):
                self._remove_node(empty)
        return carried

    def _carry_out_one(self, name: str, path: str, unavailable: set[str], *, was_cleared: bool) -> _Outcome:
        """Steps 3 to 6 for one intent.

        Args:
            name: The managed-ledger name.
            path: Of the intent.
            unavailable: Tiers that are not asked: each would take its deadline to fail. Those found here are added.
            was_cleared: Whether nothing was there of the object before.
        """
        found = self._metadata.get(path)
        if found is None:
            self._seen_s.pop(path, None)
            return _Outcome.DONE
        pending = _parse(path, found.value)
        now_s = self._clock.monotonic()
        may_come = pending.unfinished and now_s < self._seen_s.setdefault(path, now_s) + _LATE_S
        if was_cleared and may_come:
            return _Outcome.KEPT
        tier = str(pending.location)
        if tier in unavailable or pending.uuid in self._named(name) or self._is_writing(name, pending.uuid):
            return _Outcome.WAITING
        try:
            self._delete(name, pending)
        except FAILURES:
            if self._tiers.health.outage(tier) is not None:
                unavailable.add(tier)
            raise
        if pending.ledger_id is None:
            self._forget(self._paths.upload(name, pending.uuid))
            self._forget(self._paths.segment(name, pending.uuid))
        if may_come:
            return _Outcome.KEPT
        self._remove(path, found.version)
        self._seen_s.pop(path, None)
        return _Outcome.DONE

    def _is_gone(self, name: str) -> bool:
        return self._metadata.get(managed_ledger_path(name)) is None

    def _named(self, name: str) -> set[UUID]:
        found = self._metadata.get(managed_ledger_path(name))
        return set() if found is None else named_uuids(parse_managed_ledger(found.value))

    def _delete(self, name: str, pending: PendingDelete) -> None:
        offloader = offloader_at(pending.location, self._policies.of(name), self._tiers)
        offloader.delete_offloaded(pending.ledger_id, pending.uuid, driver_metadata(pending.location))

    def _forget(self, path: str) -> None:
        """Remove a record, if there is one. One that is changed under our eyes has an owner yet: later."""
        if (found := self._metadata.get(path)) is not None:
            self._remove(path, found.version)

    def _remove(self, path: str, version: int) -> None:
        try:
            self._metadata.delete(path, version)
        except (VersionConflict, CommitUnknown):
            if self._metadata.get(path) is not None:
                raise

    def _remove_node(self, node: str) -> None:
        """Remove an empty node; one that has got a child again stays."""
        found = self._metadata.get(node)
        if found is not None:
            with suppress(CommitFailed, CommitUnknown):
                self._metadata.delete(node, found.version)


def _parse(path: str, value: bytes) -> PendingDelete:
    """What is to go."""
    try:
        record = DeleteRecord.FromString(value)
        uuid = UUID(record.uuid)
    except (DecodeError, ValueError) as error:
        raise CorruptMetadata(f"{path} is not a valid intent to delete: {error}") from error
    if record.version != _VERSION:
        raise CorruptMetadata(f"{path} has version {record.version}; this release knows {_VERSION}")
    ledger_id = record.ledger_id if record.HasField("ledger_id") else None
    location = location_of_record(record.location)
    if not location.properties and not is_built_in(location.driver):
        location = external_location(location.driver, record.driver_metadata)
    pending = PendingDelete(uuid, location, ledger_id, unfinished=record.unfinished)
    if record.location.key != pending.key:
        raise InvalidName(f"{path} names the key {record.location.key!r}, which is not that of UUID {uuid}")
    return pending


def _is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def _is_topic(name: str) -> bool:
    try:
        TopicName.from_managed_ledger_name(name)
    except InvalidName:
        return False
    return True


def pending_delete_of_attempt(attempt: LedgerAttempt) -> PendingDelete:
    """What an attempt may have written."""
    return PendingDelete(attempt.uuid, recorded_location(attempt.offloader), attempt.ledger_id, unfinished=True)


def pending_delete_of_ledger(row: ManagedLedgerInfo.LedgerInfo) -> PendingDelete | None:
    """What the list names as a ledger's own object, whole or attempted; None where it names none."""
    uuid = ledger_uuid(row)
    if uuid is None:
        return None
    found = _of_driver(uuid, row.ledgerId, row.offloadContext.driverMetadata)
    return replace(found, unfinished=not row.offloadContext.complete)


def pending_deletes_of_segments(
    name: str,
    rows: Sequence[ManagedLedgerInfo.LedgerInfo],
    kept: set[UUID],
    metadata: MetadataStore,
    paths: AfterglowPaths,
) -> Iterator[PendingDelete]:
    """Segments that only these ledgers name.

    Args:
        name: The managed-ledger name.
        rows: The ledgers.
        kept: UUIDs that other ledgers of the list name.
        metadata: Where records of segments are, which know their places.
        paths: Where in it.

    Raises:
        CorruptMetadata: The record of one cannot be read, so that its tier location is unknown.
        MetadataUnavailable: The store cannot be reached.
    """
    for row in rows:
        for segment in row.offloadContext.offloadSegment:
            uuid = get_uuid(segment)
            if uuid is None or uuid in kept:
                continue
            location = _recorded_location(name, uuid, metadata, paths)
            if location is not None:
                yield PendingDelete(uuid, location_of_record(location), unfinished=not segment.complete)
            elif segment.HasField("driverMetadata"):
                yield replace(_of_driver(uuid, None, segment.driverMetadata), unfinished=not segment.complete)


def pending_deletes_of_topic(name: str, metadata: MetadataStore, paths: AfterglowPaths) -> Iterator[PendingDelete]:
    """Every segment that is on record for a topic, whether or not a list names it.

    Raises:
        CorruptMetadata: The record of one cannot be read, so that its tier location is unknown.
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
    """An object where the list says that it is. Whether that place can be reached is for later to find out."""
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
