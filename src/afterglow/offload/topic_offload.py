"""Offload of one topic: whole ledgers and segments, hot copies to be freed, and pending deletes.

Work that waits for metadata, tier or disk runs on the topic's lane, one item at a time; everything else here never
waits. Results of tasks come from any thread. The environment's lock guards what these threads share.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from afterglow.errors import AfterglowError, Fenced, StorageError, TopicClosed, TopicMissing
from afterglow.ledger.ledger_list import is_fully_offloaded
from afterglow.metadata.names import TopicName
from afterglow.offload import planner
from afterglow.offload.backoff import LedgerBackoff, failure_level, note_begin
from afterglow.offload.dispatch import SegmentTasks
from afterglow.offload.explain import OffloadActivity
from afterglow.offload.freeing import CopyCheck
from afterglow.offload.ledgers import LedgerWork
from afterglow.offload.segments.environment import segment_environment
from afterglow.offload.segments.stream import TopicStream
from afterglow.offload.segments.uncovered import needs_streaming
from afterglow.offload.status import ManualSegments, OffloadState
from afterglow.offload.task import LedgerTask, RouteBytes
from afterglow.offload.topic_schedule import Lane
from afterglow.read.counters import Latencies
from afterglow.tier.locations import location_of_policy, location_of_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.attempts import Attempt
    from afterglow.offload.segments.upload import SegmentUpload
    from afterglow.offload.status import ManualOffload, OffloadStatus
    from afterglow.offload.task import PartResult, StreamTask, Task
    from afterglow.offload.topic_schedule import OffloadEnvironment
    from afterglow.storage.health import Outage

_log = logging.getLogger(__name__)

_FREED_AT_ONCE: Final = 100
"""Ledgers checked and freed in one poll."""
_NOT_OURS: Final = (Fenced, TopicMissing, TopicClosed)
"""The topic is not ours any more: nothing is changed, and nothing deleted."""


class TopicOffload:
    """One topic.

    Args:
        name: The managed-ledger name.
        environment: What all topics share.
    """

    def __init__(self, name: str, environment: OffloadEnvironment) -> None:
        self.name = name
        self.lane = Lane(name, environment.executor)
        self.policy = environment.policies.config
        """Effective policy as of the last poll, for callers that must not wait."""
        self._env = environment
        self._backoff = LedgerBackoff(name, environment)
        self._ledgers = LedgerWork(name, environment, self._backoff, self.schedule_deletes)
        self.window = self._ledgers.window
        """Whole ledgers that are under way."""
        self._stream: TopicStream | None = None
        self._streamed_ledger: ManagedLedger | None = None
        self._segment_tasks = SegmentTasks(environment.lock)
        self.manual_segments = ManualSegments(name, environment.lock)
        self.has_upload_records = False
        """Whether an upload is on record: after a crash perhaps one that no ledger list names."""
        self.read_bytes = RouteBytes()
        """What tasks have read and uploaded."""
        self.failed_tasks = 0
        """Attempts of tasks that failed."""
        self.failed_writes = 0
        """Those of them that the store has failed."""
        self.read_latencies = Latencies()
        """What tasks took to read a part from the hot log, and to check and measure it."""
        self.deletions_done = 0
        """Objects that were deleted, each with its index."""
        self.deletions_failed = 0
        """Attempts of that which failed."""
        self._system = planner.is_system_topic(TopicName.from_managed_ledger_name(name))
        self._has_pending_deletes = False
        self._fenced: ManagedLedger | None = None
        self._streamed_last = False
        self._streamed_ms = 0
        self._stream_failed_ms = 0
        self._stream_retries_now = False
        self._stream_stalled = False

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def uploads(self) -> tuple[SegmentUpload, ...]:
        """Segments that are assigned, as far as this process knows."""
        return () if (stream := self._stream) is None else stream.uploads

    @property
    def stream_error(self) -> AfterglowError | None:
        """Why the stream makes no progress; None where it does."""
        return None if (stream := self._stream) is None else stream.error

    @property
    def stream_retry_ms(self) -> int:
        """When the stream is retried after a failure, epoch milliseconds; 0: it has not failed."""
        return 0 if (stream := self._stream) is None else stream.retry_ms

    @property
    def is_streaming(self) -> bool:
        """Whether segments have tasks, are assigned or recorded, or are waited for by a manual offload."""
        with self._env.lock:
            waited_for = self.manual_segments.target is not None
            return bool(len(self._segment_tasks) or self.uploads or waited_for or self.has_upload_records)

    @property
    def last_success_ms(self) -> int:
        """When a ledger or a segment was last committed, epoch milliseconds; 0: none was."""
        return max(self._ledgers.last_success_ms, self._streamed_ms)

    @property
    def last_failure_ms(self) -> int:
        """When something last failed, epoch milliseconds; 0: nothing has."""
        return max(self._backoff.last_ms, self._stream_failed_ms)

    @property
    def failing(self) -> bool:
        """Whether something of it failed and has not succeeded since."""
        segments = any(upload.record.last_error for upload in self.uploads)
        failed = segments or self.stream_error is not None or bool(self._backoff or self._ledgers.obstacle_logged)
        return failed or (not self.is_quiet and self.outage is not None)

    @property
    def tiers(self) -> tuple[str, ...]:
        """Tiers of its policy and of its segments under way."""
        locations = [location_of_record(upload.record.location) for upload in self.uploads]
        with suppress(AfterglowError):
            locations.append(location_of_policy(self.policy, self._env.own))
        return tuple(dict.fromkeys(map(str, locations)))

    @property
    def outage(self) -> Outage | None:
        """Of one of its tiers; None where all are available."""
        found = (self._env.tiers.health.outage(tier) for tier in self.tiers)
        return next((outage for outage in found if outage is not None), None)

    @property
    def activity(self) -> OffloadActivity:
        """What is under way with whole ledgers."""
        with self._env.lock:
            manual = self._ledgers.manual
            running = frozenset(attempt.ledger_id for attempt in self.window.attempts)
            return OffloadActivity(running, self._backoff.snapshot(), None if manual is None else manual.before)

    @property
    def status(self) -> OffloadStatus:
        """How the last manual offload went, or that one is running."""
        with self._env.lock:
            streamed = self.manual_segments.status if self._streamed_last else None
            return streamed if streamed is not None and self._ledgers.manual is None else self._ledgers.status

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way or waits for a retry."""
        with self._env.lock:
            manual = self._ledgers.manual is not None
            busy = len(self.window) or self.window.has_removals or self.is_streaming or manual
            return not (busy or self._has_pending_deletes or self._backoff) and self.lane.idle

    @property
    def can_be_dropped(self) -> bool:
        """Whether it is quiet, takes no entries that are to be streamed, and has nothing to report but metadata."""
        reported = (
            self._ledgers.obstacle_logged or self.last_success_ms or self.status.state is not OffloadState.NOT_RUN
        )
        # A stream whose topic is open must see the next entry, and release what the offload buffer keeps for it.
        streams = self._stream is not None and self._env.store.opened(self.name) is self._streamed_ledger
        return self.is_quiet and not reported and not streams

    def needs_poll(
        self, info: ManagedLedgerInfo, policy: BrokerConfig, *, opened: bool, writing_to: int | None
    ) -> bool:
        """Whether a poll would find something to do; else it is scheduled for when time alone brings it."""
        return self._has_pending_deletes or self._needs_topic(info, policy, opened=opened, writing_to=writing_to)

    def is_stream_due(self, now_ms: int) -> bool:
        """Whether a poll would advance the stream. Compares a few numbers."""
        return (stream := self._stream) is not None and stream.due(now_ms)

    def drop(self) -> None:
        """Release what is held for a topic that is not known here any more."""
        if self._stream is not None:
            self._drop_stream()

    def writes(self, uuid: UUID) -> bool:
        """Whether a task may still write an object of that UUID."""
        return self.window.writes(uuid) or self._segment_tasks.writes(uuid)

    def stalled_segment(self, patience_s: float) -> SegmentUpload | None:
        """The first assigned segment, once, if the stream has made no progress for so many seconds."""
        stream = self._stream
        if stream is None or not stream.uploads or stream.waits_for_entries:
            return None
        was_stalled = self._stream_stalled
        self._stream_stalled = self._env.clock.now_ms() - stream.progress_ms >= 1000 * patience_s
        return stream.uploads[0] if self._stream_stalled and not was_stalled else None

    # --- events -------------------------------------------------------------------------------------------------------

    def begin_manual(self, manual: ManualOffload) -> bool:
        """Begin a manual offload of whole ledgers; returns whether none was running."""
        with self._env.lock:
            if self.status.state is OffloadState.RUNNING:
                return False
            self._ledgers.manual = manual
            self._streamed_last = False
        self.retry_now()
        return True

    def begin_manual_segments(self, end: Position | None, info: ManagedLedgerInfo) -> bool:
        """Have all entries up to ``end`` committed in segments; returns whether no manual offload was running."""
        with self._env.lock:
            if self.status.state is OffloadState.RUNNING or not self.manual_segments.begin(end, info):
                return False
            self._streamed_last = True
        self.retry_now()
        return True

    def retry_now(self) -> None:
        """End all backoffs: an operator asks, or the tier answers again."""
        self._end_backoff()
        self._wake()

    def on_recovery(self, tier: str) -> None:
        """A tier answers again: what failed there is retried now, and pending deletes may be there too."""
        if (self.stream_retry_ms or self._backoff) and tier in self.tiers:
            self.retry_now()
        elif self._has_pending_deletes:
            self._wake()

    def schedule_deletes(self) -> None:
        """Pending deletes are on record for this topic: carry them out at the next poll."""
        self._has_pending_deletes = True
        self._wake()

    def begin_removal(self, ledger_ids: set[int]) -> list[Attempt]:
        """Ledgers are about to leave the ledger list: begin and commit nothing for them; returns what is under way."""
        found = self.window.begin_removal(ledger_ids)
        self._finish_ended()
        return found

    def end_removal(self) -> None:
        """The ledgers have left the ledger list, or stay after all; deletes may be pending."""
        self.window.end_removal()
        self.schedule_deletes()

    # --- tasks --------------------------------------------------------------------------------------------------------

    def next_task(self) -> tuple[Task, int] | None:
        """A task to hand out, and the requests that come with it; None where none waits or enough are out."""
        return self.window.next_task() or self._segment_tasks.next_task()

    def hand_out(self, task: Task) -> None:
        """The task that :meth:`next_task` gave goes out."""
        note_begin(self._env.tiers.health, task)
        if self.window.next_task() is not None:
            self.window.hand_out(task)
        elif not isinstance(task, LedgerTask):
            self._segment_tasks.hand_out(task)

    def on_task_result(self, task: Task, result: PartResult) -> bool:
        """Take a result; returns whether the topic should be polled now."""
        with self._env.lock:
            self.read_bytes = self.read_bytes.plus(result.route, task.size_bytes)
            self.failed_tasks += result.error is not None
            self.failed_writes += isinstance(result.error, StorageError)
        if result.read_seconds:
            self.read_latencies.record(result.read_seconds)
        if not isinstance(task, LedgerTask) and self._end_segment_task(task, result):
            return True
        if self.window.on_task_result(task, result):
            self.lane.submit(self.finish)
        return False

    def _end_segment_task(self, task: StreamTask, result: PartResult) -> bool:
        """Take the result of a segment's task, the first of each; returns whether it was one of ours."""
        with self._env.lock:
            if not self._segment_tasks.end(task):
                return False
            if self._stream is not None:
                self._stream.on_part_result(UUID(task.key), task.number, result)
            return True

    # --- polls --------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Carry out pending deletes, begin what is due, and free hot copies."""
        try:
            self._run_pending_deletes()
            policy = self._refresh_policy()
            ledger = self._open_if_needed(policy)
            if ledger is not None:
                self._ledgers.advance(ledger, policy)
                self._finish_ended()  # what was cancelled before it had tasks
                self._advance_stream(ledger, policy)
                self._free(ledger, policy)
                self._prune_backoff(ledger.info, policy)
                self._schedule_next(ledger.info, ledger.writing_to, policy)
        except _NOT_OURS as error:
            self._stop(error)
        except AfterglowError as error:
            _log.warning("%s is polled again later: %s", self.name, error)
            self._wake_later()
        self._ledgers.settle_manual()

    def _refresh_policy(self) -> BrokerConfig:
        """The effective policy. Where it has changed, what failed may succeed by it, and is retried now."""
        before, self.policy = self.policy, self._env.policies.of(self.name)
        if self.policy is not before:
            self._end_backoff()
        return self.policy

    def finish(self) -> None:
        """Finish and commit whole ledgers of which no task runs any more."""
        try:
            self._ledgers.finish()
        except _NOT_OURS as error:
            self._stop(error)
        self._wake()
        self._ledgers.settle_manual()

    def _finish_ended(self) -> None:
        if any(attempt.ended for attempt in self.window.attempts):
            self.lane.submit(self.finish)

    def _run_pending_deletes(self) -> None:
        """Carry out pending deletes, if there may be any; those that fail are retried later."""
        if not self._has_pending_deletes:
            return
        self._has_pending_deletes = False  # now: what is put on record from here on is seen by the next poll
        left = True
        try:
            carried = self._env.pending_deletes.carry_out(self.name)
            self.deletions_done += carried.done
            self.deletions_failed += carried.failed
            left = carried.left > 0
        finally:
            if left:
                self._has_pending_deletes = True
                self._wake_later()

    def _open_if_needed(self, policy: BrokerConfig) -> ManagedLedger | None:
        """The topic, opened where it is not and there is something to do."""
        store = self._env.store
        if (known := store.opened(self.name)) is not None:
            if known is self._fenced:
                raise Fenced(f"{self.name} was taken over by another owner; open it anew")
            return known
        if not self._needs_topic(store.info(self.name), policy, opened=False, writing_to=None):
            return None
        return store.open(self.name, create=False)

    def _needs_topic(
        self, info: ManagedLedgerInfo, policy: BrokerConfig, *, opened: bool, writing_to: int | None
    ) -> bool:
        """Whether there is something to do that needs the topic to be open."""
        if len(self.window) or self._ledgers.manual is not None or self.is_streaming:
            return True
        if not self._system and needs_streaming(info, streaming=policy.streaming_offload_enabled):
            return True
        if self._stream is not None and not policy.streaming_offload_enabled:
            return True  # it is to learn that, and to release what the offload buffer keeps for it
        if planner.freeable(info, policy=policy, now_ms=self._env.clock.now_ms()):
            return True
        if self._ledgers.due(info, writing_to, policy) or planner.given_up(info, pursued=()):
            return True
        # After a crash only opening the topic tells how long its last ledger is, and since when it is closed.
        unknown = not opened and any(not row.HasField("entries") for row in info.ledgerInfo)
        if unknown and planner.is_triggered(policy) and self._ledgers.obstacle(policy) is None:
            return True
        self._schedule_next(info, writing_to, policy)
        return False

    def _free(self, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        """Free hot copies whose lag has passed, once their objects have been verified."""
        now_ms = self._env.clock.now_ms()
        rows = {row.ledgerId: row for row in ledger.info.ledgerInfo}
        freeable = planner.freeable(ledger.info, policy=policy, now_ms=now_ms)
        due = [ledger_id for ledger_id in freeable if self._backoff.is_retry_due(ledger_id, now_ms)]
        copies = CopyCheck(self.name, policy, self._env.tiers, self._env.metadata, self._env.paths)
        sound = []
        for ledger_id in due[:_FREED_AT_ONCE]:
            try:
                copies.check(rows[ledger_id])
            except AfterglowError as error:
                self._backoff.record(ledger_id, error, "keeps its hot copy", self.tiers)
            else:
                sound.append(ledger_id)
        if sound:
            ledger.trimmer.free(sound)
            for ledger_id in sound:
                self._backoff.forget(ledger_id)
        if len(due) > _FREED_AT_ONCE:
            self._wake()

    def _prune_backoff(self, info: ManagedLedgerInfo, policy: BrokerConfig) -> None:
        """Forget failures of ledgers for which nothing is left to do."""
        freeable = planner.freeable(info, policy=policy, now_ms=self._env.clock.now_ms())
        outside = {row.ledgerId for row in info.ledgerInfo if not is_fully_offloaded(row)}
        self._backoff.keep(outside.union(freeable))

    def _stop(self, error: AfterglowError) -> None:
        """The topic is not ours any more. What its tasks still write is left to the next owner."""
        _log.info("%s is not offloaded here any more: %s", self.name, error)
        if isinstance(error, Fenced):
            self._fenced = self._env.store.opened(self.name)
        self._drop_stream()
        self.manual_segments.fail(error)
        self._ledgers.stop(error)
        self._backoff.keep(())
        self._env.schedule.cancel(self.name)
        if self._has_pending_deletes:
            self._wake_later()

    # --- segments -----------------------------------------------------------------------------------------------------

    def _advance_stream(self, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        """Advance segments, unless whole ledgers are under way, which are waited for."""
        if self._system or len(self.window):
            return
        if not self._concerns_segments(ledger, policy):
            self.manual_segments.fail_switched_off()
            if self._stream is not None:
                self._drop_stream()  # else it would count as due with every entry
            return
        before = len(self.uploads)
        stream = self._stream
        if stream is None or self._streamed_ledger is not ledger or (self.has_upload_records and not stream.uploads):
            stream = self._open_stream(ledger)
        with self._env.lock:
            target = self.manual_segments.target
            retries_now, self._stream_retries_now = self._stream_retries_now, False
        stream.close_at(target)
        if retries_now:
            stream.retry_now()
        tasks = stream.advance(self._hand_out_now)
        self.has_upload_records = self.has_upload_records and stream.error is not None
        if tasks:
            self._enqueue(tasks)
        self.manual_segments.settle(stream, target, ledger)
        self._update_buffer(ledger, stream)
        if (at_ms := stream.next_poll_ms) is not None:
            self._env.schedule.put(self.name, at_ms)
        if len(stream.uploads) < before:
            self._streamed_ms = self._env.clock.now_ms()
        if stream.error is not None and stream.failed_ms > self._stream_failed_ms:
            level = failure_level(self._env.tiers.health, stream.error, self.tiers)
            _log.log(level, "the stream of %s is retried later: %s", ledger.topic, stream.error)
        self._stream_failed_ms = max(self._stream_failed_ms, stream.failed_ms)

    def _concerns_segments(self, ledger: ManagedLedger, policy: BrokerConfig) -> bool:
        """Whether there are segments, or are to be."""
        if policy.streaming_offload_enabled or self.uploads or self.has_upload_records:
            return True
        return any(row.offloadContext.offloadSegment for row in ledger.info.ledgerInfo)

    def _open_stream(self, ledger: ManagedLedger) -> TopicStream:
        stream = TopicStream(segment_environment(ledger, self._env, lambda: self.policy))
        with self._env.lock:
            self._streamed_ledger = ledger
            self._stream = stream
        return stream

    def _drop_stream(self) -> None:
        with self._env.lock:
            self._streamed_ledger = self._stream = None
            self._segment_tasks.drop_waiting()
        if (buffer := self._env.store.cache.buffer) is not None:
            buffer.drop_topic(self.name)

    def _update_buffer(self, ledger: ManagedLedger, stream: TopicStream) -> None:
        """Have entries kept in memory from the first one on that is still to be uploaded."""
        # Where it is not known which that is, as while metadata cannot be reached, what is held is still needed.
        if (buffer := self._env.store.cache.buffer) is None or not stream.is_loaded:
            return
        if (begin := stream.first_not_uploaded) is None:
            buffer.drop_topic(self.name)
            return
        ids = ledger.layout.ids
        buffer.hold_from(self.name, begin, ids[bisect_left(ids, begin.ledger_id) :])

    def _enqueue(self, tasks: Sequence[StreamTask]) -> None:
        self._env.flush_for(self.name)
        self._segment_tasks.add(tasks)

    def _hand_out_now(self, tasks: Sequence[StreamTask]) -> None:
        if tasks:
            self._enqueue(tasks)
        self._env.hand_out()

    # --- time ---------------------------------------------------------------------------------------------------------

    def _schedule_next(self, info: ManagedLedgerInfo, writing_to: int | None, policy: BrokerConfig) -> None:
        """Schedule the next moment at which time alone brings something to do."""
        now_ms = self._env.clock.now_ms()
        moments = [planner.next_poll_ms(info, writing_to=writing_to, policy=policy, now_ms=now_ms)]
        moments += [failure.retry_at_ms for failure in self._backoff.snapshot().values()]
        moments += [attempt.retry_at_ms for attempt in self.window.attempts]
        for at_ms in moments:
            if at_ms is not None and at_ms > now_ms:
                self._env.schedule.put(self.name, at_ms)

    def _end_backoff(self) -> None:
        self._backoff.retry_now()
        with self._env.lock:
            self._stream_retries_now = True

    def _wake(self) -> None:
        self._env.schedule.put(self.name, 0)

    def _wake_later(self) -> None:
        config = self._env.policies.config
        self._env.schedule.put(self.name, self._env.clock.now_ms() + config.offload_retry_max_backoff_millis)
