"""The half of one topic's offload that takes whole ledgers: attempts from claim to end, and requests by hand.

The protocol itself is in :mod:`afterglow.offload.ledgers`. What waits runs on the topic's lane; what threads of the
runner share is guarded by the lock of the environment.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, Fenced, MetadataError, NotSupported
from afterglow.format.offload_context import ledger_uuid
from afterglow.metadata.names import TopicName
from afterglow.offload import ledgers, planner
from afterglow.offload.attempts import Attempt, Stage
from afterglow.offload.blocks import CopyOrder
from afterglow.offload.manual import OffloadState, OffloadStatus
from afterglow.offload.offloader import extra_metadata
from afterglow.offload.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.environment import OffloadEnvironment
    from afterglow.offload.manual import ManualOffload
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.troubles import Troubles

_log = logging.getLogger(__name__)


class LedgerWork:
    """Whole ledgers of one topic.

    Args:
        name: The managed-ledger name.
        environment: What all topics share.
        troubles: What failed before.
        doom: Told that intents to delete are on record.
    """

    def __init__(
        self, name: str, environment: OffloadEnvironment, troubles: Troubles, doom: Callable[[], None]
    ) -> None:
        self.window = Window(environment.lock, environment.clock)
        """What is under way."""
        self.last_success_ms = 0
        """When a ledger was last committed, epoch milliseconds; 0: none was."""
        self.obstacle_told = ""
        """What is wrong with the policy; empty: nothing."""
        self.manual: ManualOffload | None = None
        """The offload by hand that is running."""
        self._name = name
        self._env = environment
        self._troubles = troubles
        self._doom = doom
        self._status = OffloadStatus()

    # --- by hand ------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> OffloadStatus:
        """How the last offload by hand went, or that one is running."""
        with self._env.lock:
            return self._status if self.manual is None else OffloadStatus(OffloadState.RUNNING)

    def fail_manual(self, error: AfterglowError) -> None:
        """Nothing more comes of an offload by hand."""
        with self._env.lock:
            if self.manual is not None:
                self.manual.fail(error)

    def settle_manual(self) -> None:
        """End an offload by hand whose ledgers have all ended."""
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

    # --- what is due --------------------------------------------------------------------------------------------------

    def obstacle(self, policy: BrokerConfig) -> AfterglowError | None:
        """Why no ledger of the topic may be offloaded by this policy; whether a tier can be had is another matter."""
        if planner.is_system_topic(TopicName.from_managed_ledger_name(self._name)):
            return NotSupported(f"{self._name} is a system topic: such are never offloaded")
        if policy.streaming_offload_enabled:
            return NotSupported(f"{self._name} streams to the tier: streamingOffloadEnabled is set")
        return None

    def due(self, info: ManagedLedgerInfo, writing_to: int | None, policy: BrokerConfig) -> tuple[int, ...]:
        """Ledgers that are to be offloaded now, by themselves or by hand."""
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
        return {*due, *(attempt.ledger_id for attempt in self.window.attempts)}

    # --- beginning ----------------------------------------------------------------------------------------------------

    def look(self, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        """Commit again what had no known outcome, begin what is due, and let go of what will not be tried again.

        Raises:
            Fenced: Another owner has taken over.
            AfterglowError: Something failed, and is done again later.
        """
        self._commit(ledger, policy, self.window.committing(self._env.clock.now_ms()))
        due = self.due(ledger.info, ledger.writing_to, policy)
        if self.manual is not None:
            if (obstacle := self.obstacle(policy)) is not None:
                self.manual.fail(obstacle)
            self.manual.keep(self._pursued(due))  # ledgers that were trimmed meanwhile are no error
        if due:
            self._begin(ledger, policy, due)
        else:
            self._tell_obstacle("")
        if failed := planner.given_up(ledger.info, pursued=self._pursued(due)):
            ledgers.give_up(self._ground(policy), ledger, failed)
            self._doom()

    def _begin(self, ledger: ManagedLedger, policy: BrokerConfig, due: Sequence[int]) -> None:
        """Claim ledgers that are due, as far as there is room, and get their tasks ready."""
        try:
            offloader = self._env.offloaders(policy, self._env.own, self._env.tiers)
            _ = offloader.place
        except AfterglowError as error:
            self._tell_obstacle(str(error))
            self.fail_manual(error)
            return
        self._tell_obstacle("")
        now_ms = self._env.clock.now_ms()
        ripe = {ledger_id for ledger_id in due if self._ripe(ledger_id, now_ms)}
        rows = sorted((row for row in ledger.info.ledgerInfo if row.ledgerId in ripe), key=lambda row: row.ledgerId)
        claimed = self.window.claim(rows, lambda row: self._new_attempt(row, offloader))
        if self.manual is not None:
            self.manual.tried(attempt.ledger_id for attempt in claimed)
        if claimed:
            self._prepare(ledger, policy, claimed)

    def _ripe(self, ledger_id: int, now_ms: int) -> bool:
        """Whether a ledger may be tried now, after what has failed before."""
        by_hand = self.manual is not None and ledger_id in self.manual.untried
        return by_hand or self._troubles.ripe(ledger_id, now_ms)

    def _new_attempt(self, row: ManagedLedgerInfo.LedgerInfo, offloader: LedgerOffloader) -> Attempt:
        env = self._env
        order = CopyOrder(
            ledger_id=row.ledgerId,
            entries=row.entries,
            closed_ms=row.timestamp,
            uuid=env.new_uuid(),
            extra=extra_metadata(self._name, cluster=env.cluster, instance=env.instance),
            home=env.home,
            instance=env.instance,
            remote=env.remote(),
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
                self._env.agenda.put(self._name, 0)  # the list was another than was thought, or others may have room
        if any(attempt.replaces is not None for attempt in claimed):
            self._doom()
        try:
            self._env.flush()
        except AfterglowError as error:  # whether that matters, the tasks will find out
            _log.warning("%s: the hot log was not written back: %s", self._name, error)
        self.window.begin([attempt for attempt in claimed if attempt.ledger_id not in ended])

    def _ground(self, policy: BrokerConfig) -> ledgers.Ground:
        return ledgers.Ground(self._name, self._env.store.hot, self._env.deletions, policy, self._env.own)

    def _tell_obstacle(self, obstacle: str) -> None:
        """Say once what is wrong with the policy; it is looked at again when that changes, and from time to time."""
        if obstacle and obstacle != self.obstacle_told:
            self._troubles.last_ms = self._env.clock.now_ms()
            _log.warning("%s has ledgers to be offloaded, but cannot: %s", self._name, obstacle)
        self.obstacle_told = obstacle

    # --- ending -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish and commit attempts of which no task runs any more.

        Raises:
            Fenced: Another owner has taken over.
            TopicMissing: The topic is gone.
            TopicClosed: The engine is shutting down.
        """
        whole = []
        for attempt in self.window.take_ended():
            if attempt.cancelled:
                self._end(attempt, None)
                self._doom()
                continue
            try:
                ledgers.finish(attempt)
            except AfterglowError as error:
                self._end(attempt, error)
            else:
                attempt.stage = Stage.COMMITTING
                whole.append(attempt)
        if not whole:
            return
        try:
            ledger = self._env.store.open(self._name, create=False)
            policy = self._env.policies.of(self._name)
        except MetadataError as error:
            self._commit_later(whole, error)
        else:
            self._commit(ledger, policy, whole)

    def _commit(self, ledger: ManagedLedger, policy: BrokerConfig, attempts: Sequence[Attempt]) -> None:
        """Commit whole objects; what has no known outcome is tried again later."""
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
                self._doom()
            else:
                self.last_success_ms = now_ms

    def _commit_later(self, attempts: Sequence[Attempt], error: AfterglowError) -> None:
        for attempt in attempts:
            attempt.tries += 1
            attempt.next_try_ms = self._env.clock.now_ms() + self._troubles.wait_ms(attempt.tries)
            self._env.agenda.put(self._name, attempt.next_try_ms)
            _log.warning(
                "ledger %d of %s is in the tier, but that is not on record yet: %s",
                attempt.ledger_id,
                self._name,
                error,
            )

    def _end(self, attempt: Attempt, error: AfterglowError | None) -> None:
        """End an attempt: with success, with nothing to do any more, or with an error after which it is tried again."""
        self.window.drop(attempt)
        if error is None:
            self._troubles.forget(attempt.ledger_id)
        else:
            self._troubles.note(attempt.ledger_id, error, "was not offloaded", (str(attempt.offloader.place),))
        with self._env.lock:
            if self.manual is not None:
                self.manual.ended(attempt.ledger_id, error)

    def stop(self, error: AfterglowError) -> None:
        """The topic is not ours any more. What tasks still write is the next owner's to judge, or on record already."""
        for attempt in self.window.cancel():
            if not attempt.running:
                self.window.drop(attempt)
        self.fail_manual(error)
