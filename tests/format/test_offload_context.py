from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from afterglow.format.offload_context import get_uuid, ledger_uuid, named_uuids, set_uuid
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadContext


@given(st.uuids())
def test_a_uuid_is_stored_as_java_stores_it(uuid: UUID) -> None:
    context = OffloadContext()
    assert get_uuid(context) is None
    set_uuid(context, uuid)
    assert get_uuid(OffloadContext.FromString(context.SerializeToString())) == uuid
    assert context.uidMsb == int.from_bytes(uuid.bytes[:8], "big", signed=True)
    assert context.uidLsb == int.from_bytes(uuid.bytes[8:], "big", signed=True)


def test_a_list_names_objects_of_ledgers_and_of_segments_complete_or_not() -> None:
    info = ManagedLedgerInfo()
    whole, segmented, plain = (info.ledgerInfo.add(ledgerId=number) for number in range(3))
    set_uuid(whole.offloadContext, UUID(int=1))
    set_uuid(segmented.offloadContext, UUID(int=2))
    set_uuid(segmented.offloadContext.offloadSegment.add(complete=True), UUID(int=2))
    set_uuid(segmented.offloadContext.offloadSegment.add(), UUID(int=3))
    assert named_uuids(info) == {UUID(int=1), UUID(int=2), UUID(int=3)}
    assert [ledger_uuid(row) for row in (whole, segmented, plain)] == [UUID(int=1), None, None]
