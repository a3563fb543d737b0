"""Outcomes of transactions, from the markers that stand behind their messages, also behind the end of a range.

A message of a transaction counts once a marker says that it was committed; messages of aborted transactions, and of
those without a marker yet, do not. Entries ahead of those that are read are searched for markers only where there are
transactions, only as far as needed, and each range once for all readers that share the object.
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

MOST_KNOWN: Final = 1 << 17
"""Transactions whose end is cached: some 40 MB. Evicted ones are searched for again."""

_COMMITTED: Final = 1
_UNDECIDED: Final = -1


class Transactions:
    """Knows how the transactions of one pinned topic ended. Thread-safe: all who read the topic may share it.

    Readers that go on side by side, each a little ahead of the other, find most in what one of them has seen.

    Args:
        around: The entries behind what is read.
        most_known: Transactions whose end is remembered.
    """

    def __init__(self, around: Neighbours, most_known: int = MOST_KNOWN) -> None:
        self._around = around
        self._most = most_known
        self._lock = Lock()
        self._known: OrderedDict[int, tuple[bool, Position]] = OrderedDict()
        """Whether a transaction was committed, and where its marker stands; the newest last."""
        self._undecided: set[int] = set()
        """The topic has no marker of these."""
        self._from = self._until = Position(-1, -1)
        """All markers between these are known."""
        self._runs: Iterator[ServedRun] | None = None
        """From the second of them on."""
        self._ended = False
        """Whether the topic ends there."""

    def left_out(self, run: FrameRun, marks: Marks) -> NDArray[np.int64]:
        """The entries of a run that hold messages of transactions that were not committed.

        Args:
            run: What is read.
            marks: Of some of its entries.

        Raises:
            AfterglowError: An entry that may be the marker cannot be read.
        """
        committed, entries, which = self._looked_up(run, marks)
        return np.extract((committed != _COMMITTED)[which], entries)

    def undecided(self, run: FrameRun, marks: Marks) -> NDArray[np.int64]:
        """The entries of a run that hold messages of transactions without a marker.

        Args:
            run: What is read.
            marks: Of some of its entries.

        Raises:
            AfterglowError: An entry that may be the marker cannot be read.
        """
        committed, entries, which = self._looked_up(run, marks)
        return np.extract((committed == _UNDECIDED)[which], entries)

    def _looked_up(self, run: FrameRun, marks: Marks) -> tuple[NDArray[np.int8], NDArray[np.int64], NDArray[np.int64]]:
        """How each transaction ended; entries with messages of one; for each of these the place of its transaction."""
        transactions, entries, which = marks.transactions()
        if not transactions:
            return np.zeros(0, np.int8), entries, which
        with self._lock:
            found = {each: self._known[each][0] for each in transactions if each in self._known}
            wanted = set(transactions) - found.keys() - self._undecided
            if wanted:
                self._look_ahead(wanted, found, run, int(entries[0]))
        return np.array([found.get(each, _UNDECIDED) for each in transactions], np.int8), entries, which

    def _look_ahead(self, wanted: set[int], found: dict[int, bool], run: FrameRun, first: int) -> None:
        """Find how transactions ended; those that are still wanted then are open."""
        self._note(run, first, wanted, found)
        at = _end(run)
        if wanted and at < self._from:
            self._look_before(at, wanted, found)
        elif wanted and at > self._until:
            self._from = self._until = at
            self._runs, self._ended = None, False
        while wanted and not self._ended:
            self._runs = self._runs or self._around.after(self._until)
            try:
                served = next(self._runs, None)
            except AfterglowError:
                self._runs = None  # it would say from now on that the topic ends there
                raise
            if served is None:
                self._ended = True
            else:
                self._until = _end(served.run)
                self._note(served.run, None, wanted, found)
        if len(self._undecided) > self._most:
            self._undecided.clear()
        self._undecided |= wanted

    def _look_before(self, at: Position, wanted: set[int], found: dict[int, bool]) -> None:
        """Search the entries before the range that is known, as far as is needed."""
        for served in self._around.after(at):
            if Position(served.run.ledger_id, served.run.frames.first_entry_id) >= self._from:
                return
            self._note(served.run, None, wanted, found)
            if not wanted:
                return

    def _note(self, run: FrameRun, start: int | None, wanted: set[int], found: dict[int, bool]) -> None:
        for entry_id, transaction, committed in find_marks(run.data, run.frames, start).endings():
            self._known[transaction] = (committed, Position(run.ledger_id, entry_id))
            if transaction in wanted:
                found[transaction] = committed
                wanted.discard(transaction)
        while len(self._known) > self._most:
            _, (_, gone) = self._known.popitem(last=False)
            if self._from <= gone < self._until:
                self._from = gone.next()


def _end(run: FrameRun) -> Position:
    return Position(run.ledger_id, run.frames.end_entry_id)
