"""Time and background work that move only when a test says so."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ManualClock:
    """A :class:`~afterglow.ledger.environment.Clock` that moves only when a test advances it.

    Args:
        now_ms: The time of day it begins with, epoch milliseconds.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        """The time of day in epoch milliseconds."""
        return self._now_ms

    def monotonic(self) -> float:
        """Seconds that have passed."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        self._monotonic += seconds
        self._now_ms += round(seconds * 1000)

    def set_now_ms(self, now_ms: int) -> None:
        """Set the time of day, forward or back, while no time passes."""
        self._now_ms = now_ms


class ManualExecutor:
    """An :class:`~afterglow.ledger.environment.Executor` that runs a task on request, on the caller's thread."""

    def __init__(self) -> None:
        self._tasks: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._tasks)

    def submit(self, task: Callable[[], None], /) -> None:
        """Keep the task for later."""
        self._tasks.append(task)

    def run_one(self) -> bool:
        """Run the oldest task; returns whether there was one."""
        if not self._tasks:
            return False
        self._tasks.popleft()()
        return True

    def run_all(self) -> int:
        """Run tasks, and those that they submit, until none is left; returns how many."""
        count = 0
        while self.run_one():
            count += 1
        return count

    def clear(self) -> None:
        """Forget every task, as a crash does."""
        self._tasks.clear()


class InlineExecutor:
    """An :class:`~afterglow.ledger.environment.Executor` that runs a task at once, one after the other."""

    def __init__(self) -> None:
        self._inner = ManualExecutor()
        self._running = False

    def submit(self, task: Callable[[], None], /) -> None:
        """Run the task, or, from within another, right after that."""
        self._inner.submit(task)
        if self._running:
            return
        self._running = True
        try:
            self._inner.run_all()
        finally:
            self._running = False
