"""A scan, a Spark DataFrame and a Spark stream with restarts give what was produced, whatever became of the topics.

Every seed makes topics of its own: plain ones and a partitioned one that grows, in ledgers, objects and segments,
written, moved and trimmed between one reading and the next. ``AFTERGLOW_EQUAL_SEEDS`` says how many, and
``AFTERGLOW_EQUAL_FIRST`` from which on. A seed costs Spark three queries, whose start is most of what it takes.
"""

from __future__ import annotations

import os
import pickle
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.oracle import batch_rows
from tests.support.produced import Asked
from tests.support.random_topics import PARTITIONED, PLAIN, RandomTopics

import afterglow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from tests.support.random_messages import Row

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

from afterglow.spark.datasource.releases import AVAILABLE_NOW, is_available

FIRST_SEED = int(os.environ.get("AFTERGLOW_EQUAL_FIRST", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("AFTERGLOW_EQUAL_SEEDS", "4")))
TOPICS = (*PLAIN, PARTITIONED)
WINDOWS = 4
"""Tried each time that topics have changed."""
NOWHERE = (-1, -1, -1)
HOT_FIRST = "bookkeeper-first"


def rows_of(batches: pa.Table | pa.RecordBatch) -> list[Row]:
    return [{**row, "properties": dict(row["properties"])} for row in batch_rows(batches)]


def same(found: list[Row], expected: list[Row], about: object) -> None:
    """Assert that rows are equal; shows the first difference."""
    for number, (one, other) in enumerate(zip(found, expected, strict=False)):
        assert one == other, (about, number)
    assert len(found) == len(expected), (about, (found if len(found) > len(expected) else expected)[-1])


def by_scan(home: Path, topic: str, **options: Any) -> list[Row]:
    with afterglow.connect(home) as source:
        return rows_of(source.topic(topic).scan(**options, report=lambda _: None).read_all())


def by_tasks(**options: str) -> list[Row]:
    """As Spark would have it done, without Spark: planned, carried to tasks, read there."""
    import pyspark_afterglow

    source = pyspark_afterglow.DefaultSource(options)
    reader = source.reader(source.schema())
    reader, partitions = pickle.loads(pickle.dumps((reader, reader.partitions())))
    return [row for partition in partitions for batch in reader.read(partition) for row in rows_of(batch)]


class Stream:
    """An available-now query over all topics, which continues from its checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._options = options
        self.batches: dict[int, list[Row]] = {}

    def run(self, limit: dict[str, str], dies_after: int | None = None) -> bool:
        """Read on; returns whether the query came to its end, or was killed by its sink after so many batches.

        A batch that is done again must be what it was, but for the tier that serves.
        """
        left = dies_after

        def keep(frame: DataFrame, number: int) -> None:
            nonlocal left
            rows = rows_of(frame.toArrow())
            if number in self.batches:
                same(untiered(rows), untiered(self.batches[number]), f"batch {number}, done again")
            self.batches[number] = rows
            if left is not None:
                left -= 1
                if left < 0:
                    raise ZeroDivisionError("killed by the test")

        frame = self._spark.readStream.format("afterglow").options(**self._options, **limit).load()
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            # A machine that is busy beyond reason does not start a worker within the ten seconds that Spark waits.
            if not any(each in str(error) for each in ("killed by the test", "failed to connect back")):
                raise
            return False
        return True

    def rows(self, topic: str) -> list[Row]:
        """What it gave of a topic, in the order in which it came."""
        return [row for number in sorted(self.batches) for row in self.batches[number] if row["topic"] == topic]


def location(row: Row) -> tuple[int, int, int]:
    return row["ledger_id"], row["entry_id"], row["batch_index"]


def untiered(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name != "tier"} for row in rows]


def check_random_windows(spark: SparkSession | None, topics: RandomTopics, draw: random.Random) -> None:
    """Hold a scan and the tasks of a job against the list, and the last of them on Spark itself if there is one."""
    for number in range(WINDOWS):
        asked, hot_first, at_once = topics.asked(), draw.random() < 0.3, draw.random() < 0.5
        expected = topics.rows(asked, hot_first=hot_first)
        priority = HOT_FIRST if hot_first else "tiered-first"
        found: list[Row] = []
        for topic in TOPICS:
            found += by_scan(topics.path, topic, read_priority=priority, scan=at_once, **asked.options())
        same(found, expected, ("scan", asked, priority, at_once))
        options = {
            "source": str(topics.path),
            "topic": ",".join(TOPICS),
            "readPriority": priority,
            "maxPartitionBytes": draw.choice(["1", "5000", "32m"]),
            **asked.options(),
        }
        same(by_tasks(**options), expected, ("tasks", options))
        if spark is not None and number == WINDOWS - 1:
            frame = spark.read.format("afterglow").options(**options).load()
            same(rows_of(frame.toArrow()), expected, ("batch", options))


@pytest.mark.parametrize("seed", SEEDS)
def test_all_readers_give_what_was_produced(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    draw = random.Random(seed)
    home = tmp_path / "home"
    home.mkdir()
    with RandomTopics(home, draw, transactions=draw.random() < 0.5) as topics, with_story(topics.story):
        topics.happen(40)
        asked = topics.asked() if draw.random() < 0.4 else Asked()
        stream = Stream(
            spark, tmp_path / "checkpoint", {"source": str(home), "topic": ",".join(TOPICS), **asked.options()}
        )
        expected: dict[str, list[Row]] = {}
        for last in (False, True):
            if last:
                topics.happen(30)
                topics.decide()
            dies_after = None if last else draw.choice([None, None, 0, 1])
            check_random_windows(spark if last else None, topics, draw)
            limit = draw.choice(
                [{}, {"maxEntriesPerTrigger": str(draw.randint(40, 150))}, {"maxBytesPerTrigger": "40k"}]
            )
            topics.story.append(f"a stream of {asked} with {limit}, killed after {dies_after} batches")
            ended = stream.run(limit, dies_after) or (last and stream.run(limit))
            if ended and not is_available(AVAILABLE_NOW):
                ended = stream.run(limit)  # the first run may only have repeated a batch that was not finished
            ended = ended and not topics.undecided  # else it waits before the first message that is
            for part in topics.parts if ended else ():
                known = expected.setdefault(part.name, [])
                before = location(known[-1]) if known else NOWHERE
                known += [row for row in untiered(topics.rows(asked, [part])) if location(row) > before]
                same(untiered(stream.rows(part.name)), known, ("stream", part.name))
            assert ended or not last
            topics.read_by_stream(ended=ended)


@contextmanager
def with_story(story: list[str]) -> Iterator[None]:
    """Adds what has happened to whatever fails."""
    try:
        yield
    except BaseException as error:
        error.add_note("\n".join(story))
        raise
