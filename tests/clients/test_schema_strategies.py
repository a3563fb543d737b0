"""Schemas under each compatibility strategy, for producers and for consumers.

The same cases run against ``afterglow serve`` alone, which is quick, and against a real Apache Pulsar beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from _pulsar import SchemaType
from pulsar.schema import BytesSchema, Integer, JsonSchema, Long, Record, Schema, String
from tests.support.pulsar_standalone import PulsarStandalone
from tests.support.raw_client import RawClient
from tests.support.schema_cases import CASES, STRATEGIES, TENANT, prepare, run, schema

from afterglow.errors import MissingDependency
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.schema_cases import Server
    from tests.support.serving import Served


@pytest.fixture(scope="module")
def ours(served: Served) -> Server:
    prepare(served, "standalone")
    return served


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = PulsarStandalone(tmp_path_factory.mktemp("pulsar"))
    try:
        started.start()
    except MissingDependency as error:
        pytest.skip(str(error))
    try:
        prepare(started, "standalone")
        yield started
    finally:
        started.stop()


def outcome(server: Server) -> dict[str, tuple[str, ...]]:
    return {f"{case.strategy}: {case.name}": run(server, number, case) for number, case in enumerate(CASES)}


EXPECTED = {f"{case.strategy}: {case.name}": tuple(step.answer for step in case.steps) for case in CASES}


def test_every_schema_is_answered_as_its_strategy_says(ours: Server) -> None:
    assert len(EXPECTED) == len(CASES)
    assert outcome(ours) == EXPECTED


@pytest.mark.pulsar
def test_a_real_pulsar_answers_every_schema_the_same(theirs: Server) -> None:
    assert outcome(theirs) == EXPECTED


# --- the stock Python client ---


class Order(Record):  # type: ignore[misc]
    number = Integer()


class Invoice(Record):  # type: ignore[misc]
    number = Integer()


class Parcel(Record):  # type: ignore[misc]
    number = Integer()
    # Without a default: who reads Parcels cannot read Orders.
    address = String()


class Sheet(Record):  # type: ignore[misc]
    number = Long()


def stock_schema(kind: str, record: Any) -> Any:
    """A schema of the client's; its own class for AVRO wants a library to encode with, which nothing here does."""
    return JsonSchema(record) if kind == "JSON" else Schema(record, SchemaType.AVRO, record.schema(), "AVRO")


def is_taken(client: Any, topic: str, schema: Any, *, consumer: bool) -> bool:
    try:
        opened = (
            client.subscribe(topic, "s", schema=schema) if consumer else client.create_producer(topic, schema=schema)
        )
    except pulsar.IncompatibleSchema:
        return False
    opened.close()
    return True


STOCK = {
    # What follows Orders as producer, and as consumer, by strategy.
    "ALWAYS_INCOMPATIBLE": ((), ()),
    "ALWAYS_COMPATIBLE": ((Invoice, Parcel, Sheet), (Invoice, Parcel, Sheet)),
    "BACKWARD": ((Invoice, Sheet), (Invoice, Sheet)),
    "FORWARD": ((Invoice, Parcel), (Invoice, Sheet)),
    "FULL": ((Invoice,), (Invoice, Sheet)),
    "BACKWARD_TRANSITIVE": ((Invoice, Sheet), (Invoice, Sheet)),
    "FORWARD_TRANSITIVE": ((Invoice, Parcel), (Invoice, Sheet)),
    "FULL_TRANSITIVE": ((Invoice,), (Invoice,)),
}


@pytest.mark.parametrize(
    "server", ["ours", pytest.param("theirs", marks=[pytest.mark.pulsar, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_stock_clients_may_bring_what_the_strategy_lets_follow(
    request: pytest.FixtureRequest, server: str, kind: str, strategy: str
) -> None:
    url = request.getfixturevalue(server).service_url
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=20)
    try:
        for role, consumer in (("producer", False), ("consumer", True)):
            for record in (Invoice, Parcel, Sheet):
                topic = f"persistent://{TENANT}/{strategy}/{kind}-{role}-{record.__name__}"
                assert is_taken(client, topic, stock_schema(kind, Order), consumer=False)
                expected = record in STOCK[strategy][consumer]
                assert is_taken(client, topic, stock_schema(kind, record), consumer=consumer) is expected, (
                    role,
                    record,
                )
    finally:
        client.close()


def test_a_message_of_a_renamed_record_is_read_by_both(ours: Server, client: Any, topic: str) -> None:
    readers = [client.subscribe(topic, record.__name__, schema=JsonSchema(record)) for record in (Order, Invoice)]
    client.create_producer(topic, schema=JsonSchema(Order)).send(Order(number=1))
    client.create_producer(topic, schema=JsonSchema(Invoice)).send(Invoice(number=2))
    for reader in readers:
        assert [reader.receive(20_000).value().number for _ in range(2)] == [1, 2]


def test_a_topic_of_raw_bytes_keeps_taking_them_and_is_read_as_bytes(ours: Server, client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=BytesSchema())
    client.create_producer(topic, schema=BytesSchema()).send(b"\xff\x00")
    with RawClient(ours.service_url) as raw:
        version = raw.schema_version(topic, schema(kind=wire.Schema.Type.Value("None")))
    assert version == bytes(8)
    assert ours.admin("GET", f"schemas/{topic.partition('://')[2]}/schema")["type"] == "NONE"
    client.create_producer(topic, schema=BytesSchema()).send(b"\xff\x01")
    assert [consumer.receive(20_000).value() for _ in range(2)] == [b"\xff\x00", b"\xff\x01"]
