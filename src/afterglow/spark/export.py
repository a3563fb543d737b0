"""Export of a topic as Parquet by a Spark stream, batch by batch.

What is in the directory, ``orders``, and beside it::

    orders/batch-00000000-00000.parquet    rows of a batch, in their order, in some files
    .orders.export/export.json             what is exported: another topic or other columns are refused
    .orders.export/checkpoint/             Spark's, with the offset at which the next batch begins
    .orders.export/staging/                the batch that is being written
    .orders.export/lock                    held by the run that writes, on a local disk

The directory holds whole data files and nothing else, because Polars refuses a directory with any other file in it,
hidden or not, and DuckDB and pyarrow would read files that Spark has not finished. Therefore Spark writes a batch into
the staging directory, and each finished file is renamed into place. Both are in one directory so that a rename is one
step of the file system.

Spark repeats a batch that it does not know to be done, with the very same rows, though maybe in other files:

1. Spark writes the batch to the staging directory. Killed before or after: the next run writes it again.
2. Files that an earlier attempt at the batch has left are deleted. Killed amid: the rest is deleted by the next run.
3. The new files are renamed into place. Killed amid: rows are missing, none is there twice; the next run deletes them.
4. Spark records the batch as done. Killed before: the next run repeats it from 1.

Whatever moment a run is killed at, the next one ends with every row once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from afterglow.config import load_conf
from afterglow.errors import AfterglowError, ConfigError
from afterglow.format.schema import MESSAGES, choose
from afterglow.source.connect import connect
from afterglow.spark.errors import summarize
from afterglow.spark.session import QUIET, local_session, spark_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_RECORD: Final = "export.json"
_CHECKPOINT: Final = "checkpoint"
_STAGING: Final = "staging"
_LOCK: Final = "lock"
_PREFIX: Final = "batch-"
_VERSION: Final = 1
_BATCH_BYTES: Final = 1 << 30
"""Of a topic in one batch: so much is repeated after a kill."""
_FILE_BYTES: Final = 128 << 20
"""Of a topic in one file."""
_POLL_S: Final = 1
"""How often the progress of a query is read."""
_PROBE: Final = ".afterglow-probe"


class ExportDirectory:
    """The directory of an export, in any file system that Spark knows, and the directory beside it.

    Files are reached through Hadoop's file systems, wherever they are: Spark writes through the same ones, with the
    same credentials. Names are full addresses. Methods raise ``AfterglowError`` where the file system fails.

    Args:
        session: Knows the file system, and its credentials.
        target: A path on this machine, or a URL such as ``hdfs://…`` or ``s3a://…``. It may be missing.

    Raises:
        ConfigError: It is a whole bucket or file system, with no room beside it.
        AfterglowError: There is no such file system.
    """

    def __init__(self, session: SparkSession, target: str) -> None:
        scheme, separator, rest = target.partition("://")
        self._local = None
        if separator and scheme != "file":
            self.url = target.rstrip("/")
        else:
            # Links are followed, so that a rename from the directory beside it stays on one file system.
            self._local = Path(unquote(rest) if separator else target).resolve()
            self.url = f"file://{self._local}"  # not percent-encoded: Hadoop takes paths as they are
        above, _, name = self.url.rpartition("/")
        if not name or "/" not in above or above.endswith(":/"):
            raise ConfigError(f"--to parquet:{target} has no directory above it; give a directory below it")
        self.own = f"{above}/.{name}.export"
        """The directory beside, for all that is not for readers."""
        context: Any = session.sparkContext
        self._hadoop: Any = context._jvm.org.apache.hadoop.fs  # noqa: SLF001 - PySpark offers no other way to it
        self._configuration: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001 - likewise
        self._system: Any = self._call(lambda: self._path(self.url).getFileSystem(self._configuration))
        if self._local is not None:
            self._system = self._system.getRawFileSystem()  # the other one would put a .crc file beside each

    def move_from_inside(self) -> None:
        """Move what earlier releases kept in ``_export`` inside the directory to its place.

        A copy, since a rename of a directory is not one step everywhere; the record inside is deleted last.

        Raises:
            AfterglowError: An export of that release runs.
        """
        inside = f"{self.url}/_export"
        if self.read(f"{inside}/{_RECORD}") is not None:
            with self._locked(inside):
                self.delete(self.own)
                copied = self._system, self._path(inside), self._system, self._path(self.own)
                self._call(lambda: self._hadoop.FileUtil.copy(*copied, False, self._configuration))  # noqa: FBT003
                self.delete(f"{inside}/{_RECORD}")
        # Left where that was interrupted, or by an earlier release that refused to write here.
        left = {_LOCK, _STAGING} if self.read(f"{self.own}/{_RECORD}") is None else {_LOCK, _STAGING, _CHECKPOINT}
        if set(self.names(inside)) <= left:
            self.delete(inside)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the directory and keep other exports out of it meanwhile.

        On a local disk by a lock, which the system releases when the process dies. Elsewhere Spark itself ends a query
        that finds its checkpoint written by another one.

        Raises:
            ConfigError: The directory is a mount point.
            AfterglowError: Another export writes to it.
        """
        self._call(lambda: self._system.mkdirs(self._path(self.url)))
        if self._local is None:
            yield
            return
        own = Path(self.own.removeprefix("file://"))
        own.mkdir(exist_ok=True)
        if not self.names(self.url):
            _check_same_file_system(own, self._local)
        with self._locked(self.own):
            try:
                yield
            finally:
                if not (own / _RECORD).exists():  # refused: that of a moved export may be moved to this name
                    shutil.rmtree(own, ignore_errors=True)

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
                raise AfterglowError(f"{self._local} is being written by another export; wait for its end") from error
            yield
        finally:
            os.close(descriptor)

    def names(self, directory: str) -> list[str]:
        """Names of files and directories in a directory; none where it is missing."""
        path = self._path(directory)
        if not self._call(lambda: self._system.exists(path)):
            return []
        return [status.getPath().getName() for status in self._call(lambda: self._system.listStatus(path))]

    def read(self, file: str) -> bytes | None:
        """A small file; None where it is missing."""
        path = self._path(file)
        if not self._call(lambda: self._system.exists(path)):
            return None
        stream = self._call(lambda: self._system.open(path))
        try:
            return bytes(self._call(stream.readAllBytes))
        finally:
            stream.close()

    def write(self, file: str, data: bytes) -> None:
        """Write a small file that is missing; one that is cut off by a kill stays as it is."""
        stream = self._call(lambda: self._system.create(self._path(file), False))  # noqa: FBT003 - Java's
        try:
            self._call(lambda: stream.write(bytearray(data)))
        finally:
            self._call(stream.close)

    def move(self, file: str, target: str) -> None:
        """Rename a file, to a name that is free."""
        if not self._call(lambda: self._system.rename(self._path(file), self._path(target))):
            raise AfterglowError(f"{file} could not be renamed to {target}; is another program at work there?")

    def delete(self, name: str) -> None:
        """Delete a file, or a directory with all that is in it; one that is missing is no error."""
        self._call(lambda: self._system.delete(self._path(name), True))  # noqa: FBT003 - Java's

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(name)

    def _call(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:  # py4j, which wraps what Java throws, has no types
            cause = getattr(error, "java_exception", None)
            raise AfterglowError(f"{self.url}: {error if cause is None else cause.getMessage()}") from error


def _check_same_file_system(own: Path, root: Path) -> None:
    """Insist that files can be renamed into the directory. Across a mount Hadoop would copy them, visible half done."""
    probe = own / _PROBE
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
    """None: all of them."""
    decode: bool
    """Whether values are given as their schemas describe them."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Progress of an export."""

    batches: int
    """Of this run."""
    rows: int
    """In them."""


class TopicExport:
    """One export.

    Args:
        session: Runs it.
        directory: The target.
        record: What is exported.
        options: Further ones of the data source.
    """

    def __init__(
        self, session: SparkSession, directory: ExportDirectory, record: ExportRecord, options: Mapping[str, str]
    ) -> None:
        # A session of its own on the same Spark, since settings of SQL are changed here.
        self._session = session.newSession()
        self._session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self._directory = directory
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
            every_s: Seconds between two polls of the topic; None: end with what is there now.
            stopped: Whether to end at once, asked often.
            progress: Notified about once a second.

        Raises:
            ConfigError: The directory holds something else.
            AfterglowError: The topic cannot be read, or the files not written.
        """
        self._directory.move_from_inside()
        with self._directory.alone():
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
        """Progress of this run."""
        return Exported(len(self._rows), sum(self._rows.values()))

    def _claim(self) -> None:
        """Record what the directory is for, or compare it with the record that is there."""
        directory, record, checkpoint = self._directory, self._beside(_RECORD), self._beside(_CHECKPOINT)
        wanted = json.loads(json.dumps({"version": _VERSION, **asdict(self._record)}))
        data = json.dumps(wanted, indent=2).encode()
        found = directory.read(record)
        others = directory.names(directory.url)
        has_batches = any(name.startswith(_PREFIX) for name in others)
        # Beside a directory without batches: of an export that was removed, of another one, or cut off by a kill.
        if found is not None and not has_batches and (directory.names(f"{checkpoint}/commits") or found != data):
            for name in (checkpoint, self._beside(_STAGING), record):
                directory.delete(name)
            found = None
        if found is None:
            if others:
                raise ConfigError(
                    f"--to parquet:{directory.url} holds {min(others)} and {record} is missing; "
                    "give a directory that is empty or not there yet, or move the latter along with an export"
                )
            directory.write(record, data)
            return
        known = _parsed(found, record)
        differing = [name for name in wanted if known.get(name) != wanted[name]]
        if differing:
            told = ", ".join(f"{name} {known.get(name)!r}, not {wanted[name]!r}" for name in differing)
            raise ConfigError(f"--to parquet:{directory.url} holds the export of {told}; give another directory")
        if has_batches and _CHECKPOINT not in directory.names(directory.own):
            raise AfterglowError(
                f"{checkpoint} is gone, so that nobody knows what the files beside it hold; "
                "export into another directory"
            )

    def _beside(self, name: str) -> str:
        return f"{self._directory.own}/{name}"

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
            writer = writer.option("checkpointLocation", self._beside(_CHECKPOINT))
            if every_s is None:
                return writer.trigger(availableNow=True).start()
            return writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds").start()
        except Exception as error:  # PySpark has no one error for what Java says
            raise _failed(record.topic, error) from error

    def _write(self, frame: DataFrame, number: int) -> None:
        """Write a batch, on a thread of Spark's: steps 1 to 3."""
        staging = f"{self._beside(_STAGING)}/{number}"
        frame.write.mode("overwrite").option("compression", "zstd").parquet(staging)
        try:
            self._publish(staging, f"{_PREFIX}{number:08}-")
        except AfterglowError as error:
            self._error = error
            raise

    def _publish(self, staging: str, prefix: str) -> None:
        """Replace the files that an earlier attempt at a batch has left by the new ones."""
        directory = self._directory
        for name in directory.names(directory.url):
            if name.startswith(prefix):
                directory.delete(f"{directory.url}/{name}")
        written = sorted(name for name in directory.names(staging) if name.endswith(".parquet"))
        for number, name in enumerate(written):
            directory.move(f"{staging}/{name}", f"{directory.url}/{prefix}{number:05}.parquet")
        directory.delete(self._beside(_STAGING))

    def _ended(self, query: StreamingQuery) -> bool:
        """Wait a little; whether the query has ended by then."""
        try:
            return bool(query.awaitTermination(_POLL_S))
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


def _parsed(found: bytes, address: str) -> dict[str, Any]:
    try:
        known = json.loads(found)
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise AfterglowError(f"{address} is damaged; export into another directory")
    return known


def _failed(topic: str, error: BaseException) -> AfterglowError:
    return AfterglowError(f"the export of {topic} failed: {summarize(error)}")


_FORMAT: Final = "parquet:"


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """What is to be exported, and where to."""

    source: str
    """The home of a server, or an address."""
    topic: str
    to: str
    """``parquet:PATH``, where the path may be a URL that Spark knows."""
    columns: tuple[str, ...] | None = None
    """None: all of them."""
    decode: bool = False
    """Whether values are given as their schemas describe them."""
    tier: str | None = None
    """Where all objects are, whatever metadata says."""
    metadata: str | None = None
    """Where the metadata is, if not in the source."""
    fail_on_data_loss: bool = True
    """Whether it ends where entries are gone that were not exported yet."""


def export_topic(
    order: ExportOrder,
    *,
    master: str | None = None,
    every_s: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[Exported], None] = lambda _: None,
) -> Exported:
    """Write a topic's messages as Parquet; what an earlier run has written is not written again.

    Args:
        order: What is to be done.
        master: Where Spark's tasks run; else as ``sparkMaster`` says.
        every_s: Seconds between two polls of the topic, without end; None: what is there now.
        stopped: Whether to end at once, asked often.
        progress: Notified about once a second.

    Raises:
        ConfigError: Something that was asked for makes no sense, or the directory holds something else.
        TopicMissing: There is no such topic.
        MissingDependency: PySpark or a Java is missing.
        AfterglowError: The topic cannot be read, or the files not written.
    """
    target = _target(order.to)
    if order.columns is not None and not order.decode:  # schemas add columns, which the source alone knows
        choose(MESSAGES, order.columns)
    with connect(order.source, order.tier, order.metadata) as source:
        topic = source.topic(order.topic).name
    config = load_conf(environ=os.environ)
    record = ExportRecord(_source(order.source), topic, order.columns, order.decode)
    given = {"tier": order.tier, "metadata": order.metadata}
    options = {name: value for name, value in given.items() if value is not None}
    options["failOnDataLoss"] = str(order.fail_on_data_loss).lower()
    with local_session(master or config.spark_master, **{**QUIET, **spark_properties(config)}) as session:
        export = TopicExport(session, ExportDirectory(session, target), record, options)
        return export.run(every_s=every_s, stopped=stopped, progress=progress)


def _target(to: str) -> str:
    path = to.removeprefix(_FORMAT)
    if path == to or not path:
        raise ConfigError(f"--to {to!r} names no place; write --to parquet:PATH")
    return path


def _source(source: str) -> str:
    """A source by a name that holds wherever a later run is started."""
    return source if "://" in source else str(Path(source).absolute())
