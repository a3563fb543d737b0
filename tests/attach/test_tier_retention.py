"""Retention of the tier: what the cluster has trimmed is kept for as long as the policy says, and no longer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest
from tests.support.attached_world import TOPIC, AttachedWorld
from tests.support.crash_points import Crashed, CrashingMetadataStore, CrashPoint

from afterglow.attach.policies import AttachPolicies, read_policy_file
from afterglow.attach.tier_retention import expired_ledgers, retention_of
from afterglow.config import BrokerConfig
from afterglow.errors import Fenced, TopicClosed, TopicMissing
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.objects import named_uuids, set_uuid
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.retention import Retention
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.ownership import take_ownership

if TYPE_CHECKING:
    from pathlib import Path

HOUR: Final = BrokerConfig(tier_retention_time_in_minutes=60)
TWO_MIB: Final = BrokerConfig(tier_retention_size_in_mb=2)
AS_LONG_AS_THE_CLUSTER: Final = BrokerConfig(tier_retention_time_in_minutes=0)


def streamed(config: BrokerConfig, *, trimmed: int = 2) -> tuple[AttachedWorld, list[UUID]]:
    """A topic with ledgers 1 to 4 in one segment each, of which the cluster has trimmed some, and ledger 5 open."""
    world = AttachedWorld(config)
    world.write((1, 10), (2, 10), (3, 10), (4, 10), (5, None))
    world.follow()
    segments = [world.segment((ledger_id, 9)) for ledger_id in (1, 2, 3, 4)]
    world.write(*((ledger_id, 10) for ledger_id in range(trimmed + 1, 5)), (5, None))
    world.follow()
    return world, segments


def check(world: AttachedWorld) -> None:
    world.retention.check()
    world.run()


def test_by_default_the_tier_keeps_everything_that_the_cluster_trims() -> None:
    world, segments = streamed(BrokerConfig())
    world.clock.advance(10 * 365 * 86_400)
    check(world)
    assert world.ids() == [1, 2, 3, 4, 5]
    assert world.objects() == set(map(str, segments))


def test_what_the_cluster_has_trimmed_stays_until_it_is_older_than_the_retention_time() -> None:
    world, segments = streamed(HOUR)
    world.clock.advance(3600)
    check(world)
    assert world.objects() == set(map(str, segments))
    world.clock.advance(1)
    check(world)
    assert world.ids() == [3, 4, 5]
    assert world.objects() == {str(segments[2]), str(segments[3])}


def test_the_newest_ledgers_up_to_the_retention_size_stay() -> None:
    world, segments = streamed(TWO_MIB, trimmed=3)
    check(world)
    assert world.ids() == [3, 4, 5]
    assert world.objects() == {str(segments[2]), str(segments[3])}


def test_what_the_cluster_still_has_is_never_deleted() -> None:
    world, segments = streamed(AS_LONG_AS_THE_CLUSTER, trimmed=1)
    world.clock.advance(86_400)
    check(world)
    assert world.ids() == [2, 3, 4, 5]
    assert world.objects() == set(map(str, segments[1:]))


def test_a_segment_stays_while_any_ledger_of_the_list_is_in_it() -> None:
    world = AttachedWorld(AS_LONG_AS_THE_CLUSTER)
    world.write((1, 10), (2, 10), (3, None))
    world.follow()
    segment = world.segment((1, 9), (2, 9))
    world.write((2, 10), (3, None))
    world.follow()
    world.clock.advance(1)
    check(world)
    assert world.ids() == [2, 3]
    assert world.objects() == {str(segment)}
    world.write((3, None))
    world.follow()
    check(world)
    assert world.ids() == [3]
    assert world.objects() == set()


def test_a_ledger_that_was_removed_is_not_taken_again_from_an_older_list() -> None:
    """A server of ZooKeeper may lag behind the one that was read before."""
    world, segments = streamed(HOUR)
    world.clock.advance(3601)
    check(world)
    world.write((1, 10), (2, 10), (3, 10), (4, 10), (5, None))
    world.follow()
    assert world.ids() == [3, 4, 5]
    assert world.objects() == {str(segments[2]), str(segments[3])}


def test_a_ledger_whose_end_was_never_known_is_as_old_as_its_segment() -> None:
    info = ManagedLedgerInfo()
    ledger = info.ledgerInfo.add(ledgerId=1, entries=5)
    ledger.offloadContext.bookkeeperDeleted = True
    ledger.offloadContext.offloadSegment.add(complete=True, endEntryId=4, offloadedTimestamp=1_000)
    retention = Retention(time_ms=500, size_bytes=-1)
    assert expired_ledgers(info, retention, 1_500) == []
    assert expired_ledgers(info, retention, 1_501) == [1]
    del ledger.offloadContext.offloadSegment[:]
    assert expired_ledgers(info, retention, 1_501) == []


def test_a_ledger_with_an_uncommitted_segment_stays() -> None:
    info = ManagedLedgerInfo()
    for ledger_id in (1, 2, 3):
        ledger = info.ledgerInfo.add(ledgerId=ledger_id, entries=5, timestamp=1)
        ledger.offloadContext.bookkeeperDeleted = True
        ledger.offloadContext.offloadSegment.add(complete=ledger_id != 2, endEntryId=4)
        set_uuid(ledger.offloadContext.offloadSegment[0], UUID(int=ledger_id))
    assert expired_ledgers(info, Retention.of(0, 0), 10) == [1]


# --- topics that the cluster has deleted ------------------------------------------------------------------------------


def deleted(config: BrokerConfig) -> tuple[AttachedWorld, list[UUID]]:
    """The topic of :func:`streamed`, after the cluster has deleted it and the process has stopped following it."""
    world, segments = streamed(config)
    world.delete()
    world.topics.close(TOPIC)
    return world, segments


def test_the_segments_of_a_deleted_topic_stay_for_ever_by_default() -> None:
    world, segments = deleted(BrokerConfig())
    world.clock.advance(10 * 365 * 86_400)
    check(world)
    assert world.objects() == set(map(str, segments))
    world.boot()
    world.run()
    assert world.objects() == set(map(str, segments))


def test_a_deleted_topic_is_removed_with_all_its_records_once_it_is_past_retention() -> None:
    world, segments = deleted(HOUR)
    check(world)
    assert world.objects() == set(map(str, segments))
    world.clock.advance(3601)
    check(world)
    assert world.objects() == set()
    for kind in ("managed-ledgers", "segments", "deletes", "uploads"):
        assert world.metadata.get(f"{world.paths.root}/{kind}/{TOPIC}") is None, kind


def test_a_deleted_topic_of_which_nothing_is_in_the_tier_is_removed() -> None:
    world = AttachedWorld(HOUR)
    world.write((1, None))
    world.follow()
    world.delete()
    world.topics.close(TOPIC)
    check(world)
    assert world.metadata.get(world.paths.managed_ledger(TOPIC)) is None


def test_a_topic_outside_the_pattern_of_the_process_is_left_alone() -> None:
    world, segments = streamed(HOUR)
    world.topics.close(TOPIC)
    world.clock.advance(86_400)
    check(world)
    assert world.objects() == set(map(str, segments))


def test_a_topic_that_is_created_anew_keeps_what_was_to_be_removed() -> None:
    world, _ = deleted(HOUR)
    world.write((7, None))
    with pytest.raises(TopicClosed):
        world.topics.update_deleted(TOPIC, lambda info: info.Clear())
    assert world.ids() == [1, 2, 3, 4, 5]
    world.follow()
    with pytest.raises(TopicClosed):
        world.topics.update_deleted(TOPIC, lambda info: info.Clear())


def test_a_topic_that_was_never_attached_has_no_retention() -> None:
    with pytest.raises(TopicMissing):
        AttachedWorld(HOUR).retention.check_topic(TOPIC)


# --- crashes, owners, policies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_crash_at_any_step_loses_no_object_and_leaves_none(is_deleted: bool) -> None:  # noqa: FBT001
    """The process ends before each change of metadata in turn."""
    number, is_crashed = 0, True
    while is_crashed:
        world, segments = (deleted if is_deleted else streamed)(HOUR)
        world.clock.advance(3601)
        inner = world.metadata
        world.metadata = store = CrashingMetadataStore(inner)
        restart(world, follow=not is_deleted)
        store.before = CrashPoint(number)
        try:
            check(world)
            is_crashed = False
        except Crashed:
            number += 1
        listed = inner.get(world.paths.managed_ledger(TOPIC))
        named = set() if listed is None else named_uuids(parse_managed_ledger(listed.value))
        assert {str(uuid) for uuid in named} <= world.objects(), number
        world.metadata = inner
        restart(world, follow=not is_deleted)
        check(world)
        check(world)
        assert world.objects() == (set() if is_deleted else {str(segments[2]), str(segments[3])}), number
        assert inner.children(world.paths.deletes(TOPIC)) == (), number
    assert number > 5


def restart(world: AttachedWorld, *, follow: bool) -> None:
    world.boot()
    if follow:
        world.follow()


def test_a_process_that_was_replaced_deletes_nothing() -> None:
    metadata = MemoryMetadataStore()
    world = AttachedWorld(HOUR, metadata=take_ownership(metadata, "/afterglow/lab/owners", UUID(int=1)))
    world.write((1, 10), (2, None))
    world.follow()
    segment = world.segment((1, 9))
    world.write((2, None))
    world.follow()
    take_ownership(metadata, "/afterglow/lab/owners", UUID(int=2))
    world.clock.advance(3601)
    with pytest.raises(Fenced):
        world.retention.check()
    world.run()
    assert world.objects() == {str(segment)}


def test_one_topic_that_cannot_be_checked_does_not_keep_others_from_it(caplog: pytest.LogCaptureFixture) -> None:
    world, segments = streamed(HOUR)
    world.write((1, 10), (2, None), name="public/default/persistent/broken")
    world.follow("public/default/persistent/broken")
    world.topics.close("public/default/persistent/broken")
    path = world.paths.managed_ledger("public/default/persistent/broken")
    found = world.metadata.get(path)
    assert found is not None
    world.metadata.put(path, b"\x0a\x7f", found.version)
    world.delete("public/default/persistent/broken")
    world.clock.advance(3601)
    with caplog.at_level(logging.WARNING):
        check(world)
    assert world.objects() == {str(segments[2]), str(segments[3])}
    assert "public/default/persistent/broken is applied later" in caplog.text


def test_the_policy_file_sets_the_retention_by_pattern(tmp_path: Path) -> None:
    path = tmp_path / "attach.toml"
    path.write_text(
        '[policies]\ntierRetentionTimeInMinutes = "90d"\n'
        '[topics."public/default/orders.*"]\ntierRetentionTimeInMinutes = -1\ntierRetentionSizeInMB = "1G"\n'
    )
    policies = AttachPolicies(BrokerConfig(), read_policy_file(path))
    assert retention_of(policies.of(TOPIC)) == Retention(-1, 1 << 30)
    assert retention_of(policies.of("public/default/persistent/clicks")) == Retention(90 * 86_400_000, -1)
    assert str(policies.of(TOPIC).origin("tierRetentionSizeInMB")) == 'attach.toml [topics."public/default/orders.*"]'
