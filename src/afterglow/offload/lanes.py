"""One piece of work at a time for each topic, on threads that all topics share."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.ledger.executor import Executor

_log = logging.getLogger(__name__)


class Lane:
    """Runs pieces of work in the order they came, never two at once. Thread-safe.

    Args:
        name: For messages.
        executor: Lends a thread for one piece at a time, so that lanes take turns.
    """

    def __init__(self, name: str, executor: Executor) -> None:
        self._name = name
        self._executor = executor
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    @property
    def idle(self) -> bool:
        """Whether no piece runs or waits."""
        return not self._running

    def submit(self, piece: Callable[[], None]) -> None:
        """Run a piece some time, after all that were submitted before. After the executor's shutdown: never."""
        with self._lock:
            self._waiting.append(piece)
            if self._running:
                return
            self._running = True
        self._lend()

    def _lend(self) -> None:
        try:
            self._executor.submit(self._run_one)
        except RuntimeError:  # it was shut down: the process is about to end, and metadata knows all that matters
            _log.debug("%s: work is left to the next start", self._name)

    def _run_one(self) -> None:
        with self._lock:
            piece = self._waiting.popleft()
        try:
            piece()
        except Exception:  # noqa: BLE001 - whatever it is, the topic must not stand still for ever
            _log.exception("%s: a piece of work failed", self._name)
        with self._lock:
            if not self._waiting:
                self._running = False
                return
        self._lend()
