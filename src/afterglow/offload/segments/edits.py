"""Edits of the ledger list for segments, applied by compare-and-set.

Each may be applied to a list that has it already, and then changes nothing. A row's items stand in the order of
positions. Top-level ``complete`` stays unset, so that a broker that knows no segments reads the hot log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import OffloadConflict
from afterglow.format.objects import get_uuid, set_uuid
from afterglow.format.proto.managed_ledger_pb2 import OffloadSegment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadContext
    from afterglow.offload.segments.records import Coverage


def add_stub(info: ManagedLedgerInfo, *, uuid: UUID, begin: Position, assigned_ms: int) -> None:
    """Name a segment in the ledger that it begins in. An attempt at an object of the ledger's own is forgotten.

    Raises:
        OffloadConflict: The ledger is not in the list any more, or has an object of its own by now, or what stood
            before the segment is in none any more.
    """
    row = _row(info, begin.ledger_id, uuid)
    context = row.offloadContext
    if context.complete:
        raise OffloadConflict(f"ledger {row.ledgerId} has an object of its own: segment {uuid} cannot begin in it")
    if any(get_uuid(item) == uuid for item in context.offloadSegment):
        return
    # With one on its way, possibly from a ledger before, only its record tells where the next begins.
    settled = all(item.complete for other in info.ledgerInfo for item in other.offloadContext.offloadSegment)
    covered = max((item.endEntryId + 1 for item in context.offloadSegment), default=0)
    if settled and begin.entry_id != covered:
        raise OffloadConflict(f"segments hold {covered} entries of ledger {row.ledgerId}: none can begin at {begin}")
    if not context.offloadSegment:
        context.Clear()
        set_uuid(context, uuid)
    set_uuid(context.offloadSegment.add(assignedTimestamp=assigned_ms), uuid)


def replace_stub(info: ManagedLedgerInfo, *, old: UUID, new: UUID, begin: Position) -> None:
    """Let another UUID take the place of one whose upload was lost.

    Raises:
        OffloadConflict: The old one is not named, or is complete.
    """
    context = _row(info, begin.ledger_id, old).offloadContext
    named = {get_uuid(item): item for item in context.offloadSegment}
    if new in named:
        return
    if old not in named or named[old].complete:
        raise OffloadConflict(f"segment {old} is not assigned any more")
    set_uuid(named[old], new)
    if get_uuid(context) == old:
        set_uuid(context, new)


def commit_segment(
    info: ManagedLedgerInfo, *, uuid: UUID, covered: Sequence[Coverage], assigned_ms: int, offloaded_ms: int
) -> None:
    """Say that a segment is complete, in every ledger that it touches.

    Raises:
        OffloadConflict: It is not assigned any more, or one of its ledgers has left the list.
    """
    if all(get_uuid(item) != uuid for item in _row(info, covered[0].ledger_id, uuid).offloadContext.offloadSegment):
        raise OffloadConflict(f"segment {uuid} is not assigned any more")
    for held in covered:
        context = _row(info, held.ledger_id, uuid).offloadContext
        items = [item for item in context.offloadSegment if get_uuid(item) != uuid]
        before = sum(item.complete and item.endEntryId < held.first for item in items)
        known = next((item for item in context.offloadSegment if get_uuid(item) == uuid and item.complete), None)
        made = known or OffloadSegment(
            complete=True, assignedTimestamp=assigned_ms, offloadedTimestamp=offloaded_ms, endEntryId=held.last
        )
        set_uuid(made, uuid)
        _replace(context, (*items[:before], made, *items[before:]))
        if (
            first := get_uuid(context.offloadSegment[0])
        ) is not None:  # one that began later may have been named before it
            set_uuid(context, first)


def forget_segment(info: ManagedLedgerInfo, *, uuid: UUID) -> None:
    """Take a segment off the list: it was given up, or its object is to be deleted."""
    for row in info.ledgerInfo:
        context = row.offloadContext
        kept = [item for item in context.offloadSegment if get_uuid(item) != uuid]
        if len(kept) == len(context.offloadSegment):
            continue
        _replace(context, kept)
        first = get_uuid(context.offloadSegment[0]) if context.offloadSegment else None
        if first is not None:
            set_uuid(context, first)
        elif not context.bookkeeperDeleted:
            row.ClearField("offloadContext")


def _replace(context: OffloadContext, items: Sequence[OffloadSegment]) -> None:
    copies = [OffloadSegment.FromString(item.SerializeToString()) for item in items]  # they die with what holds them
    del context.offloadSegment[:]
    context.offloadSegment.extend(copies)


def _row(info: ManagedLedgerInfo, ledger_id: int, uuid: UUID) -> ManagedLedgerInfo.LedgerInfo:
    row = next((row for row in info.ledgerInfo if row.ledgerId == ledger_id), None)
    if row is None:
        raise OffloadConflict(f"ledger {ledger_id} has left the list: segment {uuid} cannot be in it")
    return row
