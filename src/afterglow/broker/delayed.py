"""Delayed delivery: messages of a shared subscription that wait for the delivery time their producer set.

The messages stay in the log, unacknowledged; only their positions are in memory. After a restart they are found again,
since dispatch starts at the first unacknowledged entry. Their number is limited: while the limit is reached, dispatch
reads no new entries.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Final

from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

RECHECK_S: Final = 5.0
"""Maximum time between checks of the clock: timers do not notice a clock that was set, or a machine that slept."""

_MIN_POPPED: Final = 1000
"""Minimum number of popped positions before the index is rebuilt."""


class DelayedMessages:
    """Positions of one subscription by delivery time. Belongs to the event loop's thread.

    Args:
        now_ms: The clock that delivery times are compared with.
        wake: Called when messages have become due.
        limit: Maximum number of positions.
        recheck_s: Maximum time between checks of the clock.
    """

    def __init__(
        self, now_ms: Callable[[], int], wake: Callable[[], None], limit: int, recheck_s: float = RECHECK_S
    ) -> None:
        self._now_ms = now_ms
        self._wake = wake
        self._limit = limit
        self._recheck_s = recheck_s
        self._heap: list[tuple[int, int, int]] = []
        """Delivery time, ledger, entry: plain numbers take half the memory of positions."""
        self._positions: list[tuple[int, int]] = []
        """Ledger and entry: a heap whose first element that was not popped is the first delayed position."""
        self._popped: set[tuple[int, int]] = set()
        """Returned by :meth:`pop_due` and still in ``_positions``: only the first element of a heap can be removed."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def is_full(self) -> bool:
        """Whether no more may be added."""
        return len(self._heap) >= self._limit

    def add(self, position: Position, deliver_at_ms: int) -> None:
        """Delay a message until its delivery time."""
        ids = position.ledger_id, position.entry_id
        heapq.heappush(self._heap, (deliver_at_ms, *ids))
        heapq.heappush(self._positions, ids)
        if self._heap[0][0] == deliver_at_ms:
            self._schedule()

    def pop_due(self, limit: int) -> list[Position]:
        """Remove up to ``limit`` messages whose time has come, and return their positions."""
        due: list[Position] = []
        now_ms = self._now_ms()
        while self._heap and len(due) < limit and self._heap[0][0] <= now_ms:
            _, ledger_id, entry_id = heapq.heappop(self._heap)
            self._popped.add((ledger_id, entry_id))
            due.append(Position(ledger_id, entry_id))
        if len(self._popped) > max(len(self._heap), _MIN_POPPED):
            self._rebuild_index()  # one long delay at the front would keep all popped positions after it
        if self._heap and self._heap[0][0] > now_ms:
            self._schedule()
        return due

    def discard_through(self, mark_delete: Position) -> None:
        """Remove messages that were acknowledged without delivery, as when a backlog is cleared or messages expire.

        Scans all messages only if one of them is to be removed, since this is called after every few acknowledgements.
        """
        last = mark_delete.ledger_id, mark_delete.entry_id
        while self._positions and self._positions[0] in self._popped:
            self._popped.remove(heapq.heappop(self._positions))
        if not self._positions or self._positions[0] > last:
            return
        self._heap = [held for held in self._heap if held[1:] > last]
        heapq.heapify(self._heap)
        self._rebuild_index()

    def clear(self) -> None:
        """Remove all messages and stop the timer."""
        self._heap.clear()
        self._positions.clear()
        self._popped.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rebuild_index(self) -> None:
        self._positions = sorted(held[1:] for held in self._heap)
        self._popped.clear()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_s = min(max(self._heap[0][0] - self._now_ms(), 0) / 1000, self._recheck_s)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._heap:
            return
        if self._heap[0][0] <= self._now_ms():
            self._wake()
        else:
            self._schedule()
