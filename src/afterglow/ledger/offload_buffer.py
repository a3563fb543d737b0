"""The offload buffer: entries that the tail cache lets go although no part has taken them to a tier yet (PIP-76).

It serves tasks that read over the protocol; those that read files find the newest pages in memory anyway. All topics
share one budget. An entry leaves when it is taken or, where the budget is used up, when it is the one that came first:
then it is read from the hot log.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.ledger.cache import ENTRY_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.format.position import Position


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """What the buffer holds and has done."""

    entries: int
    bytes_held: int
    """Data and overhead, at most the budget."""
    dropped: int
    """Entries dropped for newer ones before they were taken, since the start."""


class OffloadBuffer:
    """Entries of all topics that stream. Thread-safe.

    Args:
        budget_bytes: Data and overhead that may be held.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._ranges: dict[int, tuple[int, int]] = {}  # ledger -> first and last entry held, with gaps between
        self._wanted: dict[int, int] = {}  # ledger -> first entry that is not taken
        self._ledgers: dict[str, Sequence[int]] = {}  # topic -> its ledgers among these
        self._bytes = 0
        self._dropped = 0

    def want(self, topic: str, begin: Position, ledger_ids: Sequence[int]) -> None:
        """Keep what is offered of a topic from an entry on, and let go of what stands before it.

        Args:
            topic: Its name; what was said of it before is forgotten.
            begin: The first entry that is not taken.
            ledger_ids: The ledgers that have entries from there on, or will have.
        """
        with self._lock:
            for ledger_id in set(self._ledgers.pop(topic, ())).difference(ledger_ids):
                del self._wanted[ledger_id]
                self._release(ledger_id, None)
            if ledger_ids:
                self._ledgers[topic] = ledger_ids
                for ledger_id in ledger_ids:
                    self._wanted[ledger_id] = begin.entry_id if ledger_id == begin.ledger_id else 0
                self._release(begin.ledger_id, begin.entry_id)

    def forget(self, topic: str) -> None:
        """Keep nothing more of a topic, and let go of what is held."""
        with self._lock:
            for ledger_id in self._ledgers.pop(topic, ()):
                del self._wanted[ledger_id]
                self._release(ledger_id, None)

    def offer(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        """Hold an entry if it is wanted. The entries of a ledger come in order."""
        with self._lock:
            first = self._wanted.get(ledger_id)
            cost = len(data) + ENTRY_OVERHEAD_BYTES
            if first is None or entry_id < first or cost > self._budget_bytes:
                return
            self._entries[ledger_id, entry_id] = data
            self._bytes += cost
            known = self._ranges.get(ledger_id)
            self._ranges[ledger_id] = (entry_id if known is None else known[0], entry_id)
            while self._bytes > self._budget_bytes:
                (ledger_id, entry_id), data = self._entries.popitem(last=False)
                self._bytes -= len(data) + ENTRY_OVERHEAD_BYTES
                self._dropped += 1
                self._shorten(ledger_id, entry_id + 1)

    def get_run(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        """The entries from ``first`` to ``last``, both inclusive, as far as they are held without a gap.

        At least one if there is one; further ones only while the sum stays within ``max_bytes``.
        """
        run: list[bytes] = []
        size = 0
        with self._lock:
            for entry_id in range(first, last + 1):
                data = self._entries.get((ledger_id, entry_id))
                if data is None:
                    break
                size += len(data)
                if run and size > max_bytes:
                    break
                run.append(data)
        return run

    def drop_ledger(self, ledger_id: int) -> None:
        """Forget a ledger's entries."""
        with self._lock:
            self._release(ledger_id, None)

    @property
    def statistics(self) -> BufferStatistics:
        """What the buffer holds and has done."""
        with self._lock:
            return BufferStatistics(len(self._entries), self._bytes, self._dropped)

    def _release(self, ledger_id: int, before: int | None) -> None:
        """Let go of a ledger's entries before one of them, or of all."""
        if (known := self._ranges.get(ledger_id)) is None:
            return
        end = known[1] + 1 if before is None else min(before, known[1] + 1)
        for entry_id in range(known[0], end):
            data = self._entries.pop((ledger_id, entry_id), None)
            if data is not None:
                self._bytes -= len(data) + ENTRY_OVERHEAD_BYTES
        self._shorten(ledger_id, end)

    def _shorten(self, ledger_id: int, first: int) -> None:
        """A ledger has no entry before ``first`` any more."""
        known = self._ranges[ledger_id]
        if first > known[1]:
            del self._ranges[ledger_id]
        else:
            self._ranges[ledger_id] = (max(first, known[0]), known[1])
