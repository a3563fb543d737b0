"""How much a broker may send ahead.

Permits count messages, the budget counts bytes, and neither sizes nor batches are known before entries arrive. A batch
takes as many permits as it has messages, but is sent whole as long as there is one: so a permit stands for an entry, of
the size of those that came last. Where that is wrong, more is under way than wanted; it then waits in the broker and in
the socket, from which nobody reads more than there is room for.
"""

from __future__ import annotations

from typing import Final

_REMEMBERED: Final = 1024
"""Entries after which the past counts half."""


class Permits:
    """The permits of one consumer.

    Args:
        window_bytes: What may be under way.
        largest_bytes: The largest entry that the broker takes: the size to expect as long as none has come.
    """

    def __init__(self, window_bytes: int, largest_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._largest_bytes = largest_bytes
        self._entries = 0.0
        self._bytes = 0.0
        self._outstanding = 0

    def used(self, entries: int, messages: int, size_bytes: int) -> None:
        """Count entries that came, with the messages in them. These may be more than was granted."""
        self._outstanding -= messages
        self._entries += entries
        self._bytes += size_bytes
        if self._entries > _REMEMBERED:
            self._entries /= 2
            self._bytes /= 2

    def grant(self, entries: int) -> int:
        """The permits to send now, 0 while half of them are still out.

        Args:
            entries: How many are wanted in all. Each takes one permit or more: the broker sends none behind them.
        """
        each = self._bytes / self._entries if self._entries else self._largest_bytes
        wanted = min(max(int(self._window_bytes / max(each, 1)), 1), entries)
        if self._outstanding > wanted // 2:
            return 0
        more = wanted - self._outstanding
        self._outstanding = wanted
        return more
