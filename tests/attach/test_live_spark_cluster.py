"""``afterglow attach`` with a Spark standalone cluster whose executors share no directory with the driver."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.killable_s3 import KillableS3
from tests.support.live_attach import (
    AttachedProcess,
    attach_options,
    backlog_of,
    unfinished_of,
    verified,
    wait_for_tier,
)
from tests.support.packed_environment import ROOT, pack, spark_only
from tests.support.pulsar_cluster import PulsarCluster
from tests.support.served_topics import eventually
from tests.support.servers import ServerUnavailable
from tests.support.spark_cluster import can_hide, standalone_cluster

import afterglow
from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from pathlib import Path

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
pytestmark = [
    pytest.mark.pulsar,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(can_hide() is not None, reason=f"directories cannot be hidden from workers: {can_hide()}"),
]

TOPIC: Final = "persistent://public/default/t"
DIRECTORY: Final = "environment"
ROUNDS: Final = 4
COUNT: Final = 1_500
SIZE: Final = 5_000
SETTINGS: Final = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "managedLedgerMaxEntriesPerLedger": "1000",
    "defaultRetentionTimeInMinutes": "0",
    "defaultRetentionSizeInMB": "0",
}


def value_of(number: int) -> bytes:
    return b"%06d" % number * (SIZE // 6)


def publish(cluster: PulsarCluster, first: int) -> None:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    done: list[object] = []
    try:
        producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
        for number in range(first, first + COUNT):
            producer.send_async(value_of(number), lambda result, _at: done.append(result))
        producer.flush()
    finally:
        client.close()
    assert set(done) == {pulsar.Result.Ok}


def test_executors_without_any_directory_of_the_driver_stream_from_bookies_though_a_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = {name: tmp_path / name for name in ("driver", "packed", "workers", "pulsar", "s3")}
    for directory in directories.values():
        directory.mkdir()
    metadata = f"sqlite:{directories['driver'] / 'attach.db'}"
    try:
        s3 = KillableS3(directories["s3"])
        cluster = PulsarCluster(directories["pulsar"], [{}] * 3, SETTINGS)
    except (MissingDependency, ServerUnavailable) as error:
        pytest.skip(str(error))
    archive = pack(directories["packed"])
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.archives": f"{archive}#{DIRECTORY}",
        "spark.pyspark.python": f"./{DIRECTORY}/bin/python",
    }
    keys = {"Id": s3.access_key, "Secret": s3.secret_key}
    environment = {f"AFTERGLOW_CONF_s3ManagedLedgerOffloadCredential{name}": key for name, key in keys.items()}
    hidden = [directories[name] for name in ("driver", "packed", "pulsar", "s3")]
    with ExitStack() as stack:
        stack.enter_context(s3)
        s3.create_bucket("attached")
        stack.enter_context(cluster)
        cluster.admin("PUT", TOPIC.replace("://", "/"))
        spark = stack.enter_context(
            standalone_cluster(
                directories["workers"],
                workers=2,
                hidden=[*hidden, ROOT],
                spark_home=spark_only(),
                environment={**environment, "PYTHONPATH": ""},
            )
        )
        options = ["--master", spark.url, *attach_options(s3, settings)]
        attached = stack.enter_context(
            AttachedProcess(cluster.admin_url, "public/default/.*", "s3://attached/spark", metadata, *options)
        )
        eventually(lambda: backlog_of(cluster, TOPIC) is not None, lambda: attached.lines[-20:])
        for round_ in range(ROUNDS):
            publish(cluster, round_ * COUNT)
            if round_ == 1:
                eventually(lambda: bool(executors(directories["workers"])), lambda: attached.lines[-20:])
                spark.kill_worker(executors(directories["workers"])[0])
        wait_for_tier(cluster, [TOPIC])
        eventually(lambda: not unfinished_of(metadata, TOPIC), lambda: unfinished_of(metadata, TOPIC))
        assert attached.stop() == 0
        assert "no faults" in verified(cluster.admin_url, metadata, s3, "--deep")
        monkeypatch.setenv("ACCESS_KEY_ID", s3.access_key)
        monkeypatch.setenv("ACCESS_KEY_SECRET", s3.secret_key)
        with afterglow.connect(cluster.admin_url, metadata=metadata, hot="skip") as source:
            found = source.topic(TOPIC).scan(columns=["value"]).read_all().column("value").to_pylist()
        assert found == [value_of(number) for number in range(ROUNDS * COUNT)]


def executors(workers: Path) -> list[int]:
    """Numbers of the workers that have an executor."""
    return [number for number in range(2) if list(workers.glob(f"worker-{number}/app-*/*"))]
