"""Export of a topic as Parquet by a Spark stream, batch by batch.

Files of an export to the directory ``orders``::

    orders/batch-00000000-00000.parquet    rows of a batch, in order, in one or more files
    .orders.export/export.json             source, topic and columns: an export of anything else is refused
    .orders.export/checkpoint/             Spark's, with the offset at which the next batch begins
    .orders.export/staging/                the batch that is being written
    .orders.export/lock                    held by the running export, on a local disk

The directory holds complete data files and nothing else, because Polars refuses a directory with any other file in it,
hidden or not, and DuckDB and pyarrow would read files that Spark has not finished. Therefore Spark writes a batch into
the staging directory, and each finished file is renamed into place. ``write.mode("overwrite")`` into a directory per
batch would not do: Spark stages in ``_temporary`` below its target and leaves ``_SUCCESS``. Staging and target have the
same parent directory, so that a rename stays within one file system and is atomic.

Spark repeats a batch that it has not recorded as done, with the same rows, though maybe in other files:

1. Spark writes the batch to the staging directory. *Crash before or after: the next run writes it again.*
2. Files of an earlier attempt at the batch are deleted. *Crash: the next run deletes the rest.*
3. The new files are renamed into place. *Crash: rows are missing, none is duplicated; the next run deletes them.*
4. Spark records the batch as done. *Crash before: the next run repeats it from 1.*

Whenever a run is killed, the next one ends with every row exactly once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from afterglow.config import load_conf
from afterglow.errors import AfterglowError, ConfigError
from afterglow.format.schema import MESSAGES, choose
from afterglow.read.typed import CORRUPT
from afterglow.source.connect import connect
from afterglow.spark.datasource.offsets import from_json
from afterglow.spark.errors import summarize
from afterglow.spark.jvm import HadoopFiles, require_driver
from afterglow.spark.session import QUIET, local_session, spark_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from afterglow.source.directory import SourceLedger

_RECORD: Final = "export.json"
_CHECKPOINT: Final = "checkpoint"
_STAGING: Final = "staging"
_LOCK: Final = "lock"
_PREFIX: Final = "batch-"
_FORMAT: Final = "parquet:"
_VERSION: Final = 1
_ADDED_COLUMNS: Final = ("replicated_from", "schema_id")
"""Message columns that are newer than records which list no message columns."""
_BATCH_BYTES: Final = 1 << 30
"""Bytes of a topic in one batch, which are read again after a crash."""
_FILE_BYTES: Final = 128 << 20
"""Bytes of a topic in one file."""
_POLL_S: Final = 1
"""Seconds between two reads of a query's progress."""
_PROBE: Final = ".afterglow-probe"


class ExportDirectory(HadoopFiles):
    """The target directory of an export, in any file system that Spark knows, and the state directory beside it.

    Args:
        session: Has the configuration of file systems, and their credentials.
        target: A path on this machine, or a URL such as ``hdfs://…`` or ``s3a://…``. It need not exist.

    Raises:
        ConfigError: The target is a whole bucket or file system, which has no directory beside it.
        NotSupported: The session is one of Spark Connect.
        AfterglowError: There is no such file system.
    """

    def __init__(self, session: SparkSession, target: str) -> None:
        require_driver(session, "an export")
        scheme, separator, rest = target.partition("://")
        self._local = None
        if separator and scheme != "file":
            self.url = target.rstrip("/")
        else:
            # Links are resolved, so that a rename from the state directory stays within one file system.
            self._local = Path(unquote(rest) if separator else target).resolve()
            self.url = f"file://{self._local}"  # not percent-encoded: Hadoop takes paths as they are
        parent, _, name = self.url.rpartition("/")
        if not name or "/" not in parent or parent.endswith(":/"):
            raise ConfigError(f"--to parquet:{target} has no directory above it; give a directory below it")
        self.state_url = f"{parent}/.{name}.export"
        """The state directory: record, checkpoint, staging and lock."""
        super().__init__(session, self.url)

    def migrate(self) -> None:
        """Move the state of an earlier release from ``_export`` inside the directory to the state directory.

        It is copied, since the rename of a directory is not atomic everywhere; the old record is deleted last.

        Raises:
            AfterglowError: An export of that release is running.
        """
        old = f"{self.url}/_export"
        if self.read(f"{old}/{_RECORD}") is not None:
            with self._locked(old):
                self.delete(self.state_url)
                self.copy(old, self.state_url)
                self.delete(f"{old}/{_RECORD}")
        # A crash leaves the rest, and so does an earlier release that refused to write here.
        rest = {_LOCK, _STAGING} if self.read(f"{self.state_url}/{_RECORD}") is None else {_LOCK, _STAGING, _CHECKPOINT}
        if set(self.names(old)) <= rest:
            self.delete(old)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Create the directory and keep other exports out of it meanwhile.

        On a local disk this takes a lock, which the system releases when the process dies. Elsewhere Spark itself ends
        a query whose checkpoint another query has written.

        Raises:
            ConfigError: The directory is a mount point.
            AfterglowError: Another export writes to it.
        """
        self.make_directory(self.url)
        if self._local is None:
            yield
            return
        state = Path(self.state_url.removeprefix("file://"))
        state.mkdir(exist_ok=True)
        if not self.names(self.url):
            _require_same_file_system(state, self._local)
        with self._locked(self.state_url):
            try:
                yield
            finally:
                if not (state / _RECORD).exists():  # refused: the state of a moved export may be moved to this name
                    shutil.rmtree(state, ignore_errors=True)

    @contextmanager
    def _locked(self, directory: str) -> Iterator[None]:
        if self._local is None:
            yield
            return
        lock = f"{directory.removeprefix('file://')}/{_LOCK}"
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise AfterglowError(f"another export writes to {self._local}; wait for its end") from error
            yield
        finally:
            os.close(descriptor)


def _require_same_file_system(state: Path, root: Path) -> None:
    """Verify that files can be renamed into the directory. Across a mount Hadoop would copy them, not atomically."""
    probe = state / _PROBE
    probe.mkdir(exist_ok=True)
    try:
        probe.rename(root / _PROBE)
    except OSError as error:
        probe.rmdir()
        if error.errno != errno.EXDEV:
            raise
        raise ConfigError(
            f"--to parquet:{root} is a mount point, and an export is staged beside its directory; give a "
            f"directory below it, such as {root}/topic"
        ) from error
    (root / _PROBE).rmdir()


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """What a directory holds the export of."""

    source: str
    topic: str
    columns: tuple[str, ...] | None
    """None: all that messages had when the export began, so that all its files have the same columns."""
    decode: bool
    """Whether values are decoded by their schemas."""


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """Progress of this run of an export."""

    batches: int
    rows: int
    entries: int = field(default=0, compare=False)
    """Entries of the topic that are written, by this run or an earlier one; 0 before the first batch."""
    total_entries: int = field(default=0, compare=False)
    """Entries that the topic had when the run began; 0 if unknown."""


class TopicExport:
    """One export; ``options`` are further ones of the data source, ``ledgers`` those of the topic, for the progress."""

    def __init__(
        self,
        session: SparkSession,
        directory: ExportDirectory,
        record: ExportRecord,
        options: Mapping[str, str],
        ledgers: Sequence[SourceLedger] = (),
    ) -> None:
        # A session of its own in the same Spark, since SQL settings are changed here.
        self._session = session.newSession()
        self._session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self._directory = directory
        self._record = record
        self._options = options
        self._message_columns: tuple[str, ...] = tuple(MESSAGES.names)
        self._rows: dict[int, int] = {}
        self._error: AfterglowError | None = None
        self._ledgers = ledgers
        self._entries = 0

    def run(
        self, *, every_s: float | None = None, on_progress: Callable[[ExportProgress], None] = lambda _: None
    ) -> ExportProgress:
        """Export the messages that the topic has, or with ``every_s`` also those that arrive later, without end.

        Args:
            every_s: Seconds between two polls of the topic; None: end at the current end of the topic.
            on_progress: Called about once a second. An exception of it ends the export.

        Raises:
            ConfigError: The directory holds another export, or other files.
            AfterglowError: The topic cannot be read, or the files cannot be written.
        """
        from afterglow.spark.datasource.releases import AVAILABLE_NOW, is_available  # noqa: PLC0415 - imports Spark

        self._directory.migrate()
        with self._directory.exclusive():
            self._claim_directory()
            is_unfinished = self._has_unfinished_batch()
            self._run_query(every_s, on_progress)
            if is_unfinished and every_s is None and not is_available(AVAILABLE_NOW):
                self._run_query(every_s, on_progress)  # the first one has only repeated the batch
        return self.progress

    def _run_query(self, every_s: float | None, on_progress: Callable[[ExportProgress], None]) -> None:
        query = self._start(every_s)
        try:
            while not self._has_ended(query):
                self._count(query)
                on_progress(self.progress)
        except Exception:
            # Not for an interruption: stop() waits for the batch, and the end of the session ends the query.
            if query.isActive:
                query.stop()
            raise
        self._count(query)

    def _has_unfinished_batch(self) -> bool:
        """Whether an earlier run has planned a batch that is not recorded as done."""
        checkpoint = self._state(_CHECKPOINT)
        planned, done = (
            {int(name) for name in self._directory.names(f"{checkpoint}/{log}") if name.isdecimal()}
            for log in ("offsets", "commits")
        )
        return max(planned, default=-1) > max(done, default=-1)

    @property
    def progress(self) -> ExportProgress:
        """Progress of this run."""
        total = sum(ledger.entries for ledger in self._ledgers)
        return ExportProgress(len(self._rows), sum(self._rows.values()), self._entries, total)

    def _claim_directory(self) -> None:
        """Record what the directory holds, or compare it with the existing record."""
        directory, record, checkpoint = self._directory, self._state(_RECORD), self._state(_CHECKPOINT)
        wanted = json.loads(json.dumps({"version": _VERSION, **asdict(self._record)}))
        data = json.dumps({**wanted, "message_columns": self._message_columns}, indent=2).encode()
        found = directory.read(record)
        files = directory.names(directory.url)
        has_batches = any(name.startswith(_PREFIX) for name in files)
        # State beside a directory without batches belongs to a deleted export, to another one, or to a crashed run.
        if found is not None and not has_batches and (directory.names(f"{checkpoint}/commits") or found != data):
            for name in (checkpoint, self._state(_STAGING), record):
                directory.delete(name)
            found = None
        if found is None:
            if files:
                raise ConfigError(
                    f"--to parquet:{directory.url} holds {min(files)} and {record} is missing; "
                    "give an empty or a new directory, or move the latter along with an export"
                )
            directory.write(record, data)
            return
        known = _parse_record(found, record)
        differing = [name for name in wanted if known.get(name) != wanted[name]]
        if differing:
            differences = ", ".join(f"{name} {known.get(name)!r}, not {wanted[name]!r}" for name in differing)
            raise ConfigError(f"--to parquet:{directory.url} holds the export of {differences}; give another directory")
        if has_batches and _CHECKPOINT not in directory.names(directory.state_url):
            raise AfterglowError(
                f"{checkpoint} is missing, so the offset of the next batch is unknown; export into another directory"
            )
        recorded = known.get("message_columns", [name for name in MESSAGES.names if name not in _ADDED_COLUMNS])
        self._message_columns = tuple(recorded)

    def _state(self, name: str) -> str:
        return f"{self._directory.state_url}/{name}"

    def _start(self, every_s: float | None) -> StreamingQuery:
        record = self._record
        options = {
            "source": record.source,
            "topic": record.topic,
            "maxBytesPerTrigger": str(_BATCH_BYTES),
            "maxPartitionBytes": str(_FILE_BYTES),
            **self._options,
        }
        columns = (*self._message_columns, CORRUPT) if record.decode else self._message_columns
        options["columns"] = ",".join(columns if record.columns is None else record.columns)
        if record.decode:
            options["decode"] = "true"
        try:
            frame = self._session.readStream.format("afterglow").options(**options).load()
            writer = frame.writeStream.foreachBatch(self._write).queryName(f"export {record.topic}")
            writer = writer.option("checkpointLocation", self._state(_CHECKPOINT))
            if every_s is None:
                return writer.trigger(availableNow=True).start()
            return writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds").start()
        except Exception as error:  # PySpark has no common error type
            raise self._failed(error) from error

    def _write(self, frame: DataFrame, number: int) -> None:
        """Write a batch, on a thread of Spark's: steps 1 to 3."""
        staging = f"{self._state(_STAGING)}/{number}"
        frame.write.mode("overwrite").option("compression", "zstd").parquet(staging)
        try:
            self._publish(staging, f"{_PREFIX}{number:08}-")
        except AfterglowError as error:
            self._error = error
            raise

    def _publish(self, staging: str, prefix: str) -> None:
        """Replace the files of an earlier attempt at a batch by the new ones."""
        directory = self._directory
        for name in directory.names(directory.url):
            if name.startswith(prefix):
                directory.delete(f"{directory.url}/{name}")
        written = sorted(name for name in directory.names(staging) if name.endswith(".parquet"))
        for number, name in enumerate(written):
            directory.move(f"{staging}/{name}", f"{directory.url}/{prefix}{number:05}.parquet")
        directory.delete(self._state(_STAGING))

    def _has_ended(self, query: StreamingQuery) -> bool:
        """Wait for ``_POLL_S``; whether the query has ended by then."""
        try:
            return bool(query.awaitTermination(_POLL_S))
        except Exception as error:  # see above
            raise self._failed(self._error or error) from error

    def _count(self, query: StreamingQuery) -> None:
        for event in query.recentProgress:
            values: Any = event
            if values["numInputRows"]:
                self._rows[values["batchId"]] = values["numInputRows"]
                end = values["sources"][0]["endOffset"]
                self._entries = entries_before(self._ledgers, json.loads(end) if isinstance(end, str) else end)

    def _failed(self, error: BaseException) -> AfterglowError:
        return AfterglowError(f"the export of {self._record.topic} failed: {summarize(error)}")


def entries_before(ledgers: Sequence[SourceLedger], offsets: Mapping[str, object]) -> int:
    """Number of entries of ledgers before the offsets of a stream."""
    points = from_json(offsets)
    found = 0
    for ledger in ledgers:
        if (point := points.get(ledger.topic)) is None:
            continue
        if ledger.ledger_id < point.position.ledger_id:
            found += ledger.entries
        elif ledger.ledger_id == point.position.ledger_id:
            found += min(max(point.position.entry_id, 0), ledger.entries)
    return found


def _parse_record(found: bytes, address: str) -> dict[str, Any]:
    try:
        record = json.loads(found)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise AfterglowError(f"{address} is corrupt; export into another directory")
    return record


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Arguments of an export."""

    source: str
    """The home of a server, or an address."""
    topic: str
    to: str
    """``parquet:PATH``, where the path may be a URL that Spark knows."""
    columns: tuple[str, ...] | None = None
    """None: all of them."""
    decode: bool = False
    """Whether values are decoded by their schemas."""
    tier: str | None = None
    """Tier of all objects; overrides metadata."""
    metadata: str | None = None
    """Address of the metadata, if it is not in the source."""
    fail_on_data_loss: bool = True
    """Whether the export fails if entries were deleted before it has read them."""


def export_topic(
    request: ExportRequest,
    *,
    master: str | None = None,
    every_s: float | None = None,
    on_progress: Callable[[ExportProgress], None] = lambda _: None,
) -> ExportProgress:
    """Write a topic's messages as Parquet; messages that an earlier run has written are not written again.

    Args:
        request: The source, the topic, and the target.
        master: Spark's master; None: the setting ``sparkMaster``.
        every_s: Seconds between two polls of the topic, without end; None: end at the current end of the topic.
        on_progress: Called about once a second.

    Raises:
        ConfigError: An argument is not valid, or the directory holds something else.
        TopicMissing: There is no such topic.
        MissingDependency: PySpark or a Java is missing.
        AfterglowError: The topic cannot be read, or the files cannot be written.
    """
    target = request.to.removeprefix(_FORMAT)
    if target in {request.to, ""}:
        raise ConfigError(f"--to {request.to!r} has no path; write --to parquet:PATH")
    if request.columns is not None and not request.decode:  # with decode, only the source knows the columns
        choose(MESSAGES, request.columns)
    with connect(request.source, request.tier, request.metadata) as source:
        found = source.topic(request.topic)
        topic = found.name
        ledgers = [ledger for name in found.partitions for ledger in source.topic(str(name)).ledgers()]
    config = load_conf(environ=os.environ)
    # An absolute path, which does not depend on the directory that a later run is started in.
    address = request.source if "://" in request.source else str(Path(request.source).absolute())
    record = ExportRecord(address, topic, request.columns, request.decode)
    given = {"tier": request.tier, "metadata": request.metadata}
    options = {name: value for name, value in given.items() if value is not None}
    options["failOnDataLoss"] = str(request.fail_on_data_loss).lower()
    with local_session(master or config.spark_master, **{**QUIET, **spark_properties(config)}) as session:
        export = TopicExport(session, ExportDirectory(session, target), record, options, ledgers)
        return export.run(every_s=every_s, on_progress=on_progress)
