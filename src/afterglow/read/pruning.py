"""Pruning by time: ranges and blocks that cannot hold a message between two times are not read.

Nothing that might match is pruned:

* Statistics have the least and the greatest time of a segment, in its record, or of a block, in the index. If every
  entry of a ledger has a broker time, by the ledger list, the bounds of broker times are compared; else those of broker
  and publish times together.
* Without statistics (Apache Pulsar wrote the object, or the entries are in the hot log) entries are probed, by
  bisection: broker time never goes back. Publish time follows no order; entries without broker time are all read.
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
    from afterglow.read.scan_range import ScanRange
    from afterglow.read.stripes import LedgerStripes
    from afterglow.read.topic_reader import TopicReader

_NONE: Final = -1
_PROBE_ENTRIES: Final = (1, 16)
"""Entries that a probe reads, first one, then more: Pulsar's markers have no broker time."""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Least and greatest times of entries, epoch milliseconds; None if no entry has one."""

    min_broker: int | None
    max_broker: int | None
    min_publish: int | None
    max_publish: int | None

    def may_match(self, scan_range: ScanRange, *, stamped: bool) -> bool:
        """Whether one of the entries may be in a range; ``stamped``: every entry has a broker time."""
        fields = (self.min_broker, self.max_broker, self.min_publish, self.max_publish)
        row = np.array([[_NONE if field is None else field for field in fields]], np.int64)
        return bool(_matching(row, scan_range, stamped=stamped)[0])

    def is_before(self, time_ms: int) -> bool:
        """Whether every known time is before the given time."""
        known = [time for time in (self.max_broker, self.max_publish) if time is not None]
        return bool(known) and max(known) < time_ms


def matching_blocks(
    stripes: LedgerStripes, first: int, last: int, scan_range: ScanRange, *, stamped: bool
) -> list[range]:
    """The entries from ``first`` to ``last`` in blocks that may hold a message of a range; adjacent blocks are joined.

    Args:
        stripes: The blocks, with times.
        first: First entry, inclusive; a block must hold it.
        last: Last entry, inclusive.
        scan_range: The range.
        stamped: Whether every entry has a broker time.
    """
    assert stripes.times is not None
    low, high = stripes.block_number(first), stripes.block_number(last)
    matching = _matching(stripes.times[low : high + 1], scan_range, stamped=stamped)
    firsts = stripes.first_entries[low : high + 1]
    edges = np.flatnonzero(np.diff(np.concatenate(([0], matching.view(np.int8), [0]))))
    found = []
    for begin, end in edges.reshape(-1, 2).tolist():
        start = max(int(firsts[begin]), first)
        stop = int(firsts[end]) if end < firsts.size else last + 1
        found.append(range(start, min(stop, last + 1)))
    return found


def _matching(times: NDArray[np.int64], scan_range: ScanRange, *, stamped: bool) -> NDArray[np.bool_]:
    """The rows of (least broker, greatest broker, least publish, greatest publish) time that may hold a match."""
    low, high = times[:, 0], times[:, 1]
    known = low != _NONE
    if not stamped:
        has_publish = times[:, 2] != _NONE
        low = np.where(known & has_publish, np.minimum(low, times[:, 2]), np.where(known, low, times[:, 2]))
        high = np.maximum(high, times[:, 3])
        known = known | has_publish
    wanted = np.ones(low.size, np.bool_)
    if scan_range.since_ms is not None:
        wanted &= high >= scan_range.since_ms
    if scan_range.until_ms is not None:
        wanted &= low < scan_range.until_ms
    wanted |= ~known
    measured = times[:, 2] != _NONE
    if scan_range.published_from_ms is not None:
        wanted &= ~measured | (times[:, 3] >= scan_range.published_from_ms)
    if scan_range.published_to_ms is not None:
        wanted &= ~measured | (times[:, 2] <= scan_range.published_to_ms)
    return wanted


class TimeProbe:
    """Reads the broker times of single entries.

    Args:
        reader: Reader of the pinned view.
        priority: Read priority.
    """

    def __init__(self, reader: TopicReader, priority: ReadPriority | None) -> None:
        self._reader = reader
        self._priority = priority
        self._known: dict[Position, int | None] = {}

    def time(self, position: Position) -> int | None:
        """Broker time of an entry, or of the next in its ledger that has one; None if the next few have none.

        Raises:
            AfterglowError: They cannot be read.
        """
        if position not in self._known:
            self._known[position] = next(self._broker_times(position), None)
        return self._known[position]

    def narrow(self, ledger_id: int, boundaries: Sequence[int], last: int, scan_range: ScanRange) -> range | None:
        """The entries of a ledger that may be in a range; None if they have no broker times.

        Args:
            ledger_id: The ledger.
            boundaries: Entries at which the result may begin and end, ascending; the first entry among them.
            last: Last entry, inclusive.
            scan_range: The range.

        Raises:
            AfterglowError: An entry cannot be read.
        """

        def time_of(entry_id: int) -> int:
            found = self.time(Position(ledger_id, entry_id))
            if found is None:
                raise _NoBrokerTime
            return found

        begin, end = 0, len(boundaries)
        try:
            if scan_range.since_ms is not None:
                # Entries after the last boundary before the time may reach it.
                begin = max(bisect_left(boundaries, scan_range.since_ms, key=time_of) - 1, 0)
            if scan_range.until_ms is not None:
                end = bisect_left(boundaries, scan_range.until_ms, lo=begin, key=time_of)
            time_of(boundaries[0])  # if the first entry has no broker time, others may have none either
        except _NoBrokerTime:
            return None
        return range(boundaries[begin], last + 1 if end == len(boundaries) else boundaries[end])

    def _broker_times(self, position: Position) -> Iterator[int]:
        for count in _PROBE_ENTRIES:
            end = Position(position.ledger_id, position.entry_id + count)
            for served in self._reader.read(position, end, priority=self._priority, scan=False):
                for _, data in iter_entries(served.run.data, served.run.frames):
                    try:
                        found = entry_time(data)
                    except CorruptEntry:
                        continue
                    if found.by_broker:
                        yield found.time_ms


class _NoBrokerTime(Exception):
    """An entry has no broker time."""
