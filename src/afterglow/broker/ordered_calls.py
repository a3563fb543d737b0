"""Calls from any thread to the event loop's thread, in the order in which they were made."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class OrderedCalls:
    """Runs calls in the loop's thread, in the order of :meth:`run`.

    Most calls come from the loop's thread itself and run at once. Such a call must not overtake an earlier one from
    another thread that still waits for the loop, so it runs that one first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._waiting: deque[Callable[[], None]] = deque()

    def run(self, call: Callable[[], None]) -> None:
        """Run a call in the loop's thread."""
        self._waiting.append(call)
        if threading.get_ident() == self._thread:
            self._drain()
        else:
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        while self._waiting:
            self._waiting.popleft()()
