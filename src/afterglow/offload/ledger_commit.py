"""Commit protocol of whole-ledger offload (PIP-17), and one attempt of it.

0. Plan the blocks. Nothing is changed: a ledger that cannot be offloaded leaves no trace.
1. Record pending deletes of the objects of earlier, failed attempts. *Crash: the ledger list still names their UUIDs,
   and objects that a ledger list names are not deleted.*
2. Commit a fresh UUID and the tier location for each ledger of the batch, with one compare-and-set. *Crash: the ledger
   list names a UUID without objects; the next attempt replaces it, by 1. Replaced objects are deleted at the next
   start.*
3. Check that this process still owns the topic, and create an upload, also for a single part: once the upload is
   aborted, a task that still runs can write nothing. *Crash: an upload of a key that the ledger list names; the next
   attempt records its pending delete, which aborts uploads of the key.*
4. Tasks write the parts. *Crash: as in 3.*
5. Complete the upload with the parts that the tasks reported, check the length of the object, and put the index, which
   is derived from plans and results alone, if none exists. *Crash: as in 3; both objects are deleted.*
6. Commit ``complete`` and the time, with one compare-and-set, and only if the ledger list has the UUID of this attempt.
   *Crash: done.*

An error up to 5 ends the attempt; the next attempt has another UUID. If no attempt follows, pending deletes of its
objects are recorded as in 1, and its UUID is removed from the ledger list. After an unknown outcome of 6 the step is
repeated, which changes nothing if it had been applied; nothing is deleted until the ledger list has been read. If the
ledger list has another UUID or no such ledger, the attempt lost: its objects are recorded as pending deletes, and
deleted. A fenced owner stops and deletes nothing: the new owner decides about the objects that it wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, Fenced
from afterglow.format.objects import get_uuid, ledger_uuid, set_uuid
from afterglow.ledger.ledger_list import is_fully_offloaded
from afterglow.offload.block_offloader import BlockOffloader
from afterglow.offload.pending_deletes import pending_delete_of_attempt, pending_delete_of_ledger
from afterglow.offload.planner import is_candidate
from afterglow.offload.segments.uncovered import assigned_from
from afterglow.offload.task import LedgerTask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.offload.block_offloader import BlockCopy, CopyRequest
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.pending_deletes import PendingDeletes
    from afterglow.offload.task import PartResult, Task
    from afterglow.offload.topics import HotLedgers, OffloadTopic
    from afterglow.tier.locations import TierLocation


# Reasons of pending deletes, stored with them.
_REPLACED = "an attempt to offload the ledger failed"
_GIVEN_UP = "an attempt to offload the ledger failed, and there is no other"
_LOST = "another attempt to offload the ledger took its place"


class AttemptStage(Enum):
    """Stage of an attempt."""

    CLAIMED = auto()
    """No other attempt may begin. Nothing was changed yet, or only metadata."""
    COPYING = auto()
    """Its tasks wait or run."""
    ENDING = auto()
    """None of its tasks runs any more; the object is being finished and committed."""
    COMMITTING = auto()
    """The object is complete; its commit failed or has an unknown outcome, and is retried."""


@dataclass(slots=True, eq=False)
class LedgerAttempt:
    """One attempt to offload a ledger, in the memory of its process; the state that survives a crash is in metadata.

    Guarded by the lock of the offload environment, except for fields that only work of the topic uses.
    """

    request: CopyRequest
    size_bytes: int
    """Bytes of the ledger's entries."""
    replaces: UUID | None
    """UUID of an earlier attempt that failed."""
    offloader: LedgerOffloader
    progress_s: float
    """Time of its last progress, by the monotonic clock."""
    stage: AttemptStage = AttemptStage.CLAIMED
    copy: BlockCopy | None = None
    """Plan and upload of a built-in driver."""
    tasks: tuple[Task, ...] = ()
    handed_out: int = 0
    """Number of tasks that were handed out, in their order."""
    results: dict[str, PartResult] = field(default_factory=dict)
    """By task id."""
    cancelled: bool = False
    """The ledger is removed from the ledger list, or the topic has another owner: nothing is committed."""
    stalled: bool = False
    """Whether it was logged as stalled."""
    failed_commits: int = 0
    retry_at_ms: int = 0
    """Time at which the commit is retried, epoch milliseconds."""

    @property
    def ledger_id(self) -> int:
        """The ledger."""
        return self.request.ledger_id

    @property
    def uuid(self) -> UUID:
        """UUID of this attempt alone."""
        return self.request.uuid

    @property
    def failure(self) -> AfterglowError | None:
        """Error of the first task, in their order, that failed."""
        found = (self.results[task.task_id].error for task in self.tasks if task.task_id in self.results)
        return next((error for error in found if error is not None), None)

    @property
    def running(self) -> int:
        """Number of tasks that were handed out and have not ended."""
        return self.handed_out - len(self.results)

    @property
    def has_waiting_tasks(self) -> bool:
        """Whether tasks are to be handed out: none after a failure or a cancellation."""
        return (
            self.stage is AttemptStage.COPYING
            and self.handed_out < len(self.tasks)
            and not self.cancelled
            and self.failure is None
        )

    @property
    def has_ended(self) -> bool:
        """Whether no task runs, and none will."""
        return self.stage is AttemptStage.COPYING and not self.running and not self.has_waiting_tasks


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """Topic, hot log and policy with which the ledgers of one topic are offloaded."""

    name: str
    """The managed-ledger name."""
    hot: HotLedgers
    pending_deletes: PendingDeletes
    policy: BrokerConfig
    own: TierLocation | None
    """The server's own tier."""


def prepare(
    context: LedgerContext, ledger: OffloadTopic, attempts: Sequence[LedgerAttempt]
) -> dict[int, AfterglowError | None]:
    """Steps 0 to 3 for a batch of attempts; attempts that have tasks afterwards are in progress.

    Returns:
        The result of each of the other attempts, by ledger: an error, or None if there is nothing left to do.

    Raises:
        Fenced: The topic has a new owner.
        MetadataError: The ledger list was not changed, or the outcome is unknown; no attempt is in progress.
    """
    ended: dict[int, AfterglowError | None] = {}
    parts = {}
    for attempt in attempts:
        if isinstance(attempt.offloader, BlockOffloader):
            try:
                hot = context.hot.open(attempt.ledger_id)
                parts[attempt.ledger_id] = attempt.offloader.plan(hot, attempt.request.entries)
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
                attempt.copy = attempt.offloader.begin(attempt.request, parts[attempt.ledger_id])
                attempt.tasks = attempt.copy.tasks
            else:
                attempt.tasks = (_ledger_task(context, attempt),)
        except Fenced:
            raise
        except AfterglowError as error:
            ended[attempt.ledger_id] = error
    return ended


def finish(attempt: LedgerAttempt) -> None:
    """Step 5.

    Raises:
        AfterglowError: The object cannot be finished; the attempt has failed.
    """
    if (error := attempt.failure) is not None:
        raise error
    if attempt.copy is not None:
        assert isinstance(attempt.offloader, BlockOffloader)
        attempt.offloader.finish(attempt.copy, [attempt.results[task.task_id] for task in attempt.tasks])


def commit(
    context: LedgerContext, ledger: OffloadTopic, attempts: Sequence[LedgerAttempt], now_ms: int
) -> list[LedgerAttempt]:
    """Step 6 for complete objects; returns the attempts that lost, with pending deletes of their objects recorded.

    Raises:
        Fenced: The topic has a new owner. Nothing was changed, and nothing may be deleted.
        MetadataError: The ledger list was not changed, or the outcome is unknown. Nothing may be deleted; retry.
    """
    uuids = {attempt.ledger_id: attempt.uuid for attempt in attempts}
    info = ledger.update(partial(_complete, uuids=uuids, now_ms=now_ms)).info
    won = {
        ledger_info.ledgerId
        for ledger_info in info.ledgerInfo
        if is_fully_offloaded(ledger_info)
        and uuids.get(ledger_info.ledgerId) == ledger_uuid(ledger_info)
        and ledger_info.ledgerId in uuids
    }
    lost = [attempt for attempt in attempts if attempt.ledger_id not in won]
    for attempt in lost:
        context.pending_deletes.record(context.name, pending_delete_of_attempt(attempt), _LOST)
    return lost


def give_up(context: LedgerContext, ledger: OffloadTopic, ledger_ids: Collection[int]) -> None:
    """Clean up after attempts that failed or were interrupted, and that will not be retried.

    1. Record pending deletes of their objects. *Crash: the ledger list still names them, and the step is repeated.*
    2. Remove their UUIDs from the ledger list. *Crash: the next start carries out the pending deletes.*

    Raises:
        Fenced: The topic has a new owner.
        MetadataError: The ledger list was not changed, or the outcome is unknown; to be retried.
    """
    found = [
        pending_delete_of_ledger(ledger_info)
        for ledger_info in ledger.info.ledgerInfo
        if ledger_info.ledgerId in ledger_ids
    ]
    pending = {each.ledger_id: each for each in found if each is not None}
    for each in pending.values():
        context.pending_deletes.record(context.name, each, _GIVEN_UP)

    def edit(info: ManagedLedgerInfo) -> None:
        for ledger_info in info.ledgerInfo:
            each = pending.get(ledger_info.ledgerId)
            if each is not None and ledger_uuid(ledger_info) == each.uuid and not ledger_info.offloadContext.complete:
                ledger_info.ClearField("offloadContext")

    ledger.update(edit)


def _assign(context: LedgerContext, ledger: OffloadTopic, attempts: Sequence[LedgerAttempt]) -> set[int]:
    """Steps 1 and 2; returns the ledgers whose UUIDs are committed."""
    if not attempts:
        return set()
    replaced = {attempt.ledger_id: attempt.replaces for attempt in attempts}
    for ledger_info in ledger.info.ledgerInfo:
        if (
            replaced.get(ledger_info.ledgerId) is not None
            and (pending := pending_delete_of_ledger(ledger_info)) is not None
        ):
            context.pending_deletes.record(context.name, pending, _REPLACED)
    info = ledger.update(partial(_assign_uuids, attempts=attempts)).info
    uuids = {attempt.ledger_id: attempt.uuid for attempt in attempts}
    return {
        ledger_info.ledgerId
        for ledger_info in info.ledgerInfo
        if ledger_info.ledgerId in uuids and uuids[ledger_info.ledgerId] == ledger_uuid(ledger_info)
    }


def _assign_uuids(info: ManagedLedgerInfo, *, attempts: Iterable[LedgerAttempt]) -> None:
    streamed = assigned_from(info)
    by_id = {attempt.ledger_id: attempt for attempt in attempts if streamed is None or attempt.ledger_id < streamed}
    for ledger_info in info.ledgerInfo:
        attempt = by_id.get(ledger_info.ledgerId)
        if attempt is None or not is_candidate(ledger_info, None) or ledger_uuid(ledger_info) != attempt.replaces:
            continue
        context = ledger_info.offloadContext
        set_uuid(context, attempt.uuid)
        context.driverMetadata.Clear()
        context.driverMetadata.name = attempt.offloader.location.driver
        for key, value in attempt.offloader.driver_metadata().items():
            context.driverMetadata.properties.add(key=key, value=value)


def _complete(info: ManagedLedgerInfo, *, uuids: Mapping[int, UUID], now_ms: int) -> None:
    for ledger_info in info.ledgerInfo:
        context = ledger_info.offloadContext
        ours = ledger_info.ledgerId in uuids and get_uuid(context) == uuids[ledger_info.ledgerId]
        if ours and not context.complete and not context.offloadSegment:
            context.complete = True
            context.timestamp = now_ms


def _ledger_task(context: LedgerContext, attempt: LedgerAttempt) -> LedgerTask:
    request = attempt.request
    return LedgerTask(
        topic=context.name,
        key=request.key,
        ledger_id=request.ledger_id,
        entries=request.entries,
        uuid=request.uuid,
        size_bytes=attempt.size_bytes,
        policy=replace(context.policy, origins={}),
        own=context.own,
        metadata=tuple(request.extra.items()),
        home=request.home,
        instance=request.instance,
        remote=request.remote,
    )
