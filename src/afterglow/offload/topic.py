"""The offload of one topic: whole ledgers and segments, hot copies that go, and objects that are to be deleted.

Pieces of work run on the topic's lane, one at a time, and may wait for metadata, tier and disk; everything else here
never waits. Results of tasks come from any thread.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from afterglow.errors import AfterglowError, Fenced, StorageError, TopicClosed, TopicMissing
from afterglow.ledger.ledger_list import offloaded_whole
from afterglow.metadata.names import TopicName
from afterglow.offload import planner
from afterglow.offload.explain import Work
from afterglow.offload.freeing import CopyCheck
from afterglow.offload.lanes import Lane
from afterglow.offload.ledger_work import LedgerWork
from afterglow.offload.manual import OffloadState
from afterglow.offload.outages import failure_level, note_begin
from afterglow.offload.reach import RouteBytes
from afterglow.offload.segments.work import StreamWork, wants_stream
from afterglow.offload.task import LedgerTask
from afterglow.offload.troubles import Troubles
from afterglow.read.latencies import Latencies
from afterglow.read.places import place_of_policy, place_of_record

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.attempts import Attempt
    from afterglow.offload.environment import OffloadEnvironment
    from afterglow.offload.manual import ManualOffload, OffloadStatus
    from afterglow.offload.task import PartResult, Task
    from afterglow.storage.health import Outage

_log = logging.getLogger(__name__)

_FREED_AT_ONCE: Final = 100
"""Ledgers checked and freed in one piece of work."""
_GONE: Final = (Fenced, TopicMissing, TopicClosed)
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
        """As of the last look: for whoever must not wait."""
        self._env = environment
        self._troubles = Troubles(name, environment)
        self._ledgers = LedgerWork(name, environment, self._troubles, self.doom)
        self.window = self._ledgers.window
        """Whole ledgers that are under way."""
        self.stream = StreamWork(name, environment)
        """What goes in segments."""
        self.read_bytes = RouteBytes()
        """What tasks have read and uploaded."""
        self.failed_tasks = 0
        """Tries of tasks that failed."""
        self.failed_writes = 0
        """Those of them that the store has failed."""
        self.read_latencies = Latencies()
        """What tasks took to read a part from the hot log, and to check and measure it."""
        self.deletions_done = 0
        """Objects that were deleted, each with its index."""
        self.deletions_failed = 0
        """Tries of that which failed."""
        self._system = planner.is_system_topic(TopicName.from_managed_ledger_name(name))
        self._doomed = False
        self._fenced: ManagedLedger | None = None
        self._streamed_last = False
        self._streamed_ms = 0
        self._stream_failed_ms = 0

    # --- what others ask ----------------------------------------------------------------------------------------------

    @property
    def last_success_ms(self) -> int:
        """When a ledger or a segment was last committed, epoch milliseconds; 0: none was."""
        return max(self._ledgers.last_success_ms, self._streamed_ms)

    @property
    def last_failure_ms(self) -> int:
        """When something last failed, epoch milliseconds; 0: nothing has."""
        return max(self._troubles.last_ms, self._stream_failed_ms)

    @property
    def failing(self) -> bool:
        """Whether something of it failed and has not succeeded since."""
        segments = any(upload.record.last_error for upload in self.stream.uploads)
        failed = segments or self.stream.error is not None or bool(self._troubles or self._ledgers.obstacle_told)
        return failed or (not self.quiet and self.outage is not None)

    @property
    def tiers(self) -> tuple[str, ...]:
        """Where objects of it go by its policy, and where segments on their way are."""
        places = [place_of_record(upload.record.place) for upload in self.stream.uploads]
        with suppress(AfterglowError):
            places.append(place_of_policy(self.policy, self._env.own))
        return tuple(dict.fromkeys(map(str, places)))

    @property
    def outage(self) -> Outage | None:
        """Of one of its tiers; None where all are available."""
        found = (self._env.tiers.health.outage(tier) for tier in self.tiers)
        return next((outage for outage in found if outage is not None), None)

    @property
    def work(self) -> Work:
        """What is under way with whole ledgers."""
        with self._env.lock:
            manual = self._ledgers.manual
            running = frozenset(attempt.ledger_id for attempt in self.window.attempts)
            return Work(running, self._troubles.snapshot(), None if manual is None else manual.before)

    @property
    def status(self) -> OffloadStatus:
        """How the last offload by hand went, or that one is running."""
        with self._env.lock:
            streamed = self.stream.status if self._streamed_last else None
            return streamed if streamed is not None and self._ledgers.manual is None else self._ledgers.status

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way or waits to be done again."""
        with self._env.lock:
            busy = len(self.window) or self.window.has_leaving or self.stream.busy or self._ledgers.manual is not None
            return not (busy or self._doomed or self._troubles) and self.lane.idle

    @property
    def forgettable(self) -> bool:
        """Whether it is quiet, and has nothing to tell that metadata does not."""
        told = self._ledgers.obstacle_told or self.last_success_ms or self.status.state is not OffloadState.NOT_RUN
        return self.quiet and not told

    def wants_look(
        self, info: ManagedLedgerInfo, policy: BrokerConfig, *, opened: bool, writing_to: int | None
    ) -> bool:
        """Whether a look would find something to do; else it is on the agenda for when time alone brings it."""
        return self._doomed or self._wants_topic(info, policy, opened=opened, writing_to=writing_to)

    # --- what others tell ---------------------------------------------------------------------------------------------

    def begin_manual(self, manual: ManualOffload) -> bool:
        """Begin an offload by hand; returns whether none was running."""
        with self._env.lock:
            if self.status.state is OffloadState.RUNNING:
                return False
            self._ledgers.manual = manual
            self._streamed_last = False
        self.retry_now()
        return True

    def begin_stream_manual(self, end: Position | None, info: ManagedLedgerInfo) -> bool:
        """Have all entries up to ``end`` committed in segments; returns whether nothing by hand was running."""
        with self._env.lock:
            if self.status.state is OffloadState.RUNNING or not self.stream.begin_manual(end, info):
                return False
            self._streamed_last = True
        self.retry_now()
        return True

    def retry_now(self) -> None:
        """End all backoffs: somebody asks, or the tier answers again."""
        self._troubles.retry_now()
        self.stream.retry_now()
        self._wake()

    def on_recovery(self, tier: str) -> None:
        """A tier answers again: what failed there is tried now, and objects to be deleted may be there too."""
        if (self.stream.retry_ms or self._troubles) and tier in self.tiers:
            self.retry_now()
        elif self._doomed:
            self._wake()

    def doom(self) -> None:
        """Intents to delete are on record for this topic."""
        self._doomed = True
        self._wake()

    def leave(self, ledger_ids: set[int]) -> list[Attempt]:
        """Ledgers are about to leave the list: begin nothing for them, commit nothing; returns what is under way."""
        found = self.window.leave(ledger_ids)
        self._finish_ended()
        return found

    def left(self) -> None:
        """What was leaving has left the list, or stays after all; intents may be on record."""
        self.window.left()
        self.doom()

    # --- tasks --------------------------------------------------------------------------------------------------------

    def next_task(self) -> tuple[Task, int] | None:
        """A task to hand out, and the requests that come with it; None where none waits or enough are out."""
        return self.window.next_task() or self.stream.next_task()

    def hand_out(self, task: Task) -> None:
        """The task that :meth:`next_task` gave goes out."""
        note_begin(self._env.tiers.health, task)
        if self.window.next_task() is not None:
            self.window.hand_out(task)
        elif not isinstance(task, LedgerTask):
            self.stream.hand_out(task)

    def task_ended(self, task: Task, result: PartResult) -> bool:
        """Take a result; returns whether the topic should be looked at now."""
        with self._env.lock:
            self.read_bytes = self.read_bytes.plus(result.route, task.size_bytes)
            self.failed_tasks += result.error is not None
            self.failed_writes += isinstance(result.error, StorageError)
        if result.read_seconds:
            self.read_latencies.record(result.read_seconds)
        if not isinstance(task, LedgerTask) and self.stream.task_ended(task, result):
            return True
        if self.window.task_ended(task, result):
            self.lane.submit(self.finish)
        return False

    # --- pieces of work -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Carry out intents to delete; begin what is due; let hot copies go."""
        try:
            self._carry_out()
            policy = self._obey()
            ledger = self._open_if_wanted(policy)
            if ledger is not None:
                self._ledgers.look(ledger, policy)
                self._finish_ended()  # what was cancelled before it had tasks
                self._stream_on(ledger, policy)
                self._free(ledger, policy)
                self._forget_troubles(ledger.info, policy)
                self._note_next(ledger.info, ledger.writing_to, policy)
        except _GONE as error:
            self._stop(error)
        except AfterglowError as error:
            _log.warning("%s is looked at again later: %s", self.name, error)
            self._wake_later()
        self._ledgers.settle_manual()

    def _obey(self) -> BrokerConfig:
        """What holds for the topic now. Where that has changed, what failed may succeed by it, and is tried now."""
        before, self.policy = self.policy, self._env.policies.of(self.name)
        if self.policy is not before:
            self._troubles.retry_now()
            self.stream.retry_now()
        return self.policy

    def finish(self) -> None:
        """Finish and commit whole ledgers of which no task runs any more."""
        try:
            self._ledgers.finish()
        except _GONE as error:
            self._stop(error)
        self._wake()
        self._ledgers.settle_manual()

    def _finish_ended(self) -> None:
        if any(attempt.ended for attempt in self.window.attempts):
            self.lane.submit(self.finish)

    def _carry_out(self) -> None:
        """Carry out intents to delete, if there may be any; those that cannot be are tried again later."""
        if not self._doomed:
            return
        self._doomed = False  # now: what is put on record from here on is seen by the next look
        left = True
        try:
            carried = self._env.deletions.carry_out(self.name)
            self.deletions_done += carried.done
            self.deletions_failed += carried.failed
            left = carried.left > 0
        finally:
            if left:
                self._doomed = True
                self._wake_later()

    def _open_if_wanted(self, policy: BrokerConfig) -> ManagedLedger | None:
        """The topic, opened where it is not and there is something to do."""
        store = self._env.store
        if (known := store.opened(self.name)) is not None:
            if known is self._fenced:
                raise Fenced(f"{self.name} was taken over by another owner; open it anew")
            return known
        if not self._wants_topic(store.info(self.name), policy, opened=False, writing_to=None):
            return None
        return store.open(self.name, create=False)

    def _wants_topic(
        self, info: ManagedLedgerInfo, policy: BrokerConfig, *, opened: bool, writing_to: int | None
    ) -> bool:
        """Whether there is something to do that needs the topic to be open."""
        if len(self.window) or self._ledgers.manual is not None or self.stream.busy:
            return True
        if not self._system and wants_stream(info, streaming=policy.streaming_offload_enabled):
            return True
        if planner.freeable(info, policy=policy, now_ms=self._env.clock.now_ms()):
            return True
        if self._ledgers.due(info, writing_to, policy) or planner.given_up(info, pursued=()):
            return True
        # After a crash only opening the topic tells how long its last ledger is, and since when it is closed.
        unknown = not opened and any(not row.HasField("entries") for row in info.ledgerInfo)
        if unknown and planner.is_triggered(policy) and self._ledgers.obstacle(policy) is None:
            return True
        self._note_next(info, writing_to, policy)
        return False

    def _stream_on(self, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        """Bring segments further; whole ledgers that are under way are waited for."""
        if self._system:
            return
        before = len(self.stream.uploads)
        self.stream.look(ledger, policy, held=len(self.window) > 0)
        if len(self.stream.uploads) < before:
            self._streamed_ms = self._env.clock.now_ms()
        error, failed_ms = self.stream.error, self.stream.failed_ms
        if error is not None and failed_ms > self._stream_failed_ms:
            level = failure_level(self._env.tiers.health, error, self.tiers)
            _log.log(level, "the stream of %s goes on in a while: %s", ledger.topic, error)
        self._stream_failed_ms = max(self._stream_failed_ms, failed_ms)

    def _free(self, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        """Let hot copies go whose time has come, once their objects have passed a check."""
        now_ms = self._env.clock.now_ms()
        rows = {row.ledgerId: row for row in ledger.info.ledgerInfo}
        over = planner.freeable(ledger.info, policy=policy, now_ms=now_ms)
        ripe = [ledger_id for ledger_id in over if self._troubles.ripe(ledger_id, now_ms)]
        copies = CopyCheck(self.name, policy, self._env.tiers, self._env.metadata, self._env.paths)
        sound = []
        for ledger_id in ripe[:_FREED_AT_ONCE]:
            try:
                copies.check(rows[ledger_id])
            except AfterglowError as error:
                self._troubles.note(ledger_id, error, "keeps its hot copy", self.tiers)
            else:
                sound.append(ledger_id)
        if sound:
            ledger.free(sound)
            for ledger_id in sound:
                self._troubles.forget(ledger_id)
        if len(ripe) > _FREED_AT_ONCE:
            self._wake()

    def _forget_troubles(self, info: ManagedLedgerInfo, policy: BrokerConfig) -> None:
        """Forget failures of ledgers for which nothing is left to do."""
        freeable = planner.freeable(info, policy=policy, now_ms=self._env.clock.now_ms())
        outside = {row.ledgerId for row in info.ledgerInfo if not offloaded_whole(row)}
        self._troubles.keep(outside.union(freeable))

    def _stop(self, error: AfterglowError) -> None:
        """The topic is not ours any more."""
        _log.info("%s is not offloaded here any more: %s", self.name, error)
        if isinstance(error, Fenced):
            self._fenced = self._env.store.opened(self.name)
        self.stream.drop()
        self.stream.fail_manual(error)
        self._ledgers.stop(error)
        self._troubles.clear()
        self._env.agenda.strike(self.name)
        if self._doomed:
            self._wake_later()

    # --- time ---------------------------------------------------------------------------------------------------------

    def _note_next(self, info: ManagedLedgerInfo, writing_to: int | None, policy: BrokerConfig) -> None:
        """Put the next moment on the agenda at which time alone brings something to do."""
        now_ms = self._env.clock.now_ms()
        moments = [planner.next_look_ms(info, writing_to=writing_to, policy=policy, now_ms=now_ms)]
        moments += [trouble.next_try_ms for trouble in self._troubles.snapshot().values()]
        moments += [attempt.next_try_ms for attempt in self.window.attempts]
        for at_ms in moments:
            if at_ms is not None and at_ms > now_ms:
                self._env.agenda.put(self.name, at_ms)

    def _wake(self) -> None:
        self._env.agenda.put(self.name, 0)

    def _wake_later(self) -> None:
        config = self._env.policies.config
        self._env.agenda.put(self.name, self._env.clock.now_ms() + config.offload_retry_max_backoff_millis)
