"""The offload buffer (PIP-76): entries in memory that the tail cache has evicted and that are in no uploaded part yet.

It serves offload tasks that read over the protocol; tasks that read ledger files have the page cache instead. Entries
that were appended together are admitted, and released once all of them are in uploaded parts, together. They are never
released to free space for newer ones: the oldest are the next to be read.

* **The buffered entries of a topic are one range without a gap.** After a refused entry all later ones are refused too,
  until every buffered entry of the topic is offloaded. The range then begins anew with the next entry that is offered;
  the entries between are read from the hot log. To wait until the offload has caught up with the tail cache instead
  would leave the buffer unused for good if producers are always that far ahead.
* **A topic holds at most as many bytes as it leaves free for others.** One topic fills half of the budget, two fill a
  third each; ``k`` topics whose store is down keep ``k / (k + 1)`` of it and leave the rest to topics that make
  progress. This is the dynamic threshold of shared-memory switches (Choudhury and Hahne, 1998): it needs neither the
  number of topics nor a notion of which of them is stalled, and takes nothing back.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from afterglow.format.position import Position
from afterglow.ledger.held_entries import HeldEntries, memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.format.frames import FramedEntries


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """Content and counters of the buffer. Counts are since the start."""

    entries: int = 0
    bytes_held: int = 0
    """Data and overhead, at most the budget."""
    refused: int = 0
    """Entries that a stream needs and that were not admitted: offload reads them from the hot log."""
    refused_bytes: int = 0
    """Bytes of their data."""
    dropped: int = 0
    """Entries released before they were uploaded: their topic was closed or deleted, or does not stream any more."""


@dataclass(slots=True)
class _StreamingTopic:
    """A topic whose entries are buffered."""

    begin: Position
    """The first entry that is in no uploaded part."""
    ledgers: dict[int, HeldEntries] = field(default_factory=dict)
    """Every ledger from there on."""
    bytes_held: int = 0
    last: Position | None = None
    """The last buffered entry; None if none exists."""
    has_gap: bool = False
    """Whether the entry after it was not admitted."""

    def continues_with(self, position: Position) -> bool:
        """Whether an entry directly follows the buffered ones."""
        last = self.last
        if last is None:
            return True
        if self.has_gap:
            return False
        return position == last.next() or (position.ledger_id > last.ledger_id and position.entry_id == 0)


class OffloadBuffer:
    """Entries of all topics that stream. Thread-safe.

    Args:
        budget_bytes: Data and overhead that may be held.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        """Data and overhead that may be held."""
        self._lock = threading.Lock()
        self._topics: dict[str, _StreamingTopic] = {}
        self._by_ledger: dict[int, _StreamingTopic] = {}
        self._entries = 0
        self._bytes = 0
        self._refused = 0
        self._refused_bytes = 0
        self._dropped = 0

    def hold_from(self, topic: str, begin: Position, ledger_ids: Iterable[int]) -> None:
        """Buffer offered entries of a topic from ``begin`` on, and release earlier ones.

        Args:
            topic: Name of the topic.
            begin: The first entry that is in no uploaded part. After a lost upload it may be before that of an earlier
                call: entries already released do not come back.
            ledger_ids: Ledgers of the topic from there on, in addition to those that are known.
        """
        with self._lock:
            known = self._topics.get(topic)
            if known is None:
                known = self._topics[topic] = _StreamingTopic(begin)
            known.begin = begin
            for ledger_id in [each for each in known.ledgers if each < begin.ledger_id]:
                self._release(known, ledger_id)
                del known.ledgers[ledger_id], self._by_ledger[ledger_id]
            if begin.ledger_id in known.ledgers:
                self._release(known, begin.ledger_id, begin.entry_id)
            for ledger_id in ledger_ids:
                self._add(known, ledger_id)

    def add_ledger(self, after: int, ledger_id: int) -> None:
        """Add the ledger that follows ``after``; ignored if the topic does not stream."""
        with self._lock:
            if (topic := self._by_ledger.get(after)) is not None:
                self._add(topic, ledger_id)

    def drop_topic(self, topic: str) -> None:
        """Stop buffering a topic, and release its entries."""
        with self._lock:
            if (known := self._topics.pop(topic, None)) is not None:
                for ledger_id in known.ledgers:
                    self._dropped += self._release(known, ledger_id)
                    del self._by_ledger[ledger_id]

    def drop_ledger(self, ledger_id: int) -> None:
        """Release a ledger that was deleted."""
        with self._lock:
            if (topic := self._by_ledger.pop(ledger_id, None)) is not None:
                self._dropped += self._release(topic, ledger_id)
                del topic.ledgers[ledger_id]

    def offer(self, ledger_id: int, entries: FramedEntries) -> None:
        """Buffer entries if their topic streams and they may be admitted. Those of a topic are offered in order."""
        with self._lock:
            if (topic := self._by_ledger.get(ledger_id)) is None or not len(entries):
                return
            first, last = Position(ledger_id, entries.first), Position(ledger_id, entries.end - 1)
            if last < topic.begin:
                return
            cost = memory_bytes(entries)
            free_bytes = self.budget_bytes - self._bytes - cost
            if topic.bytes_held + cost > free_bytes or not topic.continues_with(first):
                topic.has_gap = topic.last is not None
                self._refused += len(entries)
                self._refused_bytes += entries.payload_bytes
                return
            topic.ledgers[ledger_id].add(entries)
            topic.last = last
            topic.bytes_held += cost
            self._bytes += cost
            self._entries += len(entries)

    def get_range(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[memoryview]:
        """The entries from ``first`` to ``last``, both inclusive, up to the first that is not buffered.

        The first one regardless of its size; further ones only while their sum is within ``max_bytes``.
        """
        with self._lock:
            topic = self._by_ledger.get(ledger_id)
            return [] if topic is None else topic.ledgers[ledger_id].get_range(first, last, max_bytes)

    def first_after(self, ledger_id: int, entry_id: int) -> int | None:
        """The first buffered entry of a ledger if it comes after ``entry_id``; else None."""
        with self._lock:
            topic = self._by_ledger.get(ledger_id)
            first = None if topic is None else topic.ledgers[ledger_id].first
            return first if first is not None and first > entry_id else None

    @property
    def statistics(self) -> BufferStatistics:
        """Content and counters, as of now."""
        with self._lock:
            return BufferStatistics(self._entries, self._bytes, self._refused, self._refused_bytes, self._dropped)

    # --- the lock is held ---------------------------------------------------------------------------------------------

    def _add(self, topic: _StreamingTopic, ledger_id: int) -> None:
        if ledger_id >= topic.begin.ledger_id:
            topic.ledgers.setdefault(ledger_id, HeldEntries())
            self._by_ledger[ledger_id] = topic

    def _release(self, topic: _StreamingTopic, ledger_id: int, before: int | None = None) -> int:
        """Release the buffers of a ledger that end before entry ``before``, or all; returns the number of entries."""
        held = topic.ledgers[ledger_id]
        released = held.release_before(held.end if before is None else before)
        count = sum(map(len, released))
        size = sum(map(memory_bytes, released))
        topic.bytes_held -= size
        self._bytes -= size
        self._entries -= count
        if not topic.bytes_held:
            topic.last, topic.has_gap = None, False
        return count
