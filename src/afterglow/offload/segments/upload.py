"""One segment from its assignment to its commit, so that a crash anywhere ends in committed or cleaned.

1. Put the upload record: UUID, place and key, begin, and the end where it is known. *Crash: no ledger list names the
   segment; the next owner gives the record up.*
2. Commit a stub to the list of ledgers, in the ledger where the segment begins. *Crash: the next owner resumes it.*
3. Where there is more than one part, check that the topic is still owned here, create the multipart upload, and record
   its id. *Crash in between: the store may hold an upload that is not recorded, and neither a listing that lags behind
   nor a request still under way would show it. The next owner begins anew under another UUID; what is given up stays on
   record until both have passed.*
4. Record parts as planned, have tasks upload them, record them as done. *Crash: planned parts that are not recorded as
   done are uploaded again, with the same bytes under the same numbers.*
5. Record the end, together with the last parts. From here on the record alone decides. *Crash: as 4.*
6. Complete the upload, naming the recorded tags. *Crash: the store knows no such upload then, and the key's length and
   instance prove that it was completed.*
7. Put the index where there is none, derived from the record alone. *Crash: the same bytes once more.*
8. Check length and index as the store gives them.
9. Put the segment's lasting record. *Crash: it is there already.*
10. Commit: the segment is complete in every ledger that it touches. *Crash: done but for the record, which the next
    owner finds complete.*
11. Delete the upload record.

A segment of an external driver is planned as one part, which one task writes through the driver's offload handle once
the segment has ended: steps 3, 6 and 7 are the driver's own matter, and step 8 reads both ends of every ledger back
through the driver. *Crash: the task writes the same segment once more, under the same UUID.*

Every step may be done again. A step that meets a newer owner changes nothing and deletes nothing.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self
from uuid import UUID

from afterglow.errors import (
    CommitUnknown,
    CorruptIndex,
    ObjectExists,
    ObjectMissing,
    OffloadConflict,
    PartMismatch,
    UploadLost,
    UploadMissing,
    VersionConflict,
    WrongLength,
)
from afterglow.format.index import encode_index
from afterglow.format.objects import INDEX_SUFFIX, INSTANCE_KEY
from afterglow.format.proto.afterglow_pb2 import UploadRecord
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.offload.segments import edits, records
from afterglow.offload.segments.part_planner import plan_parts, restore_part
from afterglow.offload.segments.uncovered import range_between
from afterglow.offload.segments.upload_record import UploadRecordNode
from afterglow.offload.task import PartTask
from afterglow.read.objects import TierObject
from afterglow.storage.store import Upload
from afterglow.tier.locations import is_built_in, location_of_record, location_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from afterglow.format.position import Position
    from afterglow.format.proto.afterglow_pb2 import PlannedPart as PlannedPartRecord
    from afterglow.offload.environment import SegmentEnvironment
    from afterglow.offload.segments.part_planner import PlannedPart, Sizes
    from afterglow.offload.segments.uncovered import PositionRange
    from afterglow.offload.task import PartResult, SegmentTask, StreamTask
    from afterglow.storage.store import ObjectStore, Part
    from afterglow.tier.locations import TierLocation


class SegmentUpload:
    """A segment that is assigned. One call at a time.

    Args:
        env: What the topic's segments share.
        node: Its record, which is there.
    """

    def __init__(self, env: SegmentEnvironment, node: UploadRecordNode) -> None:
        self._env = env
        self._node = node
        self._parts: dict[int, PlannedPart] = {}
        self._in_flight: set[int] = set()
        self._external = not is_built_in(node.record.location.driver)
        self._unsure = bool(node.record.planned) and not node.record.upload_id
        """Whether the store may hold an upload of the key that is not recorded: none is created before a part is
        planned."""
        self._ended = False
        """Whether it was committed or given up, so that only its record is still to be deleted. Meanwhile it may have
        been trimmed, rolled back, or deleted as given up: to finish it again would write its index again, which nothing
        would name. The record itself may be gone, where the outcome of its deletion was unknown."""

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def record(self) -> UploadRecord:
        """Its record; not to be changed."""
        return self._node.record

    @property
    def uuid(self) -> UUID:
        """Its UUID."""
        return UUID(self.record.uuid)

    @property
    def key(self) -> str:
        """Of its object."""
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
    def reached(self) -> Position:
        """The last entry that is planned; the one before its begin where none is."""
        return records.planned_end(self.record) or self.begin.previous()

    @property
    def first_not_uploaded(self) -> Position | None:
        """The first of its entries that no uploaded part has, as far as is recorded; None where all are uploaded."""
        missing = records.missing_parts(self.record)
        if missing:
            return records.position_of(missing[0].begin)
        return None if self.whole else self.reached.next()

    @property
    def frame_bytes(self) -> int:
        """Of all entries that are planned, by which its size counts."""
        return records.planned_frame_bytes(self.record)

    @property
    def whole(self) -> bool:
        """Whether it has ended and all its parts are uploaded."""
        return records.parts_whole(self.record)

    @property
    def in_flight(self) -> int:
        """Parts that tasks are uploading."""
        return len(self._in_flight)

    def refresh(self) -> None:
        """Find out how the last change of the record ended, where that is unknown: what follows is planned from it.

        Raises:
            Fenced: Another owner has taken over.
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
            env: What the topic's segments share.
            location: Where it goes.
            begin: Its first entry.
            end: Its last entry; None where it is to be live.
            sizes: How it is cut.
            first_ms: When its first entry was written.

        Raises:
            Fenced: Another owner has taken over.
            OffloadConflict: The list has changed so that no segment can begin there.
            MetadataError: The store failed; the next advance finds out what was done.
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
            )
        )
        try:
            env.ledger.update(partial(edits.add_stub, uuid=uuid, begin=begin, assigned_ms=now_ms))
        except OffloadConflict:
            node.delete()  # nothing was uploaded
            raise
        return cls(env, node)

    # --- steps 3 to 5 -------------------------------------------------------------------------------------------------

    def extend(self, entries: PositionRange, *, closing: bool) -> None:
        """Plan further parts, and record them; with the end where it closes.

        Args:
            entries: Entries behind :attr:`reached`, up to the end where it closes.
            closing: Whether the segment ends with them.

        Raises:
            Fenced: Another owner has taken over.
            HotLogError: The ledgers cannot be read now.
            MetadataError: The store failed.
        """
        record = self.record
        offset = records.planned_bytes(record)
        number = len(record.planned) + 1
        sizes = records.sizes_of(record)
        parts = plan_parts(entries, self._env.offsets, sizes, number=number, offset=offset, closing=closing)

        def edit(record: UploadRecord) -> None:
            records.add_planned(record, parts)
            if closing and not record.HasField("end"):
                record.end.CopyFrom(records.to_proto(entries.end))

        if parts or closing:
            self._node.update(edit)
            self._parts.update({part.number: part for part in parts})

    def close_as_planned(self) -> None:
        """Let it end with the last part that is planned; there must be one.

        Raises:
            Fenced: Another owner has taken over.
            MetadataError: The store failed.
        """
        end = records.to_proto(self.reached)

        def edit(record: UploadRecord) -> None:
            if not record.HasField("end"):
                record.end.CopyFrom(end)

        self._node.update(edit)

    def due(self) -> tuple[StreamTask, ...]:
        """Tasks for parts that are planned, not uploaded, and in no running task; they count as in flight now.

        Raises:
            UploadLost: The store has forgotten the upload.
            AfterglowError: The upload cannot be created, or the plan not be restored; to be tried again.
        """
        missing = [part for part in records.missing_parts(self.record) if part.number not in self._in_flight]
        if not missing:
            return ()
        tasks = self._driver_tasks(missing) if self._external else self._part_tasks(missing)
        self._in_flight.update(task.number for task in tasks)
        return tasks

    def _driver_tasks(self, missing: Sequence[PlannedPartRecord]) -> tuple[SegmentTask, ...]:
        return tuple(self._env.driver_task(self.record, self._part(part.number)) for part in missing)

    def _part_tasks(self, missing: Sequence[PlannedPartRecord]) -> tuple[PartTask, ...]:
        single = self.record.HasField("end") and len(self.record.planned) == 1 and not self.record.upload_id
        if not single and not self.record.upload_id:
            self._create_upload()
        location = location_of_record(self.record.location)
        options = tuple(sorted(self._env.store_options(location).items()))
        metadata = tuple(self._env.user_metadata("data").items())
        return tuple(
            PartTask(
                topic=self._env.ledger.name,
                key=self.key,
                number=part.number,
                upload_id=self.record.upload_id or None,
                url=location.url,
                options=options,
                metadata=metadata,
                home=self._env.home,
                instance=self._env.instance,
                ledgers=self._part(part.number).ledgers,
                remote=self._env.remote(),
            )
            for part in missing
        )

    def settle(self, results: Mapping[int, PartResult]) -> None:
        """Take results of tasks, by part number, and record the parts that are done.

        Raises:
            Fenced: Another owner has taken over.
            UploadLost: The store has forgotten the upload.
            AfterglowError: A part failed, with the first error; what was done is recorded all the same.
        """
        self._in_flight.difference_update(results)
        good = {number: result for number, result in results.items() if result.error is None}
        if good:
            parts = {number: self._part(number) for number in good}

            def edit(record: UploadRecord) -> None:
                for number, result in good.items():
                    records.add_done(record, parts[number], result)
                record.attempts = 0
                record.last_error = ""

            self._node.update(edit)
        for result in results.values():
            if isinstance(result.error, UploadMissing):
                raise UploadLost(f"{self.key}: {result.error}") from result.error
            if result.error is not None:
                raise result.error

    def failed(self, error: Exception) -> None:
        """Record a failure: the segment's status is then ``Failed`` until the next success.

        Raises:
            Fenced: Another owner has taken over.
            MetadataError: The store failed.
        """
        if self._ended:
            return  # the segment has not failed; its record may be gone, which is not another owner's doing
        attempts = self.record.attempts + 1
        now_ms = self._env.clock.now_ms()

        def edit(record: UploadRecord) -> None:
            record.attempts = attempts
            record.last_error = f"{type(error).__name__}: {error}".splitlines()[0][:500]
            record.last_attempt_ms = now_ms

        self._node.update(edit)

    # --- steps 6 to 11 ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Make the parts an object, and commit it. All segments before it must be committed.

        Raises:
            Fenced: Another owner has taken over; nothing was deleted.
            UploadLost: The store has forgotten the upload.
            OffloadConflict: The segment is not assigned any more: it was given up.
            AfterglowError: To be tried again.
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

    def _complete_object(self) -> None:
        """Steps 6 to 8."""
        store = self._env.open_store(location_of_record(self.record.location))
        if self.record.upload_id:
            self._complete(store)
        index = encode_index(records.index_of(self.record))
        with suppress(ObjectExists):  # of an earlier try, derived from the same record
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
        """Put on record that everything of it is to go, then forget it. No list must name it any more.

        Raises:
            Fenced: Another owner has taken over.
            MetadataError: The store failed.
        """
        self._env.give_up(self.uuid, location_of_record(self.record.location), reason)
        self._ended = True
        self._node.delete()

    @property
    def is_movable(self) -> bool:
        """Whether it failed where it is, and nothing of it was uploaded there as far as is known."""
        return bool(self.record.last_error) and not (self.record.done or self._in_flight or self._external)

    @property
    def may_leak(self) -> bool:
        """Whether the store may hold an upload of its key that no record names, and parts are still to be uploaded."""
        return self._unsure and not self.record.upload_id and bool(records.missing_parts(self.record))

    def replace_unrecorded(self) -> SegmentUpload:
        """Begin anew under another UUID, since an upload of this one may be there that no record names.

        That a listing shows none proves nothing: it may lag behind, and the request may still be under way. What is
        given up is checked again until neither can be.

        Raises:
            StorageError: The store does not answer: during an outage UUIDs would pile up.
            AfterglowError: See :meth:`start_again`.
        """
        self._env.open_store(location_of_record(self.record.location)).list_uploads(self.key)
        return self.start_again(reason="the store may hold an upload that no record names")

    def start_again(
        self, location: TierLocation | None = None, *, reason: str = "the store has lost its upload"
    ) -> SegmentUpload:
        """Begin anew under another UUID, after the store has lost the upload, or somewhere else.

        1. Put a record for the new UUID. *Crash: no list names it, and it is given up.*
        2. Let it take the old one's place in the list. *Crash: the next owner resumes it, and gives up the old one.*
        3. Put on record that what there is of the old one is to go, and delete its record. *Crash: the same.*

        Args:
            location: Where it goes from now on; None: where it went.
            reason: Why it begins anew where it went.

        Raises:
            Fenced: Another owner has taken over.
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
        made = SegmentUpload(env, node)
        made._unsure = False  # whatever is planned, nothing was asked of the store under this UUID
        return made

    def _create_upload(self) -> None:
        store = self._env.open_store(location_of_record(self.record.location))
        # The last change of metadata may be long ago. An owner that was fenced since must not leave an upload.
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
                raise UploadLost(f"{self.key}: the store knows neither the upload nor the object") from error
            if found.size_bytes != records.planned_bytes(self.record):
                raise WrongLength(
                    f"{self.key} has {found.size_bytes} bytes, {records.planned_bytes(self.record)} were uploaded"
                ) from error
            if found.metadata.get(INSTANCE_KEY) != self._env.instance:
                raise UploadLost(f"{self.key}: another writer's object has taken the key") from error
        except PartMismatch:
            self._forget_wrong_parts(store.list_parts(upload))
            raise

    def _forget_wrong_parts(self, held: tuple[Part, ...]) -> None:
        """Have parts uploaded again that the store does not hold as recorded."""
        known = {part.number: part for part in held}

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
            raise CorruptIndex(f"{self.key}{INDEX_SUFFIX} is not the index that was written: another writer was there")

    def _put_segment(self, now_ms: int) -> None:
        made = records.segment_record(self.record, instance=self._env.instance, offloaded_ms=now_ms)
        path = self._env.paths.segment(self._env.ledger.name, self.uuid)
        try:
            self._env.metadata.put(path, made.SerializeToString(deterministic=True), MUST_NOT_EXIST)
        except (VersionConflict, CommitUnknown):
            if self._env.metadata.get(path) is None:
                raise

    def _part(self, number: int) -> PlannedPart:
        """A part with its blocks; restored from the record where another owner planned it."""
        if number not in self._parts:
            planned = self.record.planned[number - 1]
            entries = range_between(
                self._env.ledger.layout, records.position_of(planned.begin), records.position_of(planned.end)
            )
            offset = sum(sum(part.block_bytes) for part in self.record.planned[: number - 1])
            self._parts[number] = restore_part(number, entries, planned.block_bytes, self._env.offsets, offset)
        return self._parts[number]
