from __future__ import annotations

from threading import Barrier

from tests.support.read_world import TOPIC, ReadWorld, random_entries

from afterglow.format.objects import INDEX_SUFFIX
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.read.scan_range import ScanRange
from afterglow.read.split_planner import SplitPlanner
from afterglow.read.topic_reader import TopicReader, TopicView
from afterglow.storage import MemoryStore

WAIT_S = 30.0


class MeetingStore(MemoryStore):
    """Gives an index only when another one is asked for at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = Barrier(2, timeout=WAIT_S)

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        if key.endswith(INDEX_SUFFIX):
            self.meeting.wait()
        return super().get(key, start, end)


def test_objects_are_opened_ahead_of_their_splits() -> None:
    world = ReadWorld(store=MeetingStore())
    rows = [world.add(random_entries([100] * 3, seed)) for seed in range(40)]
    for row in rows:
        world.offload_v1(row)
        world.free(row)
    view = TopicView.pin(TOPIC, world.info, world.hot)
    planner = SplitPlanner("t", TopicReader(view, world.source), world.tiers, world.policy, None, world.counters)
    splits = list(planner.splits(EARLIEST, LATEST, ScanRange()))
    assert [Position(split.ledger_id, split.first) for split in splits] == [Position(row.ledgerId, 0) for row in rows]
    counts = world.counting.counts()
    assert counts["get"].requests == len(rows)
