"""Topics that a real Apache Pulsar offloaded to an S3 server: the same messages as its own client reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.pulsar_standalone import PulsarStandalone
from tests.support.served_topics import eventually
from tests.support.servers import start_moto
from tests.support.zookeeper import ZooKeeperServer, spark_jars

import afterglow
from afterglow.errors import MissingDependency, TopicMissing
from afterglow.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.support.servers import S3Server
    from tests.support.shared_spark import SharedSpark

    from afterglow.source.connect import Source

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

BUCKET = "offloaded"
PLAIN, BATCHED, PARTS, TYPED = (
    f"persistent://public/default/{name}" for name in ("plain", "batched", "parts", "typed")
)


class Reading(pulsar.schema.Record):  # type: ignore[misc,name-defined]
    celsius = pulsar.schema.Double()


@dataclass
class Cluster:
    """A running Pulsar whose topics were offloaded up to their open ledgers."""

    pulsar: PulsarStandalone
    read: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What the stock reader returned of each topic, in order."""
    cold: dict[str, int] = field(default_factory=dict)
    """How many of these are in ledgers that were offloaded."""

    def out_bytes(self, topic: str) -> int:
        """What the broker has sent of a topic to anyone."""
        stats: dict[str, int] = self.pulsar.admin("GET", f"{_path(topic)}/stats")
        return stats["bytesOutCounter"]


def _path(topic: str) -> str:
    return topic.replace("://", "/")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """Moto's: versitygw refuses the ``Date`` header that Pulsar's S3 library signs with."""
    with start_moto() as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def spark(cluster: Cluster, shared_spark: SharedSpark) -> Iterator[SparkSession]:
    """A session of its own: its workers inherit the credentials of the cluster's bucket."""
    shared_spark.end()
    with local_session() as session:
        yield session


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Cluster]:
    settings = {
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": BUCKET,
        "managedLedgerOffloadServiceEndpoint": s3.endpoint,
        "managedLedgerOffloadRegion": s3.region,
        "brokerEntryMetadataInterceptors": ",".join(
            f"org.apache.pulsar.common.intercept.Append{name}MetadataInterceptor"
            for name in ("BrokerTimestamp", "Index")
        ),
        "exposingBrokerEntryMetadataToClientEnabled": "true",
    }
    credentials = {"ACCESS_KEY_ID": s3.access_key, "ACCESS_KEY_SECRET": s3.secret_key}
    started = PulsarStandalone(tmp_path_factory.mktemp("pulsar"), settings, credentials)
    try:
        started.start()
    except MissingDependency as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in credentials.items():
            patch.setenv(name, value)
        try:
            cluster = Cluster(started)
            _produce(cluster)
            yield cluster
        finally:
            started.stop()


def _produce(cluster: Cluster) -> None:
    client = pulsar.Client(cluster.pulsar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        cluster.pulsar.admin("PUT", f"{_path(PARTS)}/partitions", 2)
        for topic, count, options in (
            (PLAIN, 130, {"batching_enabled": False}),
            (BATCHED, 3_000, {"batching_max_messages": 25, "compression_type": pulsar.CompressionType.LZ4}),
            (PARTS, 200, {"batching_enabled": False}),
            (
                TYPED,
                90,
                {"batching_enabled": False, "schema": pulsar.schema.JsonSchema(Reading)},
            ),
        ):
            producer = client.create_producer(topic, **options)
            for number in range(count):
                content = Reading(celsius=number / 4) if topic == TYPED else b"%06d" % number * (1 + number % 50)
                more = {"partition_key": f"k{number % 7}", "event_timestamp": 1_700_000_000_000 + number}
                producer.send_async(content, lambda *_: None, properties={"n": str(number)}, **more)
            producer.flush()
            producer.close()
        for topic in (PLAIN, BATCHED, f"{PARTS}-partition-0", f"{PARTS}-partition-1", TYPED):
            _offload(cluster.pulsar, topic)
            cluster.read[topic] = list(_stock_read(client, topic))
            stats = cluster.pulsar.admin("GET", f"{_path(topic)}/internalStats")
            offloaded = {row["ledgerId"] for row in stats["ledgers"] if row["offloaded"]}
            cluster.cold[topic] = sum(row["ledger_id"] in offloaded for row in cluster.read[topic])
            assert 0 < cluster.cold[topic] < len(cluster.read[topic])
    finally:
        client.close()


def _offload(cluster: PulsarStandalone, topic: str) -> None:
    """Offload what can be; asked again as an operator would, since moto answers 500 now and then."""
    last = cluster.admin("GET", f"{_path(topic)}/lastMessageId")
    before = {"ledgerId": last["ledgerId"], "entryId": last["entryId"], "partitionIndex": -1}

    def status() -> dict[str, Any]:
        found: dict[str, Any] = cluster.admin("GET", f"{_path(topic)}/offload")
        return found

    for _ in range(5):
        cluster.admin("PUT", f"{_path(topic)}/offload", before)
        eventually(lambda: status()["status"] != "RUNNING", status)
        if status()["status"] == "SUCCESS":
            return
    raise AssertionError(status())


def _stock_read(client: Any, topic: str) -> Iterator[dict[str, Any]]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        message = reader.read_next(20_000)
        location = message.message_id()
        yield {
            "ledger_id": location.ledger_id(),
            "entry_id": location.entry_id(),
            "batch_index": location.batch_index(),
            "value": message.data(),
            "properties": message.properties(),
            "key": message.partition_key().encode(),
            "publish_time": message.publish_timestamp(),
            "event_time": message.event_timestamp(),
        }
    reader.close()


def found(source: Source, topic: str, **scan_range: Any) -> list[dict[str, Any]]:
    """What we read, in the words of the stock client, and the tier that served."""
    columns = ["ledger_id", "entry_id", "batch_index", "value", "properties", "key", "publish_time", "event_time"]
    table = source.topic(topic).scan(columns=[*columns, "tier", "broker_time", "index"], **scan_range).read_all()
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"])
        row["publish_time"], row["event_time"] = (
            int(row[name].timestamp() * 1000 + 0.5) for name in ("publish_time", "event_time")
        )
    return rows


def as_read(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name not in {"tier", "broker_time", "index"}} for row in rows
    ]


def cold_end(cluster: Cluster, topic: str) -> str:
    """The first position after the offloaded entries."""
    return f"{cluster.read[topic][cluster.cold[topic]]['ledger_id']}:0"


def locations(rows: list[dict[str, Any]]) -> list[tuple[int, int, int, bytes]]:
    return [(row["ledger_id"], row["entry_id"], row["batch_index"], row["value"]) for row in rows]


def spark_rows(spark: SparkSession, address: str, topic: str, **options: str) -> list[tuple[int, int, int, bytes]]:
    frame = spark.read.format("afterglow").option("source", address).option("topic", topic).options(**options).load()
    columns = ["ledger_id", "entry_id", "batch_index", "value"]
    return [(*row[:3], bytes(row[3])) for row in frame.select(*columns).orderBy(*columns[:3]).collect()]


@pytest.mark.parametrize("by", ["admin", "zookeeper"])
def test_every_message_is_what_the_stock_reader_returned(cluster: Cluster, by: str) -> None:
    address = cluster.pulsar.admin_url if by == "admin" else cluster.pulsar.zookeeper
    with afterglow.connect(address) as source:
        for topic, expected in cluster.read.items():
            rows = found(source, topic)
            assert as_read(rows) == expected
            cold = cluster.cold[topic]
            assert [row["tier"] for row in rows] == ["tiered"] * cold + ["hot"] * (len(rows) - cold)
            assert all(row["broker_time"] is not None for row in rows)
            assert [row["index"] for row in rows] == list(range(len(rows)))
        both = [row for index in range(2) for row in cluster.read[f"{PARTS}-partition-{index}"]]
        assert as_read(found(source, PARTS)) == both
        with pytest.raises(TopicMissing, match=r"public/default/plan; did you mean persistent://public/default/plain"):
            source.topic("plan")


@pytest.mark.parametrize("by", ["admin", "zookeeper"])
def test_cold_data_costs_the_broker_nothing(cluster: Cluster, by: str) -> None:
    address = cluster.pulsar.admin_url if by == "admin" else cluster.pulsar.zookeeper
    before = {topic: cluster.out_bytes(topic) for topic in cluster.read}
    with afterglow.connect(address) as source:
        for topic, expected in cluster.read.items():
            cold = found(source, topic, end=cold_end(cluster, topic))
            assert as_read(cold) == expected[: cluster.cold[topic]]
    with afterglow.connect(address, hot="skip") as source:
        for topic, expected in cluster.read.items():
            assert as_read(found(source, topic)) == expected[: cluster.cold[topic]]
    assert {topic: cluster.out_bytes(topic) for topic in cluster.read} == before
    with afterglow.connect(address, entries="broker") as source:
        found(source, PLAIN)
    assert cluster.out_bytes(PLAIN) > before[PLAIN]  # the counter counts what a broker delivers


def test_schemas_come_from_the_admin_api_and_from_registered_brokers(cluster: Cluster) -> None:
    for address in (cluster.pulsar.admin_url, cluster.pulsar.zookeeper):
        with afterglow.connect(address) as source:
            (schema,) = source.topic(TYPED).schemas()
            assert (schema.version, schema.type) == (bytes(8), "JSON")
            assert json.loads(schema.definition)["fields"] == Reading.schema()["fields"]
            assert source.topic(PLAIN).schemas() == ()


@pytest.mark.parametrize("by", ["admin", "zookeeper"])
def test_spark_reads_the_same_and_cold_data_costs_the_broker_nothing(
    cluster: Cluster, spark: SparkSession, by: str
) -> None:
    address = cluster.pulsar.admin_url if by == "admin" else cluster.pulsar.zookeeper
    before = {topic: cluster.out_bytes(topic) for topic in cluster.read}
    for topic, expected in cluster.read.items():
        assert spark_rows(spark, address, topic, hot="skip") == locations(expected[: cluster.cold[topic]])
        assert spark_rows(spark, address, topic, end=cold_end(cluster, topic)) == locations(
            expected[: cluster.cold[topic]]
        )
    assert {topic: cluster.out_bytes(topic) for topic in cluster.read} == before
    for topic, expected in cluster.read.items():
        assert spark_rows(spark, address, topic) == locations(expected)


def test_spark_streams_the_same(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("afterglow").option("source", cluster.pulsar.admin_url).option("topic", BATCHED)
    query = (
        stream.option("maxEntriesPerTrigger", "50")
        .load()
        .select("ledger_id", "entry_id", "batch_index", "value")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("ledger_id", "entry_id", "batch_index").collect()
    assert [(*row[:3], bytes(row[3])) for row in found] == locations(cluster.read[BATCHED])


@pytest.fixture
def stopped(cluster: Cluster) -> Iterator[str]:
    """The address of the cluster's ZooKeeper, served without the cluster, which runs again afterwards."""
    cluster.pulsar.stop()
    try:
        with ZooKeeperServer(spark_jars(), cluster.pulsar.zookeeper_directory) as zookeeper:
            yield f"zk://{zookeeper.hosts}"
    finally:
        cluster.pulsar.start()


def test_with_the_broker_stopped_all_that_was_offloaded_is_read_by_zookeeper(
    cluster: Cluster, spark: SparkSession, stopped: str
) -> None:
    for topic, expected in cluster.read.items():
        cold = expected[: cluster.cold[topic]]
        with afterglow.connect(stopped) as source:
            assert as_read(found(source, topic, end=cold_end(cluster, topic))) == cold
        with afterglow.connect(stopped, hot="skip") as source:
            rows = found(source, topic)
            assert as_read(rows) == cold
            assert {row["tier"] for row in rows} == {"tiered"}
        assert spark_rows(spark, stopped, topic, hot="skip") == locations(cold)
