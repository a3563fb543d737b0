"""Schedule of topics by due time, and the serial executor on which the work of one topic runs."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.ledger.environment import Executor

_log = logging.getLogger(__name__)


class TopicSchedule:
    """Due times by topic name, the earliest of each. Thread-safe. Topics without a due time cost nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due_ms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # may hold due times that were moved or cancelled

    def __len__(self) -> int:
        return len(self._due_ms)

    def put(self, name: str, at_ms: int) -> None:
        """Set a due time, unless an earlier one is set. Epoch milliseconds; 0 means at once."""
        with self._lock:
            known = self._due_ms.get(name)
            if known is None or at_ms < known:
                self._due_ms[name] = at_ms
                heapq.heappush(self._heap, (at_ms, name))

    def cancel(self, name: str) -> None:
        """Remove a due time."""
        with self._lock:
            self._due_ms.pop(name, None)

    def take_due(self, now_ms: int) -> list[str]:
        """Remove and return the names that are due, the earliest first."""
        due = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now_ms:
                at_ms, name = heapq.heappop(self._heap)
                if self._due_ms.get(name) == at_ms:
                    del self._due_ms[name]
                    due.append(name)
        return due


class SerialExecutor:
    """Runs items one at a time, in the order of submission. Thread-safe.

    Args:
        name: Name of the topic, for log messages.
        executor: Provides a thread for one item at a time, so that topics take turns.
    """

    def __init__(self, name: str, executor: Executor) -> None:
        self._name = name
        self._executor = executor
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    @property
    def is_idle(self) -> bool:
        """Whether no item runs or waits."""
        return not self._running

    def submit(self, item: Callable[[], None]) -> None:
        """Run an item after all items submitted before. After the shutdown of the executor it never runs."""
        with self._lock:
            self._waiting.append(item)
            if self._running:
                return
            self._running = True
        self._submit_next()

    def _submit_next(self) -> None:
        try:
            self._executor.submit(self._run_one)
        except RuntimeError:  # shut down: the process is about to exit, and metadata holds the durable state
            _log.debug("%s: pending work is left to the next start", self._name)

    def _run_one(self) -> None:
        with self._lock:
            item = self._waiting.popleft()
        try:
            item()
        except Exception:  # noqa: BLE001 - of any kind: the topic must make progress
            _log.exception("%s: background work failed", self._name)
        with self._lock:
            if not self._waiting:
                self._running = False
                return
        self._submit_next()
