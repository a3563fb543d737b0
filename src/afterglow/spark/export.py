"""A topic written as Parquet by a Spark stream, batch by batch.

What is in the directory, ``orders``, and beside it::

    orders/batch-00000000-00000.parquet    a batch's rows, in their order, in some files
    .orders.export/export.json             what is exported: another topic or other columns are refused
    .orders.export/checkpoint/             Spark's, which tells where the next batch begins
    .orders.export/staging/                the batch that is being written
    .orders.export/lock                    held by the run that writes

Spark does a batch again that it does not know to be done, with the very same rows, though maybe in other files. So the
files of a batch go first, then the new ones come; after that Spark notes that the batch is done. Whatever moment a run
is killed at, the next one ends with every row once.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import AfterglowError, ConfigError
from afterglow.spark.export_files import OWN, RECORD
from afterglow.spark.reasons import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from afterglow.spark.export_files import ExportFiles

_CHECKPOINT: Final = f"{OWN}/checkpoint"
_STAGING: Final = f"{OWN}/staging"
_PREFIX: Final = "batch-"
_VERSION: Final = 1
_BATCH_BYTES: Final = 1 << 30
"""Of a topic in one batch: so much is done again after a kill."""
_FILE_BYTES: Final = 128 << 20
"""Of a topic in one file."""
_LOOK_S: Final = 1
"""How often to see how far a query has come."""


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """What a directory holds the export of."""

    source: str
    topic: str
    columns: tuple[str, ...] | None
    """None: all of them."""
    decode: bool
    """Whether values are given as their schemas describe them."""


@dataclass(frozen=True, slots=True)
class Exported:
    """How far an export has come."""

    batches: int
    """Of this run."""
    rows: int
    """In them."""


class TopicExport:
    """One export.

    Args:
        session: Runs it.
        files: Where it goes.
        record: What is exported.
        options: Further ones of the data source.
    """

    def __init__(
        self, session: SparkSession, files: ExportFiles, record: ExportRecord, options: Mapping[str, str]
    ) -> None:
        # A session of its own on the same Spark: settings of SQL that are changed here are nobody else's.
        self._session = session.newSession()
        self._session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self._files = files
        self._record = record
        self._options = options
        self._rows: dict[int, int] = {}
        self._error: AfterglowError | None = None

    def run(
        self,
        *,
        every_s: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[Exported], None] = lambda _: None,
    ) -> Exported:
        """Write what is there, or go on with what comes.

        Args:
            every_s: Seconds from one look at the topic to the next; None: end with what is there now.
            stopped: Whether to end at once, asked often.
            progress: Is told now and then.

        Raises:
            ConfigError: The directory holds something else.
            AfterglowError: The topic cannot be read, or the files not written.
        """
        self._files.adopt()
        with self._files.alone():
            self._claim()
            query = self._start(every_s)
            try:
                while not stopped() and not self._ended(query):
                    self._count(query)
                    progress(self.exported)
            except Exception:
                self._stop(query)
                raise
            # Not for an interruption: to stop waits for the batch, and the session that ends takes the query with it.
            self._stop(query)
            self._count(query)
        return self.exported

    @property
    def exported(self) -> Exported:
        """How far this run has come."""
        return Exported(len(self._rows), sum(self._rows.values()))

    def _claim(self) -> None:
        """Write down what the directory is for, or see that it is for that."""
        wanted = {"version": _VERSION, **asdict(self._record)}
        wanted = json.loads(json.dumps(wanted))
        found = self._files.read(RECORD)
        written = any(name.startswith(_PREFIX) for name in self._files.names())
        if found is not None and not written and self._is_outdated(found, wanted):
            for name in (_CHECKPOINT, _STAGING, RECORD):
                self._files.delete(name)
            found = None
        if found is None:
            others = self._files.names()
            if others:
                raise ConfigError(
                    f"--to parquet:{self._files.url} holds {min(others)} and {self._files.address(RECORD)} is missing; "
                    "give a directory that is empty or not there yet, or move the latter along with an export"
                )
            self._files.write(RECORD, _encoded(wanted))
            return
        known = _parsed(found, self._files.address(RECORD))
        differing = [name for name in wanted if known.get(name) != wanted[name]]
        if differing:
            told = ", ".join(f"{name} {known.get(name)!r}, not {wanted[name]!r}" for name in differing)
            raise ConfigError(f"--to parquet:{self._files.url} holds the export of {told}; give another directory")
        if written and _CHECKPOINT.rpartition("/")[2] not in self._files.names(OWN):
            raise AfterglowError(
                f"{self._files.address(_CHECKPOINT)} is gone, so that nobody knows what the files beside it hold; "
                "export into another directory"
            )

    def _is_outdated(self, found: bytes, wanted: dict[str, Any]) -> bool:
        """Whether what is beside a directory without batches is of an export that was removed, or of another one."""
        return bool(self._files.names(f"{_CHECKPOINT}/commits")) or found != _encoded(wanted)

    def _start(self, every_s: float | None) -> StreamingQuery:
        record = self._record
        options = {
            "source": record.source,
            "topic": record.topic,
            "maxBytesPerTrigger": str(_BATCH_BYTES),
            "maxPartitionBytes": str(_FILE_BYTES),
            **self._options,
        }
        if record.columns is not None:
            options["columns"] = ",".join(record.columns)
        if record.decode:
            options["decode"] = "true"
        try:
            frame = self._session.readStream.format("afterglow").options(**options).load()
            writer = frame.writeStream.foreachBatch(self._write).queryName(f"export {record.topic}")
            writer = writer.option("checkpointLocation", self._files.address(_CHECKPOINT))
            if every_s is None:
                return writer.trigger(availableNow=True).start()
            return writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds").start()
        except Exception as error:  # PySpark has no one error for what Java says
            raise _failed(record.topic, error) from error

    def _write(self, frame: DataFrame, number: int) -> None:
        """Write a batch, on a thread of Spark's."""
        staging = f"{_STAGING}/{number}"
        frame.write.mode("overwrite").option("compression", "zstd").parquet(self._files.address(staging))
        try:
            self._publish(staging, f"{_PREFIX}{number:08}-")
        except (AfterglowError, OSError) as error:
            self._error = AfterglowError(f"{self._files.url}: {error}")
            raise

    def _publish(self, staging: str, prefix: str) -> None:
        """Put files of a batch in the place of those that an earlier attempt at it has left."""
        files = self._files
        for name in files.names():
            if name.startswith(prefix):
                files.delete(name)
        written = sorted(name for name in files.names(staging) if name.endswith(".parquet"))
        for place, name in enumerate(written):
            files.move(f"{staging}/{name}", f"{prefix}{place:05}.parquet")
        files.delete(_STAGING)

    def _ended(self, query: StreamingQuery) -> bool:
        """Wait a little; whether the query has ended by then."""
        try:
            return bool(query.awaitTermination(_LOOK_S))
        except Exception as error:  # see above
            raise _failed(self._record.topic, self._error or error) from error

    @staticmethod
    def _stop(query: StreamingQuery) -> None:
        if query.isActive:
            query.stop()

    def _count(self, query: StreamingQuery) -> None:
        for event in query.recentProgress:
            told: Any = event
            if told["numInputRows"]:
                self._rows[told["batchId"]] = told["numInputRows"]


def _encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record, indent=2).encode()


def _parsed(found: bytes, address: str) -> dict[str, Any]:
    try:
        known = json.loads(found)
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise AfterglowError(f"{address} is damaged; export into another directory")
    return known


def _failed(topic: str, error: BaseException) -> AfterglowError:
    return AfterglowError(f"the export of {topic} failed: {reason(error)}")
