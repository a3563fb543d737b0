"""Delayed delivery: messages of a shared subscription that are held back until the time their producer set.

The messages stay in the log, unacknowledged; only their positions are kept here. They are lost with the process and
found again after a restart, since dispatch then starts at the first entry that is not acknowledged. Their number is
bounded: while a subscription holds as many as it may, dispatch reads no new entries.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Final

from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

RECHECK_S: Final = 5.0
"""Longest wait until the clock is read again: timers do not notice a clock that was set, or a machine that slept."""

_POPPED: Final = 1000
"""Positions no longer held that are kept at least before the others are indexed anew."""


class DelayedMessages:
    """Positions of one subscription by delivery time. Belongs to the event loop's thread.

    Args:
        now_ms: The clock that delivery times are compared with.
        wake: Called when messages have become due.
        limit: Positions that are kept at most.
        recheck_s: Longest wait until the clock is read again.
    """

    def __init__(
        self, now_ms: Callable[[], int], wake: Callable[[], None], limit: int, recheck_s: float = RECHECK_S
    ) -> None:
        self._now_ms = now_ms
        self._wake = wake
        self._limit = limit
        self._recheck_s = recheck_s
        self._heap: list[tuple[int, int, int]] = []
        """Delivery time, ledger, entry: numbers alone take half the memory of positions."""
        self._places: list[tuple[int, int]] = []
        """Ledger and entry: a heap whose first element that was not popped is the first position held."""
        self._popped: set[tuple[int, int]] = set()
        """Returned by :meth:`pop_due` and still in ``_places``: a heap gives up its first element only."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def is_full(self) -> bool:
        """Whether no more may be added."""
        return len(self._heap) >= self._limit

    def add(self, position: Position, deliver_at_ms: int) -> None:
        """Hold a message back until its delivery time."""
        place = position.ledger_id, position.entry_id
        heapq.heappush(self._heap, (deliver_at_ms, *place))
        heapq.heappush(self._places, place)
        if self._heap[0][0] == deliver_at_ms:
            self._schedule()

    def pop_due(self, most: int) -> list[Position]:
        """Remove up to ``most`` messages whose time has come, and return their positions."""
        due: list[Position] = []
        now_ms = self._now_ms()
        while self._heap and len(due) < most and self._heap[0][0] <= now_ms:
            _, ledger_id, entry_id = heapq.heappop(self._heap)
            self._popped.add((ledger_id, entry_id))
            due.append(Position(ledger_id, entry_id))
        if len(self._popped) > max(len(self._heap), _POPPED):
            self._index_places()  # behind one message that is held for long, any number may come and go
        if self._heap and self._heap[0][0] > now_ms:
            self._schedule()
        return due

    def discard_through(self, mark_delete: Position) -> None:
        """Remove messages that were acknowledged unseen, as when a backlog is cleared or messages expire.

        Looks at all messages only where one of them is to be removed: acknowledgments of those that were delivered
        come here too, after each of a few entries.
        """
        last = mark_delete.ledger_id, mark_delete.entry_id
        while self._places and self._places[0] in self._popped:
            self._popped.remove(heapq.heappop(self._places))
        if not self._places or self._places[0] > last:
            return
        self._heap = [held for held in self._heap if held[1:] > last]
        heapq.heapify(self._heap)
        self._index_places()

    def clear(self) -> None:
        """Remove all messages and stop the timer."""
        self._heap.clear()
        self._places.clear()
        self._popped.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _index_places(self) -> None:
        self._places = sorted(held[1:] for held in self._heap)
        self._popped.clear()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_s = min(max(self._heap[0][0] - self._now_ms(), 0) / 1000, self._recheck_s)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._heap:
            return
        if self._heap[0][0] <= self._now_ms():
            self._wake()
        else:
            self._schedule()
