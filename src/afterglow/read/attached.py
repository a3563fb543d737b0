"""A cluster's own list of ledgers together with that of an Afterglow that is attached to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.read.tiered_only import tiered_only

if TYPE_CHECKING:
    from collections.abc import Mapping

    LedgerInfo = ManagedLedgerInfo.LedgerInfo


def with_segments(theirs: ManagedLedgerInfo, ours: ManagedLedgerInfo) -> ManagedLedgerInfo:
    """The cluster's list with the segments that we have written of its ledgers.

    A ledger that the cluster itself has offloaded is read from its own object. One that it has dropped since is there
    as far as segments hold it.
    """
    united = ManagedLedgerInfo()
    united.CopyFrom(theirs)
    known: Mapping[int, LedgerInfo] = {row.ledgerId: row for row in ours.ledgerInfo}
    for row in united.ledgerInfo:
        segments = known[row.ledgerId].offloadContext.offloadSegment if row.ledgerId in known else ()
        if segments and not row.offloadContext.complete:
            del row.offloadContext.offloadSegment[:]
            row.offloadContext.offloadSegment.extend(segments)
    first = min((row.ledgerId for row in theirs.ledgerInfo), default=1 << 63)
    for row in tiered_only(ours).ledgerInfo:
        if row.ledgerId < first:
            united.ledgerInfo.add().CopyFrom(row)
    return united
