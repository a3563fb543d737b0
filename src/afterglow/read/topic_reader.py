"""Reader of a topic: a pinned view, read in order across ledgers, object formats, hot log and tiers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from afterglow.errors import LedgerMissing
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.ledger.layout import Layout
from afterglow.ledger.properties import BROKER_TIME, get_number
from afterglow.ledger.reader import StoredEntry
from afterglow.ledger.time_search import TimeSearch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from afterglow.config.choices import ReadPriority
    from afterglow.format.position import LedgerRange
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.copies import HotReader, ServedRun
    from afterglow.read.tiered import TieredSource

T = TypeVar("T")

READ_BYTES: Final = 4 << 20
"""Per run of a read that is not a scan."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """What a topic held at one moment."""

    name: str
    """Its managed-ledger name."""
    rows: Mapping[int, ManagedLedgerInfo.LedgerInfo]
    """Its ledgers by id. Not to be changed."""
    layout: Layout
    """Where its entries stand."""

    @classmethod
    def pin(cls, name: str, info: ManagedLedgerInfo, hot: HotReader) -> TopicView:
        """The view of now: of a ledger that is still written, what is confirmed.

        The list learns the end of a ledger after the next one is in use, and another process may learn it later still.
        Where the end of a ledger is not known, nothing behind it is in view: there would be a hole.

        Raises:
            HotLogError: The ledger that is written cannot be read.
        """
        rows = sorted(info.ledgerInfo, key=lambda row: row.ledgerId)
        extents: list[tuple[int, int]] = []
        for row in rows:
            entries, ended = _extent(row, hot)
            extents.append((row.ledgerId, entries))
            if not ended:
                break
        return cls(name, {row.ledgerId: row for row in rows}, Layout.of(extents))

    def spans(self, start: Position, end: Position) -> Iterator[LedgerRange]:
        """The ranges of entries from ``start`` on that stand before ``end``, ledger by ledger, in order."""
        for span in self.layout.ranges(start):
            if Position(span.ledger_id, span.first) >= end:
                return
            yield replace(span, last=min(span.last, end.entry_id - 1)) if span.ledger_id == end.ledger_id else span


class TopicReader:
    """Reads a pinned view. Thread-safe; any number of reads may go on at once.

    Args:
        view: What is read.
        source: Where it is read from.
        refresh: Gives the topic's list of now, asked where a ledger has left the hot log since the view was pinned.
            None: that is an error.
    """

    def __init__(
        self, view: TopicView, source: TieredSource, refresh: Callable[[], ManagedLedgerInfo] | None = None
    ) -> None:
        self.view = view
        self._source = source
        self._refresh = refresh

    def read(
        self,
        start: Position = EARLIEST,
        end: Position = LATEST,
        *,
        priority: ReadPriority | None = None,
        scan: bool = True,
    ) -> Iterator[ServedRun]:
        """Entries from ``start`` on that stand before ``end``, in order, in runs.

        Where the damage policy is to skip, entries that no copy can give are left out: the ids of the runs have gaps.

        Args:
            start: First position, inclusive; it need not be an entry.
            end: End position, exclusive.
            priority: Which copy serves while both exist; None asks the topic's policy at each run.
            scan: Large reads, read ahead, past the cache. For a few entries say False.

        Raises:
            AfterglowError: Entries cannot be read from any copy; runs before that are good.
        """
        for span in self.view.spans(start, end):
            yield from self._ledger(span.ledger_id, span.first, span.last, priority, scan=scan)

    def find_by_time(self, time_ms: int) -> Position:
        """The first entry that was written at or after a moment, else the position behind the last one.

        Raises:
            AfterglowError: An entry that the search needs cannot be read.
        """
        known = {ledger_id: get_number(row, BROKER_TIME) for ledger_id, row in self.view.rows.items()}
        last_times = {ledger_id: last_ms for ledger_id, last_ms in known.items() if last_ms is not None}
        layout = self.view.layout
        found = TimeSearch(self, layout, last_times).first_at_or_after(time_ms)
        return layout.last.next() if found.position is None else found.position

    def probe(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """A few entries from ``position`` on, of its ledger; see :class:`~afterglow.ledger.time_search.Entries`.

        Raises:
            AfterglowError: They cannot be read.
        """
        found: list[StoredEntry] = []
        for span in self.view.spans(position, Position(position.ledger_id, position.entry_id + max_entries)):
            first = span.first
            while first <= span.last and max_bytes > 0:
                probe = partial(self._source.probe, first=first, last=span.last, max_bytes=max_bytes)
                run = self._of_row(span.ledger_id, probe)
                locations = (Position(span.ledger_id, run.first + at) for at in range(len(run.entries)))
                found += map(StoredEntry, locations, run.entries)
                max_bytes -= sum(map(len, run.entries))
                first = run.first + len(run.entries)
        return found

    def narrow(self, ledger_id: int, entries: range, time_ms: int, *, stamped: bool) -> range:
        """Where in a ledger to search for a moment; see :class:`~afterglow.ledger.time_search.Entries`.

        Raises:
            StoreUnavailable: The tier has the only copy and cannot be reached.
        """
        return self._source.narrow(self.view.rows[ledger_id], entries, time_ms, stamped=stamped)

    def _of_row(self, ledger_id: int, read: Callable[[ManagedLedgerInfo.LedgerInfo], T]) -> T:
        row = self.view.rows[ledger_id]
        try:
            return read(row)
        except LedgerMissing:
            newer = self._newer(ledger_id)
            if newer is None or newer == row:
                raise
            return read(newer)  # it has left the hot log since the view was pinned

    def _ledger(
        self, ledger_id: int, first: int, last: int, priority: ReadPriority | None, *, scan: bool
    ) -> Iterator[ServedRun]:
        row = self.view.rows[ledger_id]
        while True:
            runs = (
                self._source.scan(row, first, last, priority)
                if scan
                else self._source.walk(row, first, last, READ_BYTES, priority)
            )
            try:
                for served in runs:
                    yield served
                    first = served.run.frames.end_entry_id
            except LedgerMissing:
                newer = self._newer(ledger_id)
                if newer is None or newer == row:
                    raise
                row = newer  # it has left the hot log since the view was pinned
            else:
                return

    def _newer(self, ledger_id: int) -> ManagedLedgerInfo.LedgerInfo | None:
        if self._refresh is None:
            return None
        return next((row for row in self._refresh().ledgerInfo if row.ledgerId == ledger_id), None)


def _extent(row: ManagedLedgerInfo.LedgerInfo, hot: HotReader) -> tuple[int, bool]:
    """Entries of a ledger that may be read, and whether that is all of it."""
    if row.HasField("entries"):
        return row.entries, True
    try:
        ledger = hot.open(row.ledgerId)
        ended = ledger.closed  # asked first: what is confirmed after it is its end
        return ledger.confirmed + 1, ended
    except LedgerMissing:
        return 0, False
