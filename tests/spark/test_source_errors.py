"""Every error of the tree ends a query with its message, wherever it is raised; none is taken for an empty result.

Spark's own Python code, which reads meanings into some errors, runs here with every class. Whole queries, which cost
seconds each, run with a few of them: Java sees no more of an error than the text that this code makes of it.
"""

from __future__ import annotations

import io
import json
import traceback
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message

from afterglow import errors
from afterglow.errors import AfterglowError
from afterglow.spark.errors import summarize

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

from pyspark import serializers
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming import python_streaming_source_runner as stream_runner
from pyspark.sql.worker import plan_data_source_read as planner

from afterglow.spark.datasource.releases import AVAILABLE_NOW, is_available, release
from afterglow.spark.datasource.source import TopicsSource
from afterglow.spark.datasource.tasks import PartitionSplits
from afterglow.spark.export import ExportDirectory, ExportRecord, TopicExport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.spark.datasource.batch import BatchReader
    from afterglow.spark.datasource.stream import StreamReader

TOPIC: Final = "persistent://public/default/t"
CLASSES: Final = sorted(
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, AfterglowError)
)
PICKLES: Final = vars(serializers)["CloudPickleSerializer"]()  # PySpark has no types for it


def failing_source(source_name: str = "failing") -> type[DataSource]:
    """A source like ours, except that what its option ``fault`` names, ``PLACE:CLASS``, raises that error.

    Made in a function, the classes travel whole to Spark's processes, which do not see this module.
    """

    def error(name: str) -> AfterglowError:
        kind: Any = getattr(errors, name)
        text = f"{name} was met; do something about it"
        found: AfterglowError = kind(text, 1) if name == "DamagedStripe" else kind(text)
        return found

    class Splits:
        """Splits of a task that fails."""

        def __init__(self, name: str) -> None:
            self.name = name

        def __iter__(self) -> Iterator[Any]:
            raise error(self.name)

    class Plan:
        """A stream's plan of which one method fails."""

        def __init__(self, plan: Any, method: str, name: str) -> None:
            self.plan, self.method, self.name = plan, method, name

        def __getattr__(self, method: str) -> Any:
            if method == self.method:
                raise error(self.name)
            return getattr(self.plan, method)

    class Failing(TopicsSource):
        def __init__(self, options: dict[str, str]) -> None:
            self.call, self.error = options["fault"].split(":")
            super().__init__({name: value for name, value in options.items() if name != "fault"})

        @classmethod
        def name(cls) -> str:
            return source_name

        def reader(self, schema: StructType) -> BatchReader:
            reader: Any = super().reader(schema)
            if self.call == "partitions":
                reader._splits = self.raises
            if self.call == "read":
                reader.partitions = self.faulty
            made: BatchReader = reader
            return made

        def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - PySpark's name
            reader: Any = super().streamReader(schema)
            if self.call in {"begin", "end", "splits", "stop_growing"}:
                reader._planned = Plan(reader._plan, self.call, self.error)
            if self.call == "read":
                reader.partitions = self.faulty
            made: StreamReader = reader
            return made

        def raises(self, *_: object) -> Any:
            raise error(self.error)

        def faulty(self, *_: object) -> list[InputPartition]:
            splits: Any = Splits(self.error)
            return [InputPartition(PartitionSplits(splits, None))]

    return Failing


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home")
    with ServerHome(path) as server:
        server.write(TOPIC, [message(b"%d" % i) for i in range(5)])
    return path


def make(home: Path, fault: str) -> DataSource:
    return failing_source()({"source": str(home), "topic": TOPIC, "fault": fault})


def planned(source: DataSource, reader: Any, schema: StructType) -> tuple[Any, list[InputPartition]]:
    """What Spark's planner makes of a reader: what a task calls, and with which partitions."""
    write_read_func_and_partitions = getattr(planner, "write_read_func_and_partitions", None)
    if write_read_func_and_partitions is None:
        pytest.skip(f"the planner of Spark {release()} cannot be called by itself, as that of Spark 4.1 can")
    out = io.BytesIO()
    given = {"reader": reader, "data_source": source, "schema": schema}
    given |= {"max_arrow_batch_size": 1000, "binary_as_bytes": True}
    known = signature(write_read_func_and_partitions).parameters  # releases of Spark differ
    write_read_func_and_partitions(out, **{name: value for name, value in given.items() if name in known})
    out.seek(0)
    function, _ = PICKLES._read_with_length(out)
    return function, [PICKLES._read_with_length(out) for _ in range(number(out))]


def run_task(function: Any, partition: InputPartition) -> list[pa.RecordBatch]:
    """Run a task as Spark's worker does."""
    described = pa.RecordBatch.from_arrays([pa.array([PICKLES.dumps(partition)], pa.binary())], ["partition"])
    return list(function(iter([described])))


def batch_query(source: DataSource) -> list[pa.RecordBatch]:
    schema: Any = source.schema()
    function, partitions = planned(source, source.reader(schema), schema)
    return [batch for partition in partitions for batch in run_task(function, partition)]


def stream_query(source: DataSource) -> list[pa.RecordBatch]:
    """One batch of a stream up to the current end, by the steps that Spark takes."""
    schema: Any = source.schema()
    reader: Any = source.streamReader(schema)
    try:
        start, end = _first_offsets(reader)
        out = io.BytesIO()
        stream_runner.partitions_func(reader, source, schema, 1000, texts(start, end), out)
        out.seek(0)
        partitions = [PICKLES._read_with_length(out) for _ in range(number(out))]
        function, _ = planned(source, reader, schema)
        return [batch for partition in partitions for batch in run_task(function, partition)]
    finally:
        reader.stop()


def _first_offsets(reader: Any) -> tuple[str, str]:
    """Start and end of the first batch of a new query with ``Trigger.AvailableNow``."""
    if not is_available(AVAILABLE_NOW):
        end = answer(lambda out: stream_runner.latest_offset_func(reader, out))
        return answer(lambda out: stream_runner.initial_offset_func(reader, out)), end
    stream_runner.prepare_for_trigger_available_now_func(reader, io.BytesIO())
    start = answer(lambda out: stream_runner.initial_offset_func(reader, out))
    limit = json.dumps({"_type": "ReadAllAvailable"})
    return start, answer(
        lambda out: stream_runner.latest_offset_admission_control_func(reader, texts(start, limit), out)
    )


def answer(call: Callable[[io.BytesIO], object]) -> str:
    out = io.BytesIO()
    call(out)
    out.seek(0)
    return out.read(number(out)).decode()


def number(stream: io.BytesIO) -> int:
    return int.from_bytes(stream.read(4), "big")


def texts(*given: str) -> io.BytesIO:
    written = io.BytesIO()
    for text in given:
        written.write(len(text.encode()).to_bytes(4, "big") + text.encode())
    written.seek(0)
    return written


def test_a_source_without_faults_gives_its_rows(home: Path) -> None:
    for query in (batch_query, stream_query):
        assert sum(batch.num_rows for batch in query(make(home, "nowhere:NotSupported"))) == 5


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("query", "call"),
    [
        (batch_query, "partitions"),
        (batch_query, "read"),
        pytest.param(stream_query, "stop_growing", marks=pytest.mark.spark("available-now")),
        (stream_query, "begin"),
        (stream_query, "end"),
        (stream_query, "splits"),
        (stream_query, "read"),
    ],
)
def test_every_error_ends_a_query(home: Path, query: Callable[[DataSource], object], call: str, name: str) -> None:
    with pytest.raises(AfterglowError, match=f"^{name} was met; do something about it$") as raised:
        query(make(home, f"{call}:{name}"))
    assert type(raised.value) is getattr(errors, name)
    # An export reports the line that summarises the text which Spark makes of it.
    assert summarize(AssertionError("".join(traceback.format_exception(raised.value)))) == str(raised.value)


def test_the_cause_of_a_failed_stream_is_its_summary() -> None:
    text = (
        "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: Python worker failed to connect back. "
        "SQLSTATE: XXKST\n=== Streaming Query ===\nCurrent State: INITIALIZING\nThread State: RUNNABLE"
    )
    assert summarize(RuntimeError(text)) == "Python worker failed to connect back."


@pytest.mark.parametrize(("call", "name"), [("partitions", "NotSupported"), ("read", "StoreTimeout")])
def test_an_error_of_a_batch_fails_its_query_in_spark(spark: SparkSession, home: Path, call: str, name: str) -> None:
    spark.dataSource.register(failing_source())
    frame = spark.read.format("failing").option("source", str(home)).option("topic", TOPIC)
    with pytest.raises(Exception, match=f"{name} was met; do something about it"):
        frame.option("fault", f"{call}:{name}").load().count()


@pytest.mark.parametrize(("call", "name"), [("splits", "NotSupported"), ("read", "StoreTimeout")])
def test_an_error_of_an_export_ends_it(spark: SparkSession, home: Path, tmp_path: Path, call: str, name: str) -> None:
    record = ExportRecord(str(home), TOPIC, None, decode=False)
    export = TopicExport(spark, ExportDirectory(spark, str(tmp_path)), record, {"fault": f"{call}:{name}"})
    try:
        export._session.dataSource.register(failing_source("afterglow"))
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        pytest.skip(f"a session of Spark {release()} cannot replace an installed source")
    with pytest.raises(AfterglowError, match=f"^the export of {TOPIC} failed: {name} was met; do something about it$"):
        export.run()
    assert not list(tmp_path.glob("*.parquet"))


def test_a_tier_that_is_not_supported_is_an_error_and_not_an_empty_frame(spark: SparkSession, home: Path) -> None:
    frame = spark.read.format("afterglow").option("source", str(home)).option("topic", TOPIC)
    with pytest.raises(Exception, match=r"gs://bucket.*not available"):
        frame.option("tier", "gs://bucket").load().count()


@pytest.mark.parametrize("driver", ["azureblob", "google-cloud-storage", "third-party"])
@pytest.mark.parametrize("query", [batch_query, stream_query])
def test_a_missing_driver_is_an_error_and_not_an_empty_frame(
    tmp_path: Path, query: Callable[[DataSource], object], driver: str
) -> None:
    def rename(info: ManagedLedgerInfo) -> None:
        info.ledgerInfo[0].offloadContext.driverMetadata.name = driver

    with ServerHome(tmp_path) as server:
        ledger_id, _ = server.write("t", [message(b"in the tier")], [message(b"in the hot log")])
        server.offload("t", ledger_id)
        server.open("t").update(rename)
        server.free("t", ledger_id)
    with pytest.raises(AfterglowError, match=driver):
        query(TopicsSource({"source": str(tmp_path), "topic": "t"}))
