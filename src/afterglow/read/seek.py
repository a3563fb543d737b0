"""Seek by time over a pinned view: the search that the broker makes, over what any copy gives."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from afterglow.format.frames import iter_entries
from afterglow.format.position import Position
from afterglow.ledger.reader import StoredEntry
from afterglow.ledger.time_search import TimeSearch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.ledger.ledger_list import LedgerRecord
    from afterglow.ledger.source import EntryData
    from afterglow.read.handle import TopicReader
    from afterglow.read.time_index import TimeIndex


def seek(
    reader: TopicReader, ledgers: Iterable[LedgerRecord], time_ms: int, index: TimeIndex | None = None
) -> Position:
    """The first entry that was written at or after a moment, else the position behind the last one.

    Args:
        reader: Of the pinned view.
        ledgers: Of the same list.
        time_ms: The moment, epoch milliseconds.
        index: Tells where to look in what tiers hold; None: entries are looked at one by one.

    Raises:
        AfterglowError: An entry that must be looked at cannot be read.
    """
    layout = reader.view.layout
    times = {
        ledger.ledger_id: ledger.last_broker_time_ms for ledger in ledgers if ledger.last_broker_time_ms is not None
    }
    narrow = None if index is None else index.narrow
    found = TimeSearch(_Entries(reader), layout, times, narrow).first_at_or_after(time_ms)
    return layout.last.next() if found.position is None else found.position


class _Entries:
    """A view as the search sees it: a few entries at a time."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader

    def read(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """Entries from ``position`` on."""
        end = Position(position.ledger_id, position.entry_id + max_entries)
        found: list[StoredEntry] = []
        for served in self._reader.read(position, end, scan=False):
            run = served.run
            for entry_id, data in islice(iter_entries(run.data, run.frames), max_entries - len(found)):
                found.append(StoredEntry(Position(run.ledger_id, entry_id), data))
                max_bytes -= len(data)
            if max_bytes <= 0:
                break
        return found

    def read_one(self, position: Position) -> EntryData | None:
        """The entry at ``position``; None where there is none."""
        found = self.read(position, 1, 1)
        return found[0].data if found and found[0].position == position else None
