"""Edits of the ledger list for segments, applied by compare-and-set.

Every edit is idempotent. The segments of a ledger are kept in the order of positions. ``complete`` of the ledger itself
is not set, so that a broker without support for segments reads the hot log. The protocol of which these edits are
steps, from assignment to commit, is in :mod:`afterglow.offload.segments.upload`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import OffloadConflict
from afterglow.format.objects import get_uuid, set_uuid
from afterglow.format.proto.managed_ledger_pb2 import OffloadSegment
from afterglow.offload.segments.uncovered import find_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadContext
    from afterglow.offload.segments.records import Coverage


def add_stub(info: ManagedLedgerInfo, *, uuid: UUID, begin: Position, assigned_ms: int) -> None:
    """Add an assigned segment to the ledger in which it begins. A failed whole-ledger attempt is cleared.

    Raises:
        OffloadConflict: The ledger is not in the ledger list any more, or was offloaded whole meanwhile, or entries
            before the segment are not covered any more.
    """
    ledger = _find_ledger(info, begin.ledger_id, uuid)
    context = ledger.offloadContext
    if context.complete:
        raise OffloadConflict(f"ledger {ledger.ledgerId} is offloaded whole: segment {uuid} cannot begin in it")
    if any(get_uuid(item) == uuid for item in context.offloadSegment):
        return
    # If another segment is assigned, perhaps in an earlier ledger, only its record has the begin of the next one.
    settled = all(item.complete for other in info.ledgerInfo for item in other.offloadContext.offloadSegment)
    covered = max((item.endEntryId + 1 for item in context.offloadSegment), default=0)
    if settled and begin.entry_id != covered:
        raise OffloadConflict(
            f"segments hold {covered} entries of ledger {ledger.ledgerId}: segment {uuid} cannot begin at {begin}"
        )
    if not context.offloadSegment:
        context.Clear()
        set_uuid(context, uuid)
    set_uuid(context.offloadSegment.add(assignedTimestamp=assigned_ms), uuid)


def replace_stub(info: ManagedLedgerInfo, *, old: UUID, new: UUID, begin: Position) -> None:
    """Replace the UUID of an assigned segment whose upload was lost.

    Raises:
        OffloadConflict: The old UUID is not in the ledger list, or the segment is complete.
    """
    context = _find_ledger(info, begin.ledger_id, old).offloadContext
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
    """Mark a segment as complete, in every ledger of which it has entries.

    Raises:
        OffloadConflict: It is not assigned any more, or one of its ledgers is not in the ledger list any more.
    """
    first_ledger = _find_ledger(info, covered[0].ledger_id, uuid)
    if all(get_uuid(item) != uuid for item in first_ledger.offloadContext.offloadSegment):
        raise OffloadConflict(f"segment {uuid} is not assigned any more")
    for held in covered:
        context = _find_ledger(info, held.ledger_id, uuid).offloadContext
        items = [item for item in context.offloadSegment if get_uuid(item) != uuid]
        before = sum(item.complete and item.endEntryId < held.first for item in items)
        known = next((item for item in context.offloadSegment if get_uuid(item) == uuid and item.complete), None)
        segment = known or OffloadSegment(
            complete=True, assignedTimestamp=assigned_ms, offloadedTimestamp=offloaded_ms, endEntryId=held.last
        )
        set_uuid(segment, uuid)
        _replace(context, (*items[:before], segment, *items[before:]))
        # A segment that begins later may have been added before this one.
        if (first := get_uuid(context.offloadSegment[0])) is not None:
            set_uuid(context, first)


def remove_segment(info: ManagedLedgerInfo, *, uuid: UUID) -> None:
    """Remove a segment from the ledger list: it was given up, or its object is to be deleted."""
    for ledger in info.ledgerInfo:
        context = ledger.offloadContext
        kept = [item for item in context.offloadSegment if get_uuid(item) != uuid]
        if len(kept) == len(context.offloadSegment):
            continue
        _replace(context, kept)
        first = get_uuid(context.offloadSegment[0]) if context.offloadSegment else None
        if first is not None:
            set_uuid(context, first)
        elif not context.bookkeeperDeleted:
            ledger.ClearField("offloadContext")


def _replace(context: OffloadContext, items: Sequence[OffloadSegment]) -> None:
    # Copies: the items are views into the field that is cleared.
    copies = [OffloadSegment.FromString(item.SerializeToString()) for item in items]
    del context.offloadSegment[:]
    context.offloadSegment.extend(copies)


def _find_ledger(info: ManagedLedgerInfo, ledger_id: int, uuid: UUID) -> ManagedLedgerInfo.LedgerInfo:
    ledger = find_ledger(info, ledger_id)
    if ledger is None:
        raise OffloadConflict(f"ledger {ledger_id} is not in the ledger list any more: it cannot have segment {uuid}")
    return ledger
