"""``afterglow attach`` on real Pulsar clusters of several releases: what stock clients write is in the tier."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.support.java_tools import VERSION
from tests.support.killable_s3 import KillableS3
from tests.support.live_attach import (
    AttachedProcess,
    attach_options,
    backlog_of,
    ledgers_of,
    unfinished_of,
    verified,
    wait_for_tier,
)
from tests.support.pulsar_cluster import PulsarCluster
from tests.support.pulsar_standalone import NEWER
from tests.support.served_topics import eventually
from tests.support.servers import ServerUnavailable

import afterglow
from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

TIER = "s3://attached/live"
COUNT = 3_000
PLAIN = "persistent://public/default/plain"
TOPICS: dict[str, dict[str, Any]] = {
    PLAIN: {"batching_enabled": False},
    "persistent://public/default/batched": {"batching_enabled": True, "batching_max_messages": 50},
}
SETTINGS = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "managedLedgerMaxEntriesPerLedger": "700",
    "defaultRetentionTimeInMinutes": "0",
    "defaultRetentionSizeInMB": "0",
}


@pytest.fixture(scope="module", params=[VERSION, NEWER])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    try:
        started = PulsarCluster(tmp_path_factory.mktemp("cluster"), [{}] * 3, SETTINGS, version=request.param)
    except MissingDependency as error:
        pytest.skip(str(error))
    with started:
        for topic in TOPICS:
            started.admin("PUT", topic.replace("://", "/"))
        yield started


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableS3]:
    try:
        server = KillableS3(tmp_path_factory.mktemp("s3"))
    except ServerUnavailable as error:
        pytest.skip(str(error))
    with server:
        server.create_bucket("attached")
        yield server


def value_of(number: int) -> bytes:
    return b"%06d:" % number * (1 + number % 90)


def produce(cluster: PulsarCluster, topic: str, first: int, count: int) -> None:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    failed: list[Any] = []

    def done(result: Any, _at: Any) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    try:
        producer = client.create_producer(topic, block_if_queue_full=True, **TOPICS[topic])
        for number in range(first, first + count):
            producer.send_async(value_of(number), done)
        producer.flush()
    finally:
        client.close()
    assert not failed


def read_by_command(cluster: PulsarCluster, metadata: str, topic: str, s3: KillableS3, output: Path) -> list[bytes]:
    command = [sys.executable, "-m", "afterglow", "read", cluster.admin_url, topic, "--metadata", metadata]
    options = ["--hot", "skip", "--format", "parquet", "--output", str(output)]
    keys = {"ACCESS_KEY_ID": s3.access_key, "ACCESS_KEY_SECRET": s3.secret_key}
    done = subprocess.run(
        [*command, *options], env={**os.environ, **keys}, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found: list[bytes] = pq.read_table(output).column("value").to_pylist()
    return found


def test_what_stock_clients_write_is_streamed_verified_and_read_after_the_cluster_has_trimmed_it(
    cluster: PulsarCluster, s3: KillableS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = f"sqlite:{tmp_path / 'attach.db'}"
    tier = f"{TIER}/{tmp_path.name}"
    with ExitStack() as stack:
        attached = stack.enter_context(
            AttachedProcess(
                cluster.admin_url, "public/default/.*", tier, metadata, "--master", "local[2]", *attach_options(s3)
            )
        )
        for topic in TOPICS:
            eventually(lambda topic=topic: backlog_of(cluster, topic) is not None, lambda: attached.lines[-20:])  # type: ignore[misc]
            produce(cluster, topic, 0, COUNT)
        wait_for_tier(cluster, list(TOPICS))
        for topic in TOPICS:
            produce(cluster, topic, COUNT, COUNT)
        wait_for_tier(cluster, list(TOPICS))
        for topic in TOPICS:
            eventually(lambda topic=topic: not unfinished_of(metadata, topic), lambda: unfinished_of(metadata, topic))  # type: ignore[misc] # noqa: B023
        first = min(ledger.ledgerId for ledger in ledgers_of(metadata, PLAIN))
        stats = cluster.admin("GET", "persistent/public/default/plain/internalStats")
        assert first < min(ledger["ledgerId"] for ledger in stats["ledgers"]), "the cluster has trimmed nothing"
        assert "no faults" in verified(cluster.admin_url, metadata, s3, "--deep")
        assert attached.stop() == 0
    monkeypatch.setenv("ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("ACCESS_KEY_SECRET", s3.secret_key)
    expected = [value_of(number) for number in range(2 * COUNT)]
    assert read_by_command(cluster, metadata, PLAIN, s3, tmp_path / "read.parquet") == expected
    for source in (cluster.admin_url, f"zk://{cluster.zookeeper.hosts}"):
        with afterglow.connect(source, metadata=metadata) as opened:
            for topic in TOPICS:
                found = opened.topic(topic).scan(columns=["value", "tier"]).read_all().to_pydict()
                assert found["value"] == expected
                assert set(found["tier"]) == {"tiered"}
    assert [backlog_of(cluster, topic) for topic in TOPICS] == [0, 0], "the subscriptions stay"
