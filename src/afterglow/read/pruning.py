"""Pruning by time: ranges and blocks that cannot hold a message of a window are not read.

Nothing that might match is pruned:

* Statistics have the least and the greatest time of a segment, in its record, or of a block, in the index. Where every
  entry of a ledger has a broker time, by the ledger list, these bounds are compared; else those of broker time and
  publish time together.
* Where there are no statistics (Apache Pulsar wrote the object, or the entries are in the hot log) entries are probed,
  by bisection: broker time never goes back. Publish time follows no order; entries without broker time are all read.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from afterglow.errors import CorruptEntry
from afterglow.format.frames import iter_entries
from afterglow.format.position import Position
from afterglow.ledger.time_search import entry_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from afterglow.config.choices import ReadPriority
    from afterglow.read.pieces import LedgerPieces
    from afterglow.read.topic_reader import TopicReader
    from afterglow.read.window import Window

_NONE: Final = -1
_PROBED: Final = (1, 16)
"""Entries that one probe reads: Pulsar leaves a few without broker time, its markers, among those that have one."""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Times of some entries, epoch milliseconds, both ends inclusive; None where no entry has one."""

    min_broker: int | None
    max_broker: int | None
    min_publish: int | None
    max_publish: int | None

    def may_match(self, window: Window, *, stamped: bool) -> bool:
        """Whether one of the entries may be in a window; ``stamped``: every one has a broker time."""
        fields = (self.min_broker, self.max_broker, self.min_publish, self.max_publish)
        row = np.array([[_NONE if field is None else field for field in fields]], np.int64)
        return bool(_matching(row, window, stamped=stamped)[0])

    def is_before(self, time_ms: int) -> bool:
        """Whether every time is known to be before a moment."""
        known = [time for time in (self.max_broker, self.max_publish) if time is not None]
        return bool(known) and max(known) < time_ms


def timely_blocks(pieces: LedgerPieces, first: int, last: int, window: Window, *, stamped: bool) -> list[range]:
    """Of entries ``first`` to ``last``, those in blocks that may hold a message of a window: adjacent blocks as one.

    Args:
        pieces: Blocks with times.
        first: First entry, inclusive; a block holds it.
        last: Last entry, inclusive.
        window: The window.
        stamped: Whether every entry has a broker time.
    """
    assert pieces.times is not None
    low, high = pieces.block_number(first), pieces.block_number(last)
    matching = _matching(pieces.times[low : high + 1], window, stamped=stamped)
    firsts = pieces.first_entries[low : high + 1]
    edges = np.flatnonzero(np.diff(np.concatenate(([0], matching.view(np.int8), [0]))))
    found = []
    for begin, end in edges.reshape(-1, 2).tolist():
        start = max(int(firsts[begin]), first)
        stop = int(firsts[end]) if end < firsts.size else last + 1
        found.append(range(start, min(stop, last + 1)))
    return found


def _matching(times: NDArray[np.int64], window: Window, *, stamped: bool) -> NDArray[np.bool_]:
    """Which rows of (least broker, greatest broker, least publish, greatest publish) time may hold a match."""
    low, high = times[:, 0], times[:, 1]
    known = low != _NONE
    if not stamped:
        has_publish = times[:, 2] != _NONE
        low = np.where(known & has_publish, np.minimum(low, times[:, 2]), np.where(known, low, times[:, 2]))
        high = np.maximum(high, times[:, 3])
        known = known | has_publish
    wanted = np.ones(low.size, np.bool_)
    if window.since_ms is not None:
        wanted &= high >= window.since_ms
    if window.until_ms is not None:
        wanted &= low < window.until_ms
    wanted |= ~known
    measured = times[:, 2] != _NONE
    if window.published_from_ms is not None:
        wanted &= ~measured | (times[:, 3] >= window.published_from_ms)
    if window.published_to_ms is not None:
        wanted &= ~measured | (times[:, 2] <= window.published_to_ms)
    return wanted


class TimeProbe:
    """Reads the broker times of single entries.

    Args:
        reader: Of the pinned view.
        priority: Which copy serves while both exist.
    """

    def __init__(self, reader: TopicReader, priority: ReadPriority | None) -> None:
        self._reader = reader
        self._priority = priority
        self._known: dict[Position, int | None] = {}

    def time(self, position: Position) -> int | None:
        """Broker time of an entry, or of the next in its ledger that has one; None where the next few have none.

        Raises:
            AfterglowError: They cannot be read.
        """
        if position not in self._known:
            self._known[position] = next(self._stamps(position), None)
        return self._known[position]

    def narrow(self, ledger_id: int, borders: Sequence[int], last: int, window: Window) -> range | None:
        """Of some entries of a ledger, those that may be in a window; None where they have no broker times.

        Args:
            ledger_id: The ledger.
            borders: Entries at which they may be parted, ascending; the first of them is the first.
            last: Last entry, inclusive.
            window: The window.

        Raises:
            AfterglowError: An entry cannot be read.
        """
        stamps = _Stamps(self, ledger_id, borders)
        try:
            begin, end = 0, len(borders)
            if window.since_ms is not None:
                # Behind the last border before the moment there may be entries at or after it.
                begin = max(bisect_left(stamps, window.since_ms) - 1, 0)
            if window.until_ms is not None:
                end = bisect_left(stamps, window.until_ms, lo=begin)
            stamps[0]  # where the first has none, others may have none as well
        except _Unstamped:
            return None
        return range(borders[begin], last + 1 if end == len(borders) else borders[end])

    def _stamps(self, position: Position) -> Iterator[int]:
        for count in _PROBED:
            end = Position(position.ledger_id, position.entry_id + count)
            for served in self._reader.read(position, end, priority=self._priority, scan=False):
                for _, data in iter_entries(served.run.data, served.run.frames):
                    try:
                        found = entry_time(data)
                    except CorruptEntry:
                        continue
                    if found.by_broker:
                        yield found.time_ms


class _Unstamped(Exception):
    """An entry has no broker time."""


class _Stamps:
    """Broker times of some entries of a ledger, read when asked for."""

    def __init__(self, probe: TimeProbe, ledger_id: int, entries: Sequence[int]) -> None:
        self._probe = probe
        self._ledger_id = ledger_id
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, at: int) -> int:
        found = self._probe.time(Position(self._ledger_id, self._entries[at]))
        if found is None:
            raise _Unstamped
        return found
