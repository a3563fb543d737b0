"""The commit protocol of ledger offload: how a closed ledger comes to have an object, whatever happens in between.

0. Plan the blocks. Nothing is changed: a ledger that cannot be offloaded leaves no trace.
1. Put on record that the objects of earlier, failed attempts are to go. *Crash: the list still names their UUIDs, and
   what a list names is not deleted.*
2. Commit a fresh UUID and the place for each ledger of the batch, with one compare-and-set. *Crash: the list names a
   UUID without objects; the next attempt replaces it, by 1. What was replaced is deleted at the next start.*
3. Where there is more than one part, check that the topic is still owned here, and create an upload. *Crash: an upload
   of a key that the list names; the next attempt puts the key on record, and deleting aborts its uploads.*
4. Tasks write the parts, or the one object if there was none of that name. *Crash: as in 3.*
5. Complete the upload with the parts that the tasks told, check the length of the object, and put the index, made from
   plans and results alone, if there is none. *Crash: as in 3; both objects are deleted.*
6. Commit ``complete`` and the time, with one compare-and-set, and only where the list has this attempt's UUID. *Crash:
   done.*

An error up to 5 ends the attempt; the next has another UUID. If there is to be no other, its objects are put on record
as in 1 and its UUID is taken off the list. An unknown outcome of 6 is met by 6 again, which changes nothing where it
had been applied; nothing is deleted until the list has been read. If the list has another UUID or no such ledger, the
attempt lost: its objects are put on record and deleted. An owner that finds itself fenced stops, and deletes nothing:
what it wrote is the new owner's to judge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, Fenced
from afterglow.format.offload_context import get_uuid, ledger_uuid, set_uuid
from afterglow.ledger.ledger_list import offloaded_whole
from afterglow.offload.blocks import BlockOffloader
from afterglow.offload.doomed import doomed_attempt, doomed_row
from afterglow.offload.planner import is_candidate
from afterglow.offload.segments.territory import assigned_from
from afterglow.offload.task import LedgerTask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.attempts import Attempt
    from afterglow.offload.deletion import Deletions
    from afterglow.read.places import TierPlace

_REPLACED = "an attempt to offload the ledger failed"
_GIVEN_UP = "an attempt to offload the ledger failed, and there is no other"
_LOST = "another attempt to offload the ledger took its place"


@dataclass(frozen=True, slots=True)
class Ground:
    """Where the ledgers of one topic are copied from."""

    name: str
    """The managed-ledger name."""
    hot: HotLog
    deletions: Deletions
    policy: BrokerConfig
    own: TierPlace | None
    """The engine's own tier."""


def prepare(ground: Ground, ledger: ManagedLedger, attempts: Sequence[Attempt]) -> dict[int, AfterglowError | None]:
    """Steps 0 to 3 for a batch of attempts; those that have tasks afterwards are on their way.

    Returns:
        What became of each of the others, by ledger: an error, or None where there is nothing left to be done.

    Raises:
        Fenced: Another owner has taken over.
        MetadataError: The list could not be changed, or nobody knows; no attempt is on its way.
    """
    ended: dict[int, AfterglowError | None] = {}
    parts = {}
    for attempt in attempts:
        if isinstance(attempt.offloader, BlockOffloader):
            try:
                hot = ground.hot.open(attempt.ledger_id)
                parts[attempt.ledger_id] = attempt.offloader.plan(hot, attempt.order.entries)
            except AfterglowError as error:
                ended[attempt.ledger_id] = error
    able = [attempt for attempt in attempts if attempt.ledger_id not in ended]
    assigned = _assign(ground, ledger, able)
    for attempt in able:
        if attempt.ledger_id not in assigned:
            ended[attempt.ledger_id] = None
            continue
        try:
            if isinstance(attempt.offloader, BlockOffloader):
                planned = parts[attempt.ledger_id]
                if len(planned) > 1:  # those before it may have waited for the store
                    ledger.check_owner()
                attempt.copy = attempt.offloader.begin(attempt.order, planned)
                attempt.tasks = attempt.copy.tasks
            else:
                attempt.tasks = (_ledger_task(ground, attempt),)
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


def commit(ground: Ground, ledger: ManagedLedger, attempts: Sequence[Attempt], now_ms: int) -> list[Attempt]:
    """Step 6 for whole objects; returns the attempts that lost, whose objects are on record as to be deleted.

    Raises:
        Fenced: Another owner has taken over. Nothing was changed, and nothing may be deleted.
        MetadataError: The list was not changed, or nobody knows. Nothing may be deleted; to be done again.
    """
    uuids = {attempt.ledger_id: attempt.uuid for attempt in attempts}
    info = ledger.update(partial(_complete, uuids=uuids, now_ms=now_ms)).info
    won = {
        row.ledgerId
        for row in info.ledgerInfo
        if offloaded_whole(row) and uuids.get(row.ledgerId) == ledger_uuid(row) and row.ledgerId in uuids
    }
    lost = [attempt for attempt in attempts if attempt.ledger_id not in won]
    for attempt in lost:
        ground.deletions.record(ground.name, doomed_attempt(attempt), _LOST)
    return lost


def give_up(ground: Ground, ledger: ManagedLedger, ledger_ids: Collection[int]) -> None:
    """Clean up after attempts that failed, or were cut short, and that nobody will try again by himself.

    1. Put on record that their objects are to go. *Crash: the list still names them, and it is done over.*
    2. Take their UUIDs off the list. *Crash: the next start deletes what is on record.*

    Raises:
        Fenced: Another owner has taken over.
        MetadataError: The list was not changed, or nobody knows; to be done again.
    """
    found = [doomed_row(row) for row in ledger.info.ledgerInfo if row.ledgerId in ledger_ids]
    doomed = {each.ledger_id: each for each in found if each is not None}
    for each in doomed.values():
        ground.deletions.record(ground.name, each, _GIVEN_UP)

    def edit(info: ManagedLedgerInfo) -> None:
        for row in info.ledgerInfo:
            each = doomed.get(row.ledgerId)
            if each is not None and ledger_uuid(row) == each.uuid and not row.offloadContext.complete:
                row.ClearField("offloadContext")

    ledger.update(edit)


def _assign(ground: Ground, ledger: ManagedLedger, attempts: Sequence[Attempt]) -> set[int]:
    """Steps 1 and 2; returns the ledgers that have got their UUIDs."""
    if not attempts:
        return set()
    replaced = {attempt.ledger_id: attempt.replaces for attempt in attempts}
    for row in ledger.info.ledgerInfo:
        if replaced.get(row.ledgerId) is not None and (doomed := doomed_row(row)) is not None:
            ground.deletions.record(ground.name, doomed, _REPLACED)
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
        context.driverMetadata.name = attempt.offloader.place.driver
        for key, value in attempt.offloader.driver_metadata().items():
            context.driverMetadata.properties.add(key=key, value=value)


def _complete(info: ManagedLedgerInfo, *, uuids: Mapping[int, UUID], now_ms: int) -> None:
    for row in info.ledgerInfo:
        context = row.offloadContext
        ours = row.ledgerId in uuids and get_uuid(context) == uuids[row.ledgerId]
        if ours and not context.complete and not context.offloadSegment:
            context.complete = True
            context.timestamp = now_ms


def _ledger_task(ground: Ground, attempt: Attempt) -> LedgerTask:
    order = attempt.order
    return LedgerTask(
        topic=ground.name,
        key=order.key,
        ledger_id=order.ledger_id,
        entries=order.entries,
        uuid=order.uuid,
        size_bytes=attempt.size_bytes,
        policy=replace(ground.policy, origins={}),
        own=ground.own,
        metadata=tuple(order.extra.items()),
        home=order.home,
        instance=order.instance,
        remote=order.remote,
    )
