"""Reading topics once: planned in the driver from metadata that are read once, carried out in tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from afterglow.spark.datasource.filters import Bounds
from afterglow.spark.datasource.points import Point
from afterglow.spark.datasource.tasks import PlainErrors, pack, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition

    from afterglow.read.splits import Split
    from afterglow.source.connect import SourceTopic
    from afterglow.spark.datasource.options import SourceOptions
    from afterglow.spark.datasource.schema import Shape


class BatchReader(DataSourceReader):
    """Reads what topics hold at the moment it is planned. Travels to the tasks.

    Args:
        options: What to read.
        shape: The columns, and their form.
    """

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        self._options = options
        self._shape = shape
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """Splits of all topics, in the order of topic and position."""
        from afterglow.spark.datasource.schema import schemas_for  # noqa: PLC0415 - not for tasks
        from afterglow.spark.datasource.selected_topics import opened  # noqa: PLC0415 - not for tasks

        options = self._options
        with PlainErrors(), opened(options) as topics:
            splits = [split for topic in topics for split in self._splits(topic)]
            for topic in topics:
                topic.check_range(
                    str(options.start),
                    None if options.end is None else str(options.end),
                    options.since_ms,
                    options.until_ms,
                    fail_on_data_loss=options.fail_on_data_loss is True,
                )
            return pack(splits, options.max_partition_bytes, schemas_for(options, topics, self._shape))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; runs in a task."""
        return read_partition(partition, self._shape, self._options.include)

    def _splits(self, topic: SourceTopic) -> Iterator[Split]:
        options, bounds = self._options, self._bounds
        ledgers, times, published = bounds.ledger_id, bounds.broker_time, bounds.publish_time
        starts = [options.start] if ledgers.low is None else [options.start, Point.before(ledgers.low)]
        ends = [options.end] if ledgers.high is None else [options.end, Point.before(ledgers.high + 1)]
        for split in topic.splits(
            start=str(max(starts)),
            end=str(min(end for end in ends if end is not None)) if any(ends) else None,
            since=max((time for time in (options.since_ms, times.low) if time is not None), default=None),
            until=_until(options.until_ms, times.high),
            published_ms=(published.low, published.high),
            read_priority=options.read_priority,
            split_bytes=options.max_partition_bytes,
        ):
            if bounds.entry_id.meets(split.first, split.last):
                yield split


class PruningReader(BatchReader):
    """The same, with filters of the query. Spark refuses a reader that has this method unless it is allowed to."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - PySpark's name
        """Take the bounds that filters set. All of them are given back: bounds are wider than filters."""
        self._bounds = Bounds.of(filters)
        return filters


def _until(asked_ms: int | None, last_ms: int | None) -> int | None:
    """The earlier of an end, exclusive, and a last moment, inclusive."""
    ends = [end for end in (asked_ms, None if last_ms is None else last_ms + 1) if end is not None]
    return min(ends, default=None)
