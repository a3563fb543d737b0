"""Topics read by ``spark.readStream.format("afterglow")``. What is read when is tested with the plan of streams."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.homes import ServerHome, batch
from tests.support.ledgers import message

import afterglow
from afterglow.format.schema import MESSAGES
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

from pyspark.errors import StreamingQueryException

_SLOW_START = "Python worker failed to connect back"
COLUMNS = ("topic", "ledger_id", "entry_id", "batch_index", "value")


class Query:
    """A query that keeps what each batch gave, the last attempt at it."""

    def __init__(self, spark: SparkSession, home: Path, checkpoint: Path, **options: str) -> None:
        self._spark = spark
        self._options = {"source": str(home), "topic": "t", "columns": ",".join(COLUMNS), **options}
        self._checkpoint = checkpoint
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.progress: list[dict[str, Any]] = []

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def follow(self, *steps: Callable[[], object], **options: str) -> None:
        """Read what there is, and again after each step, with a query that does not end by itself."""
        query = self._writer(lambda _: None, options).trigger(processingTime="0 seconds").start()
        try:
            query.processAllAvailable()
            for step in steps:
                step()
                query.processAllAvailable()
        finally:
            query.stop()

    def run(self, before: Callable[[int], None] = lambda _: None, **options: str) -> None:
        """Read up to the current end; ``before`` is called with the number of each batch before it is kept."""
        writer = self._writer(before, options)
        for attempts_left in reversed(range(6)):
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                # Spark gives the process of a source ten seconds to start: on a busy machine that may be too short.
                if not attempts_left or _SLOW_START not in str(error):
                    raise
            else:
                return
            finally:
                self.progress += [json.loads(each.json) for each in query.recentProgress]

    def _writer(self, before: Callable[[int], None], options: dict[str, str]) -> DataStreamWriter:
        def keep(frame: DataFrame, number: int) -> None:
            before(number)
            self.batches[number] = [tuple(row.values()) for row in frame.toArrow().to_pylist()]

        reader = self._spark.readStream.format("afterglow").options(**(self._options | options))
        return reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(self._checkpoint))


def scan(home: Path) -> list[tuple[Any, ...]]:
    with afterglow.connect(home) as source:
        rows = source.topic("t").scan(columns=COLUMNS).read_all().to_pylist()
    return [tuple(row.values()) for row in rows]


def some(draw: random.Random, count: int) -> list[bytes]:
    return [
        batch([draw.randbytes(9) for _ in range(draw.randint(1, 4))]) if draw.random() < 0.5 else message(bytes(900))
        for _ in range(count)
    ]


@pytest.mark.spark("stream", "available-now", "admission-control")
def test_restarts_neither_lose_nor_repeat_though_data_moved_and_partitions_came(
    spark: SparkSession, tmp_path: Path
) -> None:
    home, draw = tmp_path / "home", random.Random(7)
    home.mkdir()
    query = Query(spark, home, tmp_path / "checkpoint", maxEntriesPerTrigger="25")

    def fail(number: int) -> None:
        if number == 2:
            raise ZeroDivisionError("raised by the sink")

    with ServerHome(home) as server:
        server.catalog.create_partitioned(TopicName.parse("t"), 2)
        first, second = server.write("t-partition-0", some(draw, 30), some(draw, 30))
        server.offload("t-partition-0", first, block_bytes=4096)
    with pytest.raises(Exception, match="raised by the sink"):
        query.run(fail)
    assert sorted(query.batches) == [0, 1]
    assert 25 <= len(query.batches[0]) < len(scan(home))
    with ServerHome(home) as server:  # what the failed batch has read moves before it is done again
        server.free("t-partition-0", first)
        server.offload("t-partition-0", second, block_bytes=4096)
        server.free("t-partition-0", second)
        server.catalog.update_partitions(TopicName.parse("t"), 3)
        server.write("t-partition-2", some(draw, 10))
        server.write("t-partition-0", some(draw, 10))
    query.run()
    assert sorted(query.rows) == sorted(scan(home))
    with ServerHome(home) as server:
        server.write("t-partition-1", some(draw, 10))
    query.run(maxBytesPerTrigger="2k", maxEntriesPerTrigger="100")
    assert sorted(query.rows) == sorted(scan(home))
    offset = query.progress[-1]["sources"][0]["endOffset"]
    assert set(offset) == {f"persistent://public/default/t-partition-{number}" for number in range(3)}
    assert all(text.count(":") == 2 for text in offset.values())


@pytest.mark.spark("stream")
def test_a_query_that_follows_a_topic_reads_every_message_once_in_limited_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    home, limit = tmp_path / "home", 8
    home.mkdir()

    def write(count: int) -> None:
        with ServerHome(home) as server:
            server.write("t", some(random.Random(count), count))

    def entries(number: int) -> int:
        return len({row[1:3] for row in query.batches[number]})

    def fail(_: int) -> None:
        raise ZeroDivisionError("raised by the sink")

    write(20)
    query = Query(spark, home, tmp_path / "checkpoint", maxEntriesPerTrigger=str(limit))
    query.follow(lambda: write(21))
    assert sorted(query.rows) == sorted(scan(home))
    read = [entries(number) for number in sorted(query.batches)]
    assert sum(read) == 41
    assert max(read[1:]) <= limit  # on releases without limits, the first batch has all that there is
    write(22)
    query.follow()  # from the checkpoint
    assert sorted(query.rows) == sorted(scan(home))
    write(23)
    with pytest.raises(Exception, match="raised by the sink"):
        query.run(fail)
    query.run()  # before Spark 4.2 this only repeats the batch that failed
    write(24)
    query.run()
    query.run()
    assert sorted(query.rows) == sorted(scan(home))


@pytest.mark.spark("stream")
def test_a_query_from_the_latest_message_reads_what_comes_after_its_start(spark: SparkSession, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()

    def write(value: bytes) -> None:
        with ServerHome(home) as server:
            server.write("t", [message(value)])

    write(b"before")
    query = Query(spark, home, tmp_path / "checkpoint", start="latest")
    query.follow(lambda: write(b"first"), lambda: write(b"second"))
    write(b"third")
    query.follow()
    assert [row[-1] for row in query.rows] == [b"first", b"second", b"third"]


def test_a_checkpoint_from_before_a_message_column_was_added_continues(spark: SparkSession, tmp_path: Path) -> None:
    home, out, checkpoint = tmp_path / "home", tmp_path / "out", tmp_path / "checkpoint"
    home.mkdir()
    columns = [name for name in MESSAGES.names if name not in {"replicated_from", "schema_id"}]

    def run(**options: str) -> None:
        stream = spark.readStream.format("afterglow").options(source=str(home), topic="t", **options).load()
        writer = stream.writeStream.format("parquet").option("path", str(out))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    with ServerHome(home) as server:
        server.write("t", [message(b"%d" % number) for number in range(5)])
        run(columns=",".join(columns))
        server.write("t", [message(b"%d" % number) for number in range(5, 10)])
        run()
        server.write("t", [message(b"%d" % number) for number in range(10, 15)])
        run(columns=",".join(columns))
    frame = spark.read.option("mergeSchema", "true").parquet(str(out))
    assert sorted(int(row["value"]) for row in frame.collect()) == list(range(15))
    assert set(frame.columns) == set(MESSAGES.names)


@pytest.mark.spark("available-now", "admission-control")
def test_new_messages_during_an_available_now_query_wait_for_the_next(spark: SparkSession, tmp_path: Path) -> None:
    with ServerHome(tmp_path) as server:
        server.write("t", some(random.Random(1), 20))
        server.stop()
    there = scan(tmp_path)

    def write(number: int) -> None:
        if number == 0:
            with ServerHome(tmp_path) as server:
                server.write("t", [message(b"later")])

    query = Query(spark, tmp_path, tmp_path / "checkpoint", maxEntriesPerTrigger="8")
    query.run(write)
    assert len(query.batches) == 3
    assert query.rows == there
    query.run()
    assert query.rows == scan(tmp_path)
    assert query.rows[-1][-1] == b"later"


def test_trimmed_data_and_wrong_options_are_one_clear_line(spark: SparkSession, tmp_path: Path) -> None:
    with ServerHome(tmp_path) as server:
        first, second, third = server.write("t", *(some(random.Random(1), 4) for _ in range(3)))
    query = Query(spark, tmp_path, tmp_path / "checkpoint", end=f"{first}:2")
    query.run()
    with ServerHome(tmp_path) as server:
        for ledger_id in (first, second):
            server.trim("t", ledger_id)
    with pytest.raises(Exception, match="failOnDataLoss=false") as failed:
        query.run(end="latest")
    assert any(
        line.startswith("afterglow.errors.EntriesMissing: persistent://public/default/t was read up to")
        for line in str(failed.value).splitlines()
    )
    query.run(end="latest", failOnDataLoss="false")
    assert {row[1] for row in query.rows} == {first, third}
    with pytest.raises(Exception, match="means another moment after each restart"):
        query.run(since="15m")
