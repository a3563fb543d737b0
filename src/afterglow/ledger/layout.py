"""Layout of a topic: arithmetic of positions over its ledgers. Pure and immutable."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from afterglow.format.position import EARLIEST, LedgerRange, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Layout:
    """The ledgers of a topic with the entries that readers may see.

    Only the last ledger grows. Its :attr:`tail_entries` are a field of their own, so that a confirmed append copies no
    list.
    """

    ids: tuple[int, ...] = ()
    """Ledger ids, ascending, including ledgers without entries."""

    before: tuple[int, ...] = ()
    """For each ledger, the number of entries in the ledgers before it."""

    tail_entries: int = 0
    """Entries of the last ledger."""

    @classmethod
    def of(cls, ledgers: Iterable[tuple[int, int]]) -> Layout:
        """The layout of ledgers given as id and number of entries, ascending by id."""
        pairs = tuple(ledgers)
        if not pairs:
            return cls()
        counts = [count for _, count in pairs]
        return cls(tuple(id_ for id_, _ in pairs), tuple(accumulate(counts[:-1], initial=0)), counts[-1])

    def with_tail(self, tail_entries: int) -> Layout:
        """A copy with another number of entries in the last ledger."""
        return Layout(self.ids, self.before, tail_entries)

    @property
    def total_entries(self) -> int:
        """Number of entries of all ledgers."""
        return self.before[-1] + self.tail_entries if self.ids else 0

    def entries_at(self, index: int) -> int:
        """Number of entries of the ledger at an index of :attr:`ids`."""
        following = index + 1
        end = self.before[following] if following < len(self.ids) else self.total_entries
        return end - self.before[index]

    def entries_of(self, ledger_id: int) -> int | None:
        """Number of entries of a ledger; None if it is not in the layout."""
        index = bisect_left(self.ids, ledger_id)
        if index == len(self.ids) or self.ids[index] != ledger_id:
            return None
        return self.entries_at(index)

    def contains(self, position: Position) -> bool:
        """Whether ``position`` is that of an entry."""
        count = self.entries_of(position.ledger_id)
        return count is not None and 0 <= position.entry_id < count

    @property
    def first(self) -> Position:
        """The first entry; in an empty topic, a position not after the first entry to come."""
        found = self.at_or_after(EARLIEST)
        if found is not None:
            return found
        return Position(self.ids[-1], 0) if self.ids else EARLIEST.next()

    @property
    def last(self) -> Position:
        """The last entry; in an empty topic, a position before every entry to come."""
        for index in range(len(self.ids) - 1, -1, -1):
            if count := self.entries_at(index):
                return Position(self.ids[index], count - 1)
        return Position(self.ids[-1], -1) if self.ids else EARLIEST

    def at_or_after(self, position: Position) -> Position | None:
        """The first entry at or after ``position``; None if none exists."""
        return next((Position(entries.ledger_id, entries.first) for entries in self.ranges(position)), None)

    def ranges(self, position: Position) -> Iterator[LedgerRange]:
        """The entries from ``position`` on, one range per ledger, in order."""
        start = bisect_left(self.ids, position.ledger_id)
        for index in range(start, len(self.ids)):
            ledger_id = self.ids[index]
            first = max(position.entry_id, 0) if ledger_id == position.ledger_id else 0
            count = self.entries_at(index)
            if first < count:
                yield LedgerRange(ledger_id, first, count - 1)

    def rank(self, position: Position) -> int:
        """Number of entries at or before ``position``, which need not be that of an entry."""
        index = bisect_right(self.ids, position.ledger_id) - 1
        if index < 0:
            return 0
        if self.ids[index] < position.ledger_id:
            return self.before[index] + self.entries_at(index)
        return self.before[index] + min(max(position.entry_id + 1, 0), self.entries_at(index))

    def entries_between(self, after: Position, until: Position) -> int:
        """Number of entries after ``after`` and up to ``until``, inclusive; 0 if ``until`` is before ``after``."""
        return max(self.rank(until) - self.rank(after), 0)

    def at_rank(self, rank: int) -> Position:
        """The entry with ``rank`` entries before it: the inverse of :meth:`rank` less one.

        Raises:
            IndexError: The topic has fewer entries.
        """
        if not 0 <= rank < self.total_entries:
            raise IndexError(rank)
        index = bisect_right(self.before, rank) - 1
        return Position(self.ids[index], rank - self.before[index])
