"""Values of every type, by ``spark.read.format("afterglow").option("decode", "true")``."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.homes import ServerHome
from tests.support.typed import encode_avro

import afterglow
from afterglow.catalog.schema_registry import SchemaRegistry
from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

MOMENT = datetime(2026, 11, 16, 3, 4, 5, 678901, UTC)
RECORD = {
    "type": "record",
    "name": "Everything",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "int", "type": "int"},
        {"name": "float", "type": "float"},
        {"name": "bytes", "type": "bytes"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "moment", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["red", "green"]}},
        {"name": "pairs", "type": {"type": "map", "values": {"type": "array", "items": ["null", "string"]}}},
        {"name": "either", "type": ["null", "string", "long"]},
    ],
}
VALUE: dict[str, Any] = {
    "flag": True,
    "int": -1,
    "float": 0.5,
    "bytes": b"\xff",
    "day": date(2026, 11, 16),
    "clock": time(1, 2, 3, 4),
    "moment": MOMENT,
    "amount": Decimal("-12345678901234567.89"),
    "color": "green",
    "pairs": {"a": ["x", None], "b": []},
    "either": 7,
}


def stored(server: ServerHome, topic: str, kind: int, definition: bytes = b"") -> bytes:
    """Register a schema; returns its version."""
    registry = SchemaRegistry(server.metadata, AfterglowPaths(server.config.cluster_name))
    schema = wire.Schema(name=topic, schema_data=definition, type=kind)  # type: ignore[arg-type] # an enum's number
    return registry.get_or_create(TopicName.parse(topic), schema)


def entry(version: bytes, value: bytes) -> bytes:
    return encode_entry(
        wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, schema_version=version), value
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home")
    with ServerHome(path) as server:
        text = json.dumps(RECORD)
        version = stored(server, "records", wire.Schema.Avro, text.encode())
        good = encode_avro(text, VALUE)
        (first, _) = server.write("records", [entry(version, good), entry(version, good[:-1])], [entry(version, good)])
        server.offload("records", first)
        server.free("records", first)
        version = stored(server, "times", wire.Schema.LocalDateTime)
        server.write("times", [entry(version, struct.pack(">qq", 1, 3_723_000_004_000))])
    return path


def load(spark: SparkSession, home: Path, topic: str, **options: str) -> Any:
    reader = spark.read.format("afterglow").option("source", str(home)).option("topic", topic)
    return reader.option("decode", "true").options(**options).load()


def test_columns_have_the_types_of_the_schema(spark: SparkSession, home: Path) -> None:
    found = load(spark, home, "records", columns="value,_corrupt").schema.simpleString()
    assert found == (
        "struct<value:struct<flag:boolean,int:int,float:float,bytes:binary,day:date,clock:bigint,moment:timestamp,"
        "amount:decimal(20,2),color:string,pairs:map<string,array<string>>,"
        "either:struct<member_string:string,member_long:bigint>>,_corrupt:string>"
    )


@pytest.mark.spark("batch")
def test_values_are_those_that_were_sent_and_those_of_a_scan(spark: SparkSession, home: Path) -> None:
    frame = load(spark, home, "records", columns="entry_id,value,_corrupt,tier")
    table = frame.toArrow()
    with afterglow.connect(home) as source:
        topic = source.topic("records")
        scanned_rows = topic.scan(columns=["entry_id", "value", "_corrupt", "tier"], decode=True).read_all().to_pylist()
    nanos = (3723 * 10**6 + 4) * 1000
    for row in scanned_rows:
        if row["value"] is not None:
            assert row["value"]["clock"] == VALUE["clock"]
            row["value"]["clock"] = nanos
    assert table.to_pylist() == scanned_rows
    assert table["tier"].to_pylist() == ["tiered", "tiered", "hot"]
    whole = {
        **VALUE,
        "clock": nanos,
        "pairs": list(VALUE["pairs"].items()),
        "either": {"member_string": None, "member_long": 7},
    }
    assert table["value"].to_pylist() == [whole, None, whole]
    assert table["_corrupt"].to_pylist() == [None, "schema version 0: either.member_long: it ends too early", None]


@pytest.mark.spark("batch")
def test_fields_are_used_in_queries(spark: SparkSession, home: Path) -> None:
    frame = load(spark, home, "records").filter("_corrupt is null and value.amount < 0")
    row = frame.selectExpr(
        "value.pairs['a'][0] as first", "value.clock div 3600000000000 as hour", "year(value.day) as year"
    ).first()
    assert row.asDict() == {"first": "x", "hour": 1, "year": 2026}


def test_local_times_have_no_zone(spark: SparkSession, home: Path) -> None:
    frame = load(spark, home, "times", columns="value")
    assert frame.schema.simpleString() == "struct<value:timestamp_ntz>"
    assert frame.first().value == datetime(1970, 1, 2, 1, 2, 3, 4)  # noqa: DTZ001
