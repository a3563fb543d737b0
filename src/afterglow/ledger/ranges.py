"""Acknowledged entries out of order: disjoint ranges per ledger, merged as they meet."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.format.position import Position

_LARGEST: Final = 2**63 - 1


class EntryRanges:
    """A set of entries. Not thread-safe.

    In each ledger two parallel sorted lists: first and last entry of each range, both inclusive. Ranges neither overlap
    nor touch. Acknowledgements mostly extend a range or add one near the end, which costs a bisection.
    """

    def __init__(self) -> None:
        self._ledgers: dict[int, tuple[list[int], list[int]]] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """Entries in the set."""
        return self._count

    def __len__(self) -> int:
        """How many ranges."""
        return sum(len(firsts) for firsts, _ in self._ledgers.values())

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Each range as ledger, first and last entry, both inclusive, in order."""
        for ledger_id in sorted(self._ledgers):
            for first, last in zip(*self._ledgers[ledger_id], strict=True):
                yield ledger_id, first, last

    def __contains__(self, position: Position) -> bool:
        return self.end_of_run(position) is not None

    def end_of_run(self, position: Position) -> int | None:
        """Last entry of the range that ``position`` is in; None where it is in none."""
        firsts, lasts = self._ledgers.get(position.ledger_id, ((), ()))
        at = bisect_right(firsts, position.entry_id) - 1
        return lasts[at] if at >= 0 and position.entry_id <= lasts[at] else None

    def gap_end(self, position: Position) -> int:
        """The entry before the next range of the ledger, for a ``position`` in no range; without one, the largest."""
        firsts, _ = self._ledgers.get(position.ledger_id, ((), ()))
        at = bisect_right(firsts, position.entry_id)
        return firsts[at] - 1 if at < len(firsts) else _LARGEST

    def add(self, ledger_id: int, first: int, last: int) -> int:
        """Add the entries from ``first`` to ``last``, both inclusive; returns how many were not in the set before."""
        firsts, lasts = self._ledgers.setdefault(ledger_id, ([], []))
        begin = bisect_left(lasts, first - 1)  # the first range that touches or follows
        end = bisect_right(firsts, last + 1)  # behind the last range that touches
        covered = sum(lasts[at] - firsts[at] + 1 for at in range(begin, end))
        if begin < end:
            first = min(first, firsts[begin])
            last = max(last, lasts[end - 1])
        firsts[begin:end] = [first]
        lasts[begin:end] = [last]
        added = last - first + 1 - covered
        self._count += added
        return added

    def remove_through(self, position: Position) -> None:
        """Remove every entry up to ``position``, inclusive."""
        for ledger_id in [id_ for id_ in self._ledgers if id_ < position.ledger_id]:
            firsts, lasts = self._ledgers.pop(ledger_id)
            self._count -= _total(firsts, lasts)
        known = self._ledgers.get(position.ledger_id)
        if known is None:
            return
        firsts, lasts = known
        end = bisect_right(lasts, position.entry_id)
        self._count -= _total(firsts[:end], lasts[:end])
        del firsts[:end], lasts[:end]
        if not firsts:
            del self._ledgers[position.ledger_id]
        elif firsts[0] <= position.entry_id:
            self._count -= position.entry_id + 1 - firsts[0]
            firsts[0] = position.entry_id + 1

    def clear(self) -> None:
        """Remove everything."""
        self._ledgers.clear()
        self._count = 0


def _total(firsts: list[int], lasts: list[int]) -> int:
    return sum(lasts) - sum(firsts) + len(firsts)
