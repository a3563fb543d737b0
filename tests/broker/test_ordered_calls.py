from __future__ import annotations

import asyncio
import threading

from afterglow.broker.ordered_calls import OrderedCalls


def test_a_call_from_the_loop_does_not_overtake_one_from_another_thread() -> None:
    async def test() -> list[int]:
        order = OrderedCalls(asyncio.get_running_loop())
        seen: list[int] = []
        other = threading.Thread(target=lambda: order.run(lambda: seen.append(1)))
        other.start()
        other.join()
        # The loop has had no turn yet, so the first call still waits.
        order.run(lambda: seen.append(2))
        assert seen == [1, 2]
        await asyncio.sleep(0)
        return seen

    assert asyncio.run(test()) == [1, 2]


def test_a_call_that_runs_another_keeps_the_order() -> None:
    async def test() -> list[int]:
        order = OrderedCalls(asyncio.get_running_loop())
        seen: list[int] = []

        def first() -> None:
            seen.append(1)
            order.run(lambda: seen.append(3))

        def together() -> None:
            order.run(first)
            order.run(lambda: seen.append(2))

        # Both are waiting when the first begins.
        thread = threading.Thread(target=together)
        thread.start()
        thread.join()
        await asyncio.sleep(0)
        return seen

    assert asyncio.run(test()) == [1, 2, 3]


def test_no_call_of_many_threads_is_lost() -> None:
    async def test() -> int:
        order = OrderedCalls(asyncio.get_running_loop())
        seen: list[int] = []

        def many() -> None:
            for _ in range(500):
                order.run(lambda: seen.append(1))

        threads = [threading.Thread(target=many) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or len(seen) < 2000:  # noqa: ASYNC110 - threads, no event
            await asyncio.sleep(0.001)
        return len(seen)

    assert asyncio.run(asyncio.wait_for(test(), 30)) == 2000
