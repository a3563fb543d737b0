"""Batch reads: planned in the driver from one read of metadata, executed in tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from afterglow.spark.datasource.bounds import FilterBounds
from afterglow.spark.datasource.offsets import Point
from afterglow.spark.datasource.tasks import PlainErrors, pack_splits, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from afterglow.read.splits import Split
    from afterglow.source.connect import SourceTopic
    from afterglow.spark.datasource.options import SourceOptions
    from afterglow.spark.datasource.schema import OutputSchema


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
