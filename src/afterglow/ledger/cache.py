"""The tail cache: the newest entries of all topics in memory, under one budget.

It keeps the buffers in which entries were appended. Eviction is first in, first out over all topics, regardless of
reads; nothing is pinned. Entries of a ledger arrive in order, so that the cached entries are its last ones. Evicted
buffers are offered to the offload buffer, if there is one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.ledger.held_entries import HeldEntries, memory_bytes

if TYPE_CHECKING:
    from afterglow.format.frames import FramedEntries
    from afterglow.ledger.offload_buffer import OffloadBuffer


_KEY_BYTES: Final = 220
"""Memory of a key, with two integers, and of a node of an ordered dictionary."""


def cached_bytes(entries: FramedEntries) -> int:
    """Memory that entries take in the cache, at most."""
    return memory_bytes(entries) + _KEY_BYTES


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
        self._buffers: OrderedDict[tuple[int, int], FramedEntries] = OrderedDict()
        self._ledgers: dict[int, HeldEntries] = {}
        self._entries = 0
        self._bytes = 0
        self._hits = 0
        self._hit_bytes = 0
        self._misses = 0
        self._evictions = 0

    def put(self, ledger_id: int, entries: FramedEntries) -> None:
        """Add entries that were appended together, unless they are larger than the budget."""
        cost = cached_bytes(entries)
        if cost > self.budget_bytes:
            # Only without a cache: otherwise earlier entries are still cached, and the buffer must get them first. With
            # a cache these entries become a gap in the buffer.
            if self.buffer is not None and not self.budget_bytes:
                self.buffer.offer(ledger_id, entries)
            return
        with self._lock:
            held = self._ledgers.setdefault(ledger_id, HeldEntries())
            if entries.first < held.end:
                return
            held.add(entries)
            self._buffers[ledger_id, entries.first] = entries
            self._entries += len(entries)
            self._bytes += cost
            while self._bytes > self.budget_bytes:
                (ledger_id, _), oldest = self._buffers.popitem(last=False)
                self._bytes -= cached_bytes(oldest)
                self._entries -= len(oldest)
                self._evictions += len(oldest)
                if self.buffer is not None:
                    self.buffer.offer(ledger_id, oldest)
                held = self._ledgers[ledger_id]
                held.pop_first()
                if held.first is None:
                    del self._ledgers[ledger_id]

    def get_range(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[memoryview]:
        """The entries from ``first`` to ``last``, both inclusive, up to the first that is not cached.

        The first one regardless of its size; further ones only while their sum is within ``max_bytes``.
        """
        with self._lock:
            held = self._ledgers.get(ledger_id)
            found = [] if held is None else held.get_range(first, last, max_bytes)
            self._misses += not found and first <= last
            self._hits += len(found)
            self._hit_bytes += sum(data.nbytes for data in found)
        return found

    def first_after(self, ledger_id: int, entry_id: int) -> int | None:
        """The first cached entry of a ledger if it comes after ``entry_id``; else None."""
        with self._lock:
            held = self._ledgers.get(ledger_id)
            first = None if held is None else held.first
            return first if first is not None and first > entry_id else None

    def drop_ledger(self, ledger_id: int) -> None:
        """Drop the entries of a ledger, also from the buffer."""
        if self.buffer is not None:
            self.buffer.drop_ledger(ledger_id)
        with self._lock:
            held = self._ledgers.pop(ledger_id, None)
            for entries in [] if held is None else held.buffers():
                del self._buffers[ledger_id, entries.first]
                self._bytes -= cached_bytes(entries)
                self._entries -= len(entries)

    @property
    def statistics(self) -> CacheStatistics:
        """Content and counters, as of now."""
        with self._lock:
            return CacheStatistics(
                self._entries, self._bytes, self._hits, self._misses, self._evictions, self._hit_bytes
            )
