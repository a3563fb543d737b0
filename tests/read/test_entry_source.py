"""The copy that serves, for every combination of format, priority and fault; counts, log lines and skipped entries."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.faults import Fault, FaultRule, FaultyStore
from tests.support.read_world import ReadWorld, random_entries

from afterglow.config import BrokerConfig
from afterglow.config.choices import DamagePolicy, ReadPriority
from afterglow.errors import (
    AfterglowError,
    CorruptBlock,
    CorruptIndex,
    CorruptMetadata,
    IndexMissing,
    LedgerMissing,
    MissingDependency,
    ObjectMissing,
    StoreUnavailable,
    WrongLength,
    WrongVersion,
)
from afterglow.format.frames import iter_entries
from afterglow.format.objects import FORMAT_VERSION_KEY, INDEX_SUFFIX
from afterglow.read.copies import StorageTier
from afterglow.read.ranges import offloaded_range_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

MIB = 1 << 20
COUNT = 3_000
HOT_FIRST, TIERED_FIRST = ReadPriority.BOOKKEEPER_FIRST, ReadPriority.TIERED_STORAGE_FIRST


@pytest.fixture
def world() -> Iterator[ReadWorld]:
    made = ReadWorld()
    yield made
    made.tiers.close()


def location(world: ReadWorld, kind: str) -> tuple[ManagedLedgerInfo.LedgerInfo, str]:
    """A ledger of some 3 MB in the hot log and, unless ``hot``, in an object; returns the object's key."""
    row = world.add(random_entries([1_000] * COUNT))
    if kind == "V1":
        return row, world.offload_v1(row)
    if kind == "V2":
        return row, world.offload_v2([(row, 0, COUNT - 1)])
    return row, ""


def read(world: ReadWorld, row: ManagedLedgerInfo.LedgerInfo, *, scan: bool) -> dict[StorageTier, list[int]]:
    """Read all of a ledger, see that it is right; returns the ids that each tier served."""
    runs = list(world.source.scan(row, 0, COUNT - 1) if scan else world.source.walk(row, 0, COUNT - 1, 100_000))
    found = [(at, bytes(data)) for one in runs for at, data in iter_entries(one.run.data, one.run.frames)]
    assert found == list(enumerate(world.entries[row.ledgerId]))
    served: dict[StorageTier, list[int]] = {tier: [] for tier in StorageTier}
    for one in runs:
        served[one.tier] += range(one.run.frames.first_entry_id, one.run.frames.end_entry_id)
    counts = world.counters.counts()
    assert counts.entries == {tier: len(ids) for tier, ids in served.items() if ids}
    assert counts.bytes == {tier: 1_000 * len(ids) for tier, ids in served.items() if ids}
    return served


@pytest.mark.parametrize("scan", [False, True], ids=["read", "scan"])
@pytest.mark.parametrize("fault", ["both copies", "hot copy deleted", "object missing", "object damaged"])
@pytest.mark.parametrize("priority", [HOT_FIRST, TIERED_FIRST])
@pytest.mark.parametrize("kind", ["V1", "V2", "hot"])
def test_the_data_is_right_and_the_named_tier_serves(
    world: ReadWorld, kind: str, priority: ReadPriority, fault: str, *, scan: bool
) -> None:
    row, key = location(world, kind)
    world.policy = BrokerConfig(managed_ledger_offloaded_read_priority=priority)
    if fault == "hot copy deleted":
        world.free(row, listed=False)
    elif fault == "object missing":
        world.store.delete([key, key + INDEX_SUFFIX] if key else [])
    elif fault == "object damaged" and key:
        world.damage(key, MIB + 500)  # in the second stripe, or block
    if kind == "hot":
        if fault == "hot copy deleted":
            with pytest.raises(LedgerMissing):
                read(world, row, scan=scan)
            return
        assert read(world, row, scan=scan)[StorageTier.HOT] == list(range(COUNT))
        assert not world.counters.counts().fallbacks
        return
    served = read(world, row, scan=scan)
    fallbacks = world.counters.counts().fallbacks
    wanted = StorageTier.HOT if priority is HOT_FIRST else StorageTier.TIERED
    if fault == "object damaged" and wanted is StorageTier.TIERED:
        # A megabyte, and the entries that lie across its borders.
        assert 1_000 <= len(served[StorageTier.HOT]) <= 1_100
        assert set(fallbacks) == {(StorageTier.TIERED, "damaged")}
    elif fault == "hot copy deleted" and wanted is StorageTier.HOT:
        assert served[StorageTier.TIERED] == list(range(COUNT))
        assert set(fallbacks) == {(StorageTier.HOT, "gone")}
    elif fault == "object missing" and wanted is StorageTier.TIERED:
        assert served[StorageTier.HOT] == list(range(COUNT))
        assert set(fallbacks) == {(StorageTier.TIERED, "object_missing")}
    else:
        assert served[wanted] == list(range(COUNT))
        assert not fallbacks


def test_a_deleted_hot_copy_is_not_logged(world: ReadWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world.policy = BrokerConfig(managed_ledger_offloaded_read_priority=HOT_FIRST)
    for listed in (True, False):
        row, _ = location(world, "V1")
        world.free(row, listed=listed)
        assert world.source.read(row, 0, COUNT - 1, 10_000).entries
    assert not caplog.records


def test_a_missing_object_is_logged_once(world: ReadWorld, caplog: pytest.LogCaptureFixture) -> None:
    row, key = location(world, "V1")
    world.store.delete([key])
    read(world, row, scan=False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert key in caplog.text
    assert world.counters.counts().fallbacks[StorageTier.TIERED, "object_missing"] > 1


def test_a_change_of_priority_takes_effect_on_an_open_reader(world: ReadWorld) -> None:
    row, _ = location(world, "V1")
    runs = world.source.walk(row, 0, COUNT - 1, 10_000)
    assert next(runs).tier is StorageTier.TIERED
    world.policy = BrokerConfig(managed_ledger_offloaded_read_priority=HOT_FIRST)
    assert next(runs).tier is StorageTier.HOT
    assert next(world.source.walk(row, 0, 0, 1, TIERED_FIRST)).tier is StorageTier.TIERED


def test_a_ledger_is_read_from_its_segments_and_the_rest_from_the_hot_log(world: ReadWorld) -> None:
    first, second = world.add(random_entries([100] * 50)), world.add(random_entries([100] * 50, 1))
    world.offload_v2([(first, 0, 19)])
    world.offload_v2([(first, 20, 49), (second, 0, 9)], recorded=False)
    unfinished = second.offloadContext.offloadSegment.add()
    unfinished.uidMsb = unfinished.uidLsb = 1
    for row, tiered in ((first, 50), (second, 10)):
        for runs in (world.source.walk(row, 0, 49, 700), world.source.scan(row, 0, 49)):
            found = [(one.tier, bytes(data)) for one in runs for _, data in iter_entries(one.run.data, one.run.frames)]
            assert [data for _, data in found] == world.entries[row.ledgerId]
            assert [tier for tier, _ in found] == [StorageTier.TIERED] * tiered + [StorageTier.HOT] * (50 - tiered)


# --- errors -----------------------------------------------------------------------------------------------------------


def rewrite_version(world: ReadWorld, key: str) -> None:
    metadata = dict(world.store.head(key).metadata) | {FORMAT_VERSION_KEY: "2"}
    world.store.put(key, world.store.get(key), metadata=metadata)


FAILURES: dict[str, tuple[Callable[[ReadWorld, str], None], type[AfterglowError], str]] = {
    "object missing": (lambda world, key: world.store.delete([key]), ObjectMissing, "object_missing"),
    "index missing": (lambda world, key: world.store.delete([key + INDEX_SUFFIX]), IndexMissing, "index_missing"),
    "index damaged": (lambda world, key: world.damage(key + INDEX_SUFFIX, 0), CorruptIndex, "damaged"),
    "another version": (rewrite_version, WrongVersion, "wrong_version"),
    "truncated": (lambda world, key: world.truncate(key, 2 * MIB), WrongLength, "damaged"),
    "damaged": (lambda world, key: world.damage(key, 1_000), CorruptBlock, "damaged"),
}


@pytest.mark.parametrize("scan", [False, True], ids=["read", "scan"])
@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("kind", ["V1", "V2"])
def test_each_failure_has_an_error_that_names_the_object(world: ReadWorld, kind: str, name: str, *, scan: bool) -> None:
    row, key = location(world, kind)
    spoil, error, reason = FAILURES[name]
    spoil(world, key)
    hot = read(world, row, scan=scan)
    assert hot[StorageTier.HOT]
    assert set(world.counters.counts().fallbacks) == {(StorageTier.TIERED, reason)}
    world.free(row)
    with pytest.raises(error, match=key):
        read(world, row, scan=scan)


def test_entries_of_an_uncommitted_segment_are_not_read_from_a_tier(world: ReadWorld) -> None:
    row = world.add(random_entries([10] * 6))
    world.offload_v2([(row, 0, 2)])
    world.offload_v2([(row, 3, 5)])
    found = offloaded_range_at(row, 4)
    assert found is not None
    assert (found.first, found.last) == (3, 5)
    row.offloadContext.offloadSegment[1].complete = False
    assert offloaded_range_at(row, 4) is None
    assert offloaded_range_at(row, 2) is not None


def test_a_message_of_damage_names_block_and_position(world: ReadWorld) -> None:
    row, key = location(world, "V1")
    world.damage(key, 2 * MIB + 10)
    world.free(row)
    with pytest.raises(CorruptBlock, match=rf"{key}.*block 0 at 0, from entry {row.ledgerId}:0 on.*{2 * MIB} to"):
        read(world, row, scan=False)


def test_a_store_that_is_down_is_left_alone_while_the_hot_log_serves(world: ReadWorld) -> None:
    row, _ = location(world, "V1")
    faulty = FaultyStore(world.counting.inner, [FaultRule(Fault.ERROR_BEFORE, times=None)])
    world.counting.inner = faulty
    for _ in range(3):
        assert world.source.read(row, 0, 9, 10**6).entries == world.entries[row.ledgerId][:10]
    assert world.counting.counts()["head"].requests == 1
    assert world.counters.counts().fallbacks == {(StorageTier.TIERED, "unreachable"): 3}
    world.clock.advance(60)
    world.source.read(row, 0, 9, 10**6)
    assert world.counting.counts()["head"].requests == 2
    world.free(row)
    world.policy = BrokerConfig(damaged_data_policy=DamagePolicy.SKIP_AND_REPORT)
    with pytest.raises(StoreUnavailable):  # an unreachable store is not damage, whatever the damage policy
        world.source.read(row, 0, 9, 10**6)


def test_what_is_not_in_metadata_is_an_error_of_its_own(world: ReadWorld) -> None:
    row, _ = location(world, "V1")
    world.free(row)
    row.offloadContext.driverMetadata.name = "tape"
    with pytest.raises(MissingDependency, match="driver 'tape' is not installed"):
        world.source.read(row, 0, 0, 1)
    segment, _ = location(world, "V2")
    world.free(segment)
    segment.offloadContext.offloadSegment[0].uidLsb += 1
    with pytest.raises(CorruptMetadata, match="record"):
        world.source.read(segment, 0, 0, 1)


# --- leaving out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scan", [False, True], ids=["read", "scan"])
@pytest.mark.parametrize("kind", ["V1", "V2"])
def test_exactly_the_entries_of_a_damaged_stripe_are_skipped(world: ReadWorld, kind: str, *, scan: bool) -> None:
    row, key = location(world, kind)
    world.damage(key, MIB + 500)
    world.free(row)
    world.policy = BrokerConfig(damaged_data_policy=DamagePolicy.SKIP_AND_REPORT)
    runs = world.source.scan(row, 0, COUNT - 1) if scan else world.source.walk(row, 0, COUNT - 1, 10_000)
    found = {at: bytes(data) for one in runs for at, data in iter_entries(one.run.data, one.run.frames)}
    # Frames have 1,012 bytes and begin after the header of 128.
    if kind == "V1":
        lost = {at for at in range(COUNT) if 128 + 1_012 * (at + 1) > MIB and 128 + 1_012 * at < 2 * MIB}
    else:
        fit = (MIB - 128) // 1_012
        lost = set(range(fit, 2 * fit))
    assert found == {at: data for at, data in enumerate(world.entries[row.ledgerId]) if at not in lost}
    assert world.counters.counts().skipped == {"damaged": len(lost)}


@pytest.mark.parametrize("scan", [False, True], ids=["read", "scan"])
def test_what_a_truncated_object_still_has_is_given(world: ReadWorld, *, scan: bool) -> None:
    row, key = location(world, "V1")
    world.truncate(key, 2 * MIB + 1)
    world.free(row)
    world.policy = BrokerConfig(damaged_data_policy=DamagePolicy.SKIP_AND_REPORT)
    runs = list(world.source.scan(row, 0, COUNT - 1) if scan else world.source.walk(row, 0, COUNT - 1, 10_000))
    assert runs[-1].run.frames.end_entry_id == (2 * MIB - 128) // 1_012


def test_all_entries_of_a_missing_object_are_skipped_and_logged(
    world: ReadWorld, caplog: pytest.LogCaptureFixture
) -> None:
    row = world.add(random_entries([100] * 30))
    keys = [world.offload_v2([(row, 0, 9)]), world.offload_v2([(row, 10, 19)])]
    world.free(row, listed=False)
    world.store.delete([keys[0]])
    world.policy = BrokerConfig(damaged_data_policy=DamagePolicy.SKIP_AND_REPORT)
    run = world.source.read(row, 3, 19, 10**6)
    assert (run.first, list(run.entries)) == (10, world.entries[row.ledgerId][10:20])
    assert "3 to 9 are skipped" in caplog.text
    world.store.delete([keys[1]])
    fresh = ReadWorld(policy=world.policy, info=world.info, hot=world.hot, metadata=world.metadata)
    fresh.counting.inner = world.store
    assert fresh.source.read(row, 3, 15, 10**6).first == 20 - 4
    assert not fresh.source.read(row, 3, 15, 10**6).entries
    # Entries that only the hot log had may have been offloaded since the list was read: they are never skipped.
    with pytest.raises(LedgerMissing):
        fresh.source.read(row, 25, 29, 10**6)
    fresh.tiers.close()


def test_nothing_is_skipped_without_the_policy_to_skip(world: ReadWorld) -> None:
    row, key = location(world, "V1")
    world.damage(key, MIB + 500)
    world.free(row)
    assert world.policy.damaged_data_policy is DamagePolicy.FAIL
    with pytest.raises(AfterglowError):
        read(world, row, scan=True)
    assert not world.counters.counts().skipped


def test_a_policy_is_asked_at_every_read(world: ReadWorld) -> None:
    row, key = location(world, "V2")
    world.damage(key, 500)
    world.free(row)
    with pytest.raises(CorruptBlock):
        world.source.read(row, 0, COUNT - 1, 1)
    world.policy = replace(world.policy, damaged_data_policy=DamagePolicy.SKIP_AND_REPORT)
    assert world.source.read(row, 0, COUNT - 1, 1).first > 0
