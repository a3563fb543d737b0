"""Filter push-down: filters of a query narrow the plan of a batch read.

They need not be exact: Spark applies them again. Imported only on releases of Spark that push filters down.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
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

from afterglow.spark.datasource.batch import BatchReader
from afterglow.spark.datasource.bounds import ColumnRange, FilterBounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.datasource import Filter

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class PruningReader(BatchReader):
    """A reader that prunes by filters of the query. Spark refuses one with this method unless push-down is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - PySpark's name
        """Take the bounds of filters. All filters are returned for Spark to apply: bounds are wider than filters."""
        self._bounds = bounds_of(filters)
        return filters


def bounds_of(filters: Iterable[Filter]) -> FilterBounds:
    """The bounds of all filters; filters on other columns are ignored."""
    bounds = FilterBounds()
    for condition in filters:
        match getattr(condition, "attribute", None):
            case (("ledger_id" | "entry_id" | "broker_time" | "publish_time") as column,):
                known: ColumnRange = getattr(bounds, column)
                bounds = replace(bounds, **{column: known.intersect(_range(condition))})
    return bounds


def _range(condition: Filter) -> ColumnRange:
    """The values that pass a filter; unbounded if it does not bound them."""
    match condition:
        case In(value=values):
            numbers = [number for value in values if (number := _number(value)) is not None]
            if numbers and len(numbers) == len(values):
                return ColumnRange(min(numbers), max(numbers))
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return ColumnRange(_number(value), _number(value))
        case GreaterThan(value=value) | GreaterThanOrEqual(value=value):
            return ColumnRange(low=_number(value))
        case LessThan(value=value) | LessThanOrEqual(value=value):
            return ColumnRange(high=_number(value))
    return ColumnRange()


def _number(value: Any) -> int | None:
    """A value of a column as a number: times in milliseconds, rounded down as all our columns are."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MILLISECOND if value.tzinfo is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
