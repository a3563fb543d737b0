"""Parallel tasks with results in the order of the tasks, and a limit on results in memory.

A thread runs one task at a time and passes on its results one by one: the consumer can use the first results of a task
while it is still running. Threads are ahead of the consumer by a limited number of tasks.
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


def available_cores() -> int:
    """Number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def run_in_order(
    tasks: Iterable[T], work: Callable[[T], Iterable[R]], *, threads: int, ahead: int, name: str = "afterglow-scan"
) -> Iterator[R]:
    """The results of all tasks, in the order of the tasks.

    Closing or dropping the iterator stops the threads, each after its current result.

    Args:
        tasks: Iterated in the consumer's thread, as threads become free.
        work: Runs a task, in any thread.
        threads: Number of threads. A single task runs in the consumer's thread.
        ahead: Tasks that may be started beside the one whose results are being consumed.
        name: Prefix of thread names.

    Raises:
        BaseException: A task failed: raised after its results before the error; or ``tasks`` failed: raised after all
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
    """One run over tasks."""

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
            self._submit(pool, ahead + 1)
            while self._waiting:
                results = self._waiting[0]
                while (item := results.get()) is not _END:
                    if isinstance(item, _Raised):
                        raise item.error
                    yield item  # type: ignore[misc] # an R
                self._waiting.popleft()
                self._submit(pool, ahead + 1)
            if self._failure is not None:
                raise self._failure
        finally:
            self._stopped.set()
            pool.shutdown(cancel_futures=True)

    def _submit(self, pool: ThreadPoolExecutor, limit: int) -> None:
        """Submit tasks up to the limit."""
        while len(self._waiting) < limit and self._failure is None:
            try:
                task = self._first.popleft() if self._first else next(self._rest)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - raised after the results of the tasks before
                self._failure = error
                return
            results: SimpleQueue[object] = SimpleQueue()
            self._waiting.append(results)
            pool.submit(self._run_task, task, results)

    def _run_task(self, task: T, results: SimpleQueue[object]) -> None:
        try:
            for item in self._work(task):
                results.put(item)
                if self._stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            results.put(_Raised(error))
        finally:
            results.put(_END)


class _Raised:
    """Error of a task, in the queue of its results."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error
