"""Ledger lists without the hot log, and ledger lists of a cluster with the segments of an attached Afterglow."""

from __future__ import annotations

from uuid import uuid4

from afterglow.format.objects import set_uuid
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.read.ranges import tiered_only, with_segments


def row(
    info: ManagedLedgerInfo, ledger_id: int, entries: int | None, *ends: int, whole: bool = False, last: bool = True
) -> None:
    """A ledger with segments up to some entries, of which the last may be on its way."""
    added = info.ledgerInfo.add(ledgerId=ledger_id)
    if entries is not None:
        added.entries = entries
    if whole:
        set_uuid(added.offloadContext, uuid4())
        added.offloadContext.complete = True
    for number, end in enumerate(ends):
        complete = last or number < len(ends) - 1
        set_uuid(added.offloadContext.offloadSegment.add(endEntryId=end, complete=complete), uuid4())


def shape(info: ManagedLedgerInfo) -> list[tuple[int, int, bool]]:
    return [(each.ledgerId, each.entries, each.offloadContext.bookkeeperDeleted) for each in info.ledgerInfo]


def test_ledgers_are_cut_to_what_a_tier_has() -> None:
    info = ManagedLedgerInfo()
    row(info, 1, 10, whole=True)
    row(info, 2, 10, 4, 9)
    row(info, 3, 10)
    row(info, 4, 10, 4, 9, last=False)
    row(info, 5, None, 3)
    row(info, 6, None)
    before = info.SerializeToString()
    assert shape(tiered_only(info)) == [(1, 10, True), (2, 10, True), (4, 5, True), (5, 4, True)]
    assert info.SerializeToString() == before


def test_a_trimmed_ledger_that_was_left_to_the_cluster_is_gone() -> None:
    theirs, ours = ManagedLedgerInfo(), ManagedLedgerInfo()
    row(theirs, 3, 10)
    row(ours, 1, 10)
    ours.ledgerInfo[0].offloadContext.complete = True
    row(ours, 2, 10, 9)
    assert [each.ledgerId for each in with_segments(theirs, ours).ledgerInfo] == [3, 2]


def test_segments_are_added_to_ledgers_that_the_cluster_has_not_offloaded_itself() -> None:
    theirs, ours = ManagedLedgerInfo(), ManagedLedgerInfo()
    for number in (3, 4, 5):
        row(theirs, number, 10, whole=number == 3)
    for number in (1, 2, 3, 4):
        row(ours, number, 10, 9)
    row(ours, 5, None, 3)
    row(ours, 6, None, 3)  # which the cluster's list does not know yet
    united = with_segments(theirs, ours)
    rows = {each.ledgerId: each for each in united.ledgerInfo}
    assert sorted(rows) == [1, 2, 3, 4, 5]
    assert rows[1].offloadContext.bookkeeperDeleted
    assert not rows[3].offloadContext.offloadSegment
    assert [segment.endEntryId for segment in rows[4].offloadContext.offloadSegment] == [9]
    assert not rows[4].offloadContext.bookkeeperDeleted
    assert (rows[5].entries, rows[5].offloadContext.offloadSegment[0].endEntryId) == (10, 3)
