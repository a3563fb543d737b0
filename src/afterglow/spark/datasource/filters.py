"""What Spark's filters say of where to look. They only narrow: Spark filters again what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.datasource import Filter

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Range:
    """Values that a column may have; both ends inclusive, None: open."""

    low: int | None = None
    high: int | None = None

    def both(self, other: Range) -> Range:
        """What lies in both."""
        return Range(_tighter(max, self.low, other.low), _tighter(min, self.high, other.high))

    def meets(self, low: int, high: int) -> bool:
        """Whether it holds any value from ``low`` to ``high``, both inclusive."""
        return (self.low is None or self.low <= high) and (self.high is None or low <= self.high)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where rows may be that pass the filters of a query."""

    ledger_id: Range = Range()
    entry_id: Range = Range()
    broker_time: Range = Range()
    """Epoch milliseconds."""
    publish_time: Range = Range()
    """Epoch milliseconds."""

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Bounds:
        """The bounds that all of some filters set; those that say nothing of the four columns are passed over."""
        return reduce(_narrowed, filters, cls())


def _narrowed(bounds: Bounds, given: Filter) -> Bounds:
    column = _column(given)
    found = None if column is None else _range(given)
    if column is None or found is None:
        return bounds
    known: Range = getattr(bounds, column)
    return replace(bounds, **{column: known.both(found)})


def _column(given: Filter) -> str | None:
    match getattr(given, "attribute", None):
        case (("ledger_id" | "entry_id" | "broker_time" | "publish_time") as name,):
            return str(name)
    return None


def _range(given: Filter) -> Range | None:
    """The values that a filter lets pass; None where it says nothing that narrows."""
    match given:
        case In(value=values):
            numbers = [number for value in values if (number := _number(value)) is not None]
            return Range(min(numbers), max(numbers)) if numbers and len(numbers) == len(values) else None
        case EqualTo(value=value) | EqualNullSafe(value=value):
            number = _number(value)
            return None if number is None else Range(number, number)
        case GreaterThan(value=value) | GreaterThanOrEqual(value=value):
            return Range(low=_number(value))
        case LessThan(value=value) | LessThanOrEqual(value=value):
            return Range(high=_number(value))
    return None


def _number(value: Any) -> int | None:
    """A value of a column as a number: times in milliseconds, rounded down as all columns of ours are."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MILLISECOND if value.tzinfo is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _tighter(choose: Any, one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    result: int = choose(one, other)
    return result
