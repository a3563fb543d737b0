"""Results in the order of the tasks, however long each takes, and no thread left running."""

from __future__ import annotations

import threading
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import pytest

from afterglow.read.parallel import available_cores, run_in_order

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 30.0


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("test-scan")]


def run(tasks: object, work: object, threads: int = 3, ahead: int = 2) -> Iterator[object]:
    return run_in_order(tasks, work, threads=threads, ahead=ahead, name="test-scan")  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("tasks", [0, 1, 2, 40])
def test_results_come_in_order(threads: int, tasks: int) -> None:
    rng = Random(f"{threads} {tasks}")
    sizes = [rng.choice([0, 1, 3]) for _ in range(tasks)]
    found = list(run(enumerate(sizes), lambda task: ((task[0], i) for i in range(task[1])), threads))
    assert found == [(at, i) for at, size in enumerate(sizes) for i in range(size)]


def test_tasks_run_beside_each_other() -> None:
    meeting = threading.Barrier(3)

    def work(task: int) -> Iterator[int]:
        meeting.wait(WAIT_S)
        yield task

    assert list(run(range(3), work)) == [0, 1, 2]


def test_a_lone_task_needs_no_thread() -> None:
    assert list(run([1], lambda _: [threading.current_thread()])) == [threading.current_thread()]


def test_tasks_are_started_only_up_to_the_limit() -> None:
    asked: list[int] = []
    done = threading.Semaphore(0)

    def tasks() -> Iterator[int]:
        for task in count():
            asked.append(task)
            yield task

    def work(task: int) -> Iterator[int]:
        yield task
        yield task
        done.release()

    results = run(tasks(), work, threads=2, ahead=3)
    assert next(results) == 0
    for _ in range(4):
        assert done.acquire(timeout=WAIT_S)
    assert asked == [0, 1, 2, 3]
    assert [next(results) for _ in range(2)] == [0, 1]
    assert asked == [0, 1, 2, 3, 4]
    results.close()  # type: ignore[attr-defined]


def test_the_first_results_come_while_their_task_is_at_work() -> None:
    taken = threading.Event()

    def work(task: int) -> Iterator[str]:
        yield f"{task} begun"
        assert taken.wait(WAIT_S)
        yield f"{task} done"

    results = run(range(2), work)
    assert next(results) == "0 begun"
    taken.set()
    assert list(results) == ["0 done", "1 begun", "1 done"]


def test_an_error_is_raised_after_the_results_before_it() -> None:
    def work(task: int) -> Iterator[int]:
        yield task
        if task == 2:
            raise ZeroDivisionError(task)

    results = run(range(6), work)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError, match="2"):
        next(results)
    assert threads() == []


def test_an_error_of_the_task_iterator_is_raised_after_the_results_before_it() -> None:
    def tasks() -> Iterator[int]:
        yield from range(4)
        raise ZeroDivisionError

    results = run(tasks(), lambda task: [task])
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert threads() == []


@pytest.mark.parametrize("way", ["close", "drop"])
def test_closing_early_ends_the_threads(way: str) -> None:
    results = run(count(), lambda task: (task for _ in range(5)))
    assert next(results) == 0
    assert threads()
    if way == "close":
        results.close()  # type: ignore[attr-defined]
    else:
        del results
    assert threads() == []


def test_there_is_a_core() -> None:
    assert available_cores() >= 1
