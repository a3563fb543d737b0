"""Upload of one segment from its assignment to its commit; after a crash at any step it is resumed or cleaned up.

1. Put the upload record: UUID, tier location and key, begin, and the end if it is known. *Crash: no ledger list names
   the segment; the next owner gives the record up.*
2. Commit a stub to the ledger list, in the ledger in which the segment begins. *Crash: the next owner resumes it.*
3. Check that this process still owns the topic, create the multipart upload, also for a single part, and record its
   id. *Crash in between: the store may hold an upload that is not recorded; a listing may lag behind, and the
   request may still be in progress. The next owner starts the segment again under another UUID; the pending delete of
   the old one is kept until both have passed.*
4. Record parts as planned, have tasks upload them, record them as done. *Crash: planned parts that are not recorded as
   done are uploaded again, with the same bytes under the same numbers.*
5. Record the end, together with the last parts. From here on the record alone determines the segment. *Crash: as 4.*
6. Complete the upload with the recorded tags. *Crash: the store has no such upload any more, and length and instance of
   the object prove that it was completed.*
7. Put the index, derived from the record alone, if none exists. *Crash: the same bytes are put again.*
8. Verify length and index as the store returns them.
9. Put the segment record. *Crash: it exists already.*
10. Commit: mark the segment as complete in every ledger of which it has entries. *Crash: only the upload record is
    left, and the next owner finds the segment complete.*
11. Delete the upload record.

A segment of an external driver is planned as one part, which one task writes through the driver's offload handle once
the segment has ended: the driver itself does steps 3, 6 and 7, and step 8 reads both ends of every ledger back through
the driver. *Crash: the task writes the same segment again, under the same UUID.*

Every step can be repeated. A step that finds a newer owner changes nothing and deletes nothing.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self
from uuid import UUID

from afterglow.errors import (
    CommitUnknown,
    CorruptIndex,
    CorruptMetadata,
    ObjectExists,
    ObjectMissing,
    OffloadConflict,
    PartMismatch,
    UploadLost,
    UploadMissing,
    VersionConflict,
    WrongLength,
)
from afterglow.events import log_event
from afterglow.format.index import encode_index
from afterglow.format.objects import INDEX_SUFFIX, INSTANCE_KEY
from afterglow.format.proto.afterglow_pb2 import UploadRecord
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.offload.segments import edits, records
from afterglow.offload.segments.part_planner import plan_parts, plan_uncut_parts, restore_part, restore_uncut_part
from afterglow.offload.segments.uncovered import range_between
from afterglow.offload.segments.upload_record import UploadRecordNode
from afterglow.offload.task import PartTask
from afterglow.read.objects import TierObject
from afterglow.storage.store import Upload
from afterglow.tier.locations import is_built_in, location_of_record, location_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from afterglow.format.position import Position
    from afterglow.format.proto.afterglow_pb2 import PlannedPart as PlannedPartRecord
    from afterglow.offload.environment import SegmentEnvironment
    from afterglow.offload.segments.part_planner import PlannedPart, Sizes
    from afterglow.offload.segments.uncovered import PositionRange
    from afterglow.offload.task import PartResult, StreamTask
    from afterglow.storage.store import ObjectStore, Part
    from afterglow.tier.locations import TierLocation

_log = logging.getLogger(__name__)


class SegmentUpload:
    """An assigned segment. One call at a time.

    Args:
        env: Services of the topic's segments.
        node: Its upload record, which exists.
    """

    def __init__(self, env: SegmentEnvironment, node: UploadRecordNode) -> None:
        self._env = env
        self._node = node
        self._parts: dict[int, PlannedPart] = {}
        self._running: set[int] = set()
        self._external = not is_built_in(node.record.location.driver)
        self._unsure = bool(node.record.planned) and not node.record.upload_id and not self._external
        """Whether the store may hold an upload of the key that is not recorded; none is created before a part is
        planned. An external driver writes a segment once more under the same UUID."""
        self._ended = False
        """Whether it was committed or given up, so that only its upload record is still to be deleted. Its objects may
        have been deleted meanwhile, by trimming, rollback or as given up: to finish it again would put its index again,
        which no record would name. If the outcome of its deletion is unknown, the upload record may be deleted too."""

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def record(self) -> UploadRecord:
        """Its upload record; must not be changed."""
        return self._node.record

    @property
    def uuid(self) -> UUID:
        """Its UUID."""
        return UUID(self.record.uuid)

    @property
    def key(self) -> str:
        """Key of its data object."""
        return self.record.location.key

    @property
    def begin(self) -> Position:
        """Its first entry."""
        return records.position_of(self.record.begin)

    @property
    def end(self) -> Position | None:
        """Its last entry; None while it is live."""
        return records.end_of(self.record)

    @property
    def planned_end(self) -> Position:
        """The last planned entry; the entry before its begin if none is planned."""
        return records.planned_end(self.record) or self.begin.previous()

    @property
    def first_not_uploaded(self) -> Position | None:
        """The first of its entries that is in no uploaded part, by its record; None if all are uploaded."""
        missing = records.missing_parts(self.record)
        if missing:
            return records.position_of(missing[0].begin)
        return None if self.is_uploaded else self.planned_end.next()

    @property
    def is_uploaded(self) -> bool:
        """Whether it has ended and all its parts are uploaded."""
        return records.is_uploaded(self.record)

    @property
    def running_parts(self) -> int:
        """Number of parts that tasks are uploading."""
        return len(self._running)

    def refresh(self) -> None:
        """Read the record again if the outcome of its last change is unknown: parts are planned from it.

        Raises:
            Fenced: The topic has a new owner.
            MetadataError: The store failed.
        """
        if not self._ended:
            self._node.refresh()

    # --- steps 1 and 2 ------------------------------------------------------------------------------------------------

    @classmethod
    def assign(
        cls,
        env: SegmentEnvironment,
        location: TierLocation,
        begin: Position,
        end: Position | None,
        *,
        sizes: Sizes,
        first_ms: int,
    ) -> Self:
        """Begin a segment.

        Args:
            env: Services of the topic's segments.
            location: Its tier location.
            begin: Its first entry.
            end: Its last entry; None for a live segment.
            sizes: Sizes of its blocks and parts.
            first_ms: Time of its first entry.

        Raises:
            Fenced: The topic has a new owner.
            OffloadConflict: The ledger list has changed so that no segment can begin at ``begin``.
            MetadataError: The store failed; the segment may be assigned.
        """
        now_ms = env.clock.now_ms()
        uuid = env.new_uuid()
        node = UploadRecordNode(env.metadata, env.paths.upload(env.ledger.name, uuid), env.ledger.owner_epoch)
        node.create(
            records.new_record(
                uuid,
                location,
                begin,
                end,
                owner_epoch=env.ledger.owner_epoch,
                sizes=sizes,
                assigned_ms=now_ms,
                first_entry_ms=first_ms,
                markers_stripped=env.check_undelivered is not None,
            )
        )
        try:
            env.ledger.update(partial(edits.add_stub, uuid=uuid, begin=begin, assigned_ms=now_ms))
        except OffloadConflict:
            node.delete()  # nothing was uploaded
            raise
        log_event(
            _log, "segment assigned", topic=str(env.ledger.topic), uuid=str(uuid), begin=str(begin), tier=str(location)
        )
        return cls(env, node)

    # --- steps 3 to 5 -------------------------------------------------------------------------------------------------

    def extend(self, entries: PositionRange, *, closing: bool) -> None:
        """Plan further parts and record them, together with the end if the segment closes.

        Args:
            entries: Entries after :attr:`planned_end`; up to the end if the segment closes.
            closing: Whether the segment ends with them.

        Raises:
            Fenced: The topic has a new owner.
            HotLogError: The ledgers cannot be read now.
            MetadataError: The store failed.
        """
        record = self.record
        number = len(record.planned) + 1
        sizes = records.sizes_of(record)
        if self._env.offsets is None:
            is_sized = self._env.check_undelivered is None
            parts = plan_uncut_parts(
                entries, self._env.frame_end, sizes, number=number, closing=closing, is_sized=is_sized
            )
        else:
            offset = records.planned_bytes(record)
            parts = plan_parts(entries, self._env.offsets, sizes, number=number, offset=offset, closing=closing)

        def edit(record: UploadRecord) -> None:
            records.add_planned(record, parts)
            if closing and not record.HasField("end"):
                record.end.CopyFrom(records.to_proto(entries.end))

        if parts or closing:
            self._node.update(edit)
            self._parts.update({part.number: part for part in parts})

    def close_as_planned(self) -> None:
        """Close the segment with the last planned part; there must be one.

        Raises:
            Fenced: The topic has a new owner.
            MetadataError: The store failed.
        """
        end = records.to_proto(self.planned_end)

        def edit(record: UploadRecord) -> None:
            if not record.HasField("end"):
                record.end.CopyFrom(end)

        self._node.update(edit)

    def take_tasks(self) -> tuple[StreamTask, ...]:
        """Tasks for parts that are planned, not uploaded, and have no running task; they count as running now.

        Raises:
            UploadLost: The store has lost the upload.
            AfterglowError: The upload cannot be created, or a plan cannot be restored; to be retried.
        """
        missing = [part for part in records.missing_parts(self.record) if part.number not in self._running]
        if not missing:
            return ()
        tasks: tuple[StreamTask, ...]
        if self._external:
            tasks = tuple(self._env.driver_task(self.record, self._part(part.number)) for part in missing)
        else:
            tasks = self._part_tasks(missing)
        self._running.update(task.number for task in tasks)
        return tasks

    def _part_tasks(self, missing: Sequence[PlannedPartRecord]) -> tuple[PartTask, ...]:
        # Also for a segment of one part: the store refuses a part of an aborted upload, however late its task runs. An
        # object that is put by a task which outlives the pending delete of its segment would be named by no record.
        if not self.record.upload_id:
            self._create_upload()
        location = location_of_record(self.record.location)
        options = tuple(sorted(self._env.store_options(location).items()))
        return tuple(
            PartTask(
                topic=self._env.ledger.name,
                key=self.key,
                number=part.number,
                upload_id=self.record.upload_id,
                url=location.url,
                options=options,
                home=self._env.home,
                instance=self._env.instance,
                ledgers=self._part(part.number).ledgers,
                remote=self._env.remote(),
            )
            for part in missing
        )

    def record_results(self, results: Mapping[int, PartResult]) -> None:
        """Record the parts that tasks have uploaded, by part number.

        Raises:
            Fenced: The topic has a new owner.
            UploadLost: The store has lost the upload.
            HotLogError: Entries that a broker did not deliver may have been trimmed.
            AfterglowError: The first error of a part; the uploaded parts are recorded nevertheless.
        """
        self._running.difference_update(results)
        uploaded = {number: result for number, result in results.items() if result.error is None}
        if self._env.check_undelivered is not None:
            # After the read: a ledger that is still listed was not trimmed before, so that the broker has hidden them.
            self._env.check_undelivered(undelivered_ledgers(uploaded.values()))
        if uploaded:
            parts = {number: self._part(number) for number in uploaded}

            def edit(record: UploadRecord) -> None:
                for number, result in uploaded.items():
                    records.add_done(record, parts[number], result)
                record.attempts = 0
                record.last_error = ""

            self._node.update(edit)
        for result in results.values():
            if isinstance(result.error, UploadMissing):
                raise UploadLost(f"{self.key}: {result.error}") from result.error
            if result.error is not None:
                raise result.error

    def record_failure(self, error: Exception) -> None:
        """Record a failure: the status of the segment is ``Failed`` until the next success.

        Raises:
            Fenced: The topic has a new owner.
            MetadataError: The store failed.
        """
        if self._ended:
            return  # the segment has not failed; its record may be deleted, but not by a new owner
        attempts = self.record.attempts + 1
        now_ms = self._env.clock.now_ms()

        def edit(record: UploadRecord) -> None:
            record.attempts = attempts
            record.last_error = f"{type(error).__name__}: {error}".splitlines()[0][:500]
            record.last_attempt_ms = now_ms

        self._node.update(edit)
        if attempts == 1:  # the attempts after it fail for the same reason until one succeeds
            self._log("segment failed", error=self.record.last_error)

    # --- steps 6 to 11 ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Complete the object and commit the segment. All segments before it must be committed.

        Raises:
            Fenced: The topic has a new owner; nothing was deleted.
            UploadLost: The store has lost the upload.
            OffloadConflict: The segment is not assigned any more: it was given up.
            AfterglowError: To be retried.
        """
        if not self._ended:
            self._commit()
        self._node.delete()

    def _commit(self) -> None:
        """Steps 6 to 10."""
        if self._external:
            self._read_back()
        else:
            self._complete_object()
        now_ms = self._env.clock.now_ms()
        self._put_segment(now_ms)
        try:
            self._env.ledger.update(
                partial(
                    edits.commit_segment,
                    uuid=self.uuid,
                    covered=records.coverage(self.record),
                    assigned_ms=self.record.assigned_ms,
                    offloaded_ms=now_ms,
                )
            )
        except OffloadConflict:
            self.give_up("its ledgers have left the list")
            raise
        self._ended = True
        entries = sum(held.last - held.first + 1 for held in records.coverage(self.record))
        self._log("segment committed", end=str(self.end), entries=entries, bytes=records.planned_bytes(self.record))

    def _log(self, event: str, **fields: object) -> None:
        tier = str(location_of_record(self.record.location))
        topic = str(self._env.ledger.topic)
        log_event(_log, event, topic=topic, uuid=self.record.uuid, begin=str(self.begin), tier=tier, **fields)

    def _complete_object(self) -> None:
        """Steps 6 to 8."""
        store = self._env.open_store(location_of_record(self.record.location))
        self._complete(store)
        index = encode_index(records.index_of(self.record))
        with suppress(ObjectExists):  # put by an earlier attempt, derived from the same record
            store.put(self.key + INDEX_SUFFIX, index, metadata=self._env.user_metadata("index"), if_absent=True)
        self._check(store, index)

    def _read_back(self) -> None:
        """Step 8 for a segment of an external driver."""
        located = TierObject(location_of_record(self.record.location), self.key)
        for held in records.coverage(self.record):
            copy = self._env.open_copy(located, held.ledger_id)
            for entry_id in (held.first, held.last):
                copy.read(entry_id, entry_id, 1)

    def give_up(self, reason: str) -> None:
        """Record a pending delete of its objects, then delete its record. The ledger list must not name it any more.

        Raises:
            Fenced: The topic has a new owner.
            MetadataError: The store failed.
        """
        self._env.give_up(self.uuid, location_of_record(self.record.location), reason)
        self._ended = True
        self._node.delete()

    @property
    def is_movable(self) -> bool:
        """Whether it failed at its tier location, and no part was uploaded there as far as is known."""
        return bool(self.record.last_error) and not (self.record.done or self._running or self._external)

    @property
    def may_leak(self) -> bool:
        """Whether the store may hold an upload of its key that no record names, and parts are still to be uploaded.

        Then it starts again under another UUID. A listing without an upload proves nothing: it may lag behind, and the
        request may still be in progress. The pending delete of this UUID is repeated until neither is possible.
        """
        return self._unsure and not self.record.upload_id and bool(records.missing_parts(self.record))

    def probe_store(self) -> None:
        """Send a request to its store, before another UUID is used: during an outage every attempt would use one.

        Raises:
            StorageError: The store is unavailable.
        """
        self._env.open_store(location_of_record(self.record.location)).list_uploads(self.key)

    def start_again(
        self, location: TierLocation | None = None, *, reason: str = "the store has lost its upload"
    ) -> SegmentUpload:
        """Start again under another UUID, after the store has lost the upload, or at another tier location.

        1. Put an upload record for the new UUID. *Crash: no ledger list names it, and it is given up.*
        2. Replace the old UUID in the ledger list. *Crash: the next owner resumes the new one, and gives up the old
           one.*
        3. Record a pending delete of the old one, and delete its record. *Crash: the same.*

        Args:
            location: Its new tier location; None: the same.
            reason: Reason of the pending delete, if the location is the same.

        Raises:
            Fenced: The topic has a new owner.
            OffloadConflict: The old one is not assigned any more.
            MetadataError: The store failed.
        """
        env = self._env
        uuid = env.new_uuid()
        fresh = UploadRecord()
        fresh.CopyFrom(self.record)
        fresh.uuid = fresh.location.key = str(uuid)
        fresh.upload_id = ""
        del fresh.done[:]
        if location is not None:
            fresh.location.CopyFrom(location_record(location, str(uuid)))
            fresh.attempts = 0
            fresh.last_error = ""
        node = UploadRecordNode(env.metadata, env.paths.upload(env.ledger.name, uuid), env.ledger.owner_epoch)
        node.create(fresh)
        env.ledger.update(partial(edits.replace_stub, old=self.uuid, new=uuid, begin=self.begin))
        self.give_up(reason if location is None else f"it goes to {location} instead")
        upload = SegmentUpload(env, node)
        upload._unsure = False  # parts are planned, but no request was sent to the store under this UUID
        return upload

    def _create_upload(self) -> None:
        store = self._env.open_store(location_of_record(self.record.location))
        # The last change of metadata may be long ago. An owner that was fenced meanwhile must not leave an upload.
        self._env.ledger.check_owner()
        self._unsure = True
        upload = store.create_upload(self.key, metadata=self._env.user_metadata("data"))

        def edit(record: UploadRecord) -> None:
            record.upload_id = upload.upload_id

        self._node.update(edit)
        self._unsure = False

    def _complete(self, store: ObjectStore) -> None:
        upload = Upload(self.key, self.record.upload_id)
        try:
            store.complete_upload(upload, records.uploaded_parts(self.record))
        except UploadMissing as error:
            try:
                found = store.head(self.key)
            except ObjectMissing:
                raise UploadLost(f"{self.key}: the store has neither the upload nor the object") from error
            if found.size_bytes != records.planned_bytes(self.record):
                raise WrongLength(
                    f"{self.key} has {found.size_bytes} bytes, {records.planned_bytes(self.record)} were uploaded"
                ) from error
            if found.metadata.get(INSTANCE_KEY) != self._env.instance:
                raise UploadLost(f"{self.key}: the object was written by another instance") from error
        except PartMismatch:
            self._drop_mismatched_parts(store.list_parts(upload))
            raise

    def _drop_mismatched_parts(self, stored: tuple[Part, ...]) -> None:
        """Remove parts from the record that the store does not hold as recorded, so that they are uploaded again."""
        known = {part.number: part for part in stored}

        def edit(record: UploadRecord) -> None:
            kept = []
            for part in record.done:
                found = known.get(part.number)
                if found is not None and found.size_bytes == part.bytes and found.crc32c in {None, part.crc32c}:
                    part.tag = found.tag
                    kept.append(part)
            copies = [type(part).FromString(part.SerializeToString()) for part in kept]
            del record.done[:]
            record.done.extend(copies)

        self._node.update(edit)

    def _check(self, store: ObjectStore, index: bytes) -> None:
        found = store.head(self.key)
        if found.size_bytes != records.planned_bytes(self.record):
            raise WrongLength(
                f"{self.key} has {found.size_bytes} bytes, {records.planned_bytes(self.record)} were uploaded"
            )
        if bytes(store.get(self.key + INDEX_SUFFIX)) != index:
            raise CorruptIndex(f"{self.key}{INDEX_SUFFIX} is not the index that was put: it has another writer")

    def _put_segment(self, now_ms: int) -> None:
        record = records.segment_record(self.record, instance=self._env.instance, offloaded_ms=now_ms)
        path = self._env.paths.segment(self._env.ledger.name, self.uuid)
        try:
            self._env.metadata.put(path, record.SerializeToString(deterministic=True), MUST_NOT_EXIST)
        except (VersionConflict, CommitUnknown):
            if self._env.metadata.get(path) is None:
                raise

    def _part(self, number: int) -> PlannedPart:
        """A part with its blocks, restored from the record if another owner planned it."""
        if number not in self._parts:
            planned = self.record.planned[number - 1]
            entries = range_between(
                self._env.ledger.layout, records.position_of(planned.begin), records.position_of(planned.end)
            )
            self._parts[number] = self._restore(planned, entries)
        return self._parts[number]

    def _restore(self, planned: PlannedPartRecord, entries: PositionRange) -> PlannedPart:
        number, env = planned.number, self._env
        if planned.frame_bytes:
            sizes = records.sizes_of(self.record)
            return restore_uncut_part(
                number, entries, planned.frame_bytes, sizes, env.frame_end, is_sized=not planned.unsized
            )
        if env.offsets is None:
            raise CorruptMetadata(f"part {number} of segment {self.uuid} was planned for another kind of hot log")
        offset = sum(sum(part.block_bytes) for part in self.record.planned[: number - 1])
        return restore_part(number, entries, planned.block_bytes, env.offsets, offset)


def undelivered_ledgers(results: Iterable[PartResult]) -> frozenset[int]:
    """Ids of the ledgers of which brokers did not deliver some entries, by the blocks that tasks have cut."""
    return frozenset(
        ledger_part.ledger_id
        for result in results
        for ledger_part, blocks in zip(result.cut, result.statistics, strict=True)
        if any(block.undelivered for block in blocks)
    )
