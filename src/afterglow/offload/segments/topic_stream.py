"""Stream of the segments of one topic: begins, extends and closes them in the order of positions.

Several segments whose end is known when they begin (history, or a backlog) run at a time; after them there is at most
one live segment. They are committed in order. A segment that fails is resumed until it succeeds, and no other begins
meanwhile. The steps of one segment, to its commit, are in :mod:`afterglow.offload.segments.upload`.

After a crash the state is restored from metadata: the ledger list names assigned segments, and their upload records
hold the progress of each.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from uuid import UUID

from afterglow.errors import (
    AfterglowError,
    ConfigError,
    CorruptEntry,
    Fenced,
    NotSupported,
    OffloadConflict,
    UploadLost,
)
from afterglow.format.frames import FRAME_BYTES
from afterglow.format.objects import get_uuid, ledger_uuid
from afterglow.ledger.time_search import entry_time
from afterglow.offload.backoff import backoff_ms
from afterglow.offload.segments import edits, records
from afterglow.offload.segments.part_planner import cut_by_size, frame_bytes
from afterglow.offload.segments.uncovered import find_ledger, has_failed_attempt, range_between, uncovered_ranges
from afterglow.offload.segments.upload import SegmentUpload
from afterglow.offload.segments.upload_record import UploadRecordNode
from afterglow.tier.locations import is_built_in, location_of_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.offload.environment import SegmentEnvironment
    from afterglow.offload.segments.uncovered import PositionRange
    from afterglow.offload.task import PartResult, StreamTask

    HandOut: TypeAlias = Callable[[Sequence[StreamTask]], None]

_log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ASSIGNED: Final = 4
"""Segments of one topic that run at a time: enough to keep workers busy, few enough to leave capacity for others."""


MAX_UNSIZED_BYTES: Final = 64 << 20
"""Estimated size at which a segment closes whose entries are read from brokers: it is one part, in a task's memory."""


class _TopicEnd(NamedTuple):
    """The end of the topic at the last advance."""

    last: Position
    """Its last entry."""
    frame_bytes: int
    """Bytes of all its frames; fewer bytes mean that the topic was trimmed."""
    due_bytes: int
    """Bytes of frames at which a part of the live segment, or the segment itself, is full."""


class TopicStream:
    """Segments of one topic. :meth:`is_due` and :meth:`on_part_result` may be called at any time, the rest serially.

    Args:
        environment: Services of the topic's segments.
    """

    def __init__(self, environment: SegmentEnvironment) -> None:
        self._env = environment
        self._uploads: list[SegmentUpload] | None = None
        self._known: dict[UUID, SegmentUpload] = {}
        self._results: deque[tuple[UUID, int, PartResult]] = deque()
        self._target: Position | None = None
        self._seen: _TopicEnd | None = None
        self._close_at_ms: int | None = None
        self.progress_ms = environment.clock.now_ms()
        """Time of the last progress, epoch milliseconds."""
        self.retry_ms = 0
        """Time of the retry after a failure, epoch milliseconds; 0: it has not failed."""
        self.failures = 0
        """Number of failures in a row, since the last commit or :meth:`retry_now`."""
        self.error: AfterglowError | None = None
        """Error of the last :meth:`advance` that was not in backoff; None if it succeeded. The failures of each segment
        are in its record."""
        self.failed_ms = 0
        """Time of the last failure, epoch milliseconds; 0: none."""

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def uploads(self) -> tuple[SegmentUpload, ...]:
        """Assigned segments, in the order of positions."""
        return tuple(self._uploads or ())

    @property
    def is_loaded(self) -> bool:
        """Whether the assigned segments have been read from metadata."""
        return self._uploads is not None

    @property
    def waits_for_entries(self) -> bool:
        """Whether the stream waits only for more entries, or for the time to close."""
        uploads = self._uploads or []
        return self.error is None and all(upload.end is None and not upload.running_parts for upload in uploads)

    @property
    def first_not_uploaded(self) -> Position | None:
        """The first entry to be streamed that is in no uploaded part; None if none exists, or it is not known."""
        uploads, streaming = self._uploads, self._env.policy().streaming_offload_enabled
        if uploads is None:
            return None
        begun = next((begin for upload in uploads if (begin := upload.first_not_uploaded) is not None), None)
        if begun is not None:
            return begun
        uncovered = self._uncovered(streaming=streaming, after=uploads[-1].end if uploads else None)
        if uncovered:
            return uncovered[0].begin
        return self._env.ledger.layout.last.next() if streaming else None

    @property
    def next_poll_ms(self) -> int | None:
        """Time of the next retry, or at which the live segment closes, epoch milliseconds; None: neither."""
        return self.retry_ms or self._close_at_ms  # no segment closes before the retry

    def is_committed_to(self, target: Position) -> bool:
        """Whether all entries up to ``target`` that are to be streamed are committed."""
        if self._uploads is None or any(upload.begin <= target for upload in self._uploads):
            return False
        return all(entries.begin > target for entries in self._uncovered(streaming=True))

    def is_out_of_reach(self, target: Position) -> bool:
        """Whether entries up to ``target`` will never be in segments, because streaming was disabled before."""
        if self._uploads is None or self._env.policy().streaming_offload_enabled:
            return False
        # The ledger that is being written will be closed, and is completed in segments if it has any.
        begins = [upload.begin for upload in self._uploads]
        begins += [entries.begin for entries in self._uncovered(streaming=False, closed=True)]
        if any(begin <= target for begin in begins):
            return False
        return not self.is_committed_to(target)

    def is_due(self, now_ms: int) -> bool:
        """Whether :meth:`advance` would find work. Compares a few numbers."""
        if self._uploads is None or self._results:
            return True
        if now_ms < self.retry_ms:
            return False
        if self.retry_ms:
            return True
        layout = self._env.ledger.layout
        if self._close_at_ms is not None:
            if now_ms >= self._close_at_ms or self._target is not None:
                return True
            if self._seen is not None and self._seen.last == layout.last:
                return False  # uncovered entries may fill a part and still not end with a complete block
            return self._seen is None or not self._seen.frame_bytes <= self._frame_bytes() < self._seen.due_bytes
        return self._seen is None or self._seen.last != layout.last

    def _frame_bytes(self) -> int:
        ledger = self._env.ledger
        return ledger.size_bytes + FRAME_BYTES * ledger.layout.total_entries

    def close_at(self, target: Position | None) -> None:
        """Close and commit all entries up to a target as soon as possible.

        Args:
            target: An entry of the topic; None: segments close by policy alone.
        """
        if target != self._target:
            self._target = target
            self._seen = None

    def retry_now(self) -> None:
        """End the backoff after failures: the next :meth:`advance` retries."""
        self.retry_ms = 0
        self.failures = 0
        self._seen = None

    def on_part_result(self, uuid: UUID, number: int, result: PartResult) -> None:
        """Queue the result of a task for the next :meth:`advance`."""
        self._results.append((uuid, number, result))

    # --- progress -----------------------------------------------------------------------------------------------------

    def advance(self, hand_out: HandOut | None = None) -> tuple[StreamTask, ...]:
        """Do all work that does not have to wait for tasks; returns the tasks that are due now.

        A failure is kept in :attr:`error` and in the record of the segment, and is retried with backoff.

        Args:
            hand_out: Called with due tasks, perhaps none, before a segment is finished, so that they need not wait for
                the store.

        Raises:
            Fenced: The topic has a new owner: the stream has ended.
        """
        now_ms = self._env.clock.now_ms()
        tasks: list[StreamTask] = []
        try:
            uploads = self._load()
            self._take_results(uploads)
            if now_ms < self.retry_ms:
                return ()
            self.retry_ms = 0
            last, seen_bytes = self._env.ledger.layout.last, self._frame_bytes()
            self._advance_uploads(uploads, now_ms, tasks, hand_out)
            self._seen = _TopicEnd(last, seen_bytes, seen_bytes + self._until_due(uploads, last))
            self.error = None
        except Fenced:
            raise
        except AfterglowError as error:
            self._record_failure(error)
        return tuple(tasks)  # also after a failure: their parts count as running

    def _advance_uploads(
        self,
        uploads: list[SegmentUpload],
        now_ms: int,
        tasks: list[StreamTask],
        hand_out: HandOut | None,
    ) -> None:
        """Begin, extend, close and commit segments; adds due tasks to ``tasks``."""
        for upload in uploads:
            upload.refresh()
        self._move_failed(uploads)
        self._replace_unrecorded(uploads)
        self._roll_if_disabled(uploads)
        while True:
            self._extend_live(uploads, now_ms)
            self._begin(uploads, now_ms)
            for upload in uploads:
                tasks.extend(self._run_for(upload, upload.take_tasks))
            if not uploads or not uploads[0].is_uploaded:
                break
            if hand_out is not None:  # tasks of an earlier call may wait too
                hand_out(tuple(tasks))
                tasks.clear()
            self._finish_first(uploads)
        is_live = bool(uploads) and uploads[-1].end is None
        self._close_at_ms = self._closes_ms(uploads[-1].record.first_entry_ms) if is_live else None
        if self._target is not None and self.is_committed_to(self._target):
            self._target = None

    def _move_failed(self, uploads: list[SegmentUpload]) -> None:
        """Start segments again at the policy's tier location if no part could be uploaded to their own."""
        for upload in [upload for upload in uploads if upload.is_movable]:
            try:
                location = self._env.location()
            except (ConfigError, NotSupported):
                return  # the policy has no valid tier location: assigned segments are retried at their own
            before = location_of_record(upload.record.location)
            if location != before and is_built_in(location.driver):
                _log.warning(
                    "segment %s of %s failed in %s and starts again in %s",
                    *(upload.uuid, self._env.ledger.topic, before, location),
                )
                with self._reloaded_after_failure():
                    uploads[uploads.index(upload)] = upload.start_again(location)

    def _replace_unrecorded(self, uploads: list[SegmentUpload]) -> None:
        """Start segments again of which the store may hold an upload that no record names."""
        for at, upload in enumerate(uploads):
            if upload.may_leak:
                self._run_for(upload, upload.probe_store)
                with self._reloaded_after_failure():
                    reason = "the store may hold an upload that no record names"
                    uploads[at] = self._run_for(upload, partial(upload.start_again, reason=reason))

    def _finish_first(self, uploads: list[SegmentUpload]) -> None:
        first = uploads[0]
        try:
            self._run_for(first, first.finish)
        except OffloadConflict as error:
            _log.warning("segment %s of %s was given up: %s", first.uuid, self._env.ledger.topic, error)
        uploads.pop(0)
        self.failures = 0
        self.progress_ms = self._env.clock.now_ms()

    # --- beginning, extending, closing --------------------------------------------------------------------------------

    def _begin(self, uploads: list[SegmentUpload], now_ms: int) -> None:
        """Assign segments, up to ``MAX_ASSIGNED``."""
        policy, max_bytes = self._env.policy(), self._max_bytes()
        while len(uploads) < MAX_ASSIGNED and (not uploads or uploads[-1].end is not None):
            uncovered = self._uncovered(
                streaming=policy.streaming_offload_enabled, after=uploads[-1].end if uploads else None
            )
            if not uncovered:
                return
            entries = uncovered[0]
            end = cut_by_size(entries, self._env.frame_end, max_bytes)
            if end is None:
                end = self._target_end(entries) if entries.growing else entries.end
            if end is None and uploads:
                return  # a live segment begins once all others are committed
            for entry_range in entries.ranges:
                self._clear_failed_attempt(entry_range.ledger_id)
            first_ms = self._entry_ms(entries.begin, now_ms)
            if end is None and now_ms >= self._closes_ms(first_ms):
                end = entries.end
            location, sizes = self._env.location(), self._env.sizes(policy)
            # One task writes the whole segment through the driver's handle, or the sizes of parts are not known before.
            if not is_built_in(location.driver) or self._env.check_undelivered is not None:
                sizes = sizes.in_one_part()
            with self._reloaded_after_failure():
                upload = SegmentUpload.assign(self._env, location, entries.begin, end, sizes=sizes, first_ms=first_ms)
            uploads.append(upload)
            self.progress_ms = now_ms
            if end is None:
                upload.extend(entries, closing=False)
                return
            upload.extend(entries.up_to(end), closing=True)

    def _extend_live(self, uploads: list[SegmentUpload], now_ms: int) -> None:
        """Plan new entries of the live segment, and close it if it is time."""
        if not uploads:
            return
        live = uploads[-1]
        if live.end is not None:
            if live.planned_end < live.end:  # it was assigned with its end, and a crash prevented the planning
                live.extend(range_between(self._env.ledger.layout, live.planned_end.next(), live.end), closing=True)
            return
        policy = self._env.policy()
        uncovered = self._uncovered(streaming=True, after=uploads[-2].end if len(uploads) > 1 else None)
        entries = next((entries for entries in uncovered if entries.begin == live.begin), None)
        if entries is None:
            return
        end = cut_by_size(entries, self._env.frame_end, self._max_bytes())
        if end is None:
            end = self._current_end(entries, live, policy, now_ms)
        if end is not None and end <= live.planned_end:
            live.close_as_planned()
            return
        left = (entries if end is None else entries.up_to(end)).after(live.planned_end)
        if left is not None:
            live.extend(left, closing=end is not None)

    def _max_bytes(self) -> int:
        """Size at which a segment closes."""
        max_bytes = self._env.policy().max_offload_segment_size_in_bytes
        return max_bytes if self._env.check_undelivered is None else min(max_bytes, MAX_UNSIZED_BYTES)

    def _until_due(self, uploads: list[SegmentUpload], last: Position) -> int:
        """Number of bytes that fill a part of the live segment, or the segment; 0 if none exists."""
        if not uploads or (live := uploads[-1]).end is not None:
            return 0
        waiting_bytes = 0
        if live.planned_end < last:
            left = range_between(self._env.ledger.layout, live.planned_end.next(), last)
            waiting_bytes = sum(frame_bytes(each, each.last, self._env.frame_end) for each in left.ranges)
        max_bytes = self._max_bytes()
        to_part = records.sizes_of(live.record).part_bytes - waiting_bytes
        return min(to_part, max_bytes - records.planned_frame_bytes(live.record) - waiting_bytes)

    def _current_end(
        self, entries: PositionRange, live: SegmentUpload, policy: BrokerConfig, now_ms: int
    ) -> Position | None:
        """The end of a live segment that closes for another reason than its size; None: it stays open."""
        if not policy.streaming_offload_enabled:
            # Entries after the roll-over belong to whole-ledger offload.
            closed = [entry_range.end for entry_range in entries.ranges if entry_range.closed]
            return closed[-1] if closed else None
        if not entries.growing or now_ms >= self._closes_ms(live.record.first_entry_ms):
            return entries.end
        return self._target_end(entries)

    def _roll_if_disabled(self, uploads: list[SegmentUpload]) -> None:
        """After streaming was disabled, close the ledger that is being written if it has a segment."""
        ledger = self._env.ledger
        writing_to = ledger.writing_to
        if (
            self._env.policy().streaming_offload_enabled
            or writing_to is None
            or not ledger.layout.entries_of(writing_to)
        ):
            return
        ledger_info = find_ledger(ledger.info, writing_to)
        is_live = bool(uploads) and uploads[-1].end is None
        if is_live or (ledger_info is not None and ledger_info.offloadContext.offloadSegment):
            ledger.roll()

    def _target_end(self, entries: PositionRange) -> Position | None:
        """The last entry of a range that is to be committed for the target; None if none exists."""
        if self._target is None or entries.begin > self._target:
            return None
        return min(entries.end, self._target)

    def _closes_ms(self, first_ms: int) -> int:
        """Time at which a segment closes by age, given the time of its first entry."""
        return first_ms + 1000 * self._env.policy().max_offload_segment_rollover_time_in_seconds

    def _uncovered(
        self, *, streaming: bool, closed: bool = False, after: Position | None = None
    ) -> tuple[PositionRange, ...]:
        ledger = self._env.ledger
        layout = ledger.layout
        return uncovered_ranges(
            ledger.info.ledgerInfo,
            layout.entries_of,
            streaming=streaming,
            writing_to=None if closed else ledger.writing_to,
            assigned_to=after,
        )

    def _entry_ms(self, begin: Position, now_ms: int) -> int:
        """Broker time of an entry; now if it has none."""
        found = self._env.ledger.reader.read(begin, 1, 1)
        if not found or found[0].position != begin:
            return now_ms
        try:
            written = entry_time(found[0].data)
        except CorruptEntry:  # a damaged entry is copied as it is
            return now_ms
        return min(written.time_ms, now_ms) if written.by_broker else now_ms

    def _clear_failed_attempt(self, ledger_id: int) -> None:
        ledger_info = find_ledger(self._env.ledger.info, ledger_id)
        if ledger_info is not None and has_failed_attempt(ledger_info) and ledger_uuid(ledger_info) is not None:
            self._env.give_up_ledger(ledger_id)

    # --- results and failures -----------------------------------------------------------------------------------------

    def _take_results(self, uploads: Iterable[SegmentUpload]) -> None:
        by_uuid: dict[UUID, dict[int, PartResult]] = {}
        while self._results:
            uuid, number, result = self._results.popleft()
            by_uuid.setdefault(uuid, {})[number] = result
        first_error: AfterglowError | None = None
        for upload in tuple(uploads):
            results = by_uuid.pop(upload.uuid, None)
            if results is None:
                continue
            try:
                self._run_for(upload, partial(upload.record_results, results))
                self.progress_ms = self._env.clock.now_ms()
            except Fenced:
                raise
            except AfterglowError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _run_for(self, upload: SegmentUpload, work: Callable[[], T]) -> T:
        """Run work of a segment; if the store has lost its upload start it again, and record any other failure."""
        try:
            return work()
        except UploadLost as error:
            if self._uploads is None:
                raise  # another one failed to start again: after all are reloaded, a task of this one fails again
            _log.warning("segment %s of %s starts again: %s", upload.uuid, self._env.ledger.topic, error)
            with self._reloaded_after_failure():
                self._uploads[self._uploads.index(upload)] = upload.start_again()
            raise
        except (Fenced, OffloadConflict):
            raise
        except AfterglowError as error:
            upload.record_failure(error)
            raise

    def _record_failure(self, error: AfterglowError) -> None:
        self.failures += 1
        self.failed_ms = self._env.clock.now_ms()
        self.retry_ms = self.failed_ms + backoff_ms(self._env.policy(), self.failures)
        self.error = error

    @contextmanager
    def _reloaded_after_failure(self) -> Iterator[None]:
        """Reload all segments after a failure, since the ledger list may name another segment now."""
        try:
            yield
        except AfterglowError:
            self._known = {upload.uuid: upload for upload in self._uploads or ()}
            self._uploads = None
            raise

    # --- after a start ------------------------------------------------------------------------------------------------

    def _load(self) -> list[SegmentUpload]:
        """The assigned segments, read from metadata and taken over from an earlier owner."""
        if self._uploads is not None:
            return self._uploads
        env = self._env
        info = env.ledger.update(_nothing).info  # reads it again if the outcome of the last change is unknown
        assigned = {
            uuid
            for ledger_info in info.ledgerInfo
            for item in ledger_info.offloadContext.offloadSegment
            if not item.complete and (uuid := get_uuid(item)) is not None
        }
        named = assigned | {
            uuid
            for ledger_info in info.ledgerInfo
            for item in ledger_info.offloadContext.offloadSegment
            if item.complete and (uuid := get_uuid(item)) is not None
        }
        found: list[SegmentUpload] = []
        for text in env.metadata.children(env.paths.uploads(env.ledger.name)):
            uuid = UUID(text)
            node = UploadRecordNode(env.metadata, env.paths.upload(env.ledger.name, uuid), env.ledger.owner_epoch)
            if not node.take_over(env.ledger.check_owner):
                continue
            upload = SegmentUpload(env, node)
            if uuid in assigned and node.record.markers_stripped != (env.check_undelivered is not None):
                # Parts of one segment are not read by different paths: only one of them has markers.
                env.ledger.update(partial(edits.remove_segment, uuid=uuid))
                assigned.discard(uuid)
                upload.give_up("entries are read by another path now")
            elif uuid in assigned:
                found.append(upload)
            elif uuid in named:
                node.delete()  # committed; only the upload record was left
            else:
                upload.give_up("no list names it")
        for uuid in assigned - {upload.uuid for upload in found}:
            _log.error("the upload record of segment %s of %s is missing; it starts again", uuid, env.ledger.topic)
            env.ledger.update(partial(edits.remove_segment, uuid=uuid))
        known, self._known = self._known, {}
        self._uploads = sorted((known.get(upload.uuid, upload) for upload in found), key=lambda upload: upload.begin)
        return self._uploads


def _nothing(_info: ManagedLedgerInfo) -> None:
    """Change nothing."""
