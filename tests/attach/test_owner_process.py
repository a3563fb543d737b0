"""Processes of ``afterglow attach`` on a real cluster: one of them is the owner, and it writes where it may."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pulsar
import pytest
from kazoo.client import KazooClient
from tests.support.attach_process import LIMIT_S, PATHS, SESSION_S, Attach, is_streamed, opened, produce, wait_until
from tests.support.pulsar_cluster import PulsarCluster
from tests.support.zookeeper_proxy import ZooKeeperProxy

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

SETTINGS: Final = {
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerMaxEntriesPerLedger": "100",
    "defaultRetentionTimeInMinutes": "0",
    "defaultRetentionSizeInMB": "0",
    "retentionCheckIntervalInSeconds": "5",
    "brokerDeleteInactiveTopicsEnabled": "false",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    try:
        with PulsarCluster(tmp_path_factory.mktemp("cluster"), [{}], SETTINGS) as cluster:
            yield cluster
    except MissingDependency as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def stock(cluster: PulsarCluster) -> Iterator[Any]:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture
def proxy(cluster: PulsarCluster) -> Iterator[ZooKeeperProxy]:
    with ZooKeeperProxy(cluster.zookeeper.hosts) as proxy:
        yield proxy


def live(cluster: PulsarCluster, stock: Any, metadata: str, topic: str, *, tier: Path, proxy: ZooKeeperProxy) -> None:
    """A whole life: history, live entries, trimming by the cluster, and the end."""
    produce(stock, topic, 250)
    with closing(Attach(cluster, metadata, tier, topic, zookeeper=proxy.hosts)) as attach:
        attach.expect("ready")
        produce(stock, topic, 250)
        with opened(metadata.replace(proxy.hosts, cluster.zookeeper.hosts)) as store:
            wait_until(lambda: is_streamed(cluster, store, topic), "the topic is not streamed")
        wait_until(
            lambda: len(cluster.admin("GET", f"persistent/{topic}/internalStats")["ledgers"]) == 1,
            "the cluster does not trim the topic",
        )
        assert attach.end() == 0


def test_with_zookeeper_attach_writes_below_its_own_root_only(
    cluster: PulsarCluster, stock: Any, tmp_path: Path, proxy: ZooKeeperProxy
) -> None:
    live(cluster, stock, f"zk://{proxy.hosts}", "public/default/zookeeper", tier=tmp_path / "tier", proxy=proxy)
    paths = {write.path for write in proxy.writes}
    assert any(path.startswith(f"{PATHS.root}/segments/") for path in paths)
    outside = {path for path in paths if not path.startswith(f"{PATHS.root}/")}
    assert outside <= {"/afterglow", PATHS.root}


def test_with_sqlite_attach_only_reads_zookeeper(
    cluster: PulsarCluster, stock: Any, tmp_path: Path, proxy: ZooKeeperProxy
) -> None:
    metadata = f"sqlite:{tmp_path / 'meta.db'}"
    live(cluster, stock, metadata, "public/default/sqlite", tier=tmp_path / "tier", proxy=proxy)
    assert proxy.connections > 1  # the process, and its tasks
    assert not proxy.writes


def test_a_second_process_with_the_same_file_is_refused(cluster: PulsarCluster, stock: Any, tmp_path: Path) -> None:
    topic, metadata = "public/default/refused", f"sqlite:{tmp_path / 'meta.db'}"
    produce(stock, topic, 1)
    with closing(Attach(cluster, metadata, tmp_path / "tier", topic)) as first:
        first.expect("ready")
        with closing(Attach(cluster, metadata, tmp_path / "tier", topic)) as second:
            assert second.process.wait(LIMIT_S) == 1
            assert f"is in use by process {first.process.pid} on " in second.log.read_text()
        produce(stock, topic, 10)
        with opened(metadata) as store:
            wait_until(lambda: is_streamed(cluster, store, topic), "the first process does not stream any more")
        assert first.end() == 0


def test_a_standby_takes_over_after_a_kill_and_at_once_after_a_clean_end(
    cluster: PulsarCluster, stock: Any, tmp_path: Path
) -> None:
    topic, metadata = "public/default/standby", f"zk://{cluster.zookeeper.hosts}/standby"
    produce(stock, topic, 50)
    tier = tmp_path / "tier"
    with closing(Attach(cluster, metadata, tier, topic)) as first, opened(metadata) as store:
        first.expect("ready")
        with closing(Attach(cluster, metadata, tier, topic)) as second:
            assert f"process {first.process.pid} on " in second.expect("standby: ")
            first.process.kill()
            begin = time.monotonic()
            second.expect("ready")
            assert time.monotonic() - begin < SESSION_S + 30  # which the start of Spark needs on a busy machine
            produce(stock, topic, 50)
            wait_until(lambda: is_streamed(cluster, store, topic), "the standby does not stream")
            with closing(Attach(cluster, metadata, tier, topic)) as third:
                third.expect("standby: ")
                assert third.end() == 0
            with closing(Attach(cluster, metadata, tier, topic)) as third:
                third.expect("standby: ")
                assert second.end() == 0
                third.expect("ready")
                produce(stock, topic, 50)
                wait_until(lambda: is_streamed(cluster, store, topic), "the second standby does not stream")
                assert third.end() == 0


def test_an_owner_that_was_paused_while_another_took_over_ends_with_an_error(
    cluster: PulsarCluster, stock: Any, tmp_path: Path
) -> None:
    topic, metadata = "public/default/paused", f"zk://{cluster.zookeeper.hosts}/paused"
    produce(stock, topic, 50)
    tier = tmp_path / "tier"
    with closing(Attach(cluster, metadata, tier, topic)) as first, opened(metadata) as store:
        first.expect("ready")
        with closing(Attach(cluster, metadata, tier, topic)) as second:
            second.expect("standby: ")
            os.kill(first.process.pid, signal.SIGSTOP)
            second.expect("ready")
            os.kill(first.process.pid, signal.SIGCONT)
            assert first.process.wait(LIMIT_S) == 1
            assert "another process has taken over" in first.log.read_text()
            produce(stock, topic, 50)
            wait_until(lambda: is_streamed(cluster, store, topic), "the standby does not stream")
            assert second.end() == 0


def test_records_of_another_cluster_are_refused_before_anything_changes(
    cluster: PulsarCluster, stock: Any, tmp_path: Path
) -> None:
    topic, metadata = "public/default/instance", f"sqlite:{tmp_path / 'meta.db'}"
    produce(stock, topic, 5)
    with closing(Attach(cluster, metadata, tmp_path / "tier", topic)) as attach:
        attach.expect("ready")
        assert attach.end() == 0
    zookeeper = KazooClient(cluster.zookeeper.hosts)
    zookeeper.start()
    instance, _ = zookeeper.get("/ledgers/INSTANCEID")
    try:
        zookeeper.set("/ledgers/INSTANCEID", b"of another cluster")
        before = (tmp_path / "meta.db").read_bytes()
        with closing(Attach(cluster, metadata, tmp_path / "tier", topic)) as attach:
            assert attach.process.wait(LIMIT_S) == 2
            assert "records of another cluster of the name lab" in attach.log.read_text()
        assert (tmp_path / "meta.db").read_bytes() == before
    finally:
        zookeeper.set("/ledgers/INSTANCEID", instance)
        zookeeper.stop()
        zookeeper.close()
