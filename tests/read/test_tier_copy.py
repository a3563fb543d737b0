"""Entries of objects of both formats: byte-equal for every range, and fetched once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, Semaphore
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.ledgers import message
from tests.support.read_world import ReadWorld, random_entries

from afterglow.config import BrokerConfig
from afterglow.errors import CorruptBlock, StoreUnavailable
from afterglow.format.blocks import decode_header
from afterglow.format.frames import iter_entries
from afterglow.read.messages import EntryBatches, MessageBatches
from afterglow.read.scan_range import ScanRange
from afterglow.storage.wrapper import StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.copies import ServedRun
    from afterglow.storage import ObjectStore

MIB = 1 << 20
SIZES = st.lists(
    st.one_of(st.integers(0, 2_000), st.sampled_from([0, 65_000, 65_536 - 12, 400_000, MIB - 12, MIB, 3 * MIB])),
    min_size=1,
    max_size=12,
)
LAYOUTS = ("v1", "v1 of Pulsar", "v2", "v2 of Pulsar")


def offloaded(world: ReadWorld, sizes: list[int], layout: str, block_bytes: int) -> ManagedLedgerInfo.LedgerInfo:
    """A ledger that only the tier has."""
    row = world.add(random_entries(sizes))
    statistics = "Pulsar" not in layout
    if layout.startswith("v1"):
        world.offload_v1(row, block_bytes=block_bytes, statistics=statistics)
    else:
        world.offload_v2([(row, 0, len(sizes) - 1)], block_bytes=block_bytes, statistics=statistics)
    world.free(row)
    return row


def ids_and_entries(runs: Iterable[ServedRun]) -> list[tuple[int, bytes]]:
    """Each entry of runs, with its id."""
    return [(at, bytes(data)) for served in runs for at, data in iter_entries(served.run.data, served.run.frames)]


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    sizes=SIZES,
    block_bytes=st.sampled_from([4 * MIB, 6 * MIB + 1]),
    buffer_bytes=st.sampled_from([1, 100_000, MIB, 5 * MIB]),
    ranges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(0, 3 * MIB)), max_size=5),
)
@settings(max_examples=25, deadline=None)
def test_any_range_is_what_was_written(
    layout: str, sizes: list[int], block_bytes: int, buffer_bytes: int, ranges: list[tuple[int, int, int]]
) -> None:
    policy = BrokerConfig(managed_ledger_offload_read_buffer_size_in_bytes=buffer_bytes)
    world = ReadWorld(BrokerConfig(offload_scan_read_buffer_size_in_bytes=buffer_bytes), policy)
    row = offloaded(world, sizes, layout, block_bytes)
    expected = list(enumerate(world.entries[row.ledgerId]))
    assert ids_and_entries(world.source.scan(row, 0, len(sizes) - 1)) == expected
    for one, other, max_bytes in ranges:
        first, last = min(one, other), min(max(one, other), len(sizes) - 1)
        assert ids_and_entries(world.source.walk(row, first, last, max_bytes)) == expected[first : last + 1]
        assert ids_and_entries(world.source.scan(row, first, last)) == expected[first : last + 1]
    world.tiers.close()


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("wrong", [{"ledger_id": 99}, {"first_entry_id": 1}])
def test_a_block_that_contradicts_the_index_is_never_read(wrong: dict[str, Any], *, scan: bool) -> None:
    """Without checksums, as Pulsar writes it, only the block's header names the ledger."""
    world = ReadWorld()
    row = world.add(random_entries([10] * 5))
    key = world.offload_v2([(row, 0, 4)], statistics=False)
    world.free(row)
    data = bytes(world.store.get(key))
    header = replace(decode_header(data), **wrong).encode()
    world.store.put(key, header + data[len(header) :], metadata=world.store.head(key).metadata)
    read = world.source.scan(row, 0, 4) if scan else world.source.walk(row, 0, 4, MIB)
    with pytest.raises(CorruptBlock, match="contradicts the index"):
        ids_and_entries(read)
    world.tiers.close()


# --- what is fetched --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [1, 3_000, 200_000, 50 * MIB])
def test_a_full_read_fetches_hardly_more_than_it_delivers(max_bytes: int) -> None:
    world = ReadWorld()
    row = offloaded(world, [4_000] * 16_800, "v1", 64 * MIB)  # a block of 64 MiB, and a part of another
    if max_bytes > 1:
        runs = list(world.source.walk(row, 0, 16_799, max_bytes))
        delivered = sum(served.run.frame_bytes for served in runs)
    else:  # a read of each entry would be another test's time
        runs = [next(world.source.walk(row, at, 16_799, 1)) for at in range(0, 16_800, 50)]
        delivered = sum(served.run.frame_bytes for served in runs) * 50
    world.tiers.close()
    assert delivered == 16_800 * 4_012
    assert world.counters.counts().fetched_bytes / delivered <= 1.02
    assert world.fetched_bytes / delivered <= 1.02  # with the index


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_one_entry_costs_one_or_two_stripes(layout: str) -> None:
    world = ReadWorld(policy=BrokerConfig(managed_ledger_offload_prefetch_rounds=0))
    row = offloaded(world, [1_000] * 30_000, layout, 64 * MIB if layout == "v1" else MIB)
    for number, entry_id in enumerate((29_999, 12_345, 20_000), 1):
        world.source.read(row, entry_id, 29_999, 1)
        assert world.counters.counts().fetched_bytes <= 2 * MIB * number
    world.tiers.close()


def test_a_scan_fetches_only_its_range_and_in_large_requests() -> None:
    world = ReadWorld()
    row = offloaded(world, [1_000] * 30_000, "v1", 64 * MIB)
    runs = list(world.source.scan(row, 2_000, 2_999))
    assert sum(len(served.run.frames) for served in runs) == 1_000
    counts = world.counters.counts()
    assert (counts.requests, counts.fetched_bytes) == (1, 3 * MIB - MIB)
    list(world.source.scan(row, 0, 29_999))
    world.tiers.close()
    assert world.counters.counts().requests == 1 + 4  # 29 MiB by eight
    assert world.tiers._cache.stripes.size_bytes == 0


def test_blocks_that_came_with_one_request_are_one_run() -> None:
    world = ReadWorld(BrokerConfig(offload_scan_read_buffer_size_in_bytes=MIB))
    entries = [message(b"%d" % i * 500, i) for i in range(2_000)]
    row = world.add(entries)
    world.offload_v2([(row, 0, 1_999)], block_bytes=100_000)
    world.free(row)
    for first, last in [(0, 1_999), (7, 1_555), (300, 301)]:
        runs = list(world.source.scan(row, first, last))
        assert len(runs) == -(-sum(map(len, entries[first : last + 1])) // MIB)
        assert ids_and_entries(runs) == list(enumerate(entries))[first : last + 1]
        assert [bytes(each) for served in runs for each in served.run.entries()] == entries[first : last + 1]
        rows = MessageBatches("t", ScanRange())
        published = [at for served in runs for batch in rows.of(served) for at in batch["publish_time"].to_pylist()]
        assert [round(at.timestamp() * 1_000) for at in published] == list(range(first, last + 1))
        raw = EntryBatches("t", ScanRange(), ["data"])
        assert [each for served in runs for batch in raw.of(served) for each in batch["data"].to_pylist()] == entries[
            first : last + 1
        ]
        assert sum(served.run.frames.payload_bytes for served in runs) == sum(map(len, entries[first : last + 1]))
    assert max(len(served.run.frames.gaps) for served in world.source.scan(row, 0, 1_999)) > 5
    world.tiers.close()


def test_a_larger_read_buffer_fetches_adjacent_stripes_with_one_request() -> None:
    policy = BrokerConfig(managed_ledger_offload_read_buffer_size_in_bytes=4 * MIB)
    world = ReadWorld(policy=policy)
    row = offloaded(world, [1_000] * 16_000, "v1", 64 * MIB)
    assert sum(len(served.run.frames) for served in world.source.walk(row, 0, 15_999, 10_000)) == 16_000
    world.tiers.close()
    assert world.counters.counts().requests == 4


def test_the_second_reader_of_a_block_without_a_table_does_not_begin_at_its_start() -> None:
    world = ReadWorld(policy=BrokerConfig(managed_ledger_offload_prefetch_rounds=0))
    row = offloaded(world, [1_000] * 20_000, "v1 of Pulsar", 64 * MIB)
    world.source.read(row, 15_000, 15_000, 1)
    before = world.counters.counts().fetched_bytes
    assert before >= 14 * MIB
    assert world.tiers._cache.tables.size_bytes > 0
    world.tiers._cache.stripes.evict_idle()
    world.clock.advance(10**6)
    world.tiers._cache.stripes.evict_idle()
    assert world.source.read(row, 14_000, 14_000, 1).entries == world.entries[row.ledgerId][14_000:14_001]
    assert world.counters.counts().fetched_bytes - before <= 2 * MIB
    world.tiers.close()


def test_caches_stay_inside_their_bounds_and_evict_idle_content() -> None:
    config = BrokerConfig(
        offload_read_max_bytes=5 * MIB,
        offload_index_cache_max_bytes=10_000,
        offload_entry_offset_cache_max_bytes=3_000,
    )
    policy = BrokerConfig(managed_ledger_offload_read_buffer_size_in_bytes=1)
    world = ReadWorld(config, policy)
    for layout in LAYOUTS * 3:
        row = offloaded(world, [1_000] * 9_000, layout, 5 * MIB)
        assert sum(len(served.run.frames) for served in world.source.walk(row, 0, 8_999, 100_000)) == 9_000
        assert 0 < world.tiers._cache.stripes.size_bytes <= 5 * MIB
        assert 0 < world.tiers._objects.size_bytes <= 10_000
        assert world.tiers._cache.tables.size_bytes <= 3_000
    world.tiers.close()
    world.clock.advance(599)
    world.tiers.evict_idle()
    assert world.tiers._cache.stripes.size_bytes
    world.clock.advance(2)
    world.tiers.evict_idle()
    assert (
        world.tiers._cache.stripes.size_bytes,
        world.tiers._objects.size_bytes,
        world.tiers._cache.tables.size_bytes,
    ) == (0, 0, 0)


class Gate(StoreWrapper):
    """A store whose ranged reads of data wait until they are let through."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.waiting = Semaphore(0)
        self.open = Event()

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        if not key.endswith("-index"):
            self.waiting.release()
            assert self.open.wait(30)
        return self.inner.get(key, start, end)


def test_a_stripe_is_fetched_once_for_concurrent_readers() -> None:
    world = ReadWorld(policy=BrokerConfig(managed_ledger_offload_prefetch_rounds=0))
    row = offloaded(world, [100] * 50, "v1", 5 * MIB)
    gate = Gate(world.counting.inner)
    world.counting.inner = gate
    with ThreadPoolExecutor(8) as pool:
        reads = [pool.submit(world.source.read, row, at, 49, 1) for at in range(8)]
        assert gate.waiting.acquire(timeout=30)
        gate.open.set()
        assert [read.result().entries for read in reads] == [[entry] for entry in world.entries[row.ledgerId][:8]]
    assert world.counters.counts().requests == 1
    assert world.counting.counts()["head"].requests == 1


def test_every_request_is_timed_and_those_that_fail_are_counted() -> None:
    world = ReadWorld(policy=BrokerConfig(managed_ledger_offload_prefetch_rounds=0))
    row = offloaded(world, [100] * 50, "v1", 5 * MIB)
    world.source.read(row, 0, 49, 1)
    counts = world.counters.counts()
    assert (counts.index_latency.count, counts.data_latency.count, counts.failed) == (1, counts.requests, 0)
    assert 0 < counts.data_latency.quantiles[1.0] <= counts.data_latency.sum_us
    other = offloaded(world, [100] * 50, "v1", 5 * MIB)
    world.counting.inner = Refusing(world.counting.inner, "-index")
    with pytest.raises(StoreUnavailable):
        world.source.read(other, 0, 49, 1)
    assert (world.counters.counts().index_latency.count, world.counters.counts().failed) == (1, 1)
    world.counting.inner = Refusing(world.counting.inner.inner, f"-ledger-{other.ledgerId}")
    with pytest.raises(StoreUnavailable):
        world.source.read(other, 0, 49, 1)
    assert (world.counters.counts().index_latency.count, world.counters.counts().failed) == (2, 2)


class Refusing(StoreWrapper):
    """Gives no object whose key ends so."""

    def __init__(self, inner: ObjectStore, ending: str) -> None:
        super().__init__(inner)
        self._ending = ending

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        if key.endswith(self._ending):
            raise StoreUnavailable(f"{key} is not to be had today")
        return self.inner.get(key, start, end)


def test_sequential_reads_prefetch_the_next_stripe() -> None:
    world = ReadWorld()
    row = offloaded(world, [1_000] * 9_000, "v1", 64 * MIB)
    world.source.read(row, 0, 8_999, 1)
    world.tiers.close()  # waits for what is under way
    assert world.counters.counts().requests == 2
    world.source.read(row, 6_000, 8_999, 1)  # another reader at another position: nothing is prefetched for it
    world.tiers.close()
    assert world.counters.counts().requests == 3


def test_a_scan_asks_ahead_and_lets_go_when_it_is_given_up() -> None:
    world = ReadWorld(BrokerConfig(offload_scan_read_buffer_size_in_bytes=MIB))
    row = offloaded(world, [1_000] * 9_000, "v1", 64 * MIB)
    runs = world.source.scan(row, 0, 8_999)
    next(runs)
    runs.close()  # type: ignore[attr-defined]  # a generator
    world.tiers.close()
    assert world.counters.counts().requests <= 2


def test_a_scan_does_not_wait_for_threads_that_others_keep_busy() -> None:
    world = ReadWorld(BrokerConfig(offload_scan_read_buffer_size_in_bytes=MIB, managed_ledger_offload_read_threads=1))
    row = offloaded(world, [1_000] * 5_000, "v1", 64 * MIB)
    busy, free = Event(), Event()

    def block() -> None:
        busy.set()
        free.wait(30)

    world.tiers._cache.executor.submit(block)
    assert busy.wait(30)
    assert len(ids_and_entries(world.source.scan(row, 0, 4_999))) == 5_000
    free.set()
    world.tiers.close()
