"""``afterglow attach --entries broker`` on a real cluster: without markers, and with every message once, in order."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.live_attach import (
    CLUSTER,
    AttachedProcess,
    attach_options,
    unfinished_of,
    verified,
    wait_for_tier,
)
from tests.support.live_load import Kind, StockProducer, TransactionProducer
from tests.support.pulsar_cluster import PulsarCluster
from tests.support.served_topics import eventually
from tests.support.servers import start_moto

import afterglow
from afterglow.errors import MissingDependency
from afterglow.format.position import Position
from afterglow.metadata.address import open_metadata
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload.segments.records import parse_segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import S3Server

    from afterglow.format.proto.afterglow_pb2 import SegmentRecord

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

BATCHED = "persistent://public/default/batched"
TRANSACTIONS = "persistent://public/default/transactions"
SETTINGS = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "managedLedgerMaxEntriesPerLedger": "300",
    "defaultRetentionTimeInMinutes": "0",
    "defaultRetentionSizeInMB": "0",
    "transactionCoordinatorEnabled": "true",
    "brokerEntryMetadataInterceptors": "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    try:
        started = PulsarCluster(tmp_path_factory.mktemp("cluster"), [{}] * 3, SETTINGS)
    except MissingDependency as error:
        pytest.skip(str(error))
    with started:
        for topic in (BATCHED, TRANSACTIONS):
            started.admin("PUT", topic.replace("://", "/"))
        yield started


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with start_moto() as server:
        server.create_bucket("attached")
        yield server


@pytest.fixture
def client(cluster: PulsarCluster) -> Iterator[Any]:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def segments(metadata: str, topic: str) -> list[SegmentRecord]:
    paths, name = AfterglowPaths(CLUSTER), TopicName.parse(topic).managed_ledger_name
    with closing(open_metadata(metadata, read_only=True)) as store:
        found = [store.get(f"{paths.segments(name)}/{uuid}") for uuid in store.children(paths.segments(name))]
    records = [parse_segment(each.value, "segment") for each in found if each is not None]
    return sorted(records, key=lambda record: (record.begin.ledger_id, record.begin.entry_id))


def send(client: Any, topic: str, value: bytes) -> None:
    producer = client.create_producer(topic)
    producer.send(value)
    producer.close()


def in_tier(source: Any, topic: str) -> dict[Position, bytes]:
    rows = source.topic(topic).scan(columns=["ledger_id", "entry_id", "batch_index", "value"]).read_all().to_pylist()
    positions = [(Position(row["ledger_id"], row["entry_id"]), row["batch_index"]) for row in rows]
    assert positions == sorted(set(positions))
    return {position: row["value"] for (position, _), row in zip(positions, rows, strict=True)}


def test_brokers_deliver_every_committed_message_once_and_markers_are_recorded_as_stripped(
    cluster: PulsarCluster, s3: S3Server, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = f"sqlite:{tmp_path / 'attach.db'}"
    monkeypatch.setenv("ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("ACCESS_KEY_SECRET", s3.secret_key)
    options = ["--master", "local[2]", "--entries", "broker", *attach_options(s3)]
    tier = "s3://attached/broker"
    with AttachedProcess(cluster.admin_url, "public/default/.*", tier, metadata, *options) as attached:
        said = "entries from brokers (as --entries says)"
        eventually(lambda: any(line.startswith(said) for line in attached.lines), lambda: attached.lines)
        batches = {"batching_enabled": True, "batching_max_messages": 20, "batching_max_publish_delay_ms": 20}
        batched = StockProducer(client, BATCHED, Kind("batched", batches, per_second=400, max_bytes=1_000))
        transactional = TransactionProducer(cluster.service_url, TRANSACTIONS, tmp_path, seed=1)
        try:
            eventually(lambda: len(transactional.transactions) > 40, lambda: transactional.transactions[-1:])
            attached.crash()
            attached.start()
            cluster.admin("PUT", f"{TRANSACTIONS.replace('://', '/')}/unload")
            known = len(transactional.transactions)
            eventually(lambda: len(transactional.transactions) > known + 40, lambda: transactional.transactions[-1:])
        finally:
            transactional.stop()
        batched.stop()
        send(client, TRANSACTIONS, b"-1")  # a message behind the last marker
        wait_for_tier(cluster, [BATCHED, TRANSACTIONS])
        for topic in (BATCHED, TRANSACTIONS):
            eventually(lambda topic=topic: not unfinished_of(metadata, topic), lambda: unfinished_of(metadata, topic))  # type: ignore[misc] # noqa: B023
        assert attached.stop() == 0
    with afterglow.connect(cluster.admin_url, metadata=metadata, hot="skip") as source:
        visible = in_tier(source, TRANSACTIONS)
        rows = source.topic(BATCHED).scan(columns=["value"]).read_all().column("value").to_pylist()
    assert list(visible.values())[-1] == b"-1"
    outcomes = set()
    for transaction in transactional.transactions:
        outcomes.add(transaction.outcome)
        for (ledger_id, entry_id), number in transaction.messages.items():
            found = visible.get(Position(ledger_id, entry_id))
            if transaction.outcome == "aborted":
                assert found is None
            elif transaction.outcome != "unknown":
                assert found == str(number).encode()
    assert {"committed", "aborted", "plain"} <= outcomes
    assert rows == [batched.kind.value(number) for number in range(batched.sent)]
    for topic in (BATCHED, TRANSACTIONS):
        records = segments(metadata, topic)
        assert records
        assert all(record.markers_stripped and record.broker_metadata_stripped for record in records)
    assert "no faults" in verified(cluster.admin_url, metadata, s3, "--deep")
