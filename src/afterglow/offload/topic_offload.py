"""Offload of one topic: whole ledgers and segments, hot copies to be freed, and pending deletes.

Work that waits for metadata, tier or disk runs on the topic's serial executor, one item at a time; everything else here
never waits. Results of tasks come from any thread. The environment's lock guards the state that these threads share.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from afterglow.config import SETTINGS
from afterglow.errors import AfterglowError, Fenced, StorageError, TopicClosed, TopicMissing
from afterglow.events import log_event
from afterglow.ledger.ledger_list import is_fully_offloaded
from afterglow.metadata.names import TopicName
from afterglow.offload import planner
from afterglow.offload.backoff import LedgerBackoff, failure_level, report_task_begin
from afterglow.offload.environment import segment_environment
from afterglow.offload.explain import OffloadActivity
from afterglow.offload.freeing import CopyVerifier
from afterglow.offload.ledger_offload import LedgerOffload
from afterglow.offload.segments.topic_stream import TopicStream
from afterglow.offload.segments.uncovered import needs_streaming
from afterglow.offload.status import ManualSegments, OffloadState
from afterglow.offload.task import LedgerTask, RouteBytes
from afterglow.offload.task_dispatch import SegmentTasks
from afterglow.offload.topic_schedule import SerialExecutor
from afterglow.read.counters import Latencies
from afterglow.tier.locations import location_of_policy, location_of_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.offload.environment import OffloadEnvironment
    from afterglow.offload.ledger_commit import LedgerAttempt
    from afterglow.offload.segments.upload import SegmentUpload
    from afterglow.offload.status import ManualOffload, OffloadStatus
    from afterglow.offload.task import PartResult, StreamTask, Task
    from afterglow.offload.topics import OffloadTopic
    from afterglow.storage.health import Outage

_log = logging.getLogger(__name__)

_MAX_FREED: Final = 100
"""Ledgers verified and freed in one poll."""
_NOT_OWNED: Final = (Fenced, TopicMissing, TopicClosed)
"""Errors after which this process does not own the topic any more: nothing is changed, and nothing deleted."""


class TopicOffload:
    """Offload state of one topic in this process.

    Args:
        name: The managed-ledger name.
        environment: Services shared by all topics.
    """

    def __init__(self, name: str, environment: OffloadEnvironment) -> None:
        self.name = name
        self.executor = SerialExecutor(name, environment.executor)
        self.policy = environment.policies.config
        """Effective policy as of the last poll, for callers that must not wait."""
        self._env = environment
        self._backoff = LedgerBackoff(name, environment)
        self.ledgers = LedgerOffload(name, environment, self._backoff, self.schedule_deletes)
        self._stream: TopicStream | None = None
        self._streamed_ledger: OffloadTopic | None = None
        self._segment_tasks = SegmentTasks(environment.lock)
        self.manual_segments = ManualSegments(name, environment.lock)
        self.has_upload_records = False
        """Whether upload records exist: after a crash perhaps of a segment that no ledger list names."""
        self.read_bytes = RouteBytes()
        """Bytes that tasks have read and uploaded."""
        self.failed_tasks = 0
        """Number of failed tasks."""
        self.failed_writes = 0
        """Number of tasks that failed with an error of the store."""
        self.read_latencies = Latencies()
        """Times that tasks took to read, check and measure a part from the hot log."""
        self.deletions_done = 0
        """Number of deleted objects, each with its index."""
        self.deletions_failed = 0
        """Number of failed attempts to delete an object."""
        self._system = planner.is_system_topic(TopicName.from_managed_ledger_name(name))
        self._is_stopped = False
        """Whether the topic had another owner, or was gone, when it was last polled."""
        self._has_pending_deletes = False
        self._fenced: OffloadTopic | None = None
        self._streamed_last = False
        self._streamed_ms = 0
        self._stream_failed_ms = 0
        self._stream_retries_now = False
        self._stream_stalled = False

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def uploads(self) -> tuple[SegmentUpload, ...]:
        """Assigned segments, as far as this process knows them."""
        return () if (stream := self._stream) is None else stream.uploads

    @property
    def stream_error(self) -> AfterglowError | None:
        """Error that keeps the stream from progress; None if none exists."""
        return None if (stream := self._stream) is None else stream.error

    @property
    def stream_retry_ms(self) -> int:
        """Time at which the stream is retried after a failure, epoch milliseconds; 0: it has not failed."""
        return 0 if (stream := self._stream) is None else stream.retry_ms

    @property
    def is_streaming(self) -> bool:
        """Whether segments have tasks, are assigned or recorded, or a manual offload waits for them."""
        with self._env.lock:
            waited_for = self.manual_segments.target is not None
            return bool(len(self._segment_tasks) or self.uploads or waited_for or self.has_upload_records)

    @property
    def last_success_ms(self) -> int:
        """Time of the last commit of a ledger or segment, epoch milliseconds; 0: none."""
        return max(self.ledgers.last_success_ms, self._streamed_ms)

    @property
    def last_failure_ms(self) -> int:
        """Time of the last failure, epoch milliseconds; 0: none."""
        return max(self._backoff.last_ms, self._stream_failed_ms)

    @property
    def is_failing(self) -> bool:
        """Whether an offload failed and has not succeeded since."""
        segments = any(upload.record.last_error for upload in self.uploads)
        failed = segments or self.stream_error is not None or bool(self._backoff or self.ledgers.logged_obstacle)
        return failed or (not self.is_quiet and self.outage is not None)

    @property
    def tiers(self) -> tuple[str, ...]:
        """Tiers of its policy and of its assigned segments."""
        locations = [location_of_record(upload.record.location) for upload in self.uploads]
        with suppress(AfterglowError):
            locations.append(location_of_policy(self.policy, self._env.own))
        return tuple(dict.fromkeys(map(str, locations)))

    @property
    def outage(self) -> Outage | None:
        """Outage of one of its tiers; None if all are available."""
        found = (self._env.tiers.health.outage(tier) for tier in self.tiers)
        return next((outage for outage in found if outage is not None), None)

    @property
    def activity(self) -> OffloadActivity:
        """State of its whole-ledger offload."""
        with self._env.lock:
            manual = self.ledgers.manual
            running = frozenset(attempt.ledger_id for attempt in self.ledgers.attempts)
            return OffloadActivity(running, self._backoff.snapshot(), None if manual is None else manual.before)

    @property
    def status(self) -> OffloadStatus:
        """Status of the last manual offload."""
        with self._env.lock:
            streamed = self.manual_segments.status if self._streamed_last else None
            return streamed if streamed is not None and self.ledgers.manual is None else self.ledgers.status

    @property
    def is_quiet(self) -> bool:
        """Whether no work is in progress or waits for a retry."""
        with self._env.lock:
            manual = self.ledgers.manual is not None
            busy = len(self.ledgers) or self.ledgers.has_removals or self.is_streaming or manual
            return not (busy or self._has_pending_deletes or self._backoff) and self.executor.is_idle

    @property
    def can_be_dropped(self) -> bool:
        """Whether it is quiet, has no stream of an open topic, and has no state to report that is not in metadata."""
        reported = self.ledgers.logged_obstacle or self.last_success_ms or self.status.state is not OffloadState.NOT_RUN
        # The stream of an open topic must see the next entry, and release the entries that the offload buffer keeps.
        streams = self._stream is not None and self._env.store.opened(self.name) is self._streamed_ledger
        return self.is_quiet and not reported and not streams

    def needs_poll(
        self, info: ManagedLedgerInfo, policy: BrokerConfig, *, opened: bool, writing_to: int | None
    ) -> bool:
        """Whether a poll would find work; if not, the next due time of the topic is scheduled."""
        return self._has_pending_deletes or self._needs_topic(info, policy, opened=opened, writing_to=writing_to)

    def is_stream_due(self, now_ms: int) -> bool:
        """Whether a poll would advance the stream. Compares a few numbers."""
        return (stream := self._stream) is not None and stream.is_due(now_ms)

    def drop(self) -> None:
        """Release the stream and its buffered entries, before the state of the topic is dropped."""
        if self._stream is not None:
            self._drop_stream()

    def is_writing(self, uuid: UUID) -> bool:
        """Whether a task may still write an object of a UUID."""
        return self.ledgers.is_writing(uuid) or self._segment_tasks.is_writing(uuid)

    def newly_stalled_segment(self, stalled_s: float) -> SegmentUpload | None:
        """The first assigned segment, once, if the stream has made no progress for ``stalled_s`` seconds."""
        stream = self._stream
        if stream is None or not stream.uploads or stream.waits_for_entries:
            return None
        was_stalled = self._stream_stalled
        self._stream_stalled = self._env.clock.now_ms() - stream.progress_ms >= 1000 * stalled_s
        return stream.uploads[0] if self._stream_stalled and not was_stalled else None

    # --- events -------------------------------------------------------------------------------------------------------

    def begin_manual(self, manual: ManualOffload) -> bool:
        """Begin a manual offload of whole ledgers; returns whether none was running."""
        with self._env.lock:
            if self.status.state is OffloadState.RUNNING:
                return False
            self.ledgers.manual = manual
            self._streamed_last = False
        self.retry_now()
        return True

    def begin_manual_segments(self, end: Position | None, info: ManagedLedgerInfo) -> bool:
        """Begin a manual offload of all entries up to ``end`` in segments; returns whether none was running."""
        with self._env.lock:
            if self.status.state is OffloadState.RUNNING or not self.manual_segments.begin(end, info):
                return False
            self._streamed_last = True
        self.retry_now()
        return True

    def retry_now(self) -> None:
        """End all backoffs: an operator asked, or the tier is available again."""
        self._end_backoff()
        self._wake()

    def on_recovery(self, tier: str) -> None:
        """A tier is available again: retry failed work and pending deletes now."""
        if (self.stream_retry_ms or self._backoff) and tier in self.tiers:
            self.retry_now()
        elif self._has_pending_deletes:
            self._wake()

    def schedule_deletes(self) -> None:
        """Carry out recorded pending deletes of this topic at the next poll."""
        self._has_pending_deletes = True
        self._wake()

    def begin_removal(self, ledger_ids: set[int]) -> list[LedgerAttempt]:
        """Begin and commit nothing for ledgers that are about to be removed; returns their attempts in progress."""
        found = self.ledgers.begin_removal(ledger_ids)
        self._finish_ended()
        return found

    def end_removal(self) -> None:
        """The ledgers were removed from the ledger list, or were kept after an error; deletes may be pending."""
        self.ledgers.end_removal()
        self.schedule_deletes()

    # --- tasks --------------------------------------------------------------------------------------------------------

    def next_task(self) -> tuple[Task, int] | None:
        """The next task to hand out, and the number of its requests; None if none waits or the limit is reached."""
        return self.ledgers.next_task() or self._segment_tasks.next_task()

    def hand_out(self, task: Task) -> None:
        """Count the task that :meth:`next_task` returned as running."""
        report_task_begin(self._env.tiers.health, task)
        if self.ledgers.next_task() is not None:
            self.ledgers.hand_out(task)
        elif not isinstance(task, LedgerTask):
            self._segment_tasks.hand_out(task)

    def on_task_result(self, task: Task, result: PartResult) -> bool:
        """Record the result of a task; returns whether the topic should be polled now."""
        with self._env.lock:
            self.read_bytes = self.read_bytes.plus(result.route, task.size_bytes)
            self.failed_tasks += result.error is not None
            self.failed_writes += isinstance(result.error, StorageError)
        if result.read_seconds:
            self.read_latencies.record(result.read_seconds)
        if not isinstance(task, LedgerTask) and self._end_segment_task(task, result):
            return True
        if self.ledgers.on_task_result(task, result):
            self.executor.submit(self.finish)
        return False

    def _end_segment_task(self, task: StreamTask, result: PartResult) -> bool:
        """Record the result of a segment's task, the first of each; returns whether it was running here."""
        with self._env.lock:
            if not self._segment_tasks.end(task):
                return False
            if self._stream is not None:
                self._stream.on_part_result(UUID(task.key), task.number, result)
            return True

    # --- polls --------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Carry out pending deletes, begin due work, and free hot copies."""
        try:
            self._run_pending_deletes()
            policy = self._refresh_policy()
            ledger = self._open_if_needed(policy)
            if ledger is not None:
                self._is_stopped = False
                self.ledgers.advance(ledger, policy)
                self._finish_ended()  # attempts that were cancelled before they had tasks
                self._advance_stream(ledger, policy)
                self._free(ledger, policy)
                self._prune_backoff(ledger.info, policy)
                self._schedule_next(ledger.info, ledger.writing_to, policy)
        except _NOT_OWNED as error:
            self._stop(error)
        except AfterglowError as error:
            _log.warning("%s is polled again later: %s", self.name, error)
            self._wake_later()
        self.ledgers.settle_manual()

    def _refresh_policy(self) -> BrokerConfig:
        """The effective policy. After a change failed work is retried now: it may succeed under the new policy."""
        before, self.policy = self.policy, self._env.policies.of(self.name)
        if self.policy is not before:
            self._end_backoff()
        return self.policy

    def finish(self) -> None:
        """Finish and commit whole ledgers none of whose tasks runs any more."""
        try:
            self.ledgers.finish()
        except _NOT_OWNED as error:
            self._stop(error)
        self._wake()
        self.ledgers.settle_manual()

    def _finish_ended(self) -> None:
        if any(attempt.has_ended for attempt in self.ledgers.attempts):
            self.executor.submit(self.finish)

    def _run_pending_deletes(self) -> None:
        """Carry out pending deletes, if there may be any; failed ones are retried later."""
        if not self._has_pending_deletes:
            return
        self._has_pending_deletes = False  # before they are read: the next poll sees those recorded meanwhile
        left = True
        try:
            counts = self._env.pending_deletes.carry_out(self.name)
            self.deletions_done += counts.done
            self.deletions_failed += counts.failed
            left = counts.left > 0
        finally:
            if left:
                self._has_pending_deletes = True
                self._wake_later()

    def _open_if_needed(self, policy: BrokerConfig) -> OffloadTopic | None:
        """The topic, which is opened if there is work for it; None if it is not open and has no work."""
        store = self._env.store
        if (known := store.opened(self.name)) is not None:
            if known is self._fenced:
                raise Fenced(f"{self.name} has a new owner; open the topic again")
            return known
        if not self._needs_topic(store.info(self.name), policy, opened=False, writing_to=None):
            return None
        return store.open(self.name, create=False)

    def _needs_topic(
        self, info: ManagedLedgerInfo, policy: BrokerConfig, *, opened: bool, writing_to: int | None
    ) -> bool:
        """Whether there is work that needs the topic to be open."""
        if len(self.ledgers) or self.ledgers.manual is not None or self.is_streaming:
            return True
        if not self._system and needs_streaming(info, streaming=policy.streaming_offload_enabled):
            return True
        if self._stream is not None and not policy.streaming_offload_enabled:
            return True  # streaming was disabled: the stream must end, and release its buffered entries
        if planner.freeable(info, policy=policy, now_ms=self._env.clock.now_ms()):
            return True
        if self.ledgers.due(info, writing_to, policy) or planner.given_up(info, pursued=()):
            return True
        # After a crash the length and the closing time of the last ledger are known only once the topic is opened.
        unknown = not opened and any(not ledger_info.HasField("entries") for ledger_info in info.ledgerInfo)
        if unknown and planner.is_triggered(policy) and self.ledgers.obstacle(policy) is None:
            return True
        self._schedule_next(info, writing_to, policy)
        return False

    def _free(self, ledger: OffloadTopic, policy: BrokerConfig) -> None:
        """Free hot copies whose lag has passed, once their objects have been verified."""
        now_ms = self._env.clock.now_ms()
        ledger_infos = {ledger_info.ledgerId: ledger_info for ledger_info in ledger.info.ledgerInfo}
        freeable = planner.freeable(ledger.info, policy=policy, now_ms=now_ms)
        due = [ledger_id for ledger_id in freeable if self._backoff.is_retry_due(ledger_id, now_ms)]
        copies = CopyVerifier(self.name, policy, self._env.tiers, self._env.metadata, self._env.paths)
        verified = []
        for ledger_id in due[:_MAX_FREED]:
            try:
                copies.verify(ledger_infos[ledger_id])
            except AfterglowError as error:
                self._backoff.record(ledger_id, error, "keeps its hot copy", self.tiers)
            else:
                verified.append(ledger_id)
        if verified:
            for ledger_id in ledger.trimmer.free(verified):
                self._log_freed(ledger_infos[ledger_id], policy)
            for ledger_id in verified:
                self._backoff.remove(ledger_id)
        if len(due) > _MAX_FREED:
            self._wake()

    def _log_freed(self, ledger_info: ManagedLedgerInfo.LedgerInfo, policy: BrokerConfig) -> None:
        lag = SETTINGS["managedLedgerOffloadDeletionLagInMillis"]
        value = lag.show(policy.managed_ledger_offload_deletion_lag_in_millis)
        log_event(
            _log,
            "hot copy freed",
            topic=str(TopicName.from_managed_ledger_name(self.name)),
            ledger=ledger_info.ledgerId,
            entries=ledger_info.entries,
            bytes=ledger_info.size,
            reason="verified in the tier, and the deletion lag has passed",
            policy=f"{lag.key}={value} ({policy.origin(lag.key)})",
        )

    def _prune_backoff(self, info: ManagedLedgerInfo, policy: BrokerConfig) -> None:
        """Remove failures of ledgers that need no more work."""
        freeable = planner.freeable(info, policy=policy, now_ms=self._env.clock.now_ms())
        outside = {ledger_info.ledgerId for ledger_info in info.ledgerInfo if not is_fully_offloaded(ledger_info)}
        self._backoff.retain(outside.union(freeable))

    def _stop(self, error: AfterglowError) -> None:
        """Stop after the topic got a new owner, who decides about the objects that tasks of this one still write."""
        if not self._is_stopped:
            _log.info("%s is not offloaded here any more: %s", self.name, error)
        self._is_stopped = True
        if isinstance(error, Fenced):
            self._fenced = self._env.store.opened(self.name)
        self._drop_stream()
        self.manual_segments.fail(error)
        self.ledgers.stop(error)
        self._backoff.retain(())
        self._env.schedule.cancel(self.name)
        if self._has_pending_deletes:
            self._wake_later()

    # --- segments -----------------------------------------------------------------------------------------------------

    def _advance_stream(self, ledger: OffloadTopic, policy: BrokerConfig) -> None:
        """Advance segments, unless whole ledgers are in progress: segments wait for them."""
        if self._system or len(self.ledgers):
            return
        if not self._has_segments(ledger, policy):
            self.manual_segments.fail_disabled()
            if self._stream is not None:
                self._drop_stream()  # otherwise every appended entry would make it due
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
        tasks = stream.advance(self._hand_out_early)
        self.has_upload_records = self.has_upload_records and stream.error is not None
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

    def _has_segments(self, ledger: OffloadTopic, policy: BrokerConfig) -> bool:
        """Whether the topic has segments, or its policy wants some."""
        if policy.streaming_offload_enabled or self.uploads or self.has_upload_records:
            return True
        return any(ledger_info.offloadContext.offloadSegment for ledger_info in ledger.info.ledgerInfo)

    def _open_stream(self, ledger: OffloadTopic) -> TopicStream:
        if self.policy.streaming_offload_enabled:
            self._env.prepare_tasks()
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

    def _update_buffer(self, ledger: OffloadTopic, stream: TopicStream) -> None:
        """Have the offload buffer keep entries from the first one that is still to be uploaded."""
        # While that entry is unknown, for example because metadata is unavailable, all buffered entries are needed.
        if (buffer := self._env.store.cache.buffer) is None or not stream.is_loaded:
            return
        if (begin := stream.first_not_uploaded) is None:
            buffer.drop_topic(self.name)
            return
        ids = ledger.layout.ids
        buffer.hold_from(self.name, begin, ids[bisect_left(ids, begin.ledger_id) :])

    def _enqueue(self, tasks: Sequence[StreamTask]) -> None:
        if tasks:
            self._env.flush_for(self.name)
            self._segment_tasks.add(tasks)

    def _hand_out_early(self, tasks: Sequence[StreamTask]) -> None:
        self._enqueue(tasks)
        self._env.hand_out()

    # --- time ---------------------------------------------------------------------------------------------------------

    def _schedule_next(self, info: ManagedLedgerInfo, writing_to: int | None, policy: BrokerConfig) -> None:
        """Schedule the next times at which thresholds, lags or retries become due."""
        now_ms = self._env.clock.now_ms()
        moments = [planner.next_poll_ms(info, writing_to=writing_to, policy=policy, now_ms=now_ms)]
        moments += [failure.retry_at_ms for failure in self._backoff.snapshot().values()]
        moments += [attempt.retry_at_ms for attempt in self.ledgers.attempts]
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
