"""Messages that wait for their delivery time."""

from __future__ import annotations

import asyncio
import heapq
import tracemalloc
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock

from afterglow.broker.delayed import DelayedMessages
from afterglow.format.position import Position

WAIT_S = 10


def test_messages_become_due_in_the_order_of_their_times_and_never_earlier() -> None:
    async def run() -> None:
        clock = ManualClock()
        delayed = DelayedMessages(clock.now_ms, lambda: None, limit=10)
        for entry, wait_ms in enumerate((300, 100, 200)):
            delayed.add(Position(1, entry), clock.now_ms() + wait_ms)
        clock.advance(0.099)
        assert delayed.pop_due(10) == []
        clock.advance(0.101)
        assert delayed.pop_due(10) == [Position(1, 1), Position(1, 2)]
        clock.advance(0.1)
        assert delayed.pop_due(10) == [Position(1, 0)]
        assert len(delayed) == 0

    asyncio.run(run())


def test_the_task_is_woken_when_the_first_message_is_due() -> None:
    async def run() -> None:
        clock = ManualClock()
        woken = asyncio.Event()
        delayed = DelayedMessages(clock.now_ms, woken.set, limit=10)
        delayed.add(Position(1, 0), clock.now_ms() + 3_600_000)
        delayed.add(Position(1, 1), clock.now_ms() + 10)  # sooner than the one that the timer waits for
        clock.advance(0.01)
        await asyncio.wait_for(woken.wait(), WAIT_S)
        assert delayed.pop_due(10) == [Position(1, 1)]
        delayed.clear()

    asyncio.run(run())


def test_a_clock_that_jumps_is_noticed() -> None:
    async def run() -> None:
        clock = ManualClock()
        woken = asyncio.Event()
        delayed = DelayedMessages(clock.now_ms, woken.set, limit=10, recheck_s=0.01)
        delayed.add(Position(1, 0), clock.now_ms() + 3_600_000)
        clock.advance(3600)
        await asyncio.wait_for(woken.wait(), WAIT_S)
        delayed.clear()

    asyncio.run(run())


def test_messages_acknowledged_without_delivery_free_capacity() -> None:
    async def run() -> None:
        clock = ManualClock()
        delayed = DelayedMessages(clock.now_ms, lambda: None, limit=3)
        for entry in range(3):
            delayed.add(Position(1, entry), clock.now_ms() + 1000)
        assert delayed.is_full
        delayed.discard_through(Position(0, 99))
        assert len(delayed) == 3
        delayed.discard_through(Position(1, 1))
        assert len(delayed) == 1
        clock.advance(1)
        assert delayed.pop_due(10) == [Position(1, 2)]
        delayed.clear()

    asyncio.run(run())


def test_acknowledged_deliveries_do_not_scan_the_delayed_messages() -> None:
    async def run() -> None:
        clock = ManualClock()
        delayed = DelayedMessages(clock.now_ms, lambda: None, limit=1000)
        for entry in range(500):
            delayed.add(Position(1, entry), clock.now_ms() + entry)
        with patch("heapq.heapify", wraps=heapq.heapify) as walk:
            for entry in range(400):
                clock.advance(0.001)
                delayed.pop_due(10)
                delayed.discard_through(Position(1, entry))
            walk.assert_not_called()
            delayed.discard_through(Position(1, 450))
            walk.assert_called_once()
        assert len(delayed) == 49
        delayed.clear()

    asyncio.run(run())


def test_short_delays_behind_a_long_one_do_not_accumulate_memory() -> None:
    async def run() -> None:
        clock = ManualClock()
        delayed = DelayedMessages(clock.now_ms, lambda: None, limit=10)
        delayed.add(Position(1, 0), clock.now_ms() + 3_600_000)
        tracemalloc.start()
        for entry in range(1, 6_000):
            delayed.add(Position(1, entry), clock.now_ms() + 1)
            clock.advance(0.001)
            assert delayed.pop_due(10) == [Position(1, entry)]
            await asyncio.sleep(0)  # lets the loop drop timers that were cancelled
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held_bytes < 400_000
        delayed.clear()

    asyncio.run(run())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3), st.integers(0, 20)), max_size=60))
def test_every_message_is_returned_once_at_the_first_poll_after_its_time(added: list[tuple[int, int, int]]) -> None:
    async def run() -> None:
        clock = ManualClock()
        start = clock.now_ms()
        delayed = DelayedMessages(clock.now_ms, lambda: None, limit=100)
        for wait_ms, ledger, entry in added:
            delayed.add(Position(ledger, entry), start + wait_ms)
        for step in range(51):
            clock.set_now_ms(start + step)
            expected = sorted(Position(ledger, entry) for wait_ms, ledger, entry in added if wait_ms == step)
            assert sorted(delayed.pop_due(1000)) == expected
        assert len(delayed) == 0

    asyncio.run(run())
