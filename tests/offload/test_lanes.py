from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from afterglow.offload.lanes import Lane
from afterglow.testing.clock import InlineExecutor, ManualExecutor

if TYPE_CHECKING:
    import pytest


def test_lanes_take_turns_on_one_thread() -> None:
    executor = ManualExecutor()
    ran: list[str] = []
    first, second = Lane("first", executor), Lane("second", executor)
    for number in range(2):
        first.submit(partial(ran.append, f"first {number}"))
        second.submit(partial(ran.append, f"second {number}"))
    assert len(executor) == 2
    executor.run_all()
    assert ran == ["first 0", "second 0", "first 1", "second 1"]
    assert first.idle


def test_pieces_of_a_lane_never_run_at_once_and_keep_their_order() -> None:
    ran: list[int] = []
    running = threading.Semaphore(1)
    ended = threading.Event()

    def piece(number: int) -> None:
        assert running.acquire(blocking=False)
        ran.append(number)
        running.release()
        if number == 499:
            ended.set()

    with ThreadPoolExecutor(4) as pool:
        lane = Lane("t", pool)
        for number in range(500):
            lane.submit(partial(piece, number))
        assert ended.wait(30)
    assert ran == list(range(500))


def test_a_piece_that_fails_does_not_stop_the_lane(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError("oops")

    lane = Lane("t", InlineExecutor())
    lane.submit(fail)
    lane.submit(partial(ran.append, 1))
    assert ran == [1]
    assert "oops" in caplog.text


def test_after_the_executors_shutdown_nothing_runs_and_nothing_is_raised() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    ran: list[int] = []
    Lane("t", pool).submit(partial(ran.append, 1))
    assert ran == []
