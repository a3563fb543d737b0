from __future__ import annotations

from uuid import UUID

import pytest

from afterglow.errors import OffloadConflict
from afterglow.format.objects import get_uuid
from afterglow.format.position import Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.offload.segments.edits import add_stub, commit_segment, replace_stub
from afterglow.offload.segments.records import Coverage

FIRST, SECOND = UUID(int=1), UUID(int=2)


def test_a_ledger_names_its_first_segment_also_where_the_second_was_assigned_before_the_first_reached_it() -> None:
    info = ManagedLedgerInfo(ledgerInfo=[ManagedLedgerInfo.LedgerInfo(ledgerId=number) for number in (7, 8)])
    add_stub(info, uuid=FIRST, begin=Position(7, 0), assigned_ms=1)
    add_stub(info, uuid=SECOND, begin=Position(8, 5), assigned_ms=1)
    commit_segment(info, uuid=FIRST, covered=(Coverage(7, 0, 9), Coverage(8, 0, 4)), assigned_ms=1, offloaded_ms=2)
    commit_segment(info, uuid=SECOND, covered=(Coverage(8, 5, 9),), assigned_ms=1, offloaded_ms=2)
    context = info.ledgerInfo[1].offloadContext
    assert [get_uuid(item) for item in context.offloadSegment] == [FIRST, SECOND]
    assert get_uuid(context) == FIRST


def one_ledger() -> ManagedLedgerInfo:
    return ManagedLedgerInfo(ledgerInfo=[ManagedLedgerInfo.LedgerInfo(ledgerId=7)])


def commit(info: ManagedLedgerInfo, uuid: UUID) -> None:
    commit_segment(info, uuid=uuid, covered=(Coverage(7, 0, 9),), assigned_ms=1, offloaded_ms=2)


def test_no_segment_begins_in_a_ledger_that_has_an_object_of_its_own() -> None:
    info = one_ledger()
    info.ledgerInfo[0].offloadContext.complete = True
    with pytest.raises(OffloadConflict, match="is offloaded whole"):
        add_stub(info, uuid=FIRST, begin=Position(7, 0), assigned_ms=1)
    assert not info.ledgerInfo[0].offloadContext.offloadSegment


def test_a_segment_that_the_list_does_not_name_is_not_committed() -> None:
    info = one_ledger()
    add_stub(info, uuid=FIRST, begin=Position(7, 0), assigned_ms=1)
    with pytest.raises(OffloadConflict, match="not assigned any more"):
        commit(info, SECOND)
    assert not any(item.complete for item in info.ledgerInfo[0].offloadContext.offloadSegment)


def test_a_committed_segment_is_not_replaced_by_another() -> None:
    info = one_ledger()
    add_stub(info, uuid=FIRST, begin=Position(7, 0), assigned_ms=1)
    commit(info, FIRST)
    with pytest.raises(OffloadConflict, match="not assigned any more"):
        replace_stub(info, old=FIRST, new=SECOND, begin=Position(7, 0))
    assert [get_uuid(item) for item in info.ledgerInfo[0].offloadContext.offloadSegment] == [FIRST]
