from __future__ import annotations

from uuid import UUID

from afterglow.format.offload_context import get_uuid
from afterglow.format.position import Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.offload.segments.edits import add_stub, commit_segment
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
