"""Streaming reads: offsets in Spark's form, and partitions between two offsets.

Before Spark 4.2, ``latestOffset`` is called without the start of the micro-batch and without a limit. The reader then
keeps the start itself: the end of the micro-batch that was planned last, which is the start of the next one, because
Spark runs every micro-batch whose end differs from its start, one after the other, and ends the query if one fails.
After a restart Spark plans an empty range at the offset of the checkpoint before it asks for the next end.

Such a release does not say which trigger a query has. ``Trigger.AvailableNow`` and ``Trigger.Once`` ask for one end,
which must be that of the topics; therefore the limits of the options apply when the reader knows that there is more
than one micro-batch: from the second one on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader

from afterglow.errors import ConfigError
from afterglow.spark.datasource.offsets import from_json, to_json
from afterglow.spark.datasource.releases import SupportsTriggerAvailableNow, log_missing_stream_features
from afterglow.spark.datasource.tasks import PlainErrors, pack_splits, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from afterglow.spark.datasource.options import SourceOptions
    from afterglow.spark.datasource.schema import OutputSchema
    from afterglow.spark.datasource.stream_plan import StreamPlan


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow. One lives in the driver as long as its query; pickled copies read in tasks.

    Raises:
        ConfigError: An option is not valid for a stream.
    """

    def __init__(self, options: SourceOptions, output: OutputSchema) -> None:
        if options.ages:
            raise ConfigError(
                f"the option {' and '.join(options.ages)} of a stream is an age, which means another moment after each "
                "restart; give a time (2026-11-15T20:00:00Z, or epoch milliseconds)"
            )
        from afterglow.source.addresses import SourceAddress  # noqa: PLC0415 - not needed by tasks

        if SourceAddress(options.source).is_tier:
            raise ConfigError(
                f"source {options.source!r} is a tier, which cannot be streamed: its objects do not show which entries "
                "are still to come before them; give the home or the address of the cluster as the source, or read it "
                "with spark.read or `afterglow read --format parquet`"
            )
        self._options = options
        self._shape = output
        self._planned: StreamPlan | None = None
        self._initial: dict[str, str] | None = None
        self._next_start: dict[str, str] | None = None
        """Where the next micro-batch starts, if Spark does not say it."""
        self._has_more_batches = False
        """Whether a run is known to have a further micro-batch than the one that comes first."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for tasks, without the connection."""
        return {**vars(self), "_planned": None}

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - PySpark's name
        """The offset at which a new query begins."""
        with PlainErrors():
            return self._begin()

    def latestOffset(  # noqa: N802 - PySpark's name
        self, start: dict[str, str] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, str]:
        """The offset at which the next micro-batch ends; without arguments before Spark 4.2."""
        from afterglow.spark.datasource.stream_plan import BatchLimit  # noqa: PLC0415 - not needed by tasks

        options = self._options
        with PlainErrors():
            if limit is None:
                is_limited = self._has_more_batches
                start = self._begin() if self._next_start is None else self._next_start
            else:
                from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415 - missing before Spark 4.2

                is_limited = not isinstance(limit, ReadAllAvailable)
                assert start is not None
            limits = BatchLimit(options.max_bytes_per_trigger, options.max_entries_per_trigger)
            end = to_json(self._plan.end(from_json(start), limits if is_limited else None))
            self._next_start, self._has_more_batches = end, True
            return end

    def _begin(self) -> dict[str, str]:
        """The offset at which a new query begins: the same one for all calls before the first micro-batch has ended."""
        if self._initial is None:
            self._initial = to_json(self._plan.begin())
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """The limit of an option. ``latestOffset`` applies it: Spark has no limit of entries, nor two at once."""
        from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - missing before Spark 4.2
            ReadAllAvailable,
            ReadMaxBytes,
            ReadMaxRows,
        )

        options = self._options
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.max_entries_per_trigger is not None:
            return ReadMaxRows(options.max_entries_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """Have the query end at the current end of the topics."""
        with PlainErrors():
            self._plan.stop_growing()

    def reportLatestOffset(self) -> dict[str, str]:  # noqa: N802 - PySpark's name
        """The end of the topics when they were last read."""
        with PlainErrors():
            return to_json(self._plan.latest)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Plan the splits between two offsets, in the order of topic and position."""
        if self._next_start is None:
            self._next_start = end
        self._has_more_batches |= start != end
        with PlainErrors():
            splits = list(self._plan.splits(from_json(start), from_json(end)))
            return pack_splits(splits, self._options.max_partition_bytes, self._plan.schemas(self._shape))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; runs in a task."""
        return read_partition(partition, self._shape, self._options.include)

    def stop(self) -> None:
        """Close the source."""
        if self._planned is not None:
            self._planned.close()
            self._planned = None

    @property
    def _plan(self) -> StreamPlan:
        from afterglow.spark.datasource.stream_plan import StreamPlan  # noqa: PLC0415 - not needed by tasks

        if self._planned is None:
            log_missing_stream_features()
            self._planned = StreamPlan(self._options)
        return self._planned
