"""Whole-ledger offload of one topic: attempts in progress, their tasks, and the manual offload."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from afterglow.errors import AfterglowError, Fenced, MetadataError, NotSupported
from afterglow.events import log_event
from afterglow.format.objects import ledger_uuid
from afterglow.metadata.names import TopicName
from afterglow.offload import ledger_commit, planner
from afterglow.offload.backoff import backoff_ms
from afterglow.offload.block_offloader import CopyRequest
from afterglow.offload.ledger_commit import AttemptStage, LedgerAttempt, LedgerContext
from afterglow.offload.offloader import extra_metadata
from afterglow.offload.status import OffloadState, OffloadStatus
from afterglow.offload.task_dispatch import MAX_RUNNING_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.offload.backoff import LedgerBackoff
    from afterglow.offload.environment import OffloadEnvironment
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.status import ManualOffload
    from afterglow.offload.task import PartResult, Task
    from afterglow.offload.topics import OffloadTopic

_log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 64
"""Ledgers of one topic in progress at a time. Their sizes are bound by ``MAX_RUNNING_BYTES``, which a larger ledger
exceeds alone. Polls come every second, so that a topic is bound to 1 GiB/s."""


class LedgerOffload:
    """Offload of one topic's whole ledgers. Properties and task methods are thread-safe, the rest is called serially.

    Args:
        name: The managed-ledger name.
        environment: Services shared by all topics.
        backoff: Failures of earlier attempts.
        schedule_deletes: Called after pending deletes were recorded.
    """

    def __init__(
        self, name: str, environment: OffloadEnvironment, backoff: LedgerBackoff, schedule_deletes: Callable[[], None]
    ) -> None:
        self.last_success_ms = 0
        """Time of the last commit of a ledger, epoch milliseconds; 0: none."""
        self.logged_obstacle = ""
        """Problem of the policy as it was last logged; empty: none."""
        self.manual: ManualOffload | None = None
        """The manual offload in progress."""
        self._name = name
        self._env = environment
        self._backoff = backoff
        self._schedule_deletes = schedule_deletes
        self._status = OffloadStatus()
        self._attempts: dict[int, LedgerAttempt] = {}
        self._removing: set[int] = set()

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def attempts(self) -> tuple[LedgerAttempt, ...]:
        """Attempts in progress."""
        with self._env.lock:
            return tuple(self._attempts.values())

    @property
    def has_removals(self) -> bool:
        """Whether ledgers are being removed from the ledger list, for which no attempt may begin."""
        with self._env.lock:
            return bool(self._removing)

    def is_copying(self, ledger_id: int) -> bool:
        """Whether a ledger is being copied, and will be committed."""
        with self._env.lock:
            attempt = self._attempts.get(ledger_id)
            return attempt is not None and not attempt.cancelled

    def is_writing(self, uuid: UUID) -> bool:
        """Whether a task may still write an object of a UUID."""
        return any(attempt.uuid == uuid for attempt in self.attempts)

    # --- manual offload -----------------------------------------------------------------------------------------------

    @property
    def status(self) -> OffloadStatus:
        """Status of the last manual offload."""
        with self._env.lock:
            return self._status if self.manual is None else OffloadStatus(OffloadState.RUNNING)

    def fail_manual(self, error: AfterglowError) -> None:
        """End a running manual offload with an error."""
        with self._env.lock:
            if self.manual is not None:
                self.manual.fail(error)

    def settle_manual(self) -> None:
        """End a manual offload if all its ledgers have ended."""
        manual = self.manual
        if manual is None or manual.left:
            return
        try:
            info = self._env.store.info(self._name)
        except AfterglowError:
            info = None
        with self._env.lock:
            self._status = manual.status(info)
            self.manual = None

    # --- due ledgers --------------------------------------------------------------------------------------------------

    def obstacle(self, policy: BrokerConfig) -> AfterglowError | None:
        """The reason why a policy forbids the offload of whole ledgers; None if it does not. Tiers are not checked."""
        if planner.is_system_topic(TopicName.from_managed_ledger_name(self._name)):
            return NotSupported(f"{self._name} is a system topic: system topics are never offloaded")
        if policy.streaming_offload_enabled:
            return NotSupported(f"{self._name} streams to the tier: streamingOffloadEnabled is set")
        return None

    def due(self, info: ManagedLedgerInfo, writing_to: int | None, policy: BrokerConfig) -> tuple[int, ...]:
        """Ledgers that are due now, by threshold or by a manual offload."""
        if self.obstacle(policy) is not None:
            return ()
        return planner.due(
            info,
            writing_to=writing_to,
            policy=policy,
            now_ms=self._env.clock.now_ms(),
            manual_before=None if self.manual is None else self.manual.before,
        )

    def _pursued(self, due: Sequence[int]) -> set[int]:
        return {*due, *(attempt.ledger_id for attempt in self.attempts)}

    # --- beginning ----------------------------------------------------------------------------------------------------

    def advance(self, ledger: OffloadTopic, policy: BrokerConfig) -> None:
        """Retry commits, begin attempts of due ledgers, and clean up after attempts that will not be retried.

        Raises:
            Fenced: The topic has a new owner.
            AfterglowError: A step failed, and is retried later.
        """
        now_ms = self._env.clock.now_ms()
        committing = [attempt for attempt in self.attempts if attempt.stage is AttemptStage.COMMITTING]
        self._commit(ledger, policy, [attempt for attempt in committing if attempt.retry_at_ms <= now_ms])
        due = self.due(ledger.info, ledger.writing_to, policy)
        if self.manual is not None:
            if (obstacle := self.obstacle(policy)) is not None:
                self.manual.fail(obstacle)
            self.manual.keep(self._pursued(due))  # a ledger that was trimmed meanwhile is not an error
        if due:
            self._begin(ledger, policy, due)
        else:
            self._log_obstacle("")
        if failed := planner.given_up(ledger.info, pursued=self._pursued(due)):
            ledger_commit.give_up(self._context(policy), ledger, failed)
            self._schedule_deletes()

    def _begin(self, ledger: OffloadTopic, policy: BrokerConfig, due: Sequence[int]) -> None:
        """Begin attempts of due ledgers, as many as the limits allow, and prepare their tasks."""
        try:
            offloader = self._env.offloaders(policy, self._env.own, self._env.tiers)
            _ = offloader.location
        except AfterglowError as error:
            self._log_obstacle(str(error))
            self.fail_manual(error)
            return
        self._log_obstacle("")
        now_ms = self._env.clock.now_ms()
        untried = () if self.manual is None else self.manual.untried
        retriable = {id_ for id_ in due if id_ in untried or self._backoff.is_retry_due(id_, now_ms)}
        ledger_infos = sorted(
            (ledger_info for ledger_info in ledger.info.ledgerInfo if ledger_info.ledgerId in retriable),
            key=lambda ledger_info: ledger_info.ledgerId,
        )
        claimed = self._claim(ledger_infos, offloader)
        if self.manual is not None:
            self.manual.tried(attempt.ledger_id for attempt in claimed)
        if claimed:
            self._prepare(ledger, policy, claimed)

    def _claim(
        self, ledger_infos: Sequence[ManagedLedgerInfo.LedgerInfo], offloader: LedgerOffloader
    ) -> list[LedgerAttempt]:
        """Begin attempts, in order and within the limits; none for ledgers that have one or are being removed."""
        claimed: list[LedgerAttempt] = []
        with self._env.lock:
            free_bytes = MAX_RUNNING_BYTES - sum(attempt.size_bytes for attempt in self._attempts.values())
            for ledger_info in ledger_infos:
                if ledger_info.ledgerId in self._attempts or ledger_info.ledgerId in self._removing:
                    continue
                is_full = len(self._attempts) >= MAX_ATTEMPTS or free_bytes < ledger_info.size
                if self._attempts and is_full:
                    break
                attempt = self._attempts[ledger_info.ledgerId] = self._new_attempt(ledger_info, offloader)
                claimed.append(attempt)
                free_bytes -= ledger_info.size
        return claimed

    def _new_attempt(self, ledger_info: ManagedLedgerInfo.LedgerInfo, offloader: LedgerOffloader) -> LedgerAttempt:
        env = self._env
        request = CopyRequest(
            ledger_id=ledger_info.ledgerId,
            entries=ledger_info.entries,
            closed_ms=ledger_info.timestamp,
            uuid=env.new_uuid(),
            extra=extra_metadata(self._name, cluster=env.cluster, instance=env.instance),
            home=env.home,
            instance=env.instance,
            remote=env.remote(),
        )
        return LedgerAttempt(request, ledger_info.size, ledger_uuid(ledger_info), offloader, env.clock.monotonic())

    def _prepare(self, ledger: OffloadTopic, policy: BrokerConfig, claimed: Sequence[LedgerAttempt]) -> None:
        try:
            ended = ledger_commit.prepare(self._context(policy), ledger, claimed)
        except AfterglowError as error:
            for attempt in claimed:
                self._end(attempt, error)
            raise
        for attempt in claimed:
            if attempt.ledger_id in ended:
                self._end(attempt, ended[attempt.ledger_id])
                self._env.schedule.put(self._name, 0)  # the ledger list has changed, or other ledgers fit the limits
        if any(attempt.replaces is not None for attempt in claimed):
            self._schedule_deletes()
        self._env.flush_for(self._name)
        with self._env.lock:
            for attempt in claimed:
                if attempt.ledger_id not in ended:
                    attempt.stage = AttemptStage.COPYING
                    attempt.progress_s = self._env.clock.monotonic()
                    self._log("offload started", attempt)

    def _context(self, policy: BrokerConfig) -> LedgerContext:
        return LedgerContext(self._name, self._env.store.hot, self._env.pending_deletes, policy, self._env.own)

    def _log_obstacle(self, obstacle: str) -> None:
        """Log a problem of the policy once."""
        if obstacle and obstacle != self.logged_obstacle:
            self._backoff.last_ms = self._env.clock.now_ms()
            _log.warning("%s has ledgers to be offloaded, but cannot offload them: %s", self._name, obstacle)
        self.logged_obstacle = obstacle

    # --- tasks --------------------------------------------------------------------------------------------------------

    def next_task(self) -> tuple[Task, int] | None:
        """The next task to hand out, and the number of its requests; None if none waits or the limit is reached."""
        with self._env.lock:
            running_bytes = sum(
                task.size_bytes
                for attempt in self._attempts.values()
                for task in attempt.tasks[: attempt.handed_out]
                if task.task_id not in attempt.results
            )
            attempt = next((a for a in self._attempts.values() if a.has_waiting_tasks), None)
            if attempt is None:
                return None
            task = attempt.tasks[attempt.handed_out]
            if running_bytes and running_bytes + task.size_bytes > MAX_RUNNING_BYTES:
                return None
            # The first task also pays for the owner's requests: create and complete of the upload, head and index.
            return task, 1 if attempt.handed_out else 5

    def hand_out(self, task: Task) -> None:
        """Count the task that :meth:`next_task` returned as handed out."""
        with self._env.lock:
            attempt = self._attempt_of(task)
            if attempt is not None:
                attempt.handed_out += 1
                attempt.progress_s = self._env.clock.monotonic()

    def on_task_result(self, task: Task, result: PartResult) -> bool:
        """Record a result, the first of each task; returns whether its attempt can be finished now."""
        with self._env.lock:
            attempt = self._attempt_of(task)
            if attempt is None or task.task_id in attempt.results:
                return False
            attempt.results[task.task_id] = result
            attempt.progress_s = self._env.clock.monotonic()
            attempt.stalled = False
            return attempt.has_ended

    def _attempt_of(self, task: Task) -> LedgerAttempt | None:
        return next((attempt for attempt in self._attempts.values() if attempt.request.key == task.key), None)

    # --- ending -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish and commit attempts none of whose tasks runs any more.

        Raises:
            Fenced: The topic has a new owner.
            TopicMissing: The topic was deleted.
            TopicClosed: The server is shutting down.
        """
        with self._env.lock:
            ended = [attempt for attempt in self._attempts.values() if attempt.has_ended]
            for attempt in ended:
                attempt.stage = AttemptStage.ENDING
        complete = []
        for attempt in ended:
            if attempt.cancelled:
                self._end(attempt, None)
                self._schedule_deletes()
                continue
            try:
                ledger_commit.finish(attempt)
            except AfterglowError as error:
                self._end(attempt, error)
            else:
                attempt.stage = AttemptStage.COMMITTING
                complete.append(attempt)
        if not complete:
            return
        try:
            ledger = self._env.store.open(self._name, create=False)
            policy = self._env.policies.of(self._name)
        except MetadataError as error:
            self._commit_later(complete, error)
        else:
            self._commit(ledger, policy, complete)

    def _commit(self, ledger: OffloadTopic, policy: BrokerConfig, attempts: Sequence[LedgerAttempt]) -> None:
        """Commit complete objects; a commit that failed or has an unknown outcome is retried later."""
        if not attempts:
            return
        now_ms = self._env.clock.now_ms()
        try:
            lost = ledger_commit.commit(self._context(policy), ledger, attempts, now_ms)
        except Fenced:
            raise
        except MetadataError as error:
            self._commit_later(attempts, error)
            return
        for attempt in attempts:
            self._end(attempt, None)
            if attempt in lost:
                self._schedule_deletes()
            else:
                self.last_success_ms = now_ms
                self._log("offload finished", attempt)

    def _log(self, event: str, attempt: LedgerAttempt) -> None:
        topic = str(TopicName.from_managed_ledger_name(self._name))
        fields = {"ledger": attempt.ledger_id, "uuid": str(attempt.uuid), "bytes": attempt.size_bytes}
        log_event(_log, event, topic=topic, **fields, tier=str(attempt.offloader.location))

    def _commit_later(self, attempts: Sequence[LedgerAttempt], error: AfterglowError) -> None:
        config, now_ms = self._env.policies.config, self._env.clock.now_ms()
        for attempt in attempts:
            attempt.failed_commits += 1
            attempt.retry_at_ms = now_ms + backoff_ms(config, attempt.failed_commits)
            self._env.schedule.put(self._name, attempt.retry_at_ms)
            _log.warning(
                "ledger %d of %s is in the tier, but not committed yet: %s", attempt.ledger_id, self._name, error
            )

    def _end(self, attempt: LedgerAttempt, error: AfterglowError | None) -> None:
        """End an attempt: with success, with nothing left to do, or with an error after which it is retried."""
        self._drop(attempt)
        if error is None:
            self._backoff.remove(attempt.ledger_id)
        else:
            self._backoff.record(attempt.ledger_id, error, "was not offloaded", (str(attempt.offloader.location),))
        with self._env.lock:
            if self.manual is not None:
                self.manual.ended(attempt.ledger_id, error)

    def _drop(self, attempt: LedgerAttempt) -> None:
        with self._env.lock:
            self._attempts.pop(attempt.ledger_id, None)

    # --- ledgers to be removed ----------------------------------------------------------------------------------------

    def begin_removal(self, ledger_ids: Collection[int]) -> list[LedgerAttempt]:
        """Begin and commit nothing for these ledgers; returns their attempts in progress."""
        with self._env.lock:
            self._removing.update(ledger_ids)
            return self._cancel([a for a in self._attempts.values() if a.ledger_id in ledger_ids])

    def end_removal(self) -> None:
        """The ledgers were removed from the ledger list, or were kept after an error."""
        with self._env.lock:
            self._removing.clear()

    def stop(self, error: AfterglowError) -> None:
        """Cancel all attempts after the topic got a new owner, who decides about the objects that tasks still write."""
        for attempt in self._cancel(self.attempts):
            if not attempt.running:
                self._drop(attempt)
        self.fail_manual(error)

    def _cancel(self, attempts: Sequence[LedgerAttempt]) -> list[LedgerAttempt]:
        with self._env.lock:
            for attempt in attempts:
                attempt.cancelled = True
            return list(attempts)
