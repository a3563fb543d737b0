"""When each topic is to be looked at next. Topics without a date cost nothing."""

from __future__ import annotations

import heapq
import threading


class Agenda:
    """Dates by name, the earliest of each. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dates: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # may hold dates that were moved or struck off

    def __len__(self) -> int:
        return len(self._dates)

    def put(self, name: str, at_ms: int) -> None:
        """Set a date, unless there is an earlier one. Epoch milliseconds; 0 is at once."""
        with self._lock:
            known = self._dates.get(name)
            if known is None or at_ms < known:
                self._dates[name] = at_ms
                heapq.heappush(self._heap, (at_ms, name))

    def strike(self, name: str) -> None:
        """Forget a date."""
        with self._lock:
            self._dates.pop(name, None)

    def take_due(self, now_ms: int) -> list[str]:
        """Names whose date has come, the earliest first; they have none any more."""
        due = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now_ms:
                at_ms, name = heapq.heappop(self._heap)
                if self._dates.get(name) == at_ms:
                    del self._dates[name]
                    due.append(name)
        return due
