"""The tail cache: the newest entries of all topics in memory, under one budget.

Eviction is first in, first out over all topics, regardless of reads; nothing is pinned. Entries of a ledger arrive in
order, so that the cached entries are its last ones. Evicted entries are offered to the offload buffer, if there is one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from afterglow.ledger.offload_buffer import OffloadBuffer

ENTRY_OVERHEAD_BYTES: Final = 300
"""Memory of an entry beside its data: key tuple with two integers (120), bytes header (33), node of the ordered
dictionary (about 150)."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Content and counters of the cache."""

    entries: int
    bytes_held: int
    """Data and overhead, at most the budget."""
    hits: int
    """Requested entries that were cached, since the start."""
    misses: int
    """Requested entries that were not cached, since the start; of a range only the first counts."""
    evictions: int
    """Entries evicted for newer ones, since the start."""
    hit_bytes: int = 0
    """Bytes of the hits."""


class TailCache:
    """The newest entries of all topics of a process. Thread-safe.

    Args:
        budget_bytes: Data and overhead that may be held; 0 holds nothing.
        buffer: Offered evicted entries.
    """

    def __init__(self, budget_bytes: int, buffer: OffloadBuffer | None = None) -> None:
        self.buffer = buffer
        """Offered evicted entries; None without streaming offload."""
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
        """Add an entry, unless it is larger than the budget."""
        cost = len(data) + ENTRY_OVERHEAD_BYTES
        if cost > self.budget_bytes:
            # Only without a cache: otherwise earlier entries are still cached, and the buffer must get them first. With
            # a cache this entry becomes a gap in the buffer.
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
        """The entries from ``first`` to ``last``, both inclusive, up to the first that is not cached.

        The first one regardless of its size; further ones only while their sum is within ``max_bytes``.
        """
        found: list[bytes] = []
        size = 0
        with self._lock:
            for entry_id in range(first, last + 1):
                data = self._entries.get((ledger_id, entry_id))
                if data is None:
                    self._misses += not found
                    break
                size += len(data)
                if found and size > max_bytes:
                    break
                found.append(data)
                self._hit_bytes += len(data)
            self._hits += len(found)
        return found

    def first_after(self, ledger_id: int, entry_id: int) -> int | None:
        """The first cached entry of a ledger if it comes after ``entry_id``; else None."""
        with self._lock:
            known = self._ranges.get(ledger_id)
            return known[0] if known is not None and known[0] > entry_id else None

    def drop_ledger(self, ledger_id: int) -> None:
        """Drop the entries of a ledger, also from the buffer."""
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
        """Content and counters, as of now."""
        with self._lock:
            return CacheStatistics(
                len(self._entries), self._bytes, self._hits, self._misses, self._evictions, self._hit_bytes
            )
