"""Ranges of entries of one ledger each: those asked for, and those that arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import EntriesMissing, InvalidPosition
from afterglow.format.frames import FRAME_BYTES, scan_frames
from afterglow.format.position import LedgerRange, Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.format.frames import Frames


@dataclass(frozen=True, slots=True)
class RawRun:
    """Consecutive entries of one ledger, as frames one behind the other."""

    ledger_id: int
    first_entry_id: int
    count: int
    """Entries; at least one."""
    data: memoryview
    """``[length][id][entry]`` for each, as in :mod:`afterglow.format.frames`. The memory belongs to the run alone."""
    with_broker_metadata: int
    """Entries that begin with the broker's metadata."""

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry."""
        return self.first_entry_id + self.count - 1

    @property
    def payload_bytes(self) -> int:
        """Bytes of the entries without their frames."""
        return self.data.nbytes - FRAME_BYTES * self.count

    @property
    def frames(self) -> Frames:
        """Where each entry stands in the data; found anew at every call."""
        return scan_frames(self.data, self.first_entry_id)


def plan_ranges(begin: Position, end: Position, expected: Sequence[LedgerRange] = ()) -> tuple[LedgerRange, ...]:
    """The stretches from ``begin`` to ``end``, both inclusive.

    Args:
        begin: An entry.
        end: An entry.
        expected: The stretches of all ledgers in between, in order; may reach beyond both ends. Where both positions
            lie in one ledger, it may be left out.

    Raises:
        InvalidPosition: The positions are the wrong way round or no entries, or the stretches do not hold them.
    """
    if begin > end or begin.ledger_id < 0 or begin.entry_id < 0 or end.entry_id < 0:
        raise InvalidPosition(f"there are no entries from {begin} to {end}: give the first and the last one to be read")
    if not expected and begin.ledger_id != end.ledger_id:
        raise InvalidPosition(
            f"{begin} and {end} lie in different ledgers: give the stretch of each as expected, so that a hole is seen"
        )
    found = []
    for stretch in expected or (LedgerRange(begin.ledger_id, begin.entry_id, end.entry_id),):
        first = begin.entry_id if stretch.ledger_id == begin.ledger_id else stretch.first
        last = end.entry_id if stretch.ledger_id == end.ledger_id else stretch.last
        if begin.ledger_id <= stretch.ledger_id <= end.ledger_id:
            if not stretch.first <= first <= last <= stretch.last:
                raise InvalidPosition(f"{begin} or {end} is not in the expected entries {stretch}")
            found.append(LedgerRange(stretch.ledger_id, first, last))
    ids = [stretch.ledger_id for stretch in found]
    if not ids or ids[0] != begin.ledger_id or ids[-1] != end.ledger_id or sorted(set(ids)) != ids:
        raise InvalidPosition(f"the expected ledgers {ids} do not go from {begin} to {end} in order")
    return tuple(found)


class Course:
    """How far a read has come on its way through the stretches it was asked for."""

    def __init__(self, topic: str, ranges: Sequence[LedgerRange]) -> None:
        self._topic = topic
        self._ranges = list(reversed(ranges))
        self._end = Position(ranges[-1].ledger_id, ranges[-1].last)

    @property
    def done(self) -> bool:
        """Whether everything has come."""
        return not self._ranges

    @property
    def current(self) -> LedgerRange:
        """What is still to come of the ledger that is being read."""
        return self._ranges[-1]

    @property
    def awaited(self) -> Position:
        """The entry that must come next."""
        return Position(self.current.ledger_id, self.current.first)

    @property
    def left(self) -> int:
        """Entries that are still to come."""
        return sum(map(len, self._ranges))

    def took(self, count: int) -> bool:
        """Count entries that came; True if they end the ledger's stretch."""
        current = self._ranges.pop()
        if count == len(current):
            return True
        self._ranges.append(LedgerRange(current.ledger_id, current.first + count, current.last))
        return False

    def missing(self, reason: str) -> EntriesMissing:
        """The error that says that the entries do not go on."""
        return EntriesMissing(
            f"{self._topic}: the broker has no entry {self.awaited} (wanted up to {self._end}): {reason}. It was "
            "trimmed, deleted, or is one that brokers keep to themselves; look for another copy"
        )
