"""The offload of one topic: pieces of work that bring it further.

Pieces run on the topic's lane, one at a time, and may wait for metadata, tier and disk; everything else here never
waits. Results of tasks come from any thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from afterglow.errors import AfterglowError, Fenced, MetadataError, NotSupported, TopicClosed, TopicMissing
from afterglow.format.offload_context import ledger_uuid
from afterglow.metadata.names import TopicName
from afterglow.offload import ledgers, planner
from afterglow.offload.attempts import Attempt, Stage
from afterglow.offload.blocks import CopyOrder
from afterglow.offload.explain import Trouble, Work
from afterglow.offload.freeing import check_copy
from afterglow.offload.lanes import Lane
from afterglow.offload.manual import OffloadState, OffloadStatus
from afterglow.offload.offloader import extra_metadata
from afterglow.offload.segments.work import StreamWork, wants_stream
from afterglow.offload.task import PartTask
from afterglow.offload.window import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.environment import OffloadEnvironment
    from afterglow.offload.manual import ManualOffload
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.task import Task

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
        self.window = Window(environment.lock, environment.clock)
        self.last_success_ms = 0
        """Of an offload, epoch milliseconds; 0: none."""
        self.last_failure_ms = 0
        self.policy = environment.policies.config
        """As of the last look: for whoever must not wait."""
        self._env = environment
        self._system = planner.is_system_topic(TopicName.from_managed_ledger_name(name))
        self._troubles: dict[int, Trouble] = {}
        self._doomed = False
        self._obstacle_told = ""
        self._fenced: ManagedLedger | None = None
        self._streamed_last = False
        self._manual: ManualOffload | None = None
        self._status = OffloadStatus()
        self.stream = StreamWork(name, environment)
        """What goes in segments."""

    # --- what others ask and tell -------------------------------------------------------------------------------------

    @property
    def work(self) -> Work:
        """What is under way."""
        with self._env.lock:
            before = None if self._manual is None else self._manual.before
            return Work(frozenset(a.ledger_id for a in self.window.attempts), dict(self._troubles), before)

    @property
    def status(self) -> OffloadStatus:
        """How the last offload by hand went, or that one is running."""
        with self._env.lock:
            if self._manual is not None:
                return OffloadStatus(OffloadState.RUNNING)
            return (self.stream.status if self._streamed_last else None) or self._status

    def begin_manual(self, manual: ManualOffload) -> bool:
        """Begin an offload by hand; returns whether none was running."""
        with self._env.lock:
            if self.status.state is OffloadState.RUNNING:
                return False
            self._manual = manual
            self._streamed_last = False
        self._wake()
        return True

    def begin_stream_manual(self, end: Position | None) -> bool:
        """Have all entries up to ``end`` committed in segments; returns whether nothing by hand was running."""
        with self._env.lock:
            if self.status.state is OffloadState.RUNNING or not self.stream.begin_manual(end):
                return False
            self._streamed_last = True
        self._wake()
        return True

    # --- tasks --------------------------------------------------------------------------------------------------------

    def next_task(self) -> tuple[Task, int] | None:
        """A task to hand out, and the requests that come with it; None where none waits or enough are out."""
        return self.window.next_task() or self.stream.next_task()

    def hand_out(self, task: Task) -> None:
        """The task that :meth:`next_task` gave goes out."""
        if self.window.next_task() is not None:
            self.window.hand_out(task)
        elif isinstance(task, PartTask):
            self.stream.hand_out(task)

    def doom(self) -> None:
        """Intents to delete are on record for this topic."""
        self._doomed = True
        self._wake()

    def leave(self, ledger_ids: set[int]) -> list[Attempt]:
        """Ledgers are about to leave the list: begin nothing for them, commit nothing; returns what is under way."""
        found = self.window.leave(ledger_ids)
        if any(attempt.ended for attempt in found):
            self.lane.submit(self.finish)
        return found

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way or waits to be done again."""
        with self._env.lock:
            waits = len(self.window) or self._doomed or self._troubles or self._manual is not None or self.stream.busy
            return not waits and self.lane.idle

    @property
    def forgettable(self) -> bool:
        """Whether it is quiet, and has nothing to tell that metadata does not."""
        told = self._obstacle_told or self.last_success_ms or self._status.state is not OffloadState.NOT_RUN
        return self.quiet and not told

    def wants_look(
        self, info: ManagedLedgerInfo, policy: BrokerConfig, *, opened: bool, writing_to: int | None
    ) -> bool:
        """Whether a look would find something to do; else it is on the agenda for when time alone brings it."""
        return self._doomed or self._wants_topic(info, policy, opened=opened, writing_to=writing_to)

    def _wants_topic(
        self, info: ManagedLedgerInfo, policy: BrokerConfig, *, opened: bool, writing_to: int | None
    ) -> bool:
        """Whether there is something to do that needs the topic to be open."""
        now_ms = self._env.clock.now_ms()
        if len(self.window) or self._manual is not None or self.stream.busy:
            return True
        if not self._system and wants_stream(info, streaming=policy.streaming_offload_enabled):
            return True
        if planner.freeable(info, policy=policy, now_ms=now_ms):
            return True
        due = self._due(info, writing_to, policy)
        if due or planner.given_up(info, pursued=()):
            return True
        # After a crash only opening the topic tells how long its last ledger is, and since when it is closed.
        unknown = not opened and any(not row.HasField("entries") for row in info.ledgerInfo)
        if unknown and self._obstacle(policy) is None and _triggered(policy):
            return True
        self._note_next(info, writing_to, policy)
        return False

    # --- pieces of work -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Carry out intents to delete; begin what is due; let hot copies go."""
        env = self._env
        try:
            self._carry_out()
            self.policy = policy = env.policies.of(self.name)
            ledger = self._open_if_wanted(policy)
            if ledger is not None:
                self._commit(ledger, policy, self.window.committing(env.clock.now_ms()))
                self._begin(ledger, policy)
                self._clean_up(ledger, policy)
                if not self._system:
                    self._stream_on(ledger, policy)
                self._free(ledger, policy)
                self._note_next(ledger.info, ledger.writing_to, policy)
        except _GONE as error:
            self._stop(error)
        except AfterglowError as error:
            _log.warning("%s is looked at again later: %s", self.name, error)
            self._wake_later()
        self._settle_manual()

    def _stream_on(self, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        """Bring segments further; whole ledgers that are under way are waited for."""
        before = len(self.stream.uploads)
        self.stream.look(ledger, policy, held=len(self.window) > 0)
        if len(self.stream.uploads) < before:
            self.last_success_ms = self._env.clock.now_ms()
        if self.stream.error is not None:
            self.last_failure_ms = self._env.clock.now_ms()

    def finish(self) -> None:
        """Finish and commit attempts of which no task runs any more."""
        whole = []
        for attempt in self.window.take_ended():
            if attempt.cancelled:
                self._end(attempt, None)
                self.doom()
                continue
            try:
                ledgers.finish(attempt)
            except AfterglowError as error:
                self._end(attempt, error)
            else:
                attempt.stage = Stage.COMMITTING
                whole.append(attempt)
        try:
            if whole:
                ledger = self._env.store.open(self.name, create=False)
                self._commit(ledger, self._env.policies.of(self.name), whole)
        except _GONE as error:
            self._stop(error)
        except AfterglowError as error:
            self._commit_later(whole, error)
        self._wake()
        self._settle_manual()

    def _carry_out(self) -> None:
        """Carry out intents to delete, if there may be any; those that cannot be are tried again later."""
        if not self._doomed:
            return
        self._doomed = False  # now: what is put on record from here on is seen by the next look
        left = True
        try:
            left = self._env.deletions.carry_out(self.name) > 0
        finally:
            if left:
                self._doomed = True
                self._wake_later()

    # --- beginning ----------------------------------------------------------------------------------------------------

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

    def _obstacle(self, policy: BrokerConfig) -> AfterglowError | None:
        """Why no ledger of this topic may be offloaded by this policy; whether a tier can be had is another matter."""
        if self._system:
            return NotSupported(f"{self.name} is a system topic: such are never offloaded")
        if policy.streaming_offload_enabled:
            return NotSupported(f"{self.name} streams to the tier: streamingOffloadEnabled is set")
        return None

    def _due(self, info: ManagedLedgerInfo, writing_to: int | None, policy: BrokerConfig) -> tuple[int, ...]:
        """Ledgers that are to be offloaded now, by themselves or by hand."""
        if self._obstacle(policy) is not None:
            return ()
        return planner.due(
            info,
            writing_to=writing_to,
            policy=policy,
            now_ms=self._env.clock.now_ms(),
            manual_before=None if self._manual is None else self._manual.before,
        )

    def _pursued(self, due: Sequence[int]) -> set[int]:
        """Ledgers that are due, or on their way."""
        return {*due, *(attempt.ledger_id for attempt in self.window.attempts)}

    def _begin(self, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        """Claim ledgers that are due, as far as there is room, and get their tasks ready."""
        manual = self._manual
        due = self._due(ledger.info, ledger.writing_to, policy)
        if manual is not None:
            if (obstacle := self._obstacle(policy)) is not None:
                manual.fail(obstacle)
            manual.keep(self._pursued(due))  # ledgers that were trimmed meanwhile are no error
        if not due:
            return
        try:
            offloader = self._env.offloaders(policy, self._env.own, self._env.tiers)
            _ = offloader.place
        except AfterglowError as error:
            self._tell_obstacle(str(error))
            if manual is not None:
                manual.fail(error)
            return
        self._tell_obstacle("")
        claimed = self._claim(ledger, offloader, due)
        if claimed:
            self._prepare(ledger, policy, claimed)

    def _clean_up(self, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        """Let go of attempts that failed and are not tried again."""
        due = self._due(ledger.info, ledger.writing_to, policy)
        if failed := planner.given_up(ledger.info, pursued=self._pursued(due)):
            ledgers.give_up(self._ground(policy), ledger, failed)
            self.doom()

    def _claim(self, ledger: ManagedLedger, offloader: LedgerOffloader, due: Sequence[int]) -> list[Attempt]:
        now_ms = self._env.clock.now_ms()
        ripe = {ledger_id for ledger_id in due if self._is_ripe(ledger_id, now_ms)}
        rows = sorted((row for row in ledger.info.ledgerInfo if row.ledgerId in ripe), key=lambda row: row.ledgerId)
        claimed = self.window.claim(rows, lambda row: self._new_attempt(row, offloader))
        if self._manual is not None:
            self._manual.tried(attempt.ledger_id for attempt in claimed)
        return claimed

    def _is_ripe(self, ledger_id: int, now_ms: int) -> bool:
        """Whether a ledger may be tried now, after what has failed before."""
        trouble = self._troubles.get(ledger_id)
        by_hand = self._manual is not None and ledger_id in self._manual.untried
        return trouble is None or by_hand or trouble.next_try_ms <= now_ms

    def _new_attempt(self, row: ManagedLedgerInfo.LedgerInfo, offloader: LedgerOffloader) -> Attempt:
        env = self._env
        order = CopyOrder(
            ledger_id=row.ledgerId,
            entries=row.entries,
            closed_ms=row.timestamp,
            uuid=env.new_uuid(),
            extra=extra_metadata(self.name, cluster=env.cluster, instance=env.instance),
            home=env.home,
            instance=env.instance,
        )
        return Attempt(order, row.size, ledger_uuid(row), offloader, env.clock.monotonic())

    def _prepare(self, ledger: ManagedLedger, policy: BrokerConfig, claimed: Sequence[Attempt]) -> None:
        try:
            ended = ledgers.prepare(self._ground(policy), ledger, claimed)
        except AfterglowError as error:
            for attempt in claimed:
                self._end(attempt, error)
            raise
        for attempt in claimed:
            if attempt.ledger_id in ended:
                self._end(attempt, ended[attempt.ledger_id])
                self._wake()  # the list was another than was thought, or the next try has its time
        if any(attempt.replaces is not None for attempt in claimed):
            self.doom()
        try:
            self._env.flush()
        except AfterglowError as error:  # whether that matters, the tasks will find out
            _log.warning("%s: the hot log was not written back: %s", self.name, error)
        self.window.begin([attempt for attempt in claimed if attempt.ledger_id not in ended])
        if any(attempt.cancelled for attempt in claimed):  # meanwhile
            self.lane.submit(self.finish)

    def _ground(self, policy: BrokerConfig) -> ledgers.Ground:
        return ledgers.Ground(self.name, self._env.store.hot, self._env.deletions, policy, self._env.own)

    # --- ending -------------------------------------------------------------------------------------------------------

    def _commit(self, ledger: ManagedLedger, policy: BrokerConfig, attempts: Sequence[Attempt]) -> None:
        """Commit whole objects; what has no known outcome is tried again later.

        Raises:
            Fenced: Another owner has taken over.
        """
        if not attempts:
            return
        now_ms = self._env.clock.now_ms()
        try:
            lost = ledgers.commit(self._ground(policy), ledger, attempts, now_ms)
        except Fenced:
            raise
        except MetadataError as error:
            self._commit_later(attempts, error)
            return
        for attempt in attempts:
            self._end(attempt, None)
            if attempt in lost:
                self.doom()
            else:
                self.last_success_ms = now_ms

    def _commit_later(self, attempts: Sequence[Attempt], error: AfterglowError) -> None:
        for attempt in attempts:
            attempt.tries += 1
            attempt.next_try_ms = self._env.clock.now_ms() + self._backoff_ms(attempt.tries)
            self._env.agenda.put(self.name, attempt.next_try_ms)
            _log.warning(
                "ledger %d of %s is in the tier, but that is not on record yet: %s", attempt.ledger_id, self.name, error
            )

    def _end(self, attempt: Attempt, error: AfterglowError | None) -> None:
        """End an attempt: with success, with nothing to do any more, or with an error after which it is tried again."""
        with self._env.lock:
            self.window.drop(attempt)
            if error is None:
                self._troubles.pop(attempt.ledger_id, None)
            else:
                self._trouble(attempt.ledger_id, error)
            if self._manual is not None:
                self._manual.ended(attempt.ledger_id, error)

    def _tell_obstacle(self, obstacle: str) -> None:
        """Say once what is wrong with the policy; it is looked at again when that changes, and from time to time."""
        if obstacle and obstacle != self._obstacle_told:
            self.last_failure_ms = self._env.clock.now_ms()
            _log.warning("%s has ledgers to be offloaded, but cannot: %s", self.name, obstacle)
        self._obstacle_told = obstacle

    def _trouble(self, ledger_id: int, error: AfterglowError, what: str = "was not offloaded") -> None:
        known = self._troubles.get(ledger_id)
        tries = 1 if known is None else known.attempts + 1
        now_ms = self._env.clock.now_ms()
        self.last_failure_ms = now_ms
        trouble = Trouble(str(error), tries, now_ms + self._backoff_ms(tries))
        self._troubles[ledger_id] = trouble
        self._env.agenda.put(self.name, trouble.next_try_ms)
        _log.warning("ledger %d of %s %s, try %d: %s", ledger_id, self.name, what, tries, error)

    def _stop(self, error: AfterglowError) -> None:
        """The topic is not ours any more. What tasks still write is the next owner's to judge, or on record already."""
        _log.info("%s is not offloaded here any more: %s", self.name, error)
        if isinstance(error, Fenced):
            self._fenced = self._env.store.opened(self.name)
        self.stream.drop()
        self.stream.fail_manual(error)
        for attempt in self.window.cancel():
            if not attempt.running:
                self.window.drop(attempt)
        with self._env.lock:
            self._troubles.clear()
            if self._manual is not None:
                self._manual.fail(error)
        self._env.agenda.strike(self.name)
        if self._doomed:
            self._wake_later()

    def _settle_manual(self) -> None:
        """End an offload by hand whose ledgers have all ended."""
        manual = self._manual
        if manual is None or manual.left:
            return
        try:
            info = self._env.store.info(self.name)
        except AfterglowError:
            info = None
        with self._env.lock:
            self._status = manual.status(info)
            self._manual = None

    # --- hot copies ---------------------------------------------------------------------------------------------------

    def _free(self, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        now_ms = self._env.clock.now_ms()
        rows = {row.ledgerId: row for row in ledger.info.ledgerInfo}
        ripe = [
            id_ for id_ in planner.freeable(ledger.info, policy=policy, now_ms=now_ms) if self._is_ripe(id_, now_ms)
        ]
        sound = []
        for ledger_id in ripe[:_FREED_AT_ONCE]:
            try:
                check_copy(rows[ledger_id], policy, self._env.tiers)
            except AfterglowError as error:
                self._trouble(ledger_id, error, "keeps its hot copy")
            else:
                sound.append(ledger_id)
        if sound:
            ledger.free(sound)
            for ledger_id in sound:
                self._troubles.pop(ledger_id, None)
        if len(ripe) > _FREED_AT_ONCE:
            self._wake()

    # --- time ---------------------------------------------------------------------------------------------------------

    def _note_next(self, info: ManagedLedgerInfo, writing_to: int | None, policy: BrokerConfig) -> None:
        """Put the next moment on the agenda at which time alone brings something to do."""
        now_ms = self._env.clock.now_ms()
        moments = [planner.next_look_ms(info, writing_to=writing_to, policy=policy, now_ms=now_ms)]
        with self._env.lock:
            moments += [trouble.next_try_ms for trouble in self._troubles.values()]
            moments += [attempt.next_try_ms for attempt in self.window.attempts]
        for at_ms in moments:
            if at_ms is not None and at_ms > now_ms:
                self._env.agenda.put(self.name, at_ms)

    def _wake(self) -> None:
        self._env.agenda.put(self.name, 0)

    def _wake_later(self) -> None:
        config = self._env.policies.config
        self._env.agenda.put(self.name, self._env.clock.now_ms() + config.offload_retry_max_backoff_millis)

    def _backoff_ms(self, tries: int) -> int:
        config = self._env.policies.config
        least, most = config.offload_retry_min_backoff_millis, config.offload_retry_max_backoff_millis
        return min(least << min(tries - 1, 40), most)


def _triggered(policy: BrokerConfig) -> bool:
    """Whether any threshold makes ledgers due by themselves."""
    return (
        max(policy.managed_ledger_offload_threshold_in_bytes, policy.managed_ledger_offload_threshold_in_seconds) >= 0
    )
