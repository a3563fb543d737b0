"""Outcomes of transactions, from the markers that follow their messages, also after the end of a range.

A message of a transaction is visible once a commit marker follows; messages of aborted transactions, and of those
without a marker yet, are not. Entries that a broker of Pulsar delivered have no markers, and are committed. Entries
after a range are searched for markers only if the range has transactions, only as far as needed, and once for all
readers that share the object.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np

from afterglow.errors import AfterglowError
from afterglow.format.marks import find_marks
from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from afterglow.format.marks import Marks
    from afterglow.read.copies import FrameRun, ServedRun
    from afterglow.read.messages import Neighbours

MAX_CACHED: Final = 1 << 17
"""Transactions whose outcome is cached: some 40 MB. Evicted ones are searched for again."""

_COMMITTED: Final = 1
_UNDECIDED: Final = -1


class Transactions:
    """Outcomes of the transactions of one pinned topic. Thread-safe: all readers of the topic may share it.

    Parallel readers at neighbouring positions find most outcomes in what one of them has searched.

    Args:
        neighbours: The entries after those that are read.
        max_cached: Transactions whose outcome is cached.
    """

    def __init__(self, neighbours: Neighbours, max_cached: int = MAX_CACHED) -> None:
        self._neighbours = neighbours
        self._max_cached = max_cached
        self._lock = Lock()
        self._known: OrderedDict[int, tuple[bool, Position]] = OrderedDict()
        """Whether a transaction was committed, and the position of its marker; the newest last."""
        self._undecided: set[int] = set()
        """Transactions without a marker in the topic."""
        self._searched_from = self._searched_until = Position(-1, -1)
        """All markers between these positions are known."""
        self._runs: Iterator[ServedRun] | None = None
        """The entries from ``_searched_until`` on."""
        self._ended = False
        """Whether the topic ends at ``_searched_until``."""

    def skipped(self, run: FrameRun, marks: Marks) -> NDArray[np.int64]:
        """The entries of a run that hold messages of transactions that were not committed.

        Args:
            run: The run.
            marks: Marks of some of its entries.

        Raises:
            AfterglowError: An entry that may be a marker cannot be read.
        """
        committed, entries, which = self._resolve(run, marks)
        return np.extract((committed != _COMMITTED)[which], entries)

    def undecided(self, run: FrameRun, marks: Marks) -> NDArray[np.int64]:
        """The entries of a run that hold messages of transactions without a marker; arguments as above.

        Raises:
            AfterglowError: An entry that may be a marker cannot be read.
        """
        committed, entries, which = self._resolve(run, marks)
        return np.extract((committed == _UNDECIDED)[which], entries)

    def _resolve(self, run: FrameRun, marks: Marks) -> tuple[NDArray[np.int8], NDArray[np.int64], NDArray[np.int64]]:
        """Outcome of each transaction; the entries of transactions, and for each the index of its transaction."""
        transactions, entries, which = marks.transactions()
        if not transactions:
            return np.zeros(0, np.int8), entries, which
        with self._lock:
            found = {each: self._known[each][0] for each in transactions if each in self._known}
            wanted = set(transactions) - found.keys() - self._undecided
            if wanted:
                self._search(wanted, found, run, int(entries[0]))
        return np.array([found.get(each, _UNDECIDED) for each in transactions], np.int8), entries, which

    def _search(self, wanted: set[int], found: dict[int, bool], run: FrameRun, first: int) -> None:
        """Search for markers; transactions that are still wanted afterwards are undecided."""
        self._record_markers(run, first, wanted, found)
        at = _end_of(run)
        if wanted and at < self._searched_from:
            self._search_before(at, wanted, found)
        elif wanted and at > self._searched_until:
            self._searched_from = self._searched_until = at
            self._runs, self._ended = None, False
        while wanted and not self._ended:
            self._runs = self._runs or self._neighbours.after(self._searched_until)
            try:
                served = next(self._runs, None)
            except AfterglowError:
                self._runs = None  # a generator that has raised ends, which would look like the end of the topic
                raise
            if served is None:
                self._ended = True
            else:
                self._searched_until = _end_of(served.run)
                self._record_markers(served.run, None, wanted, found)
        if len(self._undecided) > self._max_cached:
            self._undecided.clear()
        self._undecided |= wanted

    def _search_before(self, at: Position, wanted: set[int], found: dict[int, bool]) -> None:
        """Search the entries before the searched range, as far as needed."""
        for served in self._neighbours.after(at):
            if Position(served.run.ledger_id, served.run.frames.first_entry_id) >= self._searched_from:
                return
            self._record_markers(served.run, None, wanted, found)
            if not wanted:
                return

    def _record_markers(self, run: FrameRun, start: int | None, wanted: set[int], found: dict[int, bool]) -> None:
        marks = find_marks(run.data, run.frames, start)
        for entry_id, transaction, committed in _delivered(marks) if run.markers_stripped else marks.endings():
            self._known[transaction] = (committed, Position(run.ledger_id, entry_id))
            if transaction in wanted:
                found[transaction] = committed
                wanted.discard(transaction)
        while len(self._known) > self._max_cached:
            _, (_, evicted) = self._known.popitem(last=False)
            if self._searched_from <= evicted < self._searched_until:
                self._searched_from = evicted.next()


def _delivered(marks: Marks) -> Iterator[tuple[int, int, bool]]:
    """The transactions of entries that a broker delivered, as if a commit marker followed each of their messages."""
    transactions, entries, which = marks.transactions()
    for entry_id, number in zip(entries.tolist(), which.tolist(), strict=True):
        yield entry_id, transactions[number], True


def _end_of(run: FrameRun) -> Position:
    return Position(run.ledger_id, run.frames.end_entry_id)
