"""Seek by time (PIP-70): the first entry that was written at or after a moment.

Where entries carry a broker time it never goes back, and the entry is found by bisection: over the ledgers by the
broker time of their last entry, which the list records, then over the entries of one ledger. A probe parses the few
bytes in front of an entry and nothing of the message.

Entries without a broker time (from before it was switched on, or while it was off) have only the client's publish time,
which follows no order. There the answer is what a plain scan gives, the first entry whose time is at or after the
moment, and a scan finds it, in blocks. Only stretches without broker time that could hold the answer are scanned.

How a ledger is stamped is judged by its first and last entry: it is switched on or off when a topic is opened, which
begins a new ledger. Both stamped, all are (Pulsar leaves markers unstamped; a probe that meets one goes on to the next
entry that is). Only the last, and the first of the stamped ones is found by bisection. Otherwise the ledger is scanned.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from afterglow.errors import CorruptEntry
from afterglow.format.position import EARLIEST, Position
from afterglow.ledger.timestamps import entry_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.ledger.layout import Layout, Span
    from afterglow.ledger.reader import StoredEntry
    from afterglow.ledger.source import EntryData
    from afterglow.ledger.timestamps import EntryTime

_SCAN_ENTRIES: Final = 256
_SCAN_BYTES: Final = 4 * 1024 * 1024


class Entries(Protocol):
    """The topic, as the search sees it."""

    def read(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """Entries from ``position`` on."""
        ...

    def read_one(self, position: Position) -> EntryData | None:
        """The entry at ``position``; None where there is none."""
        ...


class Narrow(Protocol):
    """Tells where in a ledger to look, by what is known of it without reading entries one by one."""

    def __call__(self, ledger_id: int, first: int, last: int, time_ms: int) -> range:
        """Of stamped entries, some among which is the first at or after a moment; the last of all of them is."""
        ...


@dataclass(slots=True)
class SearchCost:
    """What a search has looked at."""

    entries: int = 0
    """Entries that were read, by probes and scans."""
    parsed_bytes: int = 0
    """Bytes of them that were parsed."""


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search."""

    position: Position | None
    """The first entry written at or after the moment; None where there is none."""
    cost: SearchCost


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Entries of one ledger that are alike."""

    ledger_id: int
    first: int
    """First entry id, inclusive."""
    last: int
    """Last entry id, inclusive."""
    last_time_ms: int | None
    """Broker time of the last entry; None: the stretch is unstamped."""


class TimeSearch:
    """One search over one topic as it stood when the search began.

    Args:
        entries: The topic.
        layout: Where its entries lie.
        last_times: Broker time of the last entry of ledgers for which it is recorded, by id. These are wholly stamped;
            of others the first and the last entry are looked at.
        narrow: Asked before the entries of a ledger are looked at.
    """

    def __init__(
        self, entries: Entries, layout: Layout, last_times: Mapping[int, int], narrow: Narrow | None = None
    ) -> None:
        self._entries = entries
        self._layout = layout
        self._recorded = last_times
        self._narrow = narrow
        self._known: dict[Position, int | None] = {}
        self._cost = SearchCost()

    def first_at_or_after(self, time_ms: int) -> Found:
        """The first entry whose time is at or after ``time_ms``.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
        """
        stretches = [part for span in self._layout.spans(EARLIEST) for part in self._classify(span)]
        stamped = [part for part in stretches if part.last_time_ms is not None]
        at = bisect_left(stamped, time_ms, key=lambda part: part.last_time_ms or 0)
        bound = self._bisect(stamped[at], time_ms) if at < len(stamped) else None
        for part in stretches:
            if bound is not None and (part.ledger_id, part.first) > (bound.ledger_id, bound.entry_id):
                break
            if part.last_time_ms is None and (found := self._scan(part, time_ms)) is not None:
                return Found(found, self._cost)
        return Found(bound, self._cost)

    def _classify(self, span: Span) -> list[_Stretch]:
        ledger_id, first, last = span.ledger_id, span.first, span.last
        last_time = self._recorded.get(ledger_id)
        if last_time is None:
            last_time = self._broker_time(ledger_id, last)
            if last_time is not None and self._broker_time(ledger_id, first) is None:
                switched = bisect_left(
                    range(first, last), x=True, key=lambda entry: self._broker_time(ledger_id, entry) is not None
                )
                begin = first + switched
                return [
                    _Stretch(ledger_id, first, begin - 1, None),
                    _Stretch(ledger_id, begin, last, last_time),
                ]
        return [_Stretch(ledger_id, first, last, last_time)]

    def _bisect(self, part: _Stretch, time_ms: int) -> Position:
        """The first stamped entry at or after the moment, in a stretch whose last entry is."""
        low, high = part.first, part.last
        if self._narrow is not None:
            narrowed = self._narrow(part.ledger_id, low, high, time_ms)
            if len(narrowed) == 1:
                return Position(part.ledger_id, narrowed.start)
            low, high = narrowed.start, narrowed.stop - 1
        while low < high:
            middle = (low + high) // 2
            entry_id, found_ms = self._stamped_from(part, middle)
            if found_ms < time_ms:
                low = entry_id + 1
            else:
                high = middle
        return Position(part.ledger_id, self._stamped_from(part, low)[0])

    def _stamped_from(self, part: _Stretch, entry_id: int) -> tuple[int, int]:
        """The first stamped entry from ``entry_id`` on, and its time; the last of the stretch at the latest."""
        while entry_id < part.last:
            found_ms = self._broker_time(part.ledger_id, entry_id)
            if found_ms is not None:
                return entry_id, found_ms
            entry_id += 1
        return part.last, part.last_time_ms or 0

    def _scan(self, part: _Stretch, time_ms: int) -> Position | None:
        """The first entry of an unstamped stretch at or after the moment."""
        position = Position(part.ledger_id, part.first)
        while position.entry_id <= part.last:
            room = min(_SCAN_ENTRIES, part.last + 1 - position.entry_id)
            block = self._entries.read(position, room, _SCAN_BYTES)
            if not block or block[0].position.ledger_id != part.ledger_id:  # trimmed meanwhile
                return None
            for entry in block:
                found = self._time(entry.data)
                if found is not None and found.time_ms >= time_ms:
                    return entry.position
            position = block[-1].position.next()
        return None

    def _broker_time(self, ledger_id: int, entry_id: int) -> int | None:
        position = Position(ledger_id, entry_id)
        if position not in self._known:
            data = self._entries.read_one(position)
            found = None if data is None else self._time(data)
            self._known[position] = found.time_ms if found is not None and found.by_broker else None
        return self._known[position]

    def _time(self, data: EntryData) -> EntryTime | None:
        """None for what is no message: such an entry has no time."""
        self._cost.entries += 1
        try:
            found = entry_time(data)
        except CorruptEntry:
            return None
        self._cost.parsed_bytes += found.parsed_bytes
        return found
