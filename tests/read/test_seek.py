from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from afterglow.config import BrokerConfig
from afterglow.config.choices import ReadPriority
from afterglow.format.entry import encode_broker_metadata
from afterglow.format.position import Position
from afterglow.ledger.ledger_list import records
from afterglow.ledger.properties import BROKER_TIME, set_text
from afterglow.metadata.paths import AfterglowPaths
from afterglow.read.counters import ReadCounters
from afterglow.read.handle import TopicReader, TopicView
from afterglow.read.places import Tiers
from afterglow.read.seek import seek
from afterglow.read.stretches import Locator
from afterglow.read.tier_source import TierSource
from afterglow.read.tiered import TieredSource
from afterglow.read.time_index import TimeIndex
from afterglow.testing.ledgers import message
from afterglow.testing.read_world import TOPIC, ReadWorld

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.metadata.store import Versioned

TIERED_FIRST = BrokerConfig(managed_ledger_offloaded_read_priority=ReadPriority.TIERED_STORAGE_FIRST)


def stamped(time_ms: int | None, size: int = 40) -> bytes:
    """An entry with a broker time, or as Pulsar writes its markers; its publish time is of no use."""
    head = b"" if time_ms is None else encode_broker_metadata(time_ms, None)
    return head + message(b"x" * size, 10**15 if time_ms is None else 7)


class Looked:
    """A topic of a world as a source would look at it: with nothing opened and nothing known."""

    def __init__(self, world: ReadWorld) -> None:
        self.counters = ReadCounters()
        tiers = TierSource(Tiers(lambda _: world.counting), world.config, Locator(world.metadata, AfterglowPaths()))
        source = TieredSource(TOPIC, world.hot, tiers, lambda: world.policy, self.counters)
        self.reader = TopicReader(TopicView.pin(TOPIC, world.info, world.hot), source)
        self.ledgers = records(world.info)
        self.index = TimeIndex(self.reader.view, tiers, world.policy, self.counters)

    def plain(self, time_ms: int) -> Position:
        return seek(self.reader, self.ledgers, time_ms)

    def indexed(self, time_ms: int) -> Position:
        return seek(self.reader, self.ledgers, time_ms, self.index)


# --- worlds ---


def random_stamps(rng: random.Random, now: int) -> list[int | None]:
    """Broker times of a ledger: never going back, a few markers without one between the first and the last."""
    if rng.random() < 0.15:
        return [None] * rng.randint(1, 20)
    count = rng.randint(1, 60)
    times = []
    for _ in range(count):
        now += rng.choice([0, 0, 1, 5, 300])
        times.append(now)
    return [None if rng.random() < 0.15 and 0 < at < count - 1 else time for at, time in enumerate(times)]


def random_world(rng: random.Random) -> tuple[ReadWorld, int]:
    """Ledgers with and without broker times, in either format, in the hot log, the tier or both; and the last time."""
    world = ReadWorld(policy=rng.choice([BrokerConfig(), TIERED_FIRST]))
    now = 1_000
    pending: list[tuple[ManagedLedgerInfo.LedgerInfo, int, int]] = []

    def flush() -> None:
        if pending:
            block_bytes, measured = rng.choice([300, 700, 1 << 20]), rng.random() < 0.8
            world.offload_v2(pending, block_bytes=block_bytes, statistics=measured, recorded=rng.random() < 0.8)
            pending.clear()

    for _ in range(rng.randint(1, 6)):
        stamps = random_stamps(rng, now)
        row = world.add([stamped(time, rng.randint(0, 120)) for time in stamps])
        if stamps[-1] is not None:
            now = stamps[-1]
            if rng.random() < 0.7:
                set_text(row, BROKER_TIME, str(now))
        match rng.choice(["hot", "whole", "segments", "segments", "begun"]):
            case "whole":
                flush()
                world.offload_v1(row, block_bytes=rng.choice([500, 2_000, 1 << 20]), statistics=rng.random() < 0.6)
            case "segments" | "begun" as how:
                ends = sorted(rng.sample(range(len(stamps)), rng.randint(0, min(4, len(stamps)))))
                ends += [len(stamps) - 1] if how == "segments" and len(stamps) - 1 not in ends else []
                for first, last in zip([0, *(end + 1 for end in ends)], ends, strict=False):
                    pending.append((row, first, last))
                    if how == "begun" or last < len(stamps) - 1 or rng.random() < 0.6:
                        flush()  # else it goes on with the next ledger
                if how == "begun":
                    continue
            case _:
                flush()
                continue
        if rng.random() < 0.7:
            world.free(row)
    flush()
    return world, now


def many_segments(count: int, each: int = 40) -> ReadWorld:
    """One freed ledger in ``count`` segments, entry ``n`` written at ``10 * n``."""
    world = ReadWorld()
    row = world.add([stamped(10 * at, 200) for at in range(count * each)])
    set_text(row, BROKER_TIME, str(10 * (count * each - 1)))
    for number in range(count):
        world.offload_v2([(row, number * each, (number + 1) * each - 1)], block_bytes=2_000)
    world.free(row)
    return world


# --- tests ---


@pytest.mark.parametrize("round_", range(25))
def test_a_search_by_records_and_indexes_lands_where_the_plain_one_does(round_: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    world, end = random_world(rng)
    looked = Looked(world)
    for _ in range(40):
        moment = rng.randrange(900, end + 100)
        assert looked.indexed(moment) == looked.plain(moment), (seed, round_, moment)


def test_every_moment_of_a_stamped_topic_is_found() -> None:
    world = many_segments(5)
    looked = Looked(world)
    ledger_id = world.info.ledgerInfo[0].ledgerId
    for moment in range(-1, 10 * 5 * 40 + 12, 3):
        assert looked.indexed(moment) == Position(ledger_id, min(max(-(-moment // 10), 0), 5 * 40)), moment


def test_a_seek_costs_one_index_and_one_ranged_get_however_many_segments_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def note(path: str) -> Versioned | None:
        asked.append(path)
        return get(path)

    for count, most in ((4, 3), (64, 7)):
        world = many_segments(count)
        get = world.metadata.get
        monkeypatch.setattr(world.metadata, "get", note)
        for moment in random.Random(5).choices(range(1, 10 * 40 * count - 10), k=20):
            asked.clear()
            before = world.counting.counts()
            looked = Looked(world)
            looked.indexed(moment)
            after = world.counting.counts()
            gets = after["get"].requests - (before["get"].requests if before else 0)
            assert (gets, looked.counters.counts().requests) == (2, 1)
            assert len(asked) <= most + 1  # the records that bisection meets, and the place of the segment


def test_every_moment_is_found_where_the_index_tells_no_times() -> None:
    world = ReadWorld()
    row = world.add([stamped(None if at % 7 == 3 else 10 * at) for at in range(100)])
    world.offload_v1(row, block_bytes=700, statistics=False)
    world.free(row)
    looked = Looked(world)
    for moment in range(0, 991, 5):
        entry_id = -(-moment // 10)
        assert looked.indexed(moment) == Position(row.ledgerId, entry_id + (entry_id % 7 == 3)), moment


@pytest.mark.parametrize("what", ["data", "index", "object"])
def test_where_the_tier_does_not_serve_the_hot_log_is_searched(what: str) -> None:
    world = ReadWorld(policy=TIERED_FIRST)
    row = world.add([stamped(10 * at, 200) for at in range(100)])
    set_text(row, BROKER_TIME, "990")
    key = world.offload_v2([(row, 0, 99)], block_bytes=2_000)
    if what == "data":
        for at in range(500, world.store.head(key).size_bytes, 1_000):
            world.damage(key, at)
    elif what == "index":
        world.damage(f"{key}-index", 30)
    else:
        world.store.delete([key])
    assert Looked(world).indexed(333) == Position(row.ledgerId, 34)


@pytest.mark.parametrize(
    ("pace", "most"), [pytest.param(lambda at: 10 * at, 1, id="even"), pytest.param(lambda at: at**3, 7, id="uneven")]
)
def test_large_blocks_are_searched_by_few_gets(pace: Callable[[int], int], most: int) -> None:
    world = ReadWorld()
    row = world.add([stamped(pace(at), 100_000) for at in range(250)])
    set_text(row, BROKER_TIME, str(pace(249)))
    world.offload_v1(row, block_bytes=12 << 20)
    world.free(row)
    for entry_id in range(250):
        looked = Looked(world)
        assert looked.indexed(pace(entry_id)) == Position(row.ledgerId, entry_id)
        assert looked.counters.counts().requests <= most, entry_id
        assert looked.indexed(pace(entry_id) + 1) == Position(row.ledgerId, min(entry_id + 1, 250))


def test_bursts_and_markers_in_large_blocks_do_not_mislead() -> None:
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    world = ReadWorld()
    now, stamps = 1_000, []
    for at in range(120):
        now += rng.choice([0, 0, 0, 1, 50, 5_000])
        stamps.append(None if at and at < 119 and rng.random() < 0.3 else now)
    row = world.add([stamped(time, rng.randint(1, 300_000)) for time in stamps])
    world.offload_v1(row, block_bytes=8 << 20)
    world.free(row)
    looked = Looked(world)
    for moment in [rng.randrange(900, now + 10) for _ in range(40)] + [time for time in stamps if time is not None]:
        assert looked.indexed(moment) == looked.plain(moment), (seed, moment)
