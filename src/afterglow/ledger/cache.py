"""The tail cache: the newest entries of all topics in memory, under one budget.

What came first goes first, over all topics, whoever has read it or not; nothing is pinned. Entries of one ledger come
in order, so that what is cached of a ledger is its end. What is evicted is offered to the offload buffer, if there is
one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from afterglow.ledger.offload_buffer import OffloadBuffer

ENTRY_OVERHEAD_BYTES: Final = 300
"""What an entry costs beside its data: key tuple and its two integers (120), bytes header (33), node of the ordered
dictionary (about 150)."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What the cache holds and has done."""

    entries: int
    bytes_held: int
    """Data and overhead, at most the budget."""
    hits: int
    """Entries that were asked for and there, since the start."""
    misses: int
    """Entries that were asked for and not there, since the start; of a range only the first counts."""
    evictions: int
    """Entries dropped for newer ones, since the start."""
    hit_bytes: int = 0
    """Of the entries that were asked for and there."""


class TailCache:
    """The newest entries of all topics of a process. Thread-safe.

    Args:
        budget_bytes: Data and overhead that may be held; 0 holds nothing.
        buffer: Offered what is not held any more.
    """

    def __init__(self, budget_bytes: int, buffer: OffloadBuffer | None = None) -> None:
        self.buffer = buffer
        """Offered what is not held any more; None where nobody wants it."""
        self.budget_bytes = budget_bytes
        """Data and overhead that may be held; 0 holds nothing."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._ranges: dict[int, tuple[int, int]] = {}  # ledger -> first and last entry held
        self._bytes = 0
        self._hits = 0
        self._hit_bytes = 0
        self._misses = 0
        self._evictions = 0

    def put(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        """Hold an entry; a larger one than the budget is not held."""
        cost = len(data) + ENTRY_OVERHEAD_BYTES
        if cost > self.budget_bytes:
            # Only without a cache: else entries before this one are still here, and the buffer takes them in order. To
            # the buffer this entry is a gap then.
            if self.buffer is not None and not self.budget_bytes:
                self.buffer.offer(ledger_id, entry_id, data)
            return
        key = (ledger_id, entry_id)
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = data
            self._bytes += cost
            known = self._ranges.get(ledger_id)
            self._ranges[ledger_id] = (
                (entry_id, entry_id) if known is None else (min(known[0], entry_id), max(known[1], entry_id))
            )
            while self._bytes > self.budget_bytes:
                (ledger_id, entry_id), data = self._entries.popitem(last=False)
                self._bytes -= len(data) + ENTRY_OVERHEAD_BYTES
                self._evictions += 1
                if self.buffer is not None:
                    self.buffer.offer(ledger_id, entry_id, data)
                last = self._ranges[ledger_id][1]
                if entry_id < last:
                    self._ranges[ledger_id] = (entry_id + 1, last)
                else:
                    del self._ranges[ledger_id]

    def get_range(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        """The entries from ``first`` to ``last``, both inclusive, as far as they are held without a gap.

        At least one if there is one; further ones only while the sum stays within ``max_bytes``.
        """
        run: list[bytes] = []
        size = 0
        with self._lock:
            for entry_id in range(first, last + 1):
                data = self._entries.get((ledger_id, entry_id))
                if data is None:
                    self._misses += not run
                    break
                size += len(data)
                if run and size > max_bytes:
                    break
                run.append(data)
                self._hit_bytes += len(data)
            self._hits += len(run)
        return run

    def first_after(self, ledger_id: int, entry_id: int) -> int | None:
        """The first entry that is held of a ledger, where it stands behind one that is not; else None."""
        with self._lock:
            known = self._ranges.get(ledger_id)
            return known[0] if known is not None and known[0] > entry_id else None

    def drop_ledger(self, ledger_id: int) -> None:
        """Forget a ledger's entries, also those that were offered to the buffer."""
        if self.buffer is not None:
            self.buffer.drop_ledger(ledger_id)
        with self._lock:
            known = self._ranges.pop(ledger_id, None)
            if known is None:
                return
            for entry_id in range(known[0], known[1] + 1):
                data = self._entries.pop((ledger_id, entry_id), None)
                if data is not None:
                    self._bytes -= len(data) + ENTRY_OVERHEAD_BYTES

    @property
    def statistics(self) -> CacheStatistics:
        """What the cache holds and has done."""
        with self._lock:
            return CacheStatistics(
                len(self._entries), self._bytes, self._hits, self._misses, self._evictions, self._hit_bytes
            )
