"""Offload of whole ledgers (PIP-17): the commit protocol, and the attempts of one topic.

0. Plan the blocks. Nothing is changed: a ledger that cannot be offloaded leaves no trace.
1. Record deletes of the objects of earlier, failed attempts. *Crash: the list still names their UUIDs, and
   what a list names is not deleted.*
2. Commit a fresh UUID and the place for each ledger of the batch, with one compare-and-set. *Crash: the list names a
   UUID without objects; the next attempt replaces it, by 1. What was replaced is deleted at the next start.*
3. Check that the topic is still owned here, and create an upload, also for a single part: once the upload is aborted, a
   task that is still running can write nothing. *Crash: an upload of a key that the list names; the next attempt puts
   the key on record, and deleting aborts its uploads.*
4. Tasks write the parts. *Crash: as in 3.*
5. Complete the upload with the parts that the tasks reported, check the length of the object, and put the index, made
   from plans and results alone, if there is none. *Crash: as in 3; both objects are deleted.*
6. Commit ``complete`` and the time, with one compare-and-set, and only where the list has this attempt's UUID. *Crash:
   done.*

An error up to 5 ends the attempt; the next has another UUID. If there is to be no other, its objects are put on record
as in 1 and its UUID is taken off the list. An unknown outcome of 6 is met by 6 again, which changes nothing where it
had been applied; nothing is deleted until the list has been read. If the list has another UUID or no such ledger, the
attempt lost: its objects are put on record and deleted. An owner that finds itself fenced stops, and deletes nothing:
what it wrote is the new owner's to judge.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, Fenced, MetadataError, NotSupported
from afterglow.format.objects import get_uuid, ledger_uuid, set_uuid
from afterglow.ledger.ledger_list import is_fully_offloaded
from afterglow.metadata.names import TopicName
from afterglow.offload import planner
from afterglow.offload.attempts import Attempt, AttemptWindow, Stage
from afterglow.offload.backoff import backoff_ms
from afterglow.offload.blocks import BlockOffloader, CopyOrder
from afterglow.offload.offloader import extra_metadata
from afterglow.offload.pending_deletes import pending_delete_of_attempt, pending_delete_of_ledger
from afterglow.offload.planner import is_candidate
from afterglow.offload.segments.uncovered import assigned_from
from afterglow.offload.status import OffloadState, OffloadStatus
from afterglow.offload.task import LedgerTask

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.backoff import LedgerBackoff
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.pending_deletes import PendingDeletes
    from afterglow.offload.status import ManualOffload
    from afterglow.offload.topic_schedule import OffloadEnvironment
    from afterglow.tier.locations import TierLocation


_REPLACED = "an attempt to offload the ledger failed"
_GIVEN_UP = "an attempt to offload the ledger failed, and there is no other"
_LOST = "another attempt to offload the ledger took its place"


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """Where the ledgers of one topic are copied from."""

    name: str
    """The managed-ledger name."""
    hot: HotLog
    pending_deletes: PendingDeletes
    policy: BrokerConfig
    own: TierLocation | None
    """The server's own tier."""


def prepare(
    context: LedgerContext, ledger: ManagedLedger, attempts: Sequence[Attempt]
) -> dict[int, AfterglowError | None]:
    """Steps 0 to 3 for a batch of attempts; those that have tasks afterwards are on their way.

    Returns:
        What became of each of the others, by ledger: an error, or None where there is nothing left to be done.

    Raises:
        Fenced: Another owner has taken over.
        MetadataError: The list could not be changed, or the outcome is unknown; no attempt is on its way.
    """
    ended: dict[int, AfterglowError | None] = {}
    parts = {}
    for attempt in attempts:
        if isinstance(attempt.offloader, BlockOffloader):
            try:
                hot = context.hot.open(attempt.ledger_id)
                parts[attempt.ledger_id] = attempt.offloader.plan(hot, attempt.order.entries)
            except AfterglowError as error:
                ended[attempt.ledger_id] = error
    able = [attempt for attempt in attempts if attempt.ledger_id not in ended]
    assigned = _assign(context, ledger, able)
    for attempt in able:
        if attempt.ledger_id not in assigned:
            ended[attempt.ledger_id] = None
            continue
        try:
            if isinstance(attempt.offloader, BlockOffloader):
                ledger.check_owner()  # attempts before this one may have waited for the store
                attempt.copy = attempt.offloader.begin(attempt.order, parts[attempt.ledger_id])
                attempt.tasks = attempt.copy.tasks
            else:
                attempt.tasks = (_ledger_task(context, attempt),)
        except Fenced:
            raise
        except AfterglowError as error:
            ended[attempt.ledger_id] = error
    return ended


def finish(attempt: Attempt) -> None:
    """Step 5.

    Raises:
        AfterglowError: The object cannot be finished; the attempt has failed.
    """
    if (error := attempt.failure) is not None:
        raise error
    if attempt.copy is not None:
        assert isinstance(attempt.offloader, BlockOffloader)
        attempt.offloader.finish(attempt.copy, [attempt.results[task.task_id] for task in attempt.tasks])


def commit(context: LedgerContext, ledger: ManagedLedger, attempts: Sequence[Attempt], now_ms: int) -> list[Attempt]:
    """Step 6 for whole objects; returns the attempts that lost, whose objects are on record as to be deleted.

    Raises:
        Fenced: Another owner has taken over. Nothing was changed, and nothing may be deleted.
        MetadataError: The list was not changed, or the outcome is unknown. Nothing may be deleted; to be done again.
    """
    uuids = {attempt.ledger_id: attempt.uuid for attempt in attempts}
    info = ledger.update(partial(_complete, uuids=uuids, now_ms=now_ms)).info
    won = {
        row.ledgerId
        for row in info.ledgerInfo
        if is_fully_offloaded(row) and uuids.get(row.ledgerId) == ledger_uuid(row) and row.ledgerId in uuids
    }
    lost = [attempt for attempt in attempts if attempt.ledger_id not in won]
    for attempt in lost:
        context.pending_deletes.record(context.name, pending_delete_of_attempt(attempt), _LOST)
    return lost


def give_up(context: LedgerContext, ledger: ManagedLedger, ledger_ids: Collection[int]) -> None:
    """Clean up after attempts that failed, or were cut short, and that will not be retried.

    1. Record deletes of their objects. *Crash: the list still names them, and it is done over.*
    2. Take their UUIDs off the list. *Crash: the next start deletes what is on record.*

    Raises:
        Fenced: Another owner has taken over.
        MetadataError: The list was not changed, or the outcome is unknown; to be done again.
    """
    found = [pending_delete_of_ledger(row) for row in ledger.info.ledgerInfo if row.ledgerId in ledger_ids]
    pending = {each.ledger_id: each for each in found if each is not None}
    for each in pending.values():
        context.pending_deletes.record(context.name, each, _GIVEN_UP)

    def edit(info: ManagedLedgerInfo) -> None:
        for row in info.ledgerInfo:
            each = pending.get(row.ledgerId)
            if each is not None and ledger_uuid(row) == each.uuid and not row.offloadContext.complete:
                row.ClearField("offloadContext")

    ledger.update(edit)


def _assign(context: LedgerContext, ledger: ManagedLedger, attempts: Sequence[Attempt]) -> set[int]:
    """Steps 1 and 2; returns the ledgers that have got their UUIDs."""
    if not attempts:
        return set()
    replaced = {attempt.ledger_id: attempt.replaces for attempt in attempts}
    for row in ledger.info.ledgerInfo:
        if replaced.get(row.ledgerId) is not None and (pending := pending_delete_of_ledger(row)) is not None:
            context.pending_deletes.record(context.name, pending, _REPLACED)
    info = ledger.update(partial(_assign_uuids, attempts=attempts)).info
    uuids = {attempt.ledger_id: attempt.uuid for attempt in attempts}
    return {
        row.ledgerId for row in info.ledgerInfo if row.ledgerId in uuids and uuids[row.ledgerId] == ledger_uuid(row)
    }


def _assign_uuids(info: ManagedLedgerInfo, *, attempts: Iterable[Attempt]) -> None:
    streamed = assigned_from(info)
    by_id = {attempt.ledger_id: attempt for attempt in attempts if streamed is None or attempt.ledger_id < streamed}
    for row in info.ledgerInfo:
        attempt = by_id.get(row.ledgerId)
        if attempt is None or not is_candidate(row, None) or ledger_uuid(row) != attempt.replaces:
            continue
        context = row.offloadContext
        set_uuid(context, attempt.uuid)
        context.driverMetadata.Clear()
        context.driverMetadata.name = attempt.offloader.location.driver
        for key, value in attempt.offloader.driver_metadata().items():
            context.driverMetadata.properties.add(key=key, value=value)


def _complete(info: ManagedLedgerInfo, *, uuids: Mapping[int, UUID], now_ms: int) -> None:
    for row in info.ledgerInfo:
        context = row.offloadContext
        ours = row.ledgerId in uuids and get_uuid(context) == uuids[row.ledgerId]
        if ours and not context.complete and not context.offloadSegment:
            context.complete = True
            context.timestamp = now_ms


def _ledger_task(context: LedgerContext, attempt: Attempt) -> LedgerTask:
    order = attempt.order
    return LedgerTask(
        topic=context.name,
        key=order.key,
        ledger_id=order.ledger_id,
        entries=order.entries,
        uuid=order.uuid,
        size_bytes=attempt.size_bytes,
        policy=replace(context.policy, origins={}),
        own=context.own,
        metadata=tuple(order.extra.items()),
        home=order.home,
        instance=order.instance,
        remote=order.remote,
    )


_log = logging.getLogger(__name__)


class LedgerWork:
    """Whole ledgers of one topic.

    Args:
        name: The managed-ledger name.
        environment: What all topics share.
        backoff: Failures of earlier attempts.
        schedule_deletes: Called when intents to delete are on record.
    """

    def __init__(
        self, name: str, environment: OffloadEnvironment, backoff: LedgerBackoff, schedule_deletes: Callable[[], None]
    ) -> None:
        self.window = AttemptWindow(environment.lock, environment.clock)
        """What is under way."""
        self.last_success_ms = 0
        """When a ledger was last committed, epoch milliseconds; 0: none was."""
        self.obstacle_logged = ""
        """What is wrong with the policy; empty: nothing."""
        self.manual: ManualOffload | None = None
        """The manual offload that is running."""
        self._name = name
        self._env = environment
        self._backoff = backoff
        self._schedule_deletes = schedule_deletes
        self._status = OffloadStatus()

    # --- manual offload -----------------------------------------------------------------------------------------------

    @property
    def status(self) -> OffloadStatus:
        """How the last manual offload went, or that one is running."""
        with self._env.lock:
            return self._status if self.manual is None else OffloadStatus(OffloadState.RUNNING)

    def fail_manual(self, error: AfterglowError) -> None:
        """End a running manual offload with an error."""
        with self._env.lock:
            if self.manual is not None:
                self.manual.fail(error)

    def settle_manual(self) -> None:
        """End a manual offload whose ledgers have all ended."""
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
        """Ledgers that are to be offloaded now, by threshold or manually."""
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

    def advance(self, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        """Commit again what had no known outcome, begin what is due, and give up what will not be retried.

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
            self._log_obstacle("")
        if failed := planner.given_up(ledger.info, pursued=self._pursued(due)):
            give_up(self._ground(policy), ledger, failed)
            self._schedule_deletes()

    def _begin(self, ledger: ManagedLedger, policy: BrokerConfig, due: Sequence[int]) -> None:
        """Claim ledgers that are due, as far as there is room, and get their tasks ready."""
        try:
            offloader = self._env.offloaders(policy, self._env.own, self._env.tiers)
            _ = offloader.location
        except AfterglowError as error:
            self._log_obstacle(str(error))
            self.fail_manual(error)
            return
        self._log_obstacle("")
        now_ms = self._env.clock.now_ms()
        retriable = {ledger_id for ledger_id in due if self._may_try(ledger_id, now_ms)}
        rows = sorted(
            (row for row in ledger.info.ledgerInfo if row.ledgerId in retriable), key=lambda row: row.ledgerId
        )
        claimed = self.window.claim(rows, lambda row: self._new_attempt(row, offloader))
        if self.manual is not None:
            self.manual.tried(attempt.ledger_id for attempt in claimed)
        if claimed:
            self._prepare(ledger, policy, claimed)

    def _may_try(self, ledger_id: int, now_ms: int) -> bool:
        """Whether a ledger may be tried now, after what has failed before."""
        by_hand = self.manual is not None and ledger_id in self.manual.untried
        return by_hand or self._backoff.is_retry_due(ledger_id, now_ms)

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
            ended = prepare(self._ground(policy), ledger, claimed)
        except AfterglowError as error:
            for attempt in claimed:
                self._end(attempt, error)
            raise
        for attempt in claimed:
            if attempt.ledger_id in ended:
                self._end(attempt, ended[attempt.ledger_id])
                self._env.schedule.put(self._name, 0)  # the list was another than was thought, or others may have room
        if any(attempt.replaces is not None for attempt in claimed):
            self._schedule_deletes()
        self._env.flush_for(self._name)
        self.window.begin([attempt for attempt in claimed if attempt.ledger_id not in ended])

    def _ground(self, policy: BrokerConfig) -> LedgerContext:
        return LedgerContext(self._name, self._env.store.hot, self._env.pending_deletes, policy, self._env.own)

    def _log_obstacle(self, obstacle: str) -> None:
        """Log once what is wrong with the policy."""
        if obstacle and obstacle != self.obstacle_logged:
            self._backoff.last_ms = self._env.clock.now_ms()
            _log.warning("%s has ledgers to be offloaded, but cannot: %s", self._name, obstacle)
        self.obstacle_logged = obstacle

    # --- ending -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish and commit attempts of which no task runs any more.

        Raises:
            Fenced: Another owner has taken over.
            TopicMissing: The topic is gone.
            TopicClosed: The server is shutting down.
        """
        whole = []
        for attempt in self.window.take_ended():
            if attempt.cancelled:
                self._end(attempt, None)
                self._schedule_deletes()
                continue
            try:
                finish(attempt)
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
            lost = commit(self._ground(policy), ledger, attempts, now_ms)
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

    def _commit_later(self, attempts: Sequence[Attempt], error: AfterglowError) -> None:
        for attempt in attempts:
            attempt.failed_commits += 1
            attempt.retry_at_ms = self._env.clock.now_ms() + backoff_ms(
                self._env.policies.config, attempt.failed_commits
            )
            self._env.schedule.put(self._name, attempt.retry_at_ms)
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
            self._backoff.forget(attempt.ledger_id)
        else:
            self._backoff.record(attempt.ledger_id, error, "was not offloaded", (str(attempt.offloader.location),))
        with self._env.lock:
            if self.manual is not None:
                self.manual.ended(attempt.ledger_id, error)

    def stop(self, error: AfterglowError) -> None:
        """The topic is not ours any more. What tasks still write is the next owner's to judge, or on record already."""
        for attempt in self.window.cancel():
            if not attempt.running:
                self.window.drop(attempt)
        self.fail_manual(error)
