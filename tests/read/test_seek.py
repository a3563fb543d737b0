"""Seek by time through the library and through the broker: results, and number of requests to the tier."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualExecutor
from tests.support.faults import Fault, FaultRule, FaultyStore
from tests.support.ledgers import message, settings
from tests.support.read_world import TOPIC, ReadWorld

from afterglow.config import BrokerConfig
from afterglow.config.choices import ReadPriority
from afterglow.errors import StoreUnavailable
from afterglow.format.entry import encode_broker_metadata
from afterglow.format.metadata_envelope import serialize_managed_ledger
from afterglow.format.position import Position
from afterglow.ledger.properties import BROKER_TIME, set_text
from afterglow.ledger.store import LedgerStore
from afterglow.ledger.time_search import entry_time
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.paths import AfterglowPaths, managed_ledger_path
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.read.counters import ReadCounters
from afterglow.read.entry_source import TieredEntrySource
from afterglow.read.hot_readers import RemoteHotLog
from afterglow.read.ranges import ObjectLocator
from afterglow.read.tier_reader import TierReader
from afterglow.read.topic_reader import TopicReader, TopicView
from afterglow.storage import CountingStore
from afterglow.tier.locations import Tiers

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.metadata.store import Versioned
    from afterglow.testing.memory_hot import MemoryLedger, MemoryLog

HOT_FIRST = BrokerConfig(managed_ledger_offloaded_read_priority=ReadPriority.BOOKKEEPER_FIRST)
TIERED_FIRST = BrokerConfig(managed_ledger_offloaded_read_priority=ReadPriority.TIERED_STORAGE_FIRST)
PATHS: Final = ("library", "broker")

by_either_path = pytest.mark.parametrize("path", PATHS)


def stamped(time_ms: int | None, size: int = 40, publish_time_ms: int | None = None) -> bytes:
    """An entry with a broker time, or without one; by default its publish time is of no use."""
    head = b"" if time_ms is None else encode_broker_metadata(time_ms, None)
    if publish_time_ms is None:
        publish_time_ms = 10**15 if time_ms is None else 7
    return head + message(b"x" * size, publish_time_ms)


@dataclass(frozen=True)
class Cost:
    """Requests to the tier."""

    heads: int
    indexes: int
    gets: int


class Search:
    """A topic of a world as one process would search it that has just started: nothing opened, nothing cached."""

    def __init__(self, world: ReadWorld, path: str) -> None:
        self.counters = ReadCounters()
        self._counting = world.counting
        tiers = TierReader(
            Tiers(lambda _: world.counting), world.config, ObjectLocator(world.metadata, AfterglowPaths())
        )
        source = TieredEntrySource(TOPIC, world.hot, tiers, lambda: world.policy, self.counters)
        self.find: Callable[[int], Position]
        if path == "library":
            self.find = TopicReader(TopicView.pin(TOPIC, world.info, world.hot), source).find_by_time
        else:
            self.ledger = open_ledger(world, source)
            self.find = self.ledger.reader.find_by_time
        self._before = self._requests()

    def cost(self) -> Cost:
        """Of what was searched since this was asked last."""
        before, self._before = self._before, self._requests()
        return Cost(*(now - then for now, then in zip(self._before, before, strict=True)))

    def _requests(self) -> tuple[int, int, int]:
        counts, ranged = self._counting.counts(), self.counters.counts().requests
        heads, gets = (counts[name].requests if name in counts else 0 for name in ("head", "get"))
        return heads, gets - ranged, ranged


def open_ledger(world: ReadWorld, source: TieredEntrySource) -> ManagedLedger:
    """The topic as the broker opens it, with nothing in the tail cache."""
    metadata = MemoryMetadataStore()
    metadata.put(managed_ledger_path(TOPIC), serialize_managed_ledger(world.info), MUST_NOT_EXIST)
    store = LedgerStore(
        hot=world.hot,
        states=world.hot,
        metadata=metadata,
        config=settings(managed_ledger_cache_size_mb=0),
        executor=ManualExecutor(),
        sources=lambda _name: source,
    )
    return store.open(TOPIC)


class PlainScan:
    """Finds the first entry whose time is at or after a given time by reading all of them.

    Unstamped entries between stamped ones are markers, and have no time.
    """

    def __init__(self, world: ReadWorld) -> None:
        self.times: list[tuple[Position, int]] = []
        for row in world.info.ledgerInfo:
            times = [entry_time(entry) for entry in world.entries[row.ledgerId]]
            has_markers = times[0].by_broker and times[-1].by_broker
            for entry_id, found in enumerate(times):
                time_ms = found.time_ms if found.by_broker or not has_markers else -1
                self.times.append((Position(row.ledgerId, entry_id), time_ms))

    def find(self, time_ms: int) -> Position:
        """That entry, else the position after the last one."""
        found = (position for position, its_ms in self.times if its_ms >= time_ms)
        return next(found, self.times[-1][0].next())

    def last_before(self, time_ms: int) -> Position | None:
        """The entry before that; None if none exists."""
        expected = self.find(time_ms)
        return max((position for position, _ in self.times if position < expected), default=None)


# --- worlds ---


def random_entries(rng: random.Random, now: int) -> tuple[list[bytes], int | None]:
    """Entries of a ledger, and the broker time of the last if all but markers have one.

    Broker times never go back; a few markers without one are between the first and the last. Some ledgers have no
    broker times at all, or only from some entry on.
    """
    count, unstamped = rng.randint(1, 60), 0
    if rng.random() < 0.3:
        unstamped = rng.choice([count, rng.randint(1, count)])
    entries = []
    for at in range(count):
        now += rng.choice([0, 0, 1, 5, 300])
        size = rng.randint(0, 120)
        if at < unstamped:
            entries.append(stamped(None, size, rng.randint(900, now + 500)))
        else:
            is_marker = not unstamped and rng.random() < 0.15 and 0 < at < count - 1
            entries.append(stamped(None if is_marker else now, size))
    return entries, None if unstamped else now


def random_world(rng: random.Random) -> tuple[ReadWorld, int]:
    """Ledgers with and without broker times, in either format, in the hot log, the tier or both; and the last time."""
    world = ReadWorld(policy=rng.choice([HOT_FIRST, TIERED_FIRST]))
    now = 1_000
    pending: list[tuple[ManagedLedgerInfo.LedgerInfo, int, int]] = []

    def flush() -> None:
        if pending:
            block_bytes, measured = rng.choice([300, 700, 1 << 20]), rng.random() < 0.8
            world.offload_v2(pending, block_bytes=block_bytes, statistics=measured, recorded=rng.random() < 0.8)
            pending.clear()

    for _ in range(rng.randint(1, 6)):
        entries, last_ms = random_entries(rng, now)
        now = max(now, *(found.time_ms for entry in entries if (found := entry_time(entry)).by_broker), 0)
        row = world.add(entries)
        if last_ms is not None and rng.random() < 0.7:
            set_text(row, BROKER_TIME, str(last_ms))
        match rng.choice(["hot", "whole", "segments", "segments", "begun"]):
            case "whole":
                flush()
                world.offload_v1(row, block_bytes=rng.choice([500, 2_000, 1 << 20]), statistics=rng.random() < 0.6)
            case "segments" | "begun" as how:
                last = len(entries) - 1
                ends = sorted(rng.sample(range(len(entries)), rng.randint(0, min(4, len(entries)))))
                ends += [last] if how == "segments" and last not in ends else []
                for first, end in zip([0, *(end + 1 for end in ends)], ends, strict=False):
                    pending.append((row, first, end))
                    if how == "begun" or end < last or rng.random() < 0.6:
                        flush()  # else the segment continues with the next ledger
                if how == "begun":
                    continue
            case _:
                flush()
                continue
        if rng.random() < 0.7:
            world.free(row)
    flush()
    return world, now


def many_segments(
    count: int, each: int = 40, *, per_ledger: int | None = None, publish: Callable[[int], int] | None = None
) -> ReadWorld:
    """Freed ledgers in ``count`` segments of ``each`` entries; entry ``n`` of the topic was written at ``10 * n``.

    ``publish``: The entries have no broker time, and this publish time.
    """
    world = ReadWorld()
    per_ledger = per_ledger or count
    for begin in range(0, count, per_ledger):
        numbers = range(begin * each, (begin + per_ledger) * each)
        row = world.add(
            [stamped(10 * at, 200) if publish is None else stamped(None, 200, publish(at)) for at in numbers]
        )
        if publish is None:
            set_text(row, BROKER_TIME, str(10 * numbers[-1]))
        for first in range(0, len(numbers), each):
            world.offload_v2([(row, first, first + each - 1)], block_bytes=2_000)
        world.free(row)
    return world


def location(world: ReadWorld, number: int) -> Position:
    """Position of an entry of a topic, by its number."""
    for row in world.info.ledgerInfo:
        if number < row.entries:
            break
        number -= row.entries
    else:
        number += row.entries
    return Position(row.ledgerId, number)


# --- what is found ---


@given(st.integers(0, 2**32 - 1))
def test_a_search_finds_what_a_plain_scan_finds(seed: int) -> None:
    rng = random.Random(seed)
    world, end = random_world(rng)
    plain = PlainScan(world)
    library, broker = (Search(world, path) for path in PATHS)
    times_ms = [rng.randrange(900, end + 100) for _ in range(10)]
    times_ms += [rng.choice(plain.times)[1] + rng.randint(-1, 1) for _ in range(10)]
    for time_ms in (0, *times_ms, end + 10_000):
        assert library.find(time_ms) == broker.find(time_ms) == plain.find(time_ms), time_ms
        assert broker.ledger.reader.last_before(time_ms) == plain.last_before(time_ms), time_ms


@by_either_path
def test_every_time_of_a_stamped_topic_is_found(path: str) -> None:
    world = many_segments(6, per_ledger=2)
    search = Search(world, path)
    for time_ms in range(-1, 10 * 6 * 40 + 12, 3):
        assert search.find(time_ms) == location(world, min(max(-(-time_ms // 10), 0), 6 * 40)), time_ms


@by_either_path
def test_of_entries_with_equal_times_the_first_is_found(path: str) -> None:
    world = ReadWorld()
    times = [5] * 30 + [7] * 130 + [9] * 40  # a time may span blocks, segments and ledgers
    for begin in (0, 100):
        row = world.add([stamped(time, 100) for time in times[begin : begin + 100]])
        set_text(row, BROKER_TIME, str(times[begin + 99]))
        world.offload_v2([(row, 0, 49)], block_bytes=500)
        world.offload_v2([(row, 50, 99)], block_bytes=500)
        world.free(row)
    search = Search(world, path)
    for time_ms, number in ((0, 0), (5, 0), (6, 30), (7, 30), (8, 160), (9, 160), (10, 200)):
        assert search.find(time_ms) == location(world, number), time_ms


@by_either_path
def test_every_time_is_found_if_the_index_has_no_times(path: str) -> None:
    world = ReadWorld()
    row = world.add([stamped(None if at % 7 == 3 else 10 * at) for at in range(100)])
    world.offload_v1(row, block_bytes=700, statistics=False)
    world.free(row)
    search = Search(world, path)
    for time_ms in range(0, 991, 5):
        entry_id = -(-time_ms // 10)
        assert search.find(time_ms) == Position(row.ledgerId, entry_id + (entry_id % 7 == 3)), time_ms


@by_either_path
@pytest.mark.parametrize("what", ["data", "index", "object", "hot"])
def test_where_one_copy_does_not_serve_the_other_is_searched(what: str, path: str) -> None:
    world = ReadWorld(policy=TIERED_FIRST)
    row = world.add([stamped(10 * at, 200) for at in range(100)])
    set_text(row, BROKER_TIME, "990")
    key = world.offload_v2([(row, 0, 99)], block_bytes=2_000)
    if what == "data":
        for at in range(500, world.store.head(key).size_bytes, 1_000):
            world.damage(key, at)
    elif what == "index":
        world.damage(f"{key}-index", 30)
    elif what == "object":
        world.store.delete([key])
    else:
        world.free(row, listed=False)
    assert Search(world, path).find(333) == Position(row.ledgerId, 34)


@by_either_path
def test_bursts_and_markers_in_large_blocks_do_not_mislead(path: str) -> None:
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
    search, plain = Search(world, path), PlainScan(world)
    for time_ms in [rng.randrange(900, now + 10) for _ in range(40)] + [time for time in stamps if time is not None]:
        assert search.find(time_ms) == plain.find(time_ms), (seed, time_ms)


# --- what it costs ---


@by_either_path
@pytest.mark.parametrize(("count", "records"), [(1, 1), (64, 7), (1_600, 11)])
def test_a_seek_costs_one_index_and_one_ranged_get_however_many_segments_there_are(
    count: int, records: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = 40 if count < 100 else 4
    world = many_segments(count, each)
    asked: list[str] = []
    get = world.metadata.get

    def note(node: str) -> Versioned | None:
        asked.append(node)
        return get(node)

    monkeypatch.setattr(world.metadata, "get", note)
    for number in random.Random(5).choices(range(each * count), k=20 if count < 100 else 5):
        search = Search(world, path)
        asked.clear()
        assert search.find(10 * number) == location(world, number)
        assert search.cost() == Cost(1, 1, 1)
        assert len(asked) <= records + 1  # those that bisection meets, and the place of the segment
        assert search.find(10 * number - 3) == location(world, number)
        assert search.cost() == Cost(0, 0, 0)


@by_either_path
def test_a_seek_between_ledgers_reads_one_of_them_and_after_the_last_none(path: str) -> None:
    world = many_segments(12, per_ledger=3)
    end = 12 * 40
    for number in (0, 1, 119, 120, 121, 240, end - 1):
        for time_ms in (10 * number - 9, 10 * number):
            search = Search(world, path)
            assert search.find(time_ms) == location(world, number)
            assert search.cost() == Cost(1, 1, 1)
    search = Search(world, path)
    assert search.find(10 * end) == location(world, end)
    assert search.cost() == Cost(0, 0, 0)


@by_either_path
@pytest.mark.parametrize(
    "policy", [HOT_FIRST, TIERED_FIRST], ids=lambda policy: policy.managed_ledger_offloaded_read_priority
)
@pytest.mark.parametrize("how", ["whole", "whole, by Pulsar", "segments", "partly in segments"])
@pytest.mark.parametrize("is_stamped", [True, False], ids=["stamped", "unstamped"])
def test_while_there_is_a_hot_copy_the_tier_is_not_asked(
    how: str, policy: BrokerConfig, path: str, *, is_stamped: bool
) -> None:
    world = ReadWorld(policy=policy)
    for begin in (0, 100):
        numbers = range(begin, begin + 100)
        row = world.add([stamped(10 * at) if is_stamped else stamped(None, 40, 10 * at) for at in numbers])
        if is_stamped and not begin:  # as if the second were still open
            set_text(row, BROKER_TIME, "990")
        if how.startswith("whole"):
            world.offload_v1(row, block_bytes=500, statistics=how == "whole")
        else:
            world.offload_v2([(row, 0, 49)], block_bytes=500)
            if how == "segments":
                world.offload_v2([(row, 50, 99)], block_bytes=500)
    search = Search(world, path)
    for time_ms in range(-5, 2_010, 35):
        assert search.find(time_ms) == location(world, min(max(-(-time_ms // 10), 0), 200))
    assert search.cost() == Cost(0, 0, 0)
    assert search.counters.counts().entries == {}  # a search is not a read


@by_either_path
def test_a_hot_copy_that_is_missing_unexpectedly_is_searched_for_in_the_tier_by_its_index(path: str) -> None:
    """The hot copy is deleted, and the ledger list does not show it."""
    world = many_segments(8)
    world.info.ledgerInfo[0].offloadContext.bookkeeperDeleted = False
    search = Search(world, path)
    assert search.find(1_234) == location(world, 124)
    assert search.cost() == Cost(1, 1, 1)


@by_either_path
def test_a_ledger_whose_end_is_not_recorded_costs_no_more(path: str) -> None:
    """As the newest ledger of a topic whose hot log is skipped: the list records its last time when it closes."""
    world = many_segments(8)
    del world.info.ledgerInfo[0].properties[:]
    for number in (0, 150, 319):
        search = Search(world, path)
        assert search.find(10 * number) == location(world, number)
        assert search.cost() == Cost(1, 1, 1)


@by_either_path
def test_an_index_without_times_is_searched_by_few_gets(path: str) -> None:
    world = ReadWorld()
    row = world.add([stamped(10 * at, 1_000) for at in range(1_000)])
    set_text(row, BROKER_TIME, "9990")
    world.offload_v1(row, block_bytes=20_000, statistics=False)
    world.free(row)
    for number in range(1, 1_000, 83):
        search = Search(world, path)
        assert search.find(10 * number) == Position(row.ledgerId, number)
        cost = search.cost()
        assert (cost.heads, cost.indexes) == (1, 1)
        assert cost.gets <= 7  # 53 blocks, by bisection, and the one that has it
        assert search.find(10 * number) == Position(row.ledgerId, number)
        assert search.cost() == Cost(0, 0, 0)


@by_either_path
@pytest.mark.parametrize(
    ("pace", "most"), [pytest.param(lambda at: 10 * at, 1, id="even"), pytest.param(lambda at: at**3, 7, id="uneven")]
)
def test_large_blocks_are_searched_by_few_gets(pace: Callable[[int], int], most: int, path: str) -> None:
    world = ReadWorld()
    row = world.add([stamped(pace(at), 100_000) for at in range(250)])
    set_text(row, BROKER_TIME, str(pace(249)))
    world.offload_v1(row, block_bytes=12 << 20)
    world.free(row)
    for entry_id in (*range(0, 250, 9), 249):
        search = Search(world, path)
        assert search.find(pace(entry_id)) == Position(row.ledgerId, entry_id)
        cost = search.cost()
        assert (cost.heads, cost.indexes) == (1, 1)
        assert cost.gets <= most, entry_id
        assert search.find(pace(entry_id)) == Position(row.ledgerId, entry_id)
        assert search.cost() == Cost(0, 0, 0)


@by_either_path
def test_entries_without_broker_times_are_scanned_only_where_one_may_be_late_enough(path: str) -> None:
    times = [10 * at for at in range(64 * 40)]
    rng = random.Random(11)
    for begin in range(0, len(times), 40):  # within a segment they follow no order
        part = times[begin : begin + 40]
        rng.shuffle(part)
        times[begin : begin + 40] = part
    world = many_segments(64, per_ledger=16, publish=times.__getitem__)
    plain = PlainScan(world)
    for number in (0, 500, 1_300, len(times) - 1):
        search = Search(world, path)
        assert search.find(times[number]) == plain.find(times[number])
        cost = search.cost()
        assert cost.indexes <= 2  # of the segment that has it, and of the ledger's last one, to see how it is stamped
        assert cost.gets <= 2
    search = Search(world, path)
    assert search.find(max(times) + 1) == location(world, len(times))
    assert search.cost() == Cost(0, 0, 0)


def test_what_a_search_has_fetched_serves_the_read_that_follows() -> None:
    world = many_segments(64, per_ledger=16)
    search = Search(world, "broker")
    found = search.find(10 * 1_234)
    assert search.cost() == Cost(1, 1, 1)
    (entry,) = search.ledger.reader.read(found, 1, 1)
    assert entry.position == location(world, 1_234)
    assert search.cost() == Cost(0, 0, 0)


def test_message_expiry_costs_what_a_seek_costs() -> None:
    world = many_segments(64, per_ledger=16)
    search = Search(world, "broker")
    assert search.ledger.reader.last_before(10 * 1_234) == location(world, 1_233)
    assert search.cost() == Cost(1, 1, 1)
    assert search.ledger.reader.last_before(10 * 1_234 - 5) == location(world, 1_233)
    assert search.cost() == Cost(0, 0, 0)


def test_a_remote_hot_log_is_not_asked_for_entries_of_the_tier() -> None:
    class Brokers(RemoteHotLog):
        def __init__(self, log: MemoryLog) -> None:
            self._log = log
            self.opened = 0

        def open(self, ledger_id: int) -> MemoryLedger:
            self.opened += 1
            return self._log.open(ledger_id)

    world = many_segments(1)
    hot = world.hot
    world.info.ledgerInfo[0].offloadContext.bookkeeperDeleted = False
    row = world.add([stamped(400 + 10 * at) for at in range(10)])
    set_text(row, BROKER_TIME, "490")
    world.hot = brokers = Brokers(hot)  # type: ignore[assignment]  # a hot log that is only read
    search = Search(world, "library")
    assert search.find(123) == location(world, 13)
    assert (search.cost(), brokers.opened) == (Cost(1, 1, 1), 0)
    assert search.find(433) == location(world, 44)
    assert brokers.opened > 0
    assert search.cost() == Cost(0, 0, 0)


# --- while the tier cannot be reached ---


def out_of_reach(world: ReadWorld) -> None:
    """Let every request to the tier fail from now on."""
    world.counting = CountingStore(FaultyStore(world.store, [FaultRule(Fault.ERROR_BEFORE, times=None)]))


@by_either_path
def test_hot_ledgers_are_searched_while_the_tier_is_out_of_reach(path: str) -> None:
    world = many_segments(4, per_ledger=2)
    row = world.add([stamped(1_600 + 10 * at) for at in range(40)])
    set_text(row, BROKER_TIME, "1990")
    world.offload_v2([(row, 0, 19)])
    out_of_reach(world)
    search = Search(world, path)
    for number in (160, 175, 185, 199):
        assert search.find(10 * number) == location(world, number)
    assert search.find(2_000) == location(world, 200)
    assert search.cost() == Cost(0, 0, 0)


@by_either_path
def test_a_search_for_what_only_the_tier_has_fails_at_the_first_request_that_fails(path: str) -> None:
    """Retries are the store's: one request that ends in an error has been tried for as long as the settings say."""
    world = many_segments(4, per_ledger=2)
    out_of_reach(world)
    search = Search(world, path)
    with pytest.raises(StoreUnavailable):
        search.find(333)
    assert sum(count.requests for count in world.counting.counts().values()) == 1
