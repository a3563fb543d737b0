"""Parallel work whose results come in the order of the tasks, with a bound on the results in memory.

A thread takes one task at a time and hands over its results one by one: the first task's results can be used while it
is still running. Threads run ahead of the consumer of the results by a number of tasks, and wait then.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
R = TypeVar("R")

_END: Final = object()


def cores() -> int:
    """How many this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def in_order(
    tasks: Iterable[T], work: Callable[[T], Iterable[R]], *, threads: int, ahead: int, name: str = "afterglow-scan"
) -> Iterator[R]:
    """The results of all tasks, in the order of the tasks.

    Closing or dropping the iterator ends the threads: each finishes the result that it is at.

    Args:
        tasks: The next one is taken, in the thread that consumes the results, when a thread may begin with it.
        work: Does a task, in any thread.
        threads: Tasks at work at a time. A lone task is done in the thread that consumes the results.
        ahead: Tasks begun or done and not yet taken, beside the one that is being taken.
        name: Of the threads.

    Raises:
        BaseException: What a task raised, behind the results that came before it; or what ``tasks`` raised, behind all
            results of the tasks before.
    """
    rest = iter(tasks)
    first = [task for _, task in zip(range(2), rest, strict=False)] if threads > 1 else []
    if len(first) < 2:
        for task in (*first, *rest):
            yield from work(task)
        return
    yield from _Ordered(first, rest, work).run(threads, ahead, name)


class _Ordered(Generic[T, R]):
    """One run over some tasks."""

    def __init__(self, first: list[T], rest: Iterator[T], work: Callable[[T], Iterable[R]]) -> None:
        self._first = deque(first)
        self._rest = rest
        self._work = work
        self._stopped = Event()
        self._waiting: deque[SimpleQueue[object]] = deque()
        self._failure: BaseException | None = None

    def run(self, threads: int, ahead: int, name: str) -> Iterator[R]:
        pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        try:
            self._begin(pool, ahead + 1)
            while self._waiting:
                results = self._waiting[0]
                while (item := results.get()) is not _END:
                    if isinstance(item, _Raised):
                        raise item.error
                    yield item  # type: ignore[misc] # an R
                self._waiting.popleft()
                self._begin(pool, ahead + 1)
            if self._failure is not None:
                raise self._failure
        finally:
            self._stopped.set()
            pool.shutdown(cancel_futures=True)

    def _begin(self, pool: ThreadPoolExecutor, most: int) -> None:
        """Have tasks begun while there are any and they may be."""
        while len(self._waiting) < most and self._failure is None:
            try:
                task = self._first.popleft() if self._first else next(self._rest)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - its turn comes behind the results of the tasks before
                self._failure = error
                return
            results: SimpleQueue[object] = SimpleQueue()
            self._waiting.append(results)
            pool.submit(self._do, task, results)

    def _do(self, task: T, results: SimpleQueue[object]) -> None:
        try:
            for item in self._work(task):
                results.put(item)
                if self._stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - it is raised where the results are taken
            results.put(_Raised(error))
        finally:
            results.put(_END)


class _Raised:
    """What a task raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error
