"""Bounds of columns, by which splits are pruned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """Values that a column may have; both ends inclusive, None: unbounded."""

    low: int | None = None
    high: int | None = None

    def intersect(self, other: ColumnRange) -> ColumnRange:
        """The values that are in both ranges."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return ColumnRange(max(lows, default=None), min(highs, default=None))

    def overlaps(self, low: int, high: int) -> bool:
        """Whether it has any value from ``low`` to ``high``, both inclusive."""
        return (self.low is None or self.low <= high) and (self.high is None or low <= self.high)


@dataclass(frozen=True, slots=True)
class FilterBounds:
    """Bounds of the rows that can pass the filters of a query."""

    ledger_id: ColumnRange = ColumnRange()
    entry_id: ColumnRange = ColumnRange()
    broker_time: ColumnRange = ColumnRange()
    """Epoch milliseconds."""
    publish_time: ColumnRange = ColumnRange()
    """Epoch milliseconds."""
