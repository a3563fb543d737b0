"""From any thread into the event loop's thread, in the order in which things happened."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class InOrder:
    """Runs calls in the loop's thread, in the order in which they were handed over.

    Most calls come from the loop's thread itself and are run at once. But one from there must not overtake one from
    another thread that was handed over before it and still waits for its turn of the loop: it runs that one first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._waiting: deque[Callable[[], None]] = deque()

    def run(self, call: Callable[[], None]) -> None:
        """Run a call. Made in the loop's thread."""
        self._waiting.append(call)
        if threading.get_ident() == self._thread:
            self._drain()
        else:
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        while self._waiting:
            self._waiting.popleft()()
