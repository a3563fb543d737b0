from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import InlineExecutor, ManualExecutor

from afterglow.offload.topic_schedule import SerialExecutor, TopicSchedule

if TYPE_CHECKING:
    import pytest


def test_the_earliest_time_of_a_name_counts() -> None:
    schedule = TopicSchedule()
    schedule.put("a", 10)
    schedule.put("a", 5)
    schedule.put("a", 7)
    assert schedule.take_due(4) == []
    assert schedule.take_due(5) == ["a"]
    assert schedule.take_due(100) == []


def test_a_time_that_was_cancelled_does_not_come() -> None:
    schedule = TopicSchedule()
    schedule.put("a", 5)
    schedule.cancel("a")
    schedule.cancel("never there")
    assert schedule.take_due(100) == []
    schedule.put("a", 50)
    assert schedule.take_due(49) == []
    assert schedule.take_due(50) == ["a"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 20))
        | st.tuples(st.just("cancel"), st.sampled_from("abc"))
        | st.tuples(st.just("take"), st.integers(0, 20))
    )
)
def test_names_are_due_when_a_plain_dictionary_says_so(steps: list[tuple[str, object]]) -> None:
    schedule = TopicSchedule()
    model: dict[str, int] = {}
    for step, value in steps:
        if step == "take":
            assert isinstance(value, int)
            due = {name for name, at in model.items() if at <= value}
            assert set(schedule.take_due(value)) == due
            model = {name: at for name, at in model.items() if name not in due}
        elif step == "cancel":
            schedule.cancel(str(value))
            model.pop(str(value), None)
        else:
            assert isinstance(value, int)
            schedule.put(step, value)
            model[step] = min(value, model.get(step, value))
        assert len(schedule) == len(model)


def test_lanes_take_turns_on_one_thread() -> None:
    executor = ManualExecutor()
    ran: list[str] = []
    first, second = SerialExecutor("first", executor), SerialExecutor("second", executor)
    for number in range(2):
        first.submit(partial(ran.append, f"first {number}"))
        second.submit(partial(ran.append, f"second {number}"))
    assert len(executor) == 2
    executor.run_all()
    assert ran == ["first 0", "second 0", "first 1", "second 1"]
    assert first.is_idle


def test_items_of_a_lane_never_run_at_once_and_keep_their_order() -> None:
    ran: list[int] = []
    running = threading.Semaphore(1)
    ended = threading.Event()

    def item(number: int) -> None:
        assert running.acquire(blocking=False)
        ran.append(number)
        running.release()
        if number == 499:
            ended.set()

    with ThreadPoolExecutor(4) as pool:
        lane = SerialExecutor("t", pool)
        for number in range(500):
            lane.submit(partial(item, number))
        assert ended.wait(30)
    assert ran == list(range(500))


def test_a_item_that_fails_does_not_stop_the_lane(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError("oops")

    lane = SerialExecutor("t", InlineExecutor())
    lane.submit(fail)
    lane.submit(partial(ran.append, 1))
    assert ran == [1]
    assert "oops" in caplog.text


def test_after_the_executors_shutdown_nothing_runs_and_nothing_is_raised() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    ran: list[int] = []
    SerialExecutor("t", pool).submit(partial(ran.append, 1))
    assert ran == []
