"""One topic's stream of segments: what to begin, what to extend, what to close, in the order of positions.

Segments whose end is known when they begin (history, or a backlog) run several at a time; the live one comes after
them, and there is never more than one. They are committed in order. A segment that fails is resumed until it succeeds,
and nothing new begins meanwhile.

Everything here is found again from metadata after a crash: the list names what is assigned, upload records tell how far
each has come.
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
from afterglow.format.offload_context import get_uuid, ledger_uuid
from afterglow.ledger.timestamps import entry_time
from afterglow.offload.segments import edits, records
from afterglow.offload.segments.cutting import Sizes, cut_by_size, frame_bytes
from afterglow.offload.segments.node import UploadNode
from afterglow.offload.segments.territory import Run, Stretch, failed_attempt, to_stream
from afterglow.offload.segments.upload import SegmentUpload
from afterglow.read.places import is_built_in, place_of_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.layout import Layout
    from afterglow.offload.segments.upload import SegmentRoom
    from afterglow.offload.task import PartResult, StreamTask
    from afterglow.read.places import TierPlace

    HandOut: TypeAlias = Callable[[Sequence[StreamTask]], None]

_log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_AT_ONCE: Final = 4
"""Segments of one topic that run at a time: enough to keep workers busy, few enough for other topics' sake."""


class _Seen(NamedTuple):
    """The topic as it was at the last look."""

    last: Position
    """Its last entry."""
    frame_bytes: int
    """Of all its entries; less than this, and the list was trimmed."""
    due_bytes: int
    """Of frames, at which a part of the live segment, or the segment itself, is full."""


class TopicStream:
    """The segments of one topic. :meth:`due` and :meth:`told` may be called at any time; the rest one call at a time.

    Args:
        room: What its segments share.
        policy: What holds for the topic now.
        place: Where segments go now.
        give_up_ledger: Puts on record that the objects of a failed attempt at a whole ledger are to go.
        sizes: How segments are cut under a policy.
    """

    def __init__(
        self,
        room: SegmentRoom,
        policy: Callable[[], BrokerConfig],
        place: Callable[[], TierPlace],
        give_up_ledger: Callable[[int], None],
        sizes: Callable[[BrokerConfig], Sizes] | None = None,
    ) -> None:
        self._room = room
        self._policy = policy
        self._place = place
        self._give_up_ledger = give_up_ledger
        self._sizes = sizes or _sizes
        self._uploads: list[SegmentUpload] | None = None
        self._known: dict[UUID, SegmentUpload] = {}
        self._told: deque[tuple[UUID, int, PartResult]] = deque()
        self._target: Position | None = None
        self._seen: _Seen | None = None
        self._close_at_ms: int | None = None
        self._retry_at_ms = 0
        self._failures = 0
        self._progress_ms = room.clock.now_ms()
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
        """Attempts that failed one after the other, since somebody asked or something was committed."""
        return self._failures

    @property
    def waits_for_entries(self) -> bool:
        """Whether nothing is missing but more entries, or the time to close."""
        uploads = self._uploads or []
        return self.error is None and all(upload.end is None and not upload.in_flight for upload in uploads)

    @property
    def untaken(self) -> Position | None:
        """The first entry that is to be streamed and no uploaded part has; None where none is, or it is not known."""
        uploads, streaming = self._uploads, self._policy().streaming_offload_enabled
        if uploads is None:
            return None
        begun = next((begin for upload in uploads if (begin := upload.untaken) is not None), None)
        if begun is not None:
            return begun
        runs = self._runs(streaming=streaming, after=uploads[-1].end if uploads else None)
        if runs:
            return runs[0].begin
        return self._room.ledger.layout.last.next() if streaming else None

    @property
    def next_look_ms(self) -> int | None:
        """When time alone brings something to do, epoch milliseconds; None: it does not."""
        return self._retry_at_ms or self._close_at_ms  # before the next try nothing is closed either

    def committed_to(self, target: Position) -> bool:
        """Whether everything up to ``target`` that belongs into segments is committed."""
        if self._uploads is None or any(upload.begin <= target for upload in self._uploads):
            return False
        return all(run.begin > target for run in self._runs(streaming=True))

    def leaves_out(self, target: Position) -> bool:
        """Whether entries up to ``target`` will never be in segments: streaming was switched off before."""
        if self._uploads is None or self._policy().streaming_offload_enabled:
            return False
        # The ledger that is being written ends soon, and then in segments if it has any.
        begins = [upload.begin for upload in self._uploads]
        begins += [run.begin for run in self._runs(streaming=False, closed=True)]
        if any(begin <= target for begin in begins):
            return False
        return not self.committed_to(target)

    def due(self, now_ms: int) -> bool:
        """Whether :meth:`advance` could do something. Compares a few numbers."""
        if self._uploads is None or self._told:
            return True
        if now_ms < self._retry_at_ms:
            return False
        if self._retry_at_ms:
            return True
        layout = self._room.ledger.layout
        if self._close_at_ms is not None:
            if now_ms >= self._close_at_ms or self._target is not None:
                return True
            if self._seen is not None and self._seen.last == layout.last:
                return False  # what waits may fill a part and still not end with a block
            return self._seen is None or not self._seen.frame_bytes <= self._frame_bytes() < self._seen.due_bytes
        return self._seen is None or self._seen.last != layout.last

    def _frame_bytes(self) -> int:
        ledger = self._room.ledger
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

    def told(self, uuid: UUID, number: int, result: PartResult) -> None:
        """Take the result of a task; it counts at the next :meth:`advance`."""
        self._told.append((uuid, number, result))

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
        now_ms = self._room.clock.now_ms()
        tasks: list[StreamTask] = []
        try:
            uploads = self._load()
            self._take_results(uploads)
            if now_ms < self._retry_at_ms:
                return ()
            self._retry_at_ms = 0
            last, seen_bytes = self._room.ledger.layout.last, self._frame_bytes()
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
        if self._target is not None and self.committed_to(self._target):
            self._target = None

    def _move_failed(self, uploads: list[SegmentUpload]) -> None:
        """Begin segments anew where the policy points now, of which nothing could be uploaded where it pointed."""
        for upload in [upload for upload in uploads if upload.is_movable]:
            try:
                place = self._place()
            except (ConfigError, NotSupported):
                return  # by which nothing can begin: what has begun is tried where it is
            before = place_of_record(upload.record.place)
            if place != before and is_built_in(place.driver):
                _log.warning(
                    "segment %s of %s failed in %s and starts again in %s",
                    *(upload.uuid, self._room.ledger.topic, before, place),
                )
                with self._reloaded_after_failure():
                    uploads[uploads.index(upload)] = upload.start_again(place)

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
            _log.warning("segment %s of %s was given up: %s", first.uuid, self._room.ledger.topic, error)
        uploads.pop(0)
        self._failures = 0
        self._progress_ms = self._room.clock.now_ms()

    # --- beginning, extending, closing --------------------------------------------------------------------------------

    def _begin(self, uploads: list[SegmentUpload], now_ms: int) -> None:
        """Assign segments, as many as may run."""
        policy = self._policy()
        most_bytes = policy.max_offload_segment_size_in_bytes
        while len(uploads) < MOST_AT_ONCE and (not uploads or uploads[-1].end is not None):
            runs = self._runs(streaming=policy.streaming_offload_enabled, after=uploads[-1].end if uploads else None)
            if not runs:
                return
            run = runs[0]
            end = cut_by_size(run, self._room.offsets, most_bytes)
            if end is None:
                end = self._asked_end(run) if run.growing else run.end
            if end is None and uploads:
                return  # the live one comes after those before it
            for piece in run.stretches:
                self._clear_failed_attempt(piece.ledger_id)
            first_ms = self._written_ms(run.begin, now_ms)
            if end is None and now_ms >= first_ms + self._most_ms(policy):
                end = run.end
            place, sizes = self._place(), self._sizes(policy)
            if not is_built_in(place.driver):  # one task writes the whole segment through the driver's handle
                sizes = sizes.in_one_part()
            with self._reloaded_after_failure():
                upload = SegmentUpload.assign(self._room, place, run.begin, end, sizes=sizes, first_ms=first_ms)
            uploads.append(upload)
            self._progress_ms = now_ms
            if end is None:
                upload.extend(run, closing=False)
                return
            upload.extend(run.up_to(end), closing=True)

    def _extend_live(self, uploads: list[SegmentUpload], now_ms: int) -> None:
        """Plan what has come since, and close where it is time."""
        if not uploads:
            return
        live = uploads[-1]
        if live.end is not None:
            if live.reached < live.end:  # it was closed at birth, and a crash came before its parts were planned
                live.extend(self._room.run_between(live.reached.next(), live.end), closing=True)
            return
        policy = self._policy()
        runs = self._runs(streaming=True, after=uploads[-2].end if len(uploads) > 1 else None)
        run = next((run for run in runs if run.begin == live.begin), None)
        if run is None:
            return
        end = cut_by_size(run, self._room.offsets, policy.max_offload_segment_size_in_bytes)
        if end is None:
            end = self._end_by_now(run, live, policy, now_ms)
        if end is not None and end <= live.reached:
            live.close_as_planned()
            return
        left = (run if end is None else run.up_to(end)).after(live.reached)
        if left is not None:
            live.extend(left, closing=end is not None)

    def _until_due(self, uploads: list[SegmentUpload], last: Position) -> int:
        """How many bytes more fill a part of the live segment, or the segment; 0 where none is live."""
        if not uploads or (live := uploads[-1]).end is not None:
            return 0
        waiting = 0
        if live.reached < last:
            left = self._room.run_between(live.reached.next(), last)
            waiting = sum(frame_bytes(piece, piece.last, self._room.offsets) for piece in left.stretches)
        policy = self._policy()
        to_part = records.sizes_of(live.record).part_bytes - waiting
        return min(to_part, policy.max_offload_segment_size_in_bytes - live.frame_bytes - waiting)

    def _end_by_now(self, run: Run, live: SegmentUpload, policy: BrokerConfig, now_ms: int) -> Position | None:
        """Where a live segment closes for another reason than its size; None: it stays open."""
        if not policy.streaming_offload_enabled:
            # What came behind the roll-over belongs to the other method.
            closed = [piece.end for piece in run.stretches if piece.closed]
            return closed[-1] if closed else None
        if not run.growing or now_ms >= live.record.first_entry_ms + self._most_ms(policy):
            return run.end
        return self._asked_end(run)

    def _roll_if_switched_back(self, uploads: list[SegmentUpload]) -> None:
        """After a switch back, end the ledger that is being written where segments reach into it."""
        ledger = self._room.ledger
        writing_to = ledger.writing_to
        if self._policy().streaming_offload_enabled or writing_to is None or not ledger.layout.entries_of(writing_to):
            return
        row = next((row for row in ledger.info.ledgerInfo if row.ledgerId == writing_to), None)
        live = bool(uploads) and uploads[-1].end is None
        if live or (row is not None and row.offloadContext.offloadSegment):
            ledger.roll()

    def _asked_end(self, run: Run) -> Position | None:
        """The last entry of a run that is to be committed as soon as can be; None where none is."""
        if self._target is None or run.begin > self._target:
            return None
        return min(run.end, self._target)

    def _when_to_close(self, uploads: list[SegmentUpload]) -> int | None:
        if not uploads or uploads[-1].end is not None:
            return None
        return uploads[-1].record.first_entry_ms + self._most_ms(self._policy())

    @staticmethod
    def _most_ms(policy: BrokerConfig) -> int:
        return 1000 * policy.max_offload_segment_rollover_time_in_seconds

    def _runs(self, *, streaming: bool, closed: bool = False, after: Position | None = None) -> tuple[Run, ...]:
        ledger = self._room.ledger
        layout = ledger.layout
        return to_stream(
            ledger.info.ledgerInfo,
            layout.entries_of,
            streaming=streaming,
            writing_to=None if closed else ledger.writing_to,
            assigned_to=after,
        )

    def _written_ms(self, begin: Position, now_ms: int) -> int:
        """When an entry was written: by its broker time, else as of now."""
        found = self._room.ledger.read(begin, 1, 1)
        if not found or found[0].position != begin:
            return now_ms
        try:
            told = entry_time(found[0].data)
        except CorruptEntry:  # whatever it is, it is copied as it is
            return now_ms
        return min(told.time_ms, now_ms) if told.by_broker else now_ms

    def _clear_failed_attempt(self, ledger_id: int) -> None:
        row = next((row for row in self._room.ledger.info.ledgerInfo if row.ledgerId == ledger_id), None)
        if row is not None and failed_attempt(row) and ledger_uuid(row) is not None:
            self._give_up_ledger(ledger_id)

    # --- results and failures -----------------------------------------------------------------------------------------

    def _take_results(self, uploads: Iterable[SegmentUpload]) -> None:
        by_uuid: dict[UUID, dict[int, PartResult]] = {}
        while self._told:
            uuid, number, result = self._told.popleft()
            by_uuid.setdefault(uuid, {})[number] = result
        first_error: AfterglowError | None = None
        for upload in tuple(uploads):
            results = by_uuid.pop(upload.uuid, None)
            if results is None:
                continue
            try:
                self._watched(upload, partial(upload.settle, results))
                self._progress_ms = self._room.clock.now_ms()
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
            _log.warning("segment %s of %s starts again: %s", upload.uuid, self._room.ledger.topic, error)
            with self._reloaded_after_failure():
                self._uploads[self._uploads.index(upload)] = upload.start_again()
            raise
        except (Fenced, OffloadConflict):
            raise
        except AfterglowError as error:
            upload.failed(error)
            raise

    def _failed(self, error: AfterglowError) -> None:
        policy = self._policy()
        wait_ms = policy.offload_retry_min_backoff_millis << min(self._failures, 30)
        self._failures += 1
        self.failed_ms = self._room.clock.now_ms()
        self._retry_at_ms = self.failed_ms + min(wait_ms, policy.offload_retry_max_backoff_millis)
        self.error = error

    @contextmanager
    def _reloaded_after_failure(self) -> Iterator[None]:
        """Where the list may or may not name another segment now, have metadata tell before anything else is done."""
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
        room = self._room
        info = room.ledger.update(_nothing).info  # as it is, also where the last change had no known outcome
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
        for text in room.metadata.children(room.paths.uploads(room.ledger.name)):
            uuid = UUID(text)
            node = UploadNode(room.metadata, room.paths.upload(room.ledger.name, uuid), room.ledger.owner_epoch)
            if not node.take_over(room.ledger.check_owner):
                continue
            upload = SegmentUpload(room, node)
            if uuid in assigned:
                found.append(upload)
            elif uuid in named:
                node.delete()  # committed; only the record was left
            else:
                upload.give_up("no list names it")
        for uuid in assigned - {upload.uuid for upload in found}:
            _log.error("the record of segment %s of %s is gone; it begins anew", uuid, room.ledger.topic)
            room.ledger.update(partial(edits.forget_segment, uuid=uuid))
        known, self._known = self._known, {}
        self._uploads = sorted((known.get(upload.uuid, upload) for upload in found), key=lambda upload: upload.begin)
        return self._uploads


def _nothing(_info: ManagedLedgerInfo) -> None:
    """Change nothing."""


def run_between(layout: Layout, begin: Position, end: Position) -> Run:
    """The entries from one to another, both inclusive; both must be there."""
    pieces = []
    for span in layout.spans(begin):
        if span.ledger_id > end.ledger_id:
            break
        last = min(span.last, end.entry_id) if span.ledger_id == end.ledger_id else span.last
        pieces.append(Stretch(span.ledger_id, span.first, last, closed=last == span.last))
    return Run(tuple(pieces), growing=False)


def _sizes(policy: BrokerConfig) -> Sizes:
    return Sizes.of(
        policy.max_offload_segment_size_in_bytes,
        policy.streaming_offload_block_size_in_bytes,
        policy.streaming_offload_part_size_in_bytes,
    )
