"""Blocks out of a range of times are not read, and nothing else is pruned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.support.ledgers import message
from tests.support.read_world import TOPIC, ReadWorld

from afterglow.format.entry import encode_broker_metadata
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.ledger.properties import BROKER_TIME, set_text
from afterglow.read.pruning import TimeBounds
from afterglow.read.scan_range import ScanRange
from afterglow.read.split_planner import SplitPlanner
from afterglow.read.splits import UNDIVIDED
from afterglow.read.topic_reader import TopicReader, TopicView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

BLOCK_BYTES = 4_000
PADDING = bytes(300)


@pytest.fixture
def world() -> Iterator[ReadWorld]:
    made = ReadWorld()
    yield made
    made.tiers.close()


@dataclass(frozen=True)
class Sent:
    """An entry's times."""

    publish: int
    broker: int | None = None

    @property
    def time(self) -> int:
        return self.publish if self.broker is None else self.broker

    @property
    def data(self) -> bytes:
        stamp = b"" if self.broker is None else encode_broker_metadata(self.broker, None)
        return stamp + message(PADDING, self.publish)


def add(world: ReadWorld, sent: Sequence[Sent], *, recorded: bool = False) -> ManagedLedgerInfo.LedgerInfo:
    """A ledger; ``recorded``: the ledger list has the broker time of its last entry."""
    row = world.add([each.data for each in sent])
    if recorded:
        set_text(row, BROKER_TIME, str(sent[-1].broker))
    return row


def kept(
    world: ReadWorld,
    since: int | None,
    until: int | None,
    split_bytes: int = UNDIVIDED,
    published: tuple[int | None, int | None] = (None, None),
) -> list[Position]:
    """The entries that would be read for a range."""
    view = TopicView.pin(TOPIC, world.info, world.hot)
    planner = SplitPlanner("t", TopicReader(view, world.source), world.tiers, world.policy, None, world.counters)
    earliest, latest = published
    scan_range = ScanRange(since_ms=since, until_ms=until, published_from_ms=earliest, published_to_ms=latest)
    return [
        Position(each.ledger_id, at)
        for each in planner.ranges(EARLIEST, LATEST, scan_range, split_bytes=split_bytes)
        for at in range(each.first, each.last + 1)
    ]


def offload(world: ReadWorld, row: ManagedLedgerInfo.LedgerInfo, kind: str, rng: Random) -> None:
    """Put a ledger into the tier in one of the ways there are."""
    last = row.entries - 1
    if kind.startswith("V1"):
        world.offload_v1(row, block_bytes=BLOCK_BYTES, statistics="bare" not in kind)
    elif kind.startswith("V2"):
        middle = rng.randint(0, last)
        ranges = [(row, 0, middle)] + ([(row, middle + 1, last)] if middle < last else [])
        for each_range in ranges:
            world.offload_v2(
                [each_range],
                block_bytes=BLOCK_BYTES,
                statistics="bare" not in kind,
                recorded="bare" not in kind and rng.random() < 0.5,
            )


def random_topic(world: ReadWorld, rng: Random) -> list[tuple[Position, Sent]]:
    """Ledgers of every kind; broker times never go back, publish times follow no order."""
    now = 1_000
    found: list[tuple[Position, Sent]] = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice(["V1", "V1 bare", "V2", "V2 bare"])
        stamped = (
            rng.choice(["all", "all", "none", "from the middle"]) if "bare" not in kind else rng.choice(["all", "none"])
        )
        count = rng.randint(1, 60)
        sent = []
        for at in range(count):
            now += rng.choice([0, 0, 1, 5])
            by_broker = stamped == "all" or (stamped != "none" and at > count // 2)
            sent.append(Sent(now + rng.randint(-30, 30), now if by_broker else None))
        row = add(world, sent, recorded=stamped == "all" and rng.random() < 0.5)
        found += [(Position(row.ledgerId, at), each) for at, each in enumerate(sent)]
        offload(world, row, kind, rng)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_nothing_that_matches_is_pruned(world: ReadWorld, seed: int) -> None:
    rng = Random(seed)
    topic = random_topic(world, rng)
    times = sorted(sent.time for _, sent in topic)
    for _ in range(12):
        since, until = (rng.choice([None, rng.choice(times) + rng.randint(-2, 2)]) for _ in range(2))
        wanted = [
            at for at, sent in topic if (since is None or sent.time >= since) and (until is None or sent.time < until)
        ]
        found = kept(world, since, until, rng.choice([1, 2 * BLOCK_BYTES, UNDIVIDED]))
        assert found == sorted(set(found))
        assert set(wanted) <= set(found)
        low, high = (rng.choice([None, rng.choice(topic)[1].publish]) for _ in range(2))
        published = {at for at, sent in topic if (low or 0) <= sent.publish <= (sent.publish if high is None else high)}
        assert published.intersection(wanted) <= set(kept(world, since, until, UNDIVIDED, (low, high)))


@pytest.mark.parametrize("kind", ["V1", "V2"])
def test_blocks_are_passed_over_that_were_published_before_or_after(world: ReadWorld, kind: str) -> None:
    offload(world, add(world, [Sent(1_000 + at, 9_000) for at in range(200)], recorded=True), kind, Random(1))
    found = {at.entry_id for at in kept(world, None, None, published=(1_100, 1_102))}
    assert found >= {100, 101, 102}
    assert len(found) <= 3 * BLOCK_BYTES // len(PADDING)


@pytest.mark.parametrize("kind", ["V1", "V1 bare", "V2", "V2 bare"])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_narrow_range_of_times_reads_few_blocks(world: ReadWorld, kind: str, *, recorded: bool) -> None:
    sent = [Sent(1_000 + at, 1_000 + at) for at in range(200)]
    offload(world, add(world, sent, recorded=recorded), kind, Random(1))
    found = kept(world, 1_100, 1_103)
    assert {at.entry_id for at in found} >= {100, 101, 102}
    assert len(found) <= 3 * BLOCK_BYTES // len(PADDING)


def test_a_segment_out_of_the_range_is_pruned_by_its_record_alone(world: ReadWorld) -> None:
    rows = [add(world, [Sent(1_000 * n + at, 1_000 * n + at) for at in range(20)]) for n in range(1, 4)]
    for row in rows:
        world.offload_v2([(row, 0, 19)], block_bytes=BLOCK_BYTES)
    assert {at.ledger_id for at in kept(world, 2_000, 2_010)} == {rows[1].ledgerId}
    assert world.counting.counts()["get"].requests == 1  # the index of one object, and no data


def test_a_ledger_that_pulsar_wrote_before_the_range_is_skipped(world: ReadWorld) -> None:
    rows = [add(world, [Sent(1_000 * n + at, 1_000 * n + at) for at in range(9)]) for n in range(1, 4)]
    for row in rows:
        world.offload_v1(row, statistics=False)
    assert {at.ledger_id for at in kept(world, 2_005, None)} == {row.ledgerId for row in rows[1:]}
    assert {at.ledger_id for at in kept(world, None, 2_000)} == {rows[0].ledgerId}


def test_without_broker_times_everything_without_statistics_is_read(world: ReadWorld) -> None:
    row = add(world, [Sent(5_000 - at) for at in range(50)])
    world.offload_v1(row, block_bytes=BLOCK_BYTES, statistics=False)
    assert len(kept(world, 4_999, 5_000)) == 50


def test_markers_that_pulsar_leaves_without_a_time_do_not_end_the_search(world: ReadWorld) -> None:
    sent = [Sent(1_000 + at, None if at % 7 == 0 and at else 1_000 + at) for at in range(200)]
    offload(world, add(world, sent), "V1 bare", Random(1))
    found = {at.entry_id for at in kept(world, 1_150, None)}
    assert found >= set(range(150, 200))
    assert min(found) > 100


@pytest.mark.parametrize(
    ("bounds", "stamped", "since", "until", "expected"),
    [
        (TimeBounds(10, 20, 5, 30), True, 21, None, False),
        (TimeBounds(10, 20, 5, 30), False, 21, None, True),
        (TimeBounds(10, 20, 5, 30), False, 31, None, False),
        (TimeBounds(10, 20, 5, 30), True, None, 10, False),
        (TimeBounds(10, 20, 5, 30), False, None, 10, True),
        (TimeBounds(10, 20, 5, 30), False, None, 5, False),
        (TimeBounds(10, 20, 5, 30), True, 20, 21, True),
        (TimeBounds(None, None, 5, 30), False, 30, None, True),
        (TimeBounds(None, None, 5, 30), False, 31, None, False),
        (TimeBounds(None, None, 5, 30), False, None, 5, False),
        (TimeBounds(None, None, None, None), False, 1_000, 1_001, True),  # of such entries nothing is known
    ],
)
def test_bounds_are_inclusive_and_ranges_half_open(
    bounds: TimeBounds, since: int | None, until: int | None, *, stamped: bool, expected: bool
) -> None:
    scan_range = replace(ScanRange(), since_ms=since, until_ms=until)
    assert bounds.may_match(scan_range, stamped=stamped) is expected
