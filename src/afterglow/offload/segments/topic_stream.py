"""Stream of segments of one topic: begins, extends and closes them in the order of positions.

Segments whose end is known when they begin (history, or a backlog) run several at a time; the live one comes after
them, and there is never more than one. They are committed in order. A segment that fails is resumed until it succeeds,
and nothing new begins meanwhile.

Everything here is found again from metadata after a crash: the ledger list names what is assigned, and upload
records hold the progress of each.
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
from afterglow.offload.segments.uncovered import failed_attempt, range_between, uncovered_ranges
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

MOST_AT_ONCE: Final = 4
"""Segments of one topic that run at a time: enough to keep workers busy, few enough for other topics' sake."""


class _Seen(NamedTuple):
    """The topic as it was at the last advance."""

    last: Position
    """Its last entry."""
    frame_bytes: int
    """Of all its entries; less than this, and the list was trimmed."""
    due_bytes: int
    """Of frames, at which a part of the live segment, or the segment itself, is full."""


class TopicStream:
    """Segments of one topic. :meth:`is_due` and :meth:`on_part_result` may be called at any time, the rest serially.

    Args:
        environment: What its segments share.
    """

    def __init__(self, environment: SegmentEnvironment) -> None:
        self._env = environment
        self._uploads: list[SegmentUpload] | None = None
        self._known: dict[UUID, SegmentUpload] = {}
        self._results: deque[tuple[UUID, int, PartResult]] = deque()
        self._target: Position | None = None
        self._seen: _Seen | None = None
        self._close_at_ms: int | None = None
        self._retry_at_ms = 0
        self._failures = 0
        self._progress_ms = environment.clock.now_ms()
        self.error: AfterglowError | None = None
        """Why the last call of :meth:`advance` that tried anything failed; None where it went through. Whether a
        segment still has to be repeated is in its record."""
        self.failed_ms = 0
        """When an attempt last failed, epoch milliseconds; 0: none has."""

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def uploads(self) -> tuple[SegmentUpload, ...]:
        """Segments that are assigned, in the order of positions."""
        return tuple(self._uploads or ())

    @property
    def is_loaded(self) -> bool:
        """Whether it is known which segments are assigned."""
        return self._uploads is not None

    @property
    def idle(self) -> bool:
        """Whether no segment is assigned and nothing is in flight."""
        return self._uploads is not None and not self._uploads

    @property
    def progress_ms(self) -> int:
        """When something last went forward, epoch milliseconds."""
        return self._progress_ms

    @property
    def retry_ms(self) -> int:
        """When it is tried again after a failure, epoch milliseconds; 0: it goes on."""
        return self._retry_at_ms

    @property
    def failures(self) -> int:
        """Attempts that failed one after the other, since an operator asked or something was committed."""
        return self._failures

    @property
    def waits_for_entries(self) -> bool:
        """Whether nothing is missing but more entries, or the time to close."""
        uploads = self._uploads or []
        return self.error is None and all(upload.end is None and not upload.in_flight for upload in uploads)

    @property
    def first_not_uploaded(self) -> Position | None:
        """The first entry that is to be streamed and no uploaded part has; None where none is, or it is not known."""
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
        """When time alone brings something to do, epoch milliseconds; None: it does not."""
        return self._retry_at_ms or self._close_at_ms  # before the next try nothing is closed either

    def is_committed_to(self, target: Position) -> bool:
        """Whether everything up to ``target`` that belongs into segments is committed."""
        if self._uploads is None or any(upload.begin <= target for upload in self._uploads):
            return False
        return all(entries.begin > target for entries in self._uncovered(streaming=True))

    def is_out_of_reach(self, target: Position) -> bool:
        """Whether entries up to ``target`` will never be in segments: streaming was switched off before."""
        if self._uploads is None or self._env.policy().streaming_offload_enabled:
            return False
        # The ledger that is being written ends soon, and then in segments if it has any.
        begins = [upload.begin for upload in self._uploads]
        begins += [entries.begin for entries in self._uncovered(streaming=False, closed=True)]
        if any(begin <= target for begin in begins):
            return False
        return not self.is_committed_to(target)

    def is_due(self, now_ms: int) -> bool:
        """Whether :meth:`advance` could do something. Compares a few numbers."""
        if self._uploads is None or self._results:
            return True
        if now_ms < self._retry_at_ms:
            return False
        if self._retry_at_ms:
            return True
        layout = self._env.ledger.layout
        if self._close_at_ms is not None:
            if now_ms >= self._close_at_ms or self._target is not None:
                return True
            if self._seen is not None and self._seen.last == layout.last:
                return False  # what waits may fill a part and still not end with a block
            return self._seen is None or not self._seen.frame_bytes <= self._frame_bytes() < self._seen.due_bytes
        return self._seen is None or self._seen.last != layout.last

    def _frame_bytes(self) -> int:
        ledger = self._env.ledger
        return ledger.size_bytes + FRAME_BYTES * ledger.layout.total_entries

    def close_at(self, target: Position | None) -> None:
        """Have everything up to an entry closed and committed as soon as can be.

        Args:
            target: The last entry of that, which must be one of the topic's; None: segments close by policy alone.
        """
        if target != self._target:
            self._target = target
            self._seen = None

    def retry_now(self) -> None:
        """End the backoff after failures: the next :meth:`advance` tries again."""
        self._retry_at_ms = 0
        self._failures = 0
        self._seen = None

    def on_part_result(self, uuid: UUID, number: int, result: PartResult) -> None:
        """Take the result of a task; it counts at the next :meth:`advance`."""
        self._results.append((uuid, number, result))

    # --- going forward ------------------------------------------------------------------------------------------------

    def advance(self, hand_out: HandOut | None = None) -> tuple[StreamTask, ...]:
        """Go as far as can be gone without waiting for tasks; returns the tasks that are due now.

        Failures are kept in :attr:`error` and in the segment's record, and tried again after a while.

        Args:
            hand_out: Called before a segment is finished, which may take the store a while, with the tasks that need
                not wait for that; may be none.

        Raises:
            Fenced: Another owner has taken over: this stream is over.
        """
        now_ms = self._env.clock.now_ms()
        tasks: list[StreamTask] = []
        try:
            uploads = self._load()
            self._take_results(uploads)
            if now_ms < self._retry_at_ms:
                return ()
            self._retry_at_ms = 0
            last, seen_bytes = self._env.ledger.layout.last, self._frame_bytes()
            self._go_on(uploads, now_ms, tasks, hand_out)
            self._seen = _Seen(last, seen_bytes, seen_bytes + self._until_due(uploads, last))
            self.error = None
        except Fenced:
            raise
        except AfterglowError as error:
            self._failed(error)
        return tuple(tasks)  # also after a failure: their parts count as in flight

    def _go_on(
        self,
        uploads: list[SegmentUpload],
        now_ms: int,
        tasks: list[StreamTask],
        hand_out: HandOut | None,
    ) -> None:
        """Adds tasks."""
        for upload in uploads:
            upload.refresh()
        self._move_failed(uploads)
        self._replace_unrecorded(uploads)
        self._roll_if_switched_back(uploads)
        while True:
            self._extend_live(uploads, now_ms)
            self._begin(uploads, now_ms)
            for upload in uploads:
                tasks.extend(self._watched(upload, upload.due))
            if not uploads or not uploads[0].whole:
                break
            if hand_out is not None:  # those of an earlier call may wait too
                hand_out(tuple(tasks))
                tasks.clear()
            self._finish_first(uploads)
        self._close_at_ms = self._when_to_close(uploads)
        if self._target is not None and self.is_committed_to(self._target):
            self._target = None

    def _move_failed(self, uploads: list[SegmentUpload]) -> None:
        """Begin segments anew where the policy points now, of which nothing could be uploaded where it pointed."""
        for upload in [upload for upload in uploads if upload.is_movable]:
            try:
                location = self._env.location()
            except (ConfigError, NotSupported):
                return  # by which nothing can begin: what has begun is tried where it is
            before = location_of_record(upload.record.location)
            if location != before and is_built_in(location.driver):
                _log.warning(
                    "segment %s of %s failed in %s and starts again in %s",
                    *(upload.uuid, self._env.ledger.topic, before, location),
                )
                with self._reloaded_after_failure():
                    uploads[uploads.index(upload)] = upload.start_again(location)

    def _replace_unrecorded(self, uploads: list[SegmentUpload]) -> None:
        """Begin segments anew of which the store may hold an upload that no record names."""
        for at, upload in enumerate(uploads):
            if upload.may_leak:
                with self._reloaded_after_failure():
                    uploads[at] = self._watched(upload, upload.replace_unrecorded)

    def _finish_first(self, uploads: list[SegmentUpload]) -> None:
        first = uploads[0]
        try:
            self._watched(first, first.finish)
        except OffloadConflict as error:
            _log.warning("segment %s of %s was given up: %s", first.uuid, self._env.ledger.topic, error)
        uploads.pop(0)
        self._failures = 0
        self._progress_ms = self._env.clock.now_ms()

    # --- beginning, extending, closing --------------------------------------------------------------------------------

    def _begin(self, uploads: list[SegmentUpload], now_ms: int) -> None:
        """Assign segments, as many as may run."""
        policy = self._env.policy()
        most_bytes = policy.max_offload_segment_size_in_bytes
        while len(uploads) < MOST_AT_ONCE and (not uploads or uploads[-1].end is not None):
            uncovered = self._uncovered(
                streaming=policy.streaming_offload_enabled, after=uploads[-1].end if uploads else None
            )
            if not uncovered:
                return
            entries = uncovered[0]
            end = cut_by_size(entries, self._env.offsets, most_bytes)
            if end is None:
                end = self._asked_end(entries) if entries.growing else entries.end
            if end is None and uploads:
                return  # the live one comes after those before it
            for entry_range in entries.ranges:
                self._clear_failed_attempt(entry_range.ledger_id)
            first_ms = self._written_ms(entries.begin, now_ms)
            if end is None and now_ms >= first_ms + self._most_ms(policy):
                end = entries.end
            location, sizes = self._env.location(), self._env.sizes(policy)
            if not is_built_in(location.driver):  # one task writes the whole segment through the driver's handle
                sizes = sizes.in_one_part()
            with self._reloaded_after_failure():
                upload = SegmentUpload.assign(self._env, location, entries.begin, end, sizes=sizes, first_ms=first_ms)
            uploads.append(upload)
            self._progress_ms = now_ms
            if end is None:
                upload.extend(entries, closing=False)
                return
            upload.extend(entries.up_to(end), closing=True)

    def _extend_live(self, uploads: list[SegmentUpload], now_ms: int) -> None:
        """Plan what has come since, and close where it is time."""
        if not uploads:
            return
        live = uploads[-1]
        if live.end is not None:
            if live.reached < live.end:  # it was closed at birth, and a crash came before its parts were planned
                live.extend(range_between(self._env.ledger.layout, live.reached.next(), live.end), closing=True)
            return
        policy = self._env.policy()
        uncovered = self._uncovered(streaming=True, after=uploads[-2].end if len(uploads) > 1 else None)
        entries = next((entries for entries in uncovered if entries.begin == live.begin), None)
        if entries is None:
            return
        end = cut_by_size(entries, self._env.offsets, policy.max_offload_segment_size_in_bytes)
        if end is None:
            end = self._end_by_now(entries, live, policy, now_ms)
        if end is not None and end <= live.reached:
            live.close_as_planned()
            return
        left = (entries if end is None else entries.up_to(end)).after(live.reached)
        if left is not None:
            live.extend(left, closing=end is not None)

    def _until_due(self, uploads: list[SegmentUpload], last: Position) -> int:
        """How many bytes more fill a part of the live segment, or the segment; 0 where none is live."""
        if not uploads or (live := uploads[-1]).end is not None:
            return 0
        waiting = 0
        if live.reached < last:
            left = range_between(self._env.ledger.layout, live.reached.next(), last)
            waiting = sum(frame_bytes(entry_range, entry_range.last, self._env.offsets) for entry_range in left.ranges)
        policy = self._env.policy()
        to_part = records.sizes_of(live.record).part_bytes - waiting
        return min(to_part, policy.max_offload_segment_size_in_bytes - live.frame_bytes - waiting)

    def _end_by_now(
        self, entries: PositionRange, live: SegmentUpload, policy: BrokerConfig, now_ms: int
    ) -> Position | None:
        """Where a live segment closes for another reason than its size; None: it stays open."""
        if not policy.streaming_offload_enabled:
            # What came behind the roll-over belongs to the other method.
            closed = [entry_range.end for entry_range in entries.ranges if entry_range.closed]
            return closed[-1] if closed else None
        if not entries.growing or now_ms >= live.record.first_entry_ms + self._most_ms(policy):
            return entries.end
        return self._asked_end(entries)

    def _roll_if_switched_back(self, uploads: list[SegmentUpload]) -> None:
        """After a switch back, end the ledger that is being written where segments reach into it."""
        ledger = self._env.ledger
        writing_to = ledger.writing_to
        if (
            self._env.policy().streaming_offload_enabled
            or writing_to is None
            or not ledger.layout.entries_of(writing_to)
        ):
            return
        row = next((row for row in ledger.info.ledgerInfo if row.ledgerId == writing_to), None)
        live = bool(uploads) and uploads[-1].end is None
        if live or (row is not None and row.offloadContext.offloadSegment):
            ledger.roll()

    def _asked_end(self, entries: PositionRange) -> Position | None:
        """The last entry of a range that is to be committed as soon as possible; None where none is."""
        if self._target is None or entries.begin > self._target:
            return None
        return min(entries.end, self._target)

    def _when_to_close(self, uploads: list[SegmentUpload]) -> int | None:
        if not uploads or uploads[-1].end is not None:
            return None
        return uploads[-1].record.first_entry_ms + self._most_ms(self._env.policy())

    @staticmethod
    def _most_ms(policy: BrokerConfig) -> int:
        return 1000 * policy.max_offload_segment_rollover_time_in_seconds

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

    def _written_ms(self, begin: Position, now_ms: int) -> int:
        """When an entry was written: by its broker time, else as of now."""
        found = self._env.ledger.reader.read(begin, 1, 1)
        if not found or found[0].position != begin:
            return now_ms
        try:
            written = entry_time(found[0].data)
        except CorruptEntry:  # a damaged entry is copied as it is
            return now_ms
        return min(written.time_ms, now_ms) if written.by_broker else now_ms

    def _clear_failed_attempt(self, ledger_id: int) -> None:
        row = next((row for row in self._env.ledger.info.ledgerInfo if row.ledgerId == ledger_id), None)
        if row is not None and failed_attempt(row) and ledger_uuid(row) is not None:
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
                self._watched(upload, partial(upload.settle, results))
                self._progress_ms = self._env.clock.now_ms()
            except Fenced:
                raise
            except AfterglowError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _watched(self, upload: SegmentUpload, work: Callable[[], T]) -> T:
        """Do something for a segment; begin it anew where the store has lost its upload, else note the failure."""
        try:
            return work()
        except UploadLost as error:
            if self._uploads is None:
                raise  # another one could not start again: once all are loaded anew, a part of this one finds it lost
            _log.warning("segment %s of %s starts again: %s", upload.uuid, self._env.ledger.topic, error)
            with self._reloaded_after_failure():
                self._uploads[self._uploads.index(upload)] = upload.start_again()
            raise
        except (Fenced, OffloadConflict):
            raise
        except AfterglowError as error:
            upload.failed(error)
            raise

    def _failed(self, error: AfterglowError) -> None:
        self._failures += 1
        self.failed_ms = self._env.clock.now_ms()
        self._retry_at_ms = self.failed_ms + backoff_ms(self._env.policy(), self._failures)
        self.error = error

    @contextmanager
    def _reloaded_after_failure(self) -> Iterator[None]:
        """Where the ledger list may name another segment now, have it read before anything else is done."""
        try:
            yield
        except AfterglowError:
            self._known = {upload.uuid: upload for upload in self._uploads or ()}
            self._uploads = None
            raise

    # --- after a start ------------------------------------------------------------------------------------------------

    def _load(self) -> list[SegmentUpload]:
        """What is assigned, as metadata has it; taken over from an earlier owner."""
        if self._uploads is not None:
            return self._uploads
        env = self._env
        info = env.ledger.update(_nothing).info  # as it is, also where the last change had no known outcome
        assigned = {
            uuid
            for row in info.ledgerInfo
            for item in row.offloadContext.offloadSegment
            if not item.complete and (uuid := get_uuid(item)) is not None
        }
        named = assigned | {
            uuid
            for row in info.ledgerInfo
            for item in row.offloadContext.offloadSegment
            if item.complete and (uuid := get_uuid(item)) is not None
        }
        found: list[SegmentUpload] = []
        for text in env.metadata.children(env.paths.uploads(env.ledger.name)):
            uuid = UUID(text)
            node = UploadRecordNode(env.metadata, env.paths.upload(env.ledger.name, uuid), env.ledger.owner_epoch)
            if not node.take_over(env.ledger.check_owner):
                continue
            upload = SegmentUpload(env, node)
            if uuid in assigned:
                found.append(upload)
            elif uuid in named:
                node.delete()  # committed; only the record was left
            else:
                upload.give_up("no list names it")
        for uuid in assigned - {upload.uuid for upload in found}:
            _log.error("the record of segment %s of %s is gone; it begins anew", uuid, env.ledger.topic)
            env.ledger.update(partial(edits.remove_segment, uuid=uuid))
        known, self._known = self._known, {}
        self._uploads = sorted((known.get(upload.uuid, upload) for upload in found), key=lambda upload: upload.begin)
        return self._uploads


def _nothing(_info: ManagedLedgerInfo) -> None:
    """Change nothing."""
