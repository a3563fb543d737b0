"""Batch reads: planned in the driver from one read of metadata, executed in tasks.

Filters of the query, if they are pushed down, narrow the plan. They need not be exact: Spark applies them again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from afterglow.spark.datasource.offsets import Point
from afterglow.spark.datasource.tasks import PlainErrors, pack_splits, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition

    from afterglow.read.splits import Split
    from afterglow.source.connect import SourceTopic
    from afterglow.spark.datasource.options import SourceOptions
    from afterglow.spark.datasource.schema import OutputSchema

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


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

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> FilterBounds:
        """The bounds of all filters; filters on other columns are ignored."""
        bounds = cls()
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


class BatchReader(DataSourceReader):
    """Reads topics as they are when the query is planned. Pickled for the tasks."""

    def __init__(self, options: SourceOptions, output: OutputSchema) -> None:
        self._options = options
        self._output = output
        self._bounds = FilterBounds()

    def partitions(self) -> list[InputPartition]:
        """Plan the splits of all topics, in the order of topic and position."""
        from afterglow.spark.datasource.schema import schemas_for  # noqa: PLC0415 - not needed by tasks
        from afterglow.spark.datasource.selected_topics import open_topics  # noqa: PLC0415 - not needed by tasks

        options = self._options
        with PlainErrors(), open_topics(options) as topics:
            splits = [split for topic in topics for split in self._splits(topic)]
            for topic in topics:
                topic.check_range(
                    str(options.start),
                    None if options.end is None else str(options.end),
                    options.since_ms,
                    options.until_ms,
                    fail_on_data_loss=options.fail_on_data_loss is True,
                )
            return pack_splits(splits, options.max_partition_bytes, schemas_for(options, topics, self._output))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; runs in a task."""
        return read_partition(partition, self._output, self._options.include)

    def _splits(self, topic: SourceTopic) -> Iterator[Split]:
        options, bounds = self._options, self._bounds
        ledgers, times, published = bounds.ledger_id, bounds.broker_time, bounds.publish_time
        starts = [options.start] if ledgers.low is None else [options.start, Point.before(ledgers.low)]
        ends = [options.end, None if ledgers.high is None else Point.before(ledgers.high + 1)]
        end = min((end for end in ends if end is not None), default=None)
        untils = [options.until_ms, None if times.high is None else times.high + 1]
        for split in topic.splits(
            start=str(max(starts)),
            end=None if end is None else str(end),
            since=max((time for time in (options.since_ms, times.low) if time is not None), default=None),
            until=min((time for time in untils if time is not None), default=None),
            published_ms=(published.low, published.high),
            read_priority=options.read_priority,
            split_bytes=options.max_partition_bytes,
        ):
            if bounds.entry_id.overlaps(split.first, split.last):
                yield split


class PruningReader(BatchReader):
    """A reader that prunes by filters of the query. Spark refuses one with this method unless push-down is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - PySpark's name
        """Take the bounds of filters. All filters are returned for Spark to apply: bounds are wider than filters."""
        self._bounds = FilterBounds.of(filters)
        return filters
