"""Reading topics on and on, as Spark sees it: offsets in its form, and partitions from offset to offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from afterglow.errors import ConfigError
from afterglow.spark.datasource.points import from_json, to_json
from afterglow.spark.datasource.tasks import PlainErrors, pack, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from afterglow.spark.datasource.options import SourceOptions
    from afterglow.spark.datasource.schema import Shape
    from afterglow.spark.datasource.stream_plan import StreamPlan


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow. One of these lives in the driver as long as its query; others travel to the tasks.

    Args:
        options: What to read.
        shape: The columns, and their form.

    Raises:
        ConfigError: An option has no meaning for a stream.
    """

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        if options.ages:
            raise ConfigError(
                f"the option {' and '.join(options.ages)} of a stream is an age, which means another moment after each "
                "restart; give a time (2026-11-15T20:00:00Z, or epoch milliseconds)"
            )
        self._options = options
        self._shape = shape
        self._planned: StreamPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need: no connection."""
        return {**vars(self), "_planned": None}

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - PySpark's name
        """Where a new query begins."""
        with PlainErrors():
            return to_json(self._plan.begin())

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - PySpark's name
        """Where the next micro-batch ends."""
        from afterglow.spark.datasource.stream_plan import Limit  # noqa: PLC0415 - not for tasks

        options = self._options
        with PlainErrors():
            limits = Limit(options.max_bytes_per_trigger, options.max_entries_per_trigger)
            return to_json(self._plan.end(from_json(start), None if isinstance(limit, ReadAllAvailable) else limits))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """That there is a limit. Which one, the options say: Spark knows no limit of entries, nor two at once."""
        options = self._options
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.max_entries_per_trigger is not None:
            return ReadMaxRows(options.max_entries_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """Read what is there now, and nothing that comes later."""
        with PlainErrors():
            self._plan.stop_growing()

    def reportLatestOffset(self) -> dict[str, str]:  # noqa: N802 - PySpark's name
        """How far topics went when they were last looked at."""
        with PlainErrors():
            return to_json(self._plan.latest)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Splits from offset to offset, in the order of topic and position."""
        with PlainErrors():
            splits = list(self._plan.splits(from_json(start), from_json(end)))
            return pack(splits, self._options.max_partition_bytes, self._plan.schemas(self._shape))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; runs in a task."""
        return read_partition(partition, self._shape, self._options.include)

    def stop(self) -> None:
        """Let go of the source."""
        if self._planned is not None:
            self._planned.close()
            self._planned = None

    @property
    def _plan(self) -> StreamPlan:
        from afterglow.spark.datasource.stream_plan import StreamPlan  # noqa: PLC0415 - not for tasks

        if self._planned is None:
            self._planned = StreamPlan(self._options)
        return self._planned
