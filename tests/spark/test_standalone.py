"""Offload by executors that share no directory with the server, held against offload on the server's own disk."""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.support.raw_client import RawClient, encode_send
from tests.support.served_topics import eventually, rows_of
from tests.support.servers import start_moto
from tests.support.serving import serving
from tests.support.spark_cluster import can_hide, standalone_cluster

from afterglow.format.entry import encode_entry
from afterglow.format.objects import get_uuid
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import S3Server
    from tests.support.serving import Served

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
pytest.importorskip("moto", reason="moto is not installed")

STREAMED = "persistent://public/default/streamed"
WHOLE = "persistent://public/default/whole"
CONF = """
managedLedgerMaxEntriesPerLedger=100
managedLedgerMinLedgerRolloverTimeMinutes=0
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
offloadTickIntervalMillis=100
"""
ENTRIES = 350
BYTES = {STREAMED: 60_000, WHOLE: 8_000}
"""Of an entry of each topic."""


def publish(served: Served, topic: str) -> None:
    with RawClient(served.service_url) as client:
        producer = client.open_producer(topic)
        entries = (
            encode_entry(
                wire.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1),
                number.to_bytes(4, "big") * (BYTES[topic] // 4 + number % 5),
            )
            for number in range(ENTRIES)
        )
        client.publish((encode_send(producer, i, data) for i, data in enumerate(entries)), 5)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with start_moto() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with two topics of several ledgers, at rest."""
    conf = tmp_path / "writing.conf"
    conf.write_text(CONF)
    with serving(tmp_path / "home", "--conf", str(conf)) as served:
        publish(served, STREAMED)
        publish(served, WHOLE)
        assert served.stop() == 0
    return tmp_path / "home"


@contextmanager
def offloading(home: Path, s3: S3Server, bucket: str, master: str, **settings: str) -> Iterator[Served]:
    """A server that offloads both topics of a home to a bucket of its own, one in segments and one by ledgers."""
    s3.create_bucket(bucket)
    given = {
        "maxOffloadSegmentSizeInBytes": "12M",
        "streamingOffloadPartSizeInBytes": "5M",
        "managedLedgerOffloadServiceEndpoint": s3.endpoint,
        "managedLedgerOffloadRegion": s3.region,
        "s3ManagedLedgerOffloadCredentialId": s3.access_key,
        "s3ManagedLedgerOffloadCredentialSecret": s3.secret_key,
        **settings,
    }
    conf = home.with_name(f"{bucket}.conf")
    conf.write_text(CONF + "".join(f"{key}={value}\n" for key, value in given.items()))
    with serving(home, "--conf", str(conf), "--master", master, "--tier", f"s3://{bucket}") as served:
        served.admin("POST", f"{path_of(STREAMED)}/offloadPolicies", {"streamingOffloadEnabled": True})
        yield served


def path_of(topic: str) -> str:
    return topic.replace("://", "/", 1)


def offload(served: Served, topic: str) -> dict[str, int]:
    """Has a topic offloaded by hand as far as can be, waits for the end; returns where tasks read how many bytes."""
    last = max(row["ledgerId"] for row in served.admin("GET", f"{path_of(topic)}/internalStats")["ledgers"])
    served.admin("PUT", f"{path_of(topic)}/offload", {"ledgerId": last, "entryId": 0, "partitionIndex": -1})

    def status() -> str:
        found: str = served.admin("GET", f"{path_of(topic)}/offload")["status"]
        return found

    eventually(lambda: status() not in {"RUNNING", "NOT_RUN"}, lambda: served.lines[-20:])
    assert status() == "SUCCESS", served.lines[-20:]
    routes: dict[str, int] = served.admin("GET", f"{path_of(topic)}/stats")["afterglowOffloadReads"]
    return routes


def objects(home: Path, s3: S3Server, bucket: str, topic: str) -> list[tuple[str, bytes]]:
    """Data and index of each of a topic's objects in the order of positions, by their names without UUIDs."""
    keys: dict[str, None] = {}
    for row in rows_of(home, topic):
        segments = [get_uuid(item) for item in row.offloadContext.offloadSegment if item.complete]
        whole = [f"{get_uuid(row.offloadContext)}-ledger-{row.ledgerId}"] if row.offloadContext.complete else []
        keys |= dict.fromkeys([*map(str, segments), *whole])
    store = open_store(f"s3://{bucket}", **s3.options())
    return [(name[36:], bytes(store.get(name))) for key in keys for name in (key, f"{key}-index")]


@pytest.mark.pulsar  # needs nothing that pip does not install, but more than a minute
def test_executors_that_share_no_disk_offload_the_same_bytes(home: Path, s3: S3Server, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(home, twin)
    reason = can_hide()
    spark = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.pyspark.python": sys.executable,
        # If the home cannot be hidden from executors on this machine, a setting keeps them from reading it.
        "offloadTasksReadFiles": str(reason is None).lower(),
    }
    with (
        standalone_cluster(tmp_path, hidden=[home] if reason is None else []) as cluster,
        offloading(home, s3, "afar", cluster.url, **spark) as served,
    ):
        afar = {topic: offload(served, topic) for topic in BYTES}
        assert served.stop() == 0
    with offloading(twin, s3, "beside", "local[2]") as served:
        beside = {topic: offload(served, topic) for topic in BYTES}
    for topic, entry_bytes in BYTES.items():
        found = objects(home, s3, "afar", topic)
        assert found == objects(twin, s3, "beside", topic)
        assert len(found) > 2  # several objects, each with its index
        most = 0.8 * ENTRIES * entry_bytes  # of one topic all but its last ledger is there
        assert sum(len(data) for _, data in found) > most
        assert (afar[topic]["protocol"] > most, afar[topic]["files"]) == (True, 0)
        assert (beside[topic]["files"] > most, beside[topic]["protocol"]) == (True, 0)
