"""Processes of ``afterglow attach`` on a real cluster: one of them is the owner, and it writes where it may."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pulsar
import pytest
from kazoo.client import KazooClient
from tests.support.pulsar_cluster import PulsarCluster
from tests.support.zookeeper_proxy import ZooKeeperProxy

from afterglow.attach.ledger_merge import committed_end
from afterglow.errors import MissingDependency
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.address import open_metadata
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from afterglow.metadata.store import MetadataStore

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

LIMIT_S: Final = 240.0
SESSION_S: Final = 4
PATHS: Final = AfterglowPaths("lab")
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


def wait_until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> float:
    """Wait for a condition; returns the seconds that it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + limit_s, what
        time.sleep(0.1)
    return time.monotonic() - begin


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


class Attach:
    """A process of ``afterglow attach``.

    Args:
        cluster: Whose topics it attaches.
        metadata: Its metadata.
        tier: Directory of its tier.
        topics: Their pattern.
        options: Further arguments.
        zookeeper: Where it finds the cluster's ZooKeeper.
    """

    def __init__(
        self,
        cluster: PulsarCluster,
        metadata: str,
        tier: Path,
        topics: str,
        *options: str,
        zookeeper: str | None = None,
    ) -> None:
        tier.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "afterglow", "attach", f"http://127.0.0.1:{cluster._web_port}"]
        command += ["--topics", topics, "--tier", f"file://{tier}", "--metadata", metadata, "--master", "local[1]"]
        command += ["--zookeeper", f"zk://{zookeeper or cluster.zookeeper.hosts}"]
        for setting in (
            "maxOffloadSegmentRolloverTimeInSeconds=2",
            f"metadataStoreSessionTimeoutMillis={1000 * SESSION_S}",
        ):
            command += ["--set", setting]
        self.log = tier.parent / f"attach{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=log, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def expect(self, prefix: str, limit_s: float = LIMIT_S) -> str:
        """Wait for the next line that it prints, which must begin with ``prefix``."""
        line = self._lines.get(timeout=limit_s)
        assert line.startswith(prefix), f"{line!r}\n{self.log.read_text()[-3000:]}"
        return line

    def end(self) -> int:
        """Ask it to end; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        """End it in any case."""
        self.process.kill()
        self.process.wait()


def produce(stock: Any, topic: str, count: int, prefix: str = "m") -> None:
    producer = stock.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(f"{prefix}{number}".encode(), lambda *_: None)
    producer.flush()
    producer.close()


def last_entry(cluster: PulsarCluster, topic: str) -> str:
    return str(cluster.admin("GET", f"persistent/{topic}/internalStats")["lastConfirmedEntry"])


def is_streamed(cluster: PulsarCluster, metadata: MetadataStore, topic: str) -> bool:
    """Whether every entry of a topic is in committed segments."""
    name = TopicName.parse(f"persistent://{topic}").managed_ledger_name
    found = metadata.get(PATHS.managed_ledger(name))
    if found is None:
        return False
    end = committed_end(parse_managed_ledger(found.value).ledgerInfo)
    return end is not None and f"{end.ledger_id}:{end.entry_id}" == last_entry(cluster, topic)


@contextmanager
def opened(address: str) -> Iterator[MetadataStore]:
    with closing(open_metadata(address)) as store:
        yield store


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
    try:
        instance, _ = zookeeper.get("/ledgers/INSTANCEID")
        zookeeper.set("/ledgers/INSTANCEID", b"of another cluster")
        before = (tmp_path / "meta.db").read_bytes()
        with closing(Attach(cluster, metadata, tmp_path / "tier", topic)) as attach:
            assert attach.process.wait(LIMIT_S) == 1
            assert "records of another cluster of the name lab" in attach.log.read_text()
        assert (tmp_path / "meta.db").read_bytes() == before
        zookeeper.set("/ledgers/INSTANCEID", instance)
    finally:
        zookeeper.stop()
        zookeeper.close()
