"""Streaming reads: offsets in Spark's form, and partitions between two offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from afterglow.errors import ConfigError
from afterglow.spark.datasource.offsets import from_json, to_json
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
        self._options = options
        self._shape = output
        self._planned: StreamPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for tasks, without the connection."""
        return {**vars(self), "_planned": None}

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - PySpark's name
        """The offset at which a new query begins."""
        with PlainErrors():
            return to_json(self._plan.begin())

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - PySpark's name
        """The offset at which the next micro-batch ends."""
        from afterglow.spark.datasource.stream_plan import BatchLimit  # noqa: PLC0415 - not needed by tasks

        options = self._options
        with PlainErrors():
            limits = BatchLimit(options.max_bytes_per_trigger, options.max_entries_per_trigger)
            return to_json(self._plan.end(from_json(start), None if isinstance(limit, ReadAllAvailable) else limits))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """The limit of an option. ``latestOffset`` applies it: Spark has no limit of entries, nor two at once."""
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
            self._planned = StreamPlan(self._options)
        return self._planned
