"""A process of ``afterglow attach`` on a real cluster, and the progress of what it streams."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from afterglow.attach.ledger_merge import committed_end
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.address import open_metadata
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.pulsar_cluster import PulsarCluster

    from afterglow.metadata.store import MetadataStore

LIMIT_S: Final = 240.0
"""For what takes seconds; the machine may be busy."""
SESSION_S: Final = 4
"""Session timeout at ZooKeeper."""
PATHS: Final = AfterglowPaths("lab")


def wait_until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> float:
    """Wait for a condition; returns the seconds that it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + limit_s, what
        time.sleep(0.1)
    return time.monotonic() - begin


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
    """Write messages, each an entry of its own."""
    producer = stock.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(f"{prefix}{number}".encode(), lambda *_: None)
    producer.flush()
    producer.close()


def last_entry(cluster: PulsarCluster, topic: str) -> str:
    """The last confirmed entry of a topic, by its broker."""
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
    """A metadata store that is open during the block."""
    with closing(open_metadata(address)) as store:
        yield store
