"""Raw entries as they are received, and the ranges of ledgers that a read covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from afterglow.errors import EntriesMissing, InvalidPosition
from afterglow.format.frames import FRAME_BYTES, scan_frames
from afterglow.format.position import LedgerRange, Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.format.frames import Frames


@dataclass(frozen=True, slots=True)
class RawEntries:
    """Consecutive entries of one ledger, as contiguous frames."""

    ledger_id: int
    first_entry_id: int
    count: int
    """Number of entries; at least one."""
    data: memoryview
    """``[length][id][entry]`` for each, as in :mod:`afterglow.format.frames`. The memory is not reused."""
    with_broker_metadata: int
    """Number of entries that begin with broker entry metadata."""

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
        """Offsets of the entries in the data; computed at every call."""
        return scan_frames(self.data, self.first_entry_id)


def undelivered_entries(ledger_id: int, first: int, count: int) -> RawEntries:
    """Entries without any byte, in place of those that a broker did not deliver."""
    frames = np.zeros(count, np.dtype([("length", ">i4"), ("id", ">i8")]))
    frames["id"] = np.arange(first, first + count)
    return RawEntries(ledger_id, first, count, memoryview(frames.tobytes()), 0)


def plan_ranges(begin: Position, end: Position, expected: Sequence[LedgerRange] = ()) -> tuple[LedgerRange, ...]:
    """The ranges from ``begin`` to ``end``, both inclusive.

    Args:
        begin: The first entry.
        end: The last entry.
        expected: The entries of all ledgers in between, in order; may extend beyond both ends. Not needed if both
            positions are in one ledger.

    Raises:
        InvalidPosition: ``end`` is before ``begin``, or one of them is not an entry of the expected ranges.
    """
    if begin > end or begin.ledger_id < 0 or begin.entry_id < 0 or end.entry_id < 0:
        raise InvalidPosition(f"invalid range {begin} to {end}; expected the first and the last entry to read")
    if not expected and begin.ledger_id != end.ledger_id:
        raise InvalidPosition(
            f"{begin} and {end} are in different ledgers; give the expected range of each, so that a hole is detected"
        )
    found = []
    for ledger_range in expected or (LedgerRange(begin.ledger_id, begin.entry_id, end.entry_id),):
        first = begin.entry_id if ledger_range.ledger_id == begin.ledger_id else ledger_range.first
        last = end.entry_id if ledger_range.ledger_id == end.ledger_id else ledger_range.last
        if begin.ledger_id <= ledger_range.ledger_id <= end.ledger_id:
            if not ledger_range.first <= first <= last <= ledger_range.last:
                raise InvalidPosition(f"{begin} or {end} is not in the expected entries {ledger_range}")
            found.append(LedgerRange(ledger_range.ledger_id, first, last))
    ids = [ledger_range.ledger_id for ledger_range in found]
    if not ids or ids[0] != begin.ledger_id or ids[-1] != end.ledger_id or sorted(set(ids)) != ids:
        raise InvalidPosition(f"the expected ledgers {ids} do not go from {begin} to {end} in order")
    return tuple(found)


class ReadProgress:
    """Progress of a read through its ranges."""

    def __init__(self, topic: str, ranges: Sequence[LedgerRange]) -> None:
        self._topic = topic
        self._ranges = list(reversed(ranges))
        self._end = Position(ranges[-1].ledger_id, ranges[-1].last)

    @property
    def done(self) -> bool:
        """Whether all entries were received."""
        return not self._ranges

    @property
    def current(self) -> LedgerRange:
        """The remaining entries of the ledger that is being read."""
        return self._ranges[-1]

    @property
    def awaited(self) -> Position:
        """The next entry to receive."""
        return Position(self.current.ledger_id, self.current.first)

    @property
    def left(self) -> int:
        """Number of entries still to receive."""
        return sum(map(len, self._ranges))

    def advance_by(self, count: int) -> bool:
        """Count received entries; True if they complete the range of their ledger."""
        current = self._ranges.pop()
        if count == len(current):
            return True
        self._ranges.append(LedgerRange(current.ledger_id, current.first + count, current.last))
        return False

    def missing(self, reason: str) -> EntriesMissing:
        """The error for an entry that the broker does not have."""
        return EntriesMissing(
            f"{self._topic}: the broker has no entry {self.awaited} (wanted up to {self._end}): {reason}. It was "
            "trimmed or deleted, or is a marker that brokers do not deliver; read another copy"
        )
