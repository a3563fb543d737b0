from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st
from tests.support.framed import together

from afterglow.format.frames import FramedEntries
from afterglow.ledger.cache import TailCache, cached_bytes

COST = cached_bytes(FramedEntries.one(0, bytes(10)))


def put(cache: TailCache, ledger_id: int, entry_id: int, data: bytes) -> None:
    cache.put(ledger_id, FramedEntries.one(entry_id, data))


def many(first: int, count: int, size: int = 10) -> FramedEntries:
    return together(first, [b"%0*d" % (size, entry_id) for entry_id in range(first, first + count)])


def test_the_cached_part_of_a_range_is_returned() -> None:
    cache = TailCache(10_000)
    for entry_id in (3, 4, 6):
        put(cache, 1, entry_id, b"%d" % entry_id)
    assert cache.get_range(1, 3, 9, 100) == [b"3", b"4"]
    assert cache.get_range(1, 5, 9, 100) == []
    assert cache.get_range(2, 3, 9, 100) == []
    assert (cache.statistics.hits, cache.statistics.hit_bytes, cache.statistics.misses) == (2, 2, 2)


def test_one_entry_is_given_however_few_bytes_are_asked_for() -> None:
    cache = TailCache(10_000)
    put(cache, 1, 0, b"x" * 50)
    put(cache, 1, 1, b"y" * 50)
    assert len(cache.get_range(1, 0, 1, 1)) == 1
    assert len(cache.get_range(1, 0, 1, 99)) == 1
    assert len(cache.get_range(1, 0, 1, 100)) == 2


def test_the_oldest_entry_of_all_topics_is_evicted_first() -> None:
    cache = TailCache(3 * COST)
    for ledger_id, entry_id in ((1, 0), (2, 0), (1, 1), (2, 1)):
        put(cache, ledger_id, entry_id, b"0123456789")
    assert cache.get_range(1, 0, 0, 100) == []
    assert all(cache.get_range(*key, key[1], 100) for key in ((2, 0), (1, 1), (2, 1)))
    assert cache.statistics.evictions == 1


def test_what_passes_the_budget_alone_is_not_held_and_drives_nothing_out() -> None:
    cache = TailCache(2 * COST)
    put(cache, 1, 0, b"0123456789")
    put(cache, 1, 1, b"x" * 2 * COST)
    assert cache.get_range(1, 0, 1, 10_000) == [b"0123456789"]
    put(TailCache(0), 1, 0, b"")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 3), st.integers(0, 200)),
            st.tuples(st.integers(0, 3), st.just(-1)),
        ),
        max_size=60,
    )
)
def test_the_sum_of_bytes_is_right_and_within_the_budget_after_any_puts_and_drops(steps: list[tuple[int, int]]) -> None:
    cache = TailCache(2_000)
    following = dict.fromkeys(range(4), 0)
    for ledger_id, size in steps:
        if size < 0:
            cache.drop_ledger(ledger_id)
            assert cache.get_range(ledger_id, 0, following[ledger_id], 10_000) == []
        else:
            put(cache, ledger_id, following[ledger_id], bytes(size))
            following[ledger_id] += 1
        held = [
            data for id_ in range(4) for at in range(following[id_]) for data in cache.get_range(id_, at, at, 10_000)
        ]
        assert cache.statistics.entries == len(held)
        assert cache.statistics.bytes_held == sum(COST - 10 + len(data) for data in held) <= 2_000


def test_entries_that_came_together_are_cached_and_evicted_together() -> None:
    cache = TailCache(2 * cached_bytes(many(0, 10)))
    cache.put(1, many(0, 10))
    cache.put(1, many(10, 10))
    assert cache.get_range(1, 7, 12, 10_000) == [b"%010d" % entry_id for entry_id in range(7, 13)]
    assert cache.get_range(1, 8, 100, 35) == [b"%010d" % entry_id for entry_id in range(8, 11)]
    assert cache.get_range(1, 20, 30, 100) == []
    assert cache.statistics.entries == 20
    put(cache, 1, 20, b"last")
    assert cache.get_range(1, 9, 9, 100) == []
    assert cache.first_after(1, 3) == 10
    assert cache.get_range(1, 19, 20, 100) == [b"%010d" % 19, b"last"]
    assert (cache.statistics.entries, cache.statistics.evictions) == (11, 10)
    cache.drop_ledger(1)
    assert (cache.statistics.entries, cache.statistics.bytes_held) == (0, 0)


def test_threads_do_not_spoil_the_sum() -> None:
    cache = TailCache(50 * COST)

    def fill(ledger_id: int) -> None:
        for entry_id in range(500):
            put(cache, ledger_id, entry_id, b"0123456789")
            cache.get_range(ledger_id, max(entry_id - 5, 0), entry_id, 100)
        cache.drop_ledger(ledger_id)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(4)))
    assert (cache.statistics.entries, cache.statistics.bytes_held) == (0, 0)
