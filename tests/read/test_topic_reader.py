"""One reader over V1, V2, hot and open ledgers of a topic: in order, for any range, while ledgers are offloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.read_world import TOPIC, ReadWorld, random_entries

from afterglow.config.choices import ReadPriority
from afterglow.errors import LedgerMissing
from afterglow.format.frames import iter_entries
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.hot.local.log import LocalLog
from afterglow.read.copies import StorageTier
from afterglow.read.hot_readers import SharedHotLog
from afterglow.read.topic_reader import TopicReader, TopicView

if TYPE_CHECKING:
    from pathlib import Path


def mixed(world: ReadWorld) -> dict[Position, tuple[StorageTier, bytes]]:
    """Six ledgers in every state; returns the position of each entry, and the copy that should serve it."""
    rows = [world.add(random_entries([50] * 40, seed)) for seed in range(5)]
    rows.append(world.add(random_entries([50] * 10, 5), closed=False))
    world.offload_v1(rows[0])
    world.free(rows[0])
    world.offload_v2([(rows[1], 0, 39), (rows[2], 0, 14)])
    world.free(rows[1])
    world.offload_v2([(rows[2], 15, 29)])
    world.offload_v1(rows[3], statistics=False)
    tiered = {rows[0].ledgerId: 40, rows[1].ledgerId: 40, rows[2].ledgerId: 30, rows[3].ledgerId: 40}
    return {
        Position(row.ledgerId, at): (StorageTier.TIERED if at < tiered.get(row.ledgerId, 0) else StorageTier.HOT, data)
        for row in rows
        for at, data in enumerate(world.entries[row.ledgerId])
    }


def found(topic: TopicReader, *args: Position, scan: bool) -> dict[Position, tuple[StorageTier, bytes]]:
    return {
        Position(served.run.ledger_id, at): (served.tier, bytes(data))
        for served in topic.read(*args, scan=scan)
        for at, data in iter_entries(served.run.data, served.run.frames)
    }


POSITIONS = st.builds(Position, st.integers(-1, 8), st.integers(-1, 45)) | st.sampled_from([EARLIEST, LATEST])


@given(start=POSITIONS, end=POSITIONS, scan=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_half_open_range_comes_in_order_from_the_tier_it_is_in(
    start: Position, end: Position, *, scan: bool
) -> None:
    world = ReadWorld()
    expected = mixed(world)
    topic = TopicReader(TopicView.pin(TOPIC, world.info, world.hot), world.source)
    wanted = {at: entry for at, entry in expected.items() if start <= at < end}
    seen = found(topic, start, end, scan=scan)
    world.tiers.close()
    assert list(seen.items()) == list(wanted.items())


def test_a_view_does_not_grow_and_a_reads_own_priority_wins() -> None:
    world = ReadWorld()
    expected = mixed(world)
    topic = TopicReader(TopicView.pin(TOPIC, world.info, world.hot), world.source)
    world.hot.open(world.info.ledgerInfo[-1].ledgerId).append((b"later",), lambda _: None)
    assert list(found(topic, scan=True)) == list(expected)
    tiers = [served.tier for served in topic.read(priority=ReadPriority.BOOKKEEPER_FIRST)]
    assert tiers[:2] == [StorageTier.TIERED] * 2  # of which no hot copy is left
    assert set(tiers[2:]) == {StorageTier.HOT}
    world.tiers.close()


@pytest.mark.parametrize("scan", [False, True], ids=["read", "scan"])
def test_a_ledger_that_leaves_the_hot_log_while_it_is_read_is_found_in_the_tier(*, scan: bool) -> None:
    world = ReadWorld()
    rows = [world.add(random_entries([1_000] * 9_000, seed)) for seed in range(2)]
    view = TopicView.pin(TOPIC, world.info, world.hot)
    runs = TopicReader(view, world.source, lambda: newer.info).read(scan=scan)
    first = next(runs)
    newer = ReadWorld(store=world.store)
    newer.info.CopyFrom(world.info)
    newer.entries = world.entries
    for row in newer.info.ledgerInfo:
        newer.offload_v1(row)
    for row in rows:
        world.hot.delete(row.ledgerId)
    rest = list(runs)
    seen = [len(served.run.frames) for served in (first, *rest)]
    assert sum(seen) == 18_000
    assert (first.tier, rest[-1].tier) == (StorageTier.HOT, StorageTier.TIERED)
    with pytest.raises(LedgerMissing):
        list(TopicReader(view, world.source).read(scan=scan))
    world.tiers.close()


def test_the_hot_log_of_a_running_engine_is_read_beside_it(tmp_path: Path) -> None:
    hot = LocalLog(tmp_path)
    try:
        ledger = hot.create()
        done: list[object] = []
        for number in range(100):
            ledger.append((b"entry %d" % number,), done.append)
        ledger.close()
        shared = SharedHotLog(tmp_path)
        world = ReadWorld(hot=shared)  # type: ignore[arg-type]  # a hot log that is only read
        world.info.ledgerInfo.add(ledgerId=ledger.ledger_id, entries=100, size=1, timestamp=1)
        seen = found(TopicReader(TopicView.pin(TOPIC, world.info, shared), world.source), scan=True)
        assert [data for _, data in seen.values()] == [b"entry %d" % number for number in range(100)]
        with pytest.raises(LedgerMissing):
            shared.open(10_000)
        world.info.ledgerInfo.add(ledgerId=10_000, timestamp=0)
        assert TopicView.pin(TOPIC, world.info, shared).layout.total_entries == 100
    finally:
        hot.close()
