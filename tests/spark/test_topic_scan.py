"""A topic read by a Spark job, whose tasks know nothing but their splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import afterglow
from afterglow.errors import AfterglowError, ConfigError, TopicChanged
from afterglow.spark.session import local_session
from afterglow.spark.topic_scan import Distillation, read_splits
from afterglow.testing.homes import EngineHome, batch
from afterglow.testing.ledgers import message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra afterglow[spark] is not installed")

TOPIC = "persistent://public/default/t"
COLUMNS = ("ledger_id", "entry_id", "batch_index", "value", "tier")
SIZES = pa.schema([pa.field("rows", pa.int64()), pa.field("bytes", pa.int64())])


def sizes(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"rows": batch.num_rows, "bytes": sum(map(len, batch.column("value").to_pylist()))}], schema=SIZES
    )


def raising(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ZeroDivisionError("told by the task")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_session() as session:
        yield session


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A topic of two ledgers in the tier, in several blocks each, the first there alone, and one in the hot log."""
    with EngineHome(tmp_path) as engine:
        groups = [
            [batch([b"%d.%d" % (i, k) for k in range(3)]) if i % 2 else message(bytes(9_000)) for i in range(30)]
            for _ in range(3)
        ]
        first, second, _ = engine.write(TOPIC, *groups)
        for ledger_id in (first, second):
            engine.offload(TOPIC, ledger_id, block_bytes=32 << 10)
        engine.free(TOPIC, first)
    return tmp_path


def test_a_job_gives_the_messages_of_the_topic_in_order(spark: SparkSession, home: Path) -> None:
    with afterglow.connect(home) as source:
        topic = source.topic(TOPIC)
        splits = list(topic.splits(split_bytes=64 << 10))
        expected = topic.scan(columns=COLUMNS).read_all()
    assert len(splits) > 4
    found = read_splits(spark, splits, COLUMNS)
    assert found.equals(expected)
    assert set(found["tier"].to_pylist()) == {"tiered", "hot"}


def test_tasks_need_nothing_of_the_home_but_the_tier(spark: SparkSession, home: Path, tmp_path: Path) -> None:
    with afterglow.connect(home) as source:
        topic = source.topic(TOPIC)
        splits = [split for split in topic.splits() if split.located is not None]
        expected = topic.scan(end=f"{topic.ledgers()[-1].ledger_id}:0").read_all()
    for part in ("hot", "metadata.db"):
        (home / part).rename(home / f"away-{part}")
    assert read_splits(spark, splits).equals(expected)


def test_tasks_can_make_batches_small(spark: SparkSession, home: Path) -> None:
    with afterglow.connect(home) as source:
        splits = list(source.topic(TOPIC).splits())
        whole = read_splits(spark, splits, ["value"])
        small = read_splits(spark, splits, ["value"], Distillation(sizes, SIZES))
    assert small.num_rows < whole.num_rows
    assert sum(small["rows"].to_pylist()) == whole.num_rows
    assert sum(small["bytes"].to_pylist()) == sum(map(len, whole["value"].to_pylist()))


def test_no_splits_give_no_messages(spark: SparkSession) -> None:
    assert read_splits(spark, [], COLUMNS).schema.names == list(COLUMNS)


def test_a_missing_object_is_told_as_it_is(spark: SparkSession, home: Path) -> None:
    with afterglow.connect(home) as source:
        splits = list(source.topic(TOPIC).splits())
    assert splits[0].located is not None
    (home / "tier" / splits[0].located.key).unlink()
    with pytest.raises(TopicChanged, match=splits[0].located.key):
        read_splits(spark, splits, COLUMNS)


def test_an_unknown_column_is_refused_before_any_job(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="valeu"):
        read_splits(spark, [], ["valeu"])


def test_what_fails_beyond_expectation_is_one_line(spark: SparkSession, home: Path) -> None:
    with afterglow.connect(home) as source:
        splits = list(source.topic(TOPIC).splits())[:1]
    with pytest.raises(AfterglowError) as failed:
        read_splits(spark, splits, COLUMNS, Distillation(raising, SIZES))
    assert str(failed.value) == f"the Spark job that reads {TOPIC} failed: ZeroDivisionError: told by the task"
