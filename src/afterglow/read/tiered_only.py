"""A topic's list without what only the hot log has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.format.position import Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.ledger_list import offloaded_whole

if TYPE_CHECKING:
    from afterglow.format.proto.managed_ledger_pb2 import OffloadContext


def tiered_only(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
    """The same list as if the hot log were gone: of each ledger what a tier has from its first entry on.

    Segments are committed in order, so that nothing in a tier stands behind a hole of a ledger that is in segments.
    """
    left = ManagedLedgerInfo()
    left.CopyFrom(info)
    del left.ledgerInfo[:]
    for row in info.ledgerInfo:
        context = row.offloadContext
        entries = row.entries if context.complete else _covered(context)
        if entries:
            kept = left.ledgerInfo.add()
            kept.CopyFrom(row)
            kept.entries = entries
            kept.offloadContext.bookkeeperDeleted = True
    return left


def tiered_end(info: ManagedLedgerInfo) -> Position | None:
    """Where the first entry of a topic stands that no tier has; None where a tier has every ledger whole."""
    for row in sorted(info.ledgerInfo, key=lambda row: row.ledgerId):
        if not offloaded_whole(row):
            return Position(row.ledgerId, _covered(row.offloadContext))
    return None


def _covered(context: OffloadContext) -> int:
    """Entries of a ledger that complete segments hold, from its first one on."""
    entries = 0
    for segment in context.offloadSegment:
        if not segment.complete:
            break
        entries = segment.endEntryId + 1
    return entries
