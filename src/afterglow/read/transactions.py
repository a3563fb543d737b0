"""What became of transactions: told by markers that stand behind their messages, also behind the end of a range.

A message of a transaction counts once a marker says that it was committed. One that was aborted, and one of which the
topic does not tell yet, does not. Entries are looked through ahead of those that are read, and only where there are
transactions: as far as the markers of those, and each stretch once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from afterglow.format.marks import find_marks
from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from afterglow.format.marks import Marks
    from afterglow.read.copies import FrameRun, ServedRun
    from afterglow.read.messages import Around

MOST_MARKERS: Final = 1 << 17
"""Markers that are kept of what is read later: some 40 MB.

Where one transaction stays open while more than so many others end, only its own marker is looked for from there on,
and the stretch is looked through again when it is read.
"""


class Transactions:
    """Knows the transactions of one topic that is read forwards. Not thread-safe.

    Args:
        around: The entries behind what is read.
        most_markers: How many markers of what is read later are kept.
    """

    def __init__(self, around: Around, most_markers: int = MOST_MARKERS) -> None:
        self._around = around
        self._most = most_markers
        self._committed: dict[int, bool] = {}
        """By transaction, for the markers from where is read to ``_until``."""
        self._ahead: deque[tuple[Position, int]] = deque()
        """The same by position."""
        self._far: dict[int, bool | None] = {}
        """Of single ones whose markers are not before ``_until``; None: the topic does not tell."""
        self._until: Position | None = None
        """All before it has been looked through."""
        self._runs: Iterator[ServedRun] | None = None
        """From ``_until`` on."""
        self._ended = False
        """Whether the topic ends at ``_until``."""

    def left_out(self, run: FrameRun, marks: Marks) -> NDArray[np.int64]:
        """The entries of a run that hold messages of transactions that were not committed.

        Args:
            run: What is read; runs come in the order of the topic.
            marks: Of some of its entries.

        Raises:
            AfterglowError: An entry that may tell cannot be read.
        """
        transactions, entries, which = marks.transactions()
        if not transactions:
            return entries
        self._pass(Position(run.ledger_id, int(entries[0])))
        if len(self._far) > self._most:
            self._far.clear()
        wanted = set(transactions) - self._committed.keys() - self._far.keys()
        if wanted:
            self._look_ahead(wanted, run)
        fates = self._far | self._committed if self._far else self._committed
        open_or_aborted = np.array([not fates.get(each) for each in transactions])
        return np.extract(open_or_aborted[which], entries)

    def _pass(self, position: Position) -> None:
        """Forget markers before a position: of the transactions that they end nothing follows."""
        while self._ahead and self._ahead[0][0] < position:
            _, transaction = self._ahead.popleft()
            self._committed.pop(transaction, None)
        if self._until is None or self._until < position:
            self._go_on(position)

    def _go_on(self, position: Position) -> None:
        self._until = position
        self._runs = None
        self._ended = False

    def _look_ahead(self, wanted: set[int], run: FrameRun) -> None:
        """Find how transactions ended; those that are not found then are open."""
        assert self._until is not None
        end = Position(run.ledger_id, run.frames.end_entry_id)
        if self._until < end:  # what is at hand need not be fetched
            self._note(run, self._until.entry_id, wanted)
            self._go_on(end)
        while wanted and not self._ended and len(self._ahead) < self._most:
            if self._runs is None:
                self._runs = self._around.after(self._until)
            served = next(self._runs, None)
            if served is None:
                self._ended = True
            else:
                self._note(served.run, None, wanted)
                self._until = Position(served.run.ledger_id, served.run.frames.end_entry_id)
        if wanted and not self._ended:
            self._look_far(wanted)

    def _note(self, run: FrameRun, start: int | None, wanted: set[int]) -> None:
        for entry_id, transaction, committed in find_marks(run.data, run.frames, start).endings():
            self._committed[transaction] = committed
            self._ahead.append((Position(run.ledger_id, entry_id), transaction))
            wanted.discard(transaction)

    def _look_far(self, wanted: set[int]) -> None:
        """Look for single transactions behind so many markers that the others are not kept."""
        assert self._until is not None
        self._far.update(dict.fromkeys(wanted))
        for served in self._around.after(self._until):
            for _, transaction, committed in find_marks(served.run.data, served.run.frames).endings():
                if transaction in wanted:
                    self._far[transaction] = committed
                    wanted.discard(transaction)
            if not wanted:
                return
