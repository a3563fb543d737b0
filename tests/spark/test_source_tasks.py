"""Reads of the tasks of a DataFrame, without Spark."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message

import afterglow
from afterglow.errors import AfterglowError
from afterglow.format.entry import encode_entry
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.format.schema import SchemaVersion

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType, TimestampType

from afterglow.format.schema import MESSAGES
from afterglow.read.typed import TypedColumns
from afterglow.spark.datasource.schema import SMALL_BYTES, OutputSchema, join_batches, require_columns, spark_schema
from afterglow.spark.datasource.tasks import PlainErrors, pack_splits, read_partition

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.read.splits import Split

TOPIC = "persistent://public/default/t"


def splits(home: Path, topic: str = "t", split_bytes: int = 1) -> list[Split]:
    with afterglow.connect(home) as source:
        return list(source.topic(topic).splits(split_bytes=split_bytes))


def test_small_splits_share_a_partition_and_large_ones_stand_alone(tmp_path: Path) -> None:
    with ServerHome(tmp_path) as server:
        server.write("t", [message(b"") for _ in range(6)])
    sizes = (10, 10, 10, 5000, 10, 10)
    found = [replace(split, size_bytes=size) for split, size in zip(splits(tmp_path), sizes, strict=True)]
    packed = [len(partition.value.splits) for partition in pack_splits(found, 1000)]
    assert packed == [3, 1, 2]
    assert [split for partition in pack_splits(found, 1000) for split in partition.value.splits] == found
    assert [len(partition.value.splits) for partition in pack_splits(found, 1)] == [1] * 6


def test_an_empty_plan_is_a_partition_without_splits() -> None:
    (partition,) = pack_splits([], 1)
    assert list(read_partition(partition, OutputSchema(spark_schema(MESSAGES)), "messages")) == []


def test_a_partition_that_was_not_planned_is_an_error() -> None:
    with pytest.raises(AfterglowError, match="a partition was not planned: None"):
        list(read_partition(InputPartition(None), OutputSchema(spark_schema(MESSAGES)), "messages"))


def test_an_error_that_pyspark_takes_for_an_answer_becomes_one_of_ours() -> None:
    with pytest.raises(AfterglowError, match="ArrowNotImplementedError: no cast") as raised, PlainErrors():
        raise pa.ArrowNotImplementedError("no cast")
    assert not isinstance(raised.value, NotImplementedError)


def test_values_are_decoded_by_the_schemas_that_came_along(tmp_path: Path) -> None:
    def sent(number: int) -> bytes:
        metadata = MessageMetadata(
            producer_name="p", sequence_id=number, publish_time=0, schema_version=(number % 2).to_bytes(8, "big")
        )
        return encode_entry(metadata, json.dumps({"a": number, "b": "x"} if number % 2 else {"a": number}).encode())

    fields = [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"], "default": None}]
    versions = tuple(
        SchemaVersion(
            number.to_bytes(8, "big"),
            "JSON",
            json.dumps({"type": "record", "name": "r", "fields": fields[: number + 1]}).encode(),
        )
        for number in range(2)
    )
    with ServerHome(tmp_path) as server:
        server.write("t-partition-3", [sent(number) for number in range(5)], [message(b"no schema")])
    schemas = {TOPIC: versions}
    offered = TypedColumns(schemas, ["value", "entry_id", "_corrupt"]).schema
    shape = OutputSchema(spark_schema(offered))
    packed = pickle.loads(pickle.dumps(pack_splits(splits(tmp_path, "t-partition-3"), 1 << 20, schemas)))
    rows = [row for each in packed for batch in read_partition(each, shape, "messages") for row in batch.to_pylist()]
    assert [row["value"] for row in rows[:5]] == [{"a": n, "b": "x" if n % 2 else None} for n in range(5)]
    assert [row["entry_id"] for row in rows] == [0, 1, 2, 3, 4, 0]
    assert [row["_corrupt"] for row in rows[:5]] == [None] * 5
    assert "no schema version" in rows[5]["_corrupt"]


def test_batches_are_in_the_very_schema_that_spark_compares() -> None:
    asked = StructType(
        [
            StructField("ledger_id", LongType(), nullable=False),
            StructField("properties", MapType(StringType(), StringType())),
            StructField("publish_time", TimestampType()),
        ]
    )
    require_columns(asked, MESSAGES)
    chosen = MESSAGES.empty_table().select(asked.fieldNames()).schema
    batch = pa.RecordBatch.from_pylist([{"ledger_id": 1, "properties": [("a", "b")], "publish_time": 5}], schema=chosen)
    (found,) = OutputSchema(asked).convert([batch])
    assert not found.schema.field("ledger_id").nullable
    assert found.to_pylist() == batch.to_pylist()


def test_small_batches_are_joined_and_large_ones_are_not_copied() -> None:
    small = [pa.RecordBatch.from_pydict({"n": [number]}) for number in range(9)]
    large = pa.RecordBatch.from_pydict({"n": list(range(SMALL_BYTES // 8))})
    found = list(join_batches([*small[:4], large, *small[4:]]))
    assert [batch.num_rows for batch in found] == [4, large.num_rows, 5]
    assert found[1] is large
    assert [row["n"] for batch in (found[0], found[2]) for row in batch.to_pylist()] == list(range(9))
    assert list(join_batches([])) == []
