"""Neighbours of a range: read backwards and forwards, over ledgers and copies, up to the end of the neighbourhood."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message
from tests.support.read_world import TOPIC as WORLD_TOPIC
from tests.support.read_world import ReadWorld, random_entries

import afterglow
from afterglow.config import BrokerConfig
from afterglow.errors import OutOfReach
from afterglow.format.position import LATEST, Position
from afterglow.read.copies import StorageTier
from afterglow.read.entry_source import TieredEntrySource
from afterglow.read.neighbours import Neighbourhood, NeighbourRange, SplitNeighbours, ViewNeighbours
from afterglow.read.objects import TierObject
from afterglow.read.split_reader import SplitReader
from afterglow.read.topic_reader import TopicReader, TopicView
from afterglow.tier.locations import TierLocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from afterglow.read.copies import ServedRun
    from afterglow.read.messages import Neighbours
    from afterglow.read.splits import Split

TOPIC = "persistent://public/default/t"
EACH = 30
LEDGERS = 4


def positions(runs: Iterable[ServedRun]) -> list[Position]:
    """Of all entries of the runs, those of a run ascending."""
    return [
        Position(served.run.ledger_id, entry_id)
        for served in runs
        for entry_id in range(served.run.frames.first_entry_id, served.run.frames.end_entry_id)
    ]


def is_backwards(runs: Sequence[ServedRun]) -> bool:
    """Whether each run ends right before the last one, or at the end of the ledger before."""
    locations = [(served.run.ledger_id, served.run.frames.first_entry_id) for served in runs]
    return locations == sorted(locations, reverse=True)


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> list[Split]:
    """Of a topic whose first ledger is in the tier alone, the second in both copies, the others in the hot log."""
    path = tmp_path_factory.mktemp("home")
    with ServerHome(path) as server:
        first, second, *_ = server.write(TOPIC, *([message(bytes(3_000))] * EACH for _ in range(LEDGERS)))
        for ledger_id in (first, second):
            server.offload(TOPIC, ledger_id, block_bytes=16 << 10)
        server.free(TOPIC, first)
    with afterglow.connect(path) as source:
        return list(source.topic(TOPIC).splits(split_bytes=20_000))


def everything(splits: Sequence[Split]) -> list[Position]:
    return [Position(ledger_id, at) for ledger_id in sorted({each.ledger_id for each in splits}) for at in range(EACH)]


def check(neighbours: Neighbours, whole: list[Position]) -> None:
    """See that both directions give all there is from every place."""
    for at in {0, 1, 7, EACH - 1, EACH, EACH + 11, 2 * EACH, 3 * EACH + 5, len(whole) - 1}:
        runs = list(neighbours.before(whole[at]))
        assert is_backwards(runs)
        assert sorted(positions(runs)) == whole[:at]
        assert positions(neighbours.after(whole[at])) == whole[at:]
    assert positions(neighbours.after(LATEST)) == []
    assert sorted(positions(neighbours.before(LATEST))) == whole


def test_a_split_sees_the_whole_of_a_small_topic(splits: list[Split]) -> None:
    whole = everything(splits)
    for split in (splits[0], splits[len(splits) // 2], splits[-1]):
        check(SplitNeighbours(split, SplitReader(BrokerConfig())), whole)


def test_a_view_sees_all_of_itself() -> None:
    world = ReadWorld()
    rows = [world.add(random_entries([500] * EACH)) for _ in range(LEDGERS)]
    world.offload_v2([(rows[0], 0, EACH - 1), (rows[1], 0, 11)], block_bytes=4_000)
    world.free(rows[0])
    view = TopicView.pin(WORLD_TOPIC, world.info, world.hot)
    source = TieredEntrySource(WORLD_TOPIC, world.hot, world.tiers, lambda: world.policy, world.counters)
    whole = [Position(row.ledgerId, at) for row in rows for at in range(EACH)]
    check(ViewNeighbours(TopicReader(view, source)), whole)
    world.tiers.close()


def test_a_split_raises_at_the_end_of_its_neighbourhood(splits: list[Split]) -> None:
    split = next(each for each in splits if each.ledger_id == splits[-1].ledger_id - 1)
    known = split.neighbourhood.neighbours()[1:3]
    near = replace(
        split, neighbourhood=Neighbourhood.of(known, split.neighbourhood.hot, has_first=False, has_last=False)
    )
    neighbours = SplitNeighbours(near, SplitReader(BrokerConfig()))
    at = Position(split.ledger_id, 5)
    with pytest.raises(OutOfReach, match=r"scan\(\)"):
        list(neighbours.before(at))
    with pytest.raises(OutOfReach, match="after it"):
        list(neighbours.after(at))
    before = neighbours.before(at)
    assert next(before).run.ledger_id == at.ledger_id
    after = neighbours.after(at)
    assert positions([next(after)])[0] == at


def test_a_step_back_that_turns_out_to_be_large_is_not_held_whole() -> None:
    world = ReadWorld()
    row = world.add(random_entries([1 << 20] * 80 + [10] * 2_000))
    view = TopicView.pin(WORLD_TOPIC, world.info, world.hot)
    source = TieredEntrySource(WORLD_TOPIC, world.hot, world.tiers, lambda: world.policy, world.counters)
    neighbours = ViewNeighbours(TopicReader(view, source))
    tracemalloc.start()
    seen = [
        (served.run.frames.first_entry_id, served.run.frames.end_entry_id)
        for served in neighbours.before(Position(row.ledgerId, 2_080))
    ]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 40 << 20
    assert seen[0][1] == 2_080
    assert seen[-1][0] == 0
    assert all(later[1] == earlier[0] for earlier, later in pairwise(seen))
    assert sum(end - first for first, end in seen) == 2_080
    ahead = list(neighbours.after(Position(row.ledgerId, 0)))
    assert positions(ahead) == [Position(row.ledgerId, at) for at in range(2_080)]
    world.tiers.close()


def test_steps_back_are_small_where_entries_are_large() -> None:
    world = ReadWorld()
    row = world.add(random_entries([10] * 2_000 + [2 << 20] * 12))
    view = TopicView.pin(WORLD_TOPIC, world.info, world.hot)
    source = TieredEntrySource(WORLD_TOPIC, world.hot, world.tiers, lambda: world.policy, world.counters)
    runs = ViewNeighbours(TopicReader(view, source)).before(Position(row.ledgerId, 2_012))
    first = next(runs)
    assert len(first.run.frames) <= 4
    assert world.counters.counts().entries[StorageTier.HOT] <= 4
    assert len(list(runs)) < 40
    world.tiers.close()


def test_neighbours_keep_the_whole_location_of_their_objects() -> None:
    """An external driver finds its objects by the properties that it gave."""
    location = TierLocation("zip", "bucket", "region", "endpoint", "prefix", (("bucket", "lower"), ("colour", "green")))
    ranges = (
        NeighbourRange(1, 0, 9, TierObject(location, "key"), hot=False),
        NeighbourRange(2, 0, 4, None, hot=True),
        NeighbourRange(3, 0, 4, TierObject(location, "other", markers_stripped=True), hot=False),
    )
    packed = Neighbourhood.of(ranges, None, has_first=True, has_last=True)
    assert packed.neighbours() == ranges
