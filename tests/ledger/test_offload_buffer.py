"""What the tail cache lets go and a tier has not got yet."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from afterglow.format.position import Position
from afterglow.ledger.cache import ENTRY_OVERHEAD_BYTES, TailCache
from afterglow.ledger.offload_buffer import OffloadBuffer
from afterglow.ledger.store import LedgerStore
from afterglow.testing.ledgers import World, settings

COST = ENTRY_OVERHEAD_BYTES + 10


def entry(number: int) -> bytes:
    return b"%010d" % number


def filled(cache_entries: int, buffer_entries: int, count: int, *, wanted: int | None = 0) -> TailCache:
    """A cache and a buffer of so many entries each, after ``count`` appends to ledger 1."""
    cache = TailCache(cache_entries * COST, OffloadBuffer(buffer_entries * COST))
    assert cache.buffer is not None
    if wanted is not None:
        cache.buffer.want("t", Position(1, wanted), (1,))
    for number in range(count):
        cache.put(1, number, entry(number))
    return cache


def held(buffer: OffloadBuffer | None, ledger_id: int = 1, count: int = 100) -> list[int]:
    assert buffer is not None
    return [at for at in range(count) if buffer.get_run(ledger_id, at, at, 1)]


def test_entries_that_the_cache_lets_go_wait_in_the_buffer() -> None:
    cache = filled(2, 3, 5)
    assert held(cache.buffer) == [0, 1, 2]
    assert cache.buffer is not None
    assert cache.buffer.get_run(1, 1, 9, 1 << 20) == [entry(1), entry(2)]
    assert cache.buffer.get_run(1, 0, 9, 19) == [entry(0)]


def test_entries_of_topics_that_do_not_stream_are_not_kept() -> None:
    cache = filled(2, 3, 5, wanted=None)
    assert held(cache.buffer) == []


def test_entries_that_are_taken_already_are_not_kept() -> None:
    assert held(filled(2, 9, 6, wanted=3).buffer) == [3]


def test_the_oldest_goes_first_where_the_budget_is_used_up() -> None:
    cache = filled(2, 3, 8)
    assert cache.buffer is not None
    assert held(cache.buffer) == [3, 4, 5]
    assert cache.buffer.statistics.dropped == 3


def test_what_is_taken_is_let_go() -> None:
    cache = filled(2, 9, 8)
    assert cache.buffer is not None
    cache.buffer.want("t", Position(1, 4), (1, 2))
    assert held(cache.buffer) == [4, 5]
    cache.buffer.want("t", Position(2, 0), (2,))
    assert held(cache.buffer) == []
    assert cache.buffer.statistics.bytes_held == 0


def test_a_topic_that_is_forgotten_keeps_nothing() -> None:
    cache = filled(2, 9, 8)
    assert cache.buffer is not None
    cache.buffer.want("other", Position(7, 0), (7,))
    cache.buffer.offer(7, 0, b"")
    cache.buffer.forget("t")
    cache.put(1, 8, entry(8))
    assert held(cache.buffer) == []
    assert held(cache.buffer, 7) == [0]


def test_a_deleted_ledger_leaves_the_buffer_too() -> None:
    cache = filled(2, 9, 8)
    cache.drop_ledger(1)
    assert held(cache.buffer) == []


def test_without_a_cache_everything_goes_to_the_buffer() -> None:
    assert held(filled(0, 3, 3).buffer) == [0, 1, 2]


operations = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 600)),
    st.tuples(st.just("take"), st.integers(1, 3), st.integers(0, 40)),
    st.tuples(st.just("drop"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("forget"), st.integers(1, 3), st.just(0)),
)


@given(st.lists(operations, max_size=80), st.integers(0, 3000), st.integers(300, 4000))
def test_no_more_than_the_budget_is_held_and_what_is_served_is_what_was_written(
    steps: list[tuple[str, int, int]], cache_bytes: int, buffer_bytes: int
) -> None:
    buffer = OffloadBuffer(buffer_bytes)
    cache = TailCache(cache_bytes, buffer)
    written: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    wanted: dict[int, int] = {}
    for name, ledger_id, value in steps:
        entries = written[ledger_id]
        if name == "append":
            entries.append(bytes([len(entries) % 251]) * value)
            cache.put(ledger_id, len(entries) - 1, entries[-1])
        elif name == "take":
            wanted[ledger_id] = max(value, wanted.get(ledger_id, 0))
            buffer.want(str(ledger_id), Position(ledger_id, wanted[ledger_id]), (ledger_id,))
        elif name == "forget":
            wanted.pop(ledger_id, None)
            buffer.forget(str(ledger_id))
        else:
            cache.drop_ledger(ledger_id)
        found = {
            (id_, at): data
            for id_ in written
            for at in range(len(written[id_]))
            for data in buffer.get_run(id_, at, at, 1)
        }
        assert all(data == written[id_][at] for (id_, at), data in found.items())
        assert all(at >= wanted.get(id_, at + 1) for id_, at in found)
        statistics = buffer.statistics
        assert statistics.entries == len(found)
        assert statistics.bytes_held == sum(len(data) + ENTRY_OVERHEAD_BYTES for data in found.values())
        assert statistics.bytes_held <= buffer_bytes


def test_threads_do_not_disturb_each_other() -> None:
    buffer = OffloadBuffer(20 * COST)
    cache = TailCache(10 * COST, buffer)

    def work(ledger_id: int) -> None:
        for number in range(2_000):
            if number % 7 == 0:
                buffer.want(str(ledger_id), Position(ledger_id, max(number - 15, 0)), (ledger_id,))
            cache.put(ledger_id, number, entry(number))
            for data in buffer.get_run(ledger_id, number - 12, number - 12, 1):
                assert data == entry(number - 12)

    threads = [threading.Thread(target=work, args=(id_,)) for id_ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ledger_id in range(4):
        buffer.forget(str(ledger_id))
    assert buffer.statistics.bytes_held == buffer.statistics.entries == 0


def test_a_topic_is_read_from_the_buffer_where_the_cache_has_it_no_more() -> None:
    world = World(settings(managed_ledger_cache_size_mb=0))
    buffer = OffloadBuffer(1 << 20)
    world.store = LedgerStore(
        hot=world.hot,
        states=world.hot,
        metadata=world.metadata,
        config=world.config,
        executor=world.executor,
        clock=world.clock,
        buffer=buffer,
    )
    ledger = world.open()
    begin, *_ = world.append(ledger, b"before")
    buffer.want(ledger.name, begin.next(), ledger.layout.ids)
    world.append(ledger, b"a", b"b", b"c")
    assert ledger.read_cached(begin.next(), 9, 1 << 20) is None
    assert ledger.read_buffered(begin, 9, 1 << 20) is None
    assert ledger.read_buffered(begin.next(), 2, 1 << 20) == ledger.read(begin.next(), 2, 1 << 20)
    world.hot.open(begin.ledger_id).entries[1] = b"not this one"
    found = [bytes(each.data) for each in ledger.read(begin.next(), 9, 1 << 20)]
    assert [data[-1:] for data in found] == [b"a", b"b", b"c"]
