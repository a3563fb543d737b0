"""Pending deletes by themselves: what is on record is carried out when nothing speaks against it, and only then."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore
from tests.support.ledgers import TOPIC
from tests.support.offloads import INSTANCE, OffloadWorld

from afterglow.format.objects import set_uuid
from afterglow.format.proto.afterglow_pb2 import DeleteRecord, SegmentRecord
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.metadata.paths import AfterglowPaths, managed_ledger_path
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.offload.pending_deletes import DeleteCounts, PendingDelete, PendingDeletes
from afterglow.tier.locations import location_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from afterglow.metadata.store import MetadataStore

PATHS = AfterglowPaths()


def pending_deletes(
    world: OffloadWorld,
    *,
    metadata: MetadataStore | None = None,
    writing: Callable[[str, UUID], bool] = lambda *_: False,
    ledger_list: Callable[[str], str] = managed_ledger_path,
) -> PendingDeletes:
    return PendingDeletes(
        metadata=metadata or world.metadata,
        paths=PATHS,
        policies=world.policies,
        tiers=world.tiers,
        clock=world.clock,
        instance=INSTANCE,
        is_writing=writing,
        ledger_list=ledger_list,
    )


def object_to_delete(world: OffloadWorld) -> PendingDelete:
    """A segment's object that no list names, in the tier."""
    pending = PendingDelete(uuid4(), world.own, None)
    world.tier.put(pending.key, b"data")
    return pending


def test_an_object_that_a_task_still_writes_is_deleted_only_afterwards(new_world: Callable[..., OffloadWorld]) -> None:
    """A part that came after the deletion would be left over, and named by nothing."""
    world = new_world()
    world.topic(1)
    pending = object_to_delete(world)
    written = {pending.uuid}
    found = pending_deletes(world, writing=lambda _, uuid: uuid in written)
    found.record(TOPIC, pending, "for a test")
    assert found.carry_out(TOPIC) == DeleteCounts(waiting=1)
    assert world.objects() == [pending.key]
    written.clear()
    assert found.carry_out(TOPIC) == DeleteCounts(done=1)
    assert world.objects() == []


def test_an_intent_of_unknown_outcome_is_recorded_in_the_end(new_world: Callable[..., OffloadWorld]) -> None:
    for fault in (Fault.LOST, Fault.ERROR_AFTER):
        world = new_world()
        world.topic(1)
        pending = PendingDelete(uuid4(), world.own, None)
        faulty = FaultyMetadataStore(world.metadata, [FaultRule(fault, frozenset({"put"}))])
        pending_deletes(world, metadata=faulty).record(TOPIC, pending, "for a test")
        assert world.intents() == (str(pending.uuid),)


@pytest.mark.parametrize("jump_ms", [7_200_000, -7_200_000])
def test_an_intent_outlives_a_jump_of_the_clock(new_world: Callable[..., OffloadWorld], jump_ms: int) -> None:
    """An upload that did not exist, or was not listed, at the first attempt is aborted at the second."""
    world = new_world()
    world.topic(1)
    pending = PendingDelete(uuid4(), world.own, None, unfinished=True)
    found = pending_deletes(world)
    found.record(TOPIC, pending, "for a test")
    assert found.carry_out(TOPIC) == DeleteCounts(kept=1)
    world.clock.set_now_ms(world.clock.now_ms() + jump_ms)
    assert found.carry_out(TOPIC) == DeleteCounts(kept=1)
    world.tier.create_upload(pending.key)
    world.clock.advance(600)
    assert found.carry_out(TOPIC) == DeleteCounts(done=1)
    assert world.tier.list_uploads() == ()


def test_an_intent_that_names_the_key_of_another_object_deletes_nothing() -> None:
    world = OffloadWorld()  # not checked at the end: the intent stays
    world.topic(1)
    other = object_to_delete(world)
    pending = PendingDelete(uuid4(), world.own, None)
    found = pending_deletes(world)
    found.record(TOPIC, pending, "for a test")
    path = PATHS.delete(TOPIC, pending.uuid)
    node = world.metadata.get(path)
    assert node is not None
    record = DeleteRecord.FromString(node.value)
    record.location.key = other.key
    world.metadata.put(path, record.SerializeToString(), node.version)
    assert found.carry_out(TOPIC) == DeleteCounts(failed=1)
    assert world.objects() == [other.key]
    assert world.intents() == (str(pending.uuid),)


def test_objects_of_an_attached_topic_are_judged_by_our_copy_of_its_ledger_list() -> None:
    """The cluster's own list is in another store, or names none of our segments."""
    world = OffloadWorld()  # not checked at the end: no list is at the server's path
    info = ManagedLedgerInfo()
    pending = object_to_delete(world)
    segment = info.ledgerInfo.add(ledgerId=3, entries=1).offloadContext.offloadSegment.add(complete=True)
    set_uuid(segment, pending.uuid)
    world.metadata.put(PATHS.managed_ledger(TOPIC), info.SerializeToString(), MUST_NOT_EXIST)
    record = SegmentRecord(version=1, uuid=str(pending.uuid), location=location_record(world.own, pending.key))
    world.metadata.put(PATHS.segment(TOPIC, pending.uuid), record.SerializeToString(), MUST_NOT_EXIST)
    found = pending_deletes(world, ledger_list=PATHS.managed_ledger)
    assert not list(found.names())
    assert found.carry_out(TOPIC) == DeleteCounts()
    found.record(TOPIC, pending, "for a test")
    assert found.carry_out(TOPIC) == DeleteCounts(waiting=1)
    assert world.objects() == [pending.key]
