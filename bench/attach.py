"""``afterglow attach`` on a real Pulsar cluster, against Pulsar's own offloader: the same messages and S3 server.

Needs Maven, Java and Go. ``BENCH_ATTACH_MIB`` says how much is offloaded of each kind, 512 by default, and
``BENCH_ATTACH_TOPICS`` how many topics are idle, 1,000 by default. ``BENCH_ATTACH_ONLY`` names one of the parts.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
from tests.support.live_attach import CLUSTER, AttachedProcess, attach_options, backlog_of, ledgers_of
from tests.support.pulsar_cluster import PulsarCluster
from tests.support.pulsar_standalone import offloaders
from tests.support.raw_client import RawClient
from tests.support.servers import S3Server, start_minio

from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.hot.bookkeeper import BookKeeperClient, BookKeeperCluster
from afterglow.metadata.address import open_metadata
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.zookeeper import ZooKeeperMetadataStore
from bench.broker_load import BATCH, PAYLOAD, pace, push, sends
from bench.measure import keep
from bench.process_tree import cpu_seconds

TOTAL: Final = int(os.environ.get("BENCH_ATTACH_MIB", "512")) << 20
IDLE_TOPICS: Final = int(os.environ.get("BENCH_ATTACH_TOPICS", "1000"))
ONLY: Final = os.environ.get("BENCH_ATTACH_ONLY", "")
WORKERS: Final = 2
WINDOW: Final = 1_000
KINDS: Final = {"unbatched": 1, "batched": BATCH}
"""Messages in an entry."""
ROUNDS: Final = 5
PACED_RATE: Final = 1_000
PACED_SENDS: Final = 10_000
ROLL_OVER_S: Final = 10
STEADY_S: Final = 60
STEADY_RATE: Final = 1_000
IDLE_SETTLE_S: Final = 90.0
IDLE_S: Final = 60.0
LIMIT_S: Final = 900.0
GOALS: Final = {
    "unbatched: attach / bare read from bookies": 0.6,
    "batched: attach / bare read from bookies": 0.6,
    "unbatched: attach / Pulsar's offloader": 4.0,
    "batched: attach / Pulsar's offloader": 1.0,
    "in the tier after the first entry of a segment, less the roll-over time, p99, s": 2.0,
    "produce p99, attach on / off": 1.1,
    "idle topics: share of a core": 0.01,
    "idle topics: Spark tasks": 0,
}
SETTINGS: Final = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "managedLedgerMaxEntriesPerLedger": str(1 << 30),
    "managedLedgerMaxSizePerLedgerMbytes": str(1 << 20),
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerOffloadDriver": "S3",
    "managedLedgerOffloadBucket": "pulsar",
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "-1",
}


class Lab:
    """A cluster with one bookie, and the S3 server of both offloaders."""

    def __init__(self, cluster: PulsarCluster, s3: S3Server, directory: Path) -> None:
        self.cluster = cluster
        self.s3 = s3
        self.directory = directory
        self.metadata = f"sqlite:{directory / 'attach.db'}"

    def attach(self, topics: str, **settings: str) -> AttachedProcess:
        """A process that may read as fast as it can."""
        given = {"sparkMaxConcurrentJobs": str(WORKERS), **settings}
        options = ["--master", f"local[{WORKERS}]", "--max-read-rate", "10G", *attach_options(self.s3, given)]
        return AttachedProcess(self.cluster.admin_url, topics, "s3://attached/bench", self.metadata, *options)

    def create(self, name: str) -> str:
        """Create a topic."""
        topic = f"persistent://public/default/{name}"
        self.cluster.admin("PUT", topic.replace("://", "/"))
        return topic

    def records(self, topic: str) -> list[SegmentRecord]:
        """The records of a topic's segments."""
        node = AfterglowPaths(CLUSTER).segments(TopicName.parse(topic).managed_ledger_name)
        with closing(open_metadata(self.metadata, read_only=True)) as store:
            found = [store.get(f"{node}/{child}") for child in store.children(node)]
        return [SegmentRecord.FromString(each.value) for each in found if each is not None]

    def cpu(self, attached: AttachedProcess | None = None) -> float:
        """Processor seconds of broker and bookie, and of attach with all that it has started."""
        pids = [*self.cluster.pids, *([] if attached is None else [attached.pid])]
        return sum(map(cpu_seconds, pids))


def produce(lab: Lab, topic: str, messages: int) -> int:
    """Write until the topic has enough; returns the bytes of its entries. Then the ledger is closed."""
    with RawClient(lab.cluster.service_url) as client:
        client.lookup(topic)
        producer = client.open_producer(topic)
        count = TOTAL // (messages * len(PAYLOAD))
        done = 0
        while done < count:
            step = min(20_000 // messages, count - done)
            push(client, sends([producer], step, messages), WINDOW if messages == 1 else 50)
            done += step
    lab.cluster.admin("PUT", f"{topic.replace('://', '/')}/unload")
    stats = lab.cluster.admin("GET", f"{topic.replace('://', '/')}/internalStats")
    return sum(ledger["size"] for ledger in stats["ledgers"])


# --- offload ----------------------------------------------------------------------------------------------------------


def offload_by_pulsar(lab: Lab, topic: str) -> tuple[float, float]:
    """Seconds, and processor seconds, until Pulsar's offloader has taken the whole topic."""
    path = topic.replace("://", "/")
    stats = lab.cluster.admin("GET", f"{path}/internalStats")
    last = max(ledger["ledgerId"] for ledger in stats["ledgers"])
    before, begin = lab.cpu(), time.perf_counter()
    lab.cluster.admin("PUT", f"{path}/offload", {"ledgerId": last, "entryId": 0, "partitionIndex": -1})
    wait(lambda: lab.cluster.admin("GET", f"{path}/offload")["status"] == "SUCCESS", "Pulsar has not offloaded")
    return time.perf_counter() - begin, lab.cpu() - before


def offload_by_attach(lab: Lab, attached: AttachedProcess, topic: str) -> tuple[float, float]:
    """Seconds, and processor seconds, from the first record of a segment until all entries are in committed ones."""
    node = AfterglowPaths(CLUSTER).uploads(TopicName.parse(topic).managed_ledger_name)
    with closing(open_metadata(lab.metadata, read_only=True)) as store:
        wait(lambda: bool(store.children(node) or lab.records(topic)), "nothing is offloaded")
        before, begin = lab.cpu(attached), time.perf_counter()
        wait(lambda: is_covered(lab, topic), "attach has not offloaded")
    return time.perf_counter() - begin, lab.cpu(attached) - before


def is_covered(lab: Lab, topic: str) -> bool:
    """Whether all closed ledgers with entries are in committed segments."""
    ledgers = [ledger for ledger in ledgers_of(lab.metadata, topic) if ledger.entries]
    return bool(ledgers) and all(
        any(
            segment.complete and segment.endEntryId == ledger.entries - 1
            for segment in ledger.offloadContext.offloadSegment
        )
        for ledger in ledgers
    )


def read_range(zookeeper: str, ledger_id: int, first: int, last: int) -> int:
    """Read entries of a ledger from its bookies and drop them; returns their bytes."""
    with (
        closing(ZooKeeperMetadataStore(zookeeper)) as store,
        BookKeeperClient(BookKeeperCluster(store)) as client,
    ):
        ledger = client.open(ledger_id)
        total = 0
        while first <= last:
            data, count = ledger.read_frames(first, 8 << 20)
            total += len(data)
            first += count
        return total


def bare_read(lab: Lab, topic: str) -> float:
    """Seconds in which as many processes as Spark has workers read a topic from its bookies."""
    stats = lab.cluster.admin("GET", f"{topic.replace('://', '/')}/internalStats")
    hosts = lab.cluster.zookeeper.hosts
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        for _ in pool.map(read_range, [hosts] * WORKERS, [0] * WORKERS, [0] * WORKERS, [-1] * WORKERS):
            pass  # imports
        jobs = []
        begin = time.perf_counter()
        for ledger in stats["ledgers"]:
            share = -(-ledger["entries"] // WORKERS)
            for first in range(0, ledger["entries"], share or 1):
                last = min(first + share, ledger["entries"]) - 1
                jobs.append(pool.submit(read_range, hosts, ledger["ledgerId"], first, last))
        for job in jobs:
            job.result()
        return time.perf_counter() - begin


def offloads(lab: Lab) -> dict[str, Any]:
    found: dict[str, Any] = {}
    topics = {kind: lab.create(f"offload-{kind}") for kind in KINDS}
    sizes = {kind: produce(lab, topics[kind], messages) for kind, messages in KINDS.items()}
    warm_up = lab.create("offload-warm")
    with lab.attach("public/default/offload-warm") as attached:
        with RawClient(lab.cluster.service_url) as client:
            client.lookup(warm_up)
            push(client, sends([client.open_producer(warm_up)], 1_000, 1), WINDOW)
        wait(lambda: bool(lab.records(warm_up)), "the warm-up is not offloaded")
    for kind, topic in topics.items():
        mebibytes = sizes[kind] / (1 << 20)
        bare_s = bare_read(lab, topic)
        with lab.attach(f"public/default/offload-{kind}") as attached:
            attach_s, attach_cpu = offload_by_attach(lab, attached, topic)
        own_s, own_cpu = offload_by_pulsar(lab, topic)
        found |= {
            f"{kind}: bare read from bookies, MiB/s": round(mebibytes / bare_s),
            f"{kind}: attach, MiB/s": round(mebibytes / attach_s),
            f"{kind}: Pulsar's offloader, MiB/s": round(mebibytes / own_s),
            f"{kind}: attach / bare read from bookies": round(bare_s / attach_s, 2),
            f"{kind}: attach / Pulsar's offloader": round(own_s / attach_s, 2),
            f"{kind}: attach, processor seconds per GiB of cluster and attach": round(1024 * attach_cpu / mebibytes, 1),
            f"{kind}: Pulsar's offloader, processor seconds per GiB": round(1024 * own_cpu / mebibytes, 1),
        }
    return found


# --- readable in the tier ---------------------------------------------------------------------------------------------


def availability(lab: Lab) -> dict[str, Any]:
    """Seconds from the first entry of each segment to its commit, of a topic with a steady load."""
    topic = lab.create("steady")
    with lab.attach("public/default/steady", maxOffloadSegmentRolloverTimeInSeconds=str(ROLL_OVER_S)) as attached:
        wait(lambda: backlog_of(lab.cluster, topic) is not None, "the topic is not attached")
        with RawClient(lab.cluster.service_url) as client:
            client.lookup(topic)
            producer = client.open_producer(topic)
            deadline = time.monotonic() + STEADY_S
            while time.monotonic() < deadline:
                pace(client, sends([producer], STEADY_RATE, 1), STEADY_RATE)
        wait(lambda: backlog_of(lab.cluster, topic) == 0, f"not offloaded: {attached.lines[-5:]}")
    records = sorted(lab.records(topic), key=lambda record: record.offloaded_ms)
    waits = [(record.offloaded_ms - record.assigned_ms) / 1000 - ROLL_OVER_S for record in records[1:]]
    return {
        "segments of a steady load": len(records),
        "in the tier after the first entry of a segment, less the roll-over time, p50, s": round(
            float(np.percentile(waits, 50)), 2
        ),
        "in the tier after the first entry of a segment, less the roll-over time, p99, s": round(
            float(np.percentile(waits, 99)), 2
        ),
    }


# --- producers --------------------------------------------------------------------------------------------------------


def latencies(lab: Lab) -> dict[str, Any]:
    """Receipts of a topic while attach runs and while it does not, in turns."""
    topic = lab.create("paced")
    p99: dict[bool, list[float]] = {True: [], False: []}
    with RawClient(lab.cluster.service_url) as client:
        client.lookup(topic)
        producer = client.open_producer(topic)
        pace(client, sends([producer], PACED_SENDS, 1), PACED_RATE)
        for _ in range(ROUNDS):
            p99[False].append(float(np.percentile(pace(client, sends([producer], PACED_SENDS, 1), PACED_RATE), 99)))
            with attaching(lab, topic):
                p99[True].append(float(np.percentile(pace(client, sends([producer], PACED_SENDS, 1), PACED_RATE), 99)))
    on, off = statistics.median(p99[True]), statistics.median(p99[False])
    return {
        f"produce p99 at {PACED_RATE} msg/s, attach on, ms": round(1000 * on, 2),
        f"produce p99 at {PACED_RATE} msg/s, attach off, ms": round(1000 * off, 2),
        "produce p99, attach on / off": round(on / off, 2),
    }


@contextmanager
def attaching(lab: Lab, topic: str) -> Iterator[None]:
    """A process that has caught up with a topic."""
    with lab.attach("public/default/paced") as attached:
        wait(lambda: backlog_of(lab.cluster, topic) is not None, "the topic is not attached")
        wait(lambda: (backlog_of(lab.cluster, topic) or 0) == 0, f"attach is behind: {attached.lines[-5:]}")
        yield
        attached.stop()


# --- idle topics ------------------------------------------------------------------------------------------------------


def idle(lab: Lab) -> dict[str, Any]:
    """Processor time of attach with many topics that nothing is written to."""
    lab.cluster.admin("PUT", "namespaces/public/idle")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: lab.cluster.admin("PUT", f"persistent/public/idle/t{number}"), range(IDLE_TOPICS)))
    with lab.attach("public/idle/.*") as attached:
        begin = time.monotonic()
        wait(lambda: sum("attached persistent" in line for line in attached.lines) >= IDLE_TOPICS, "not all attached")
        attached_s = time.monotonic() - begin
        threading.Event().wait(IDLE_SETTLE_S)
        before, begin = cpu_seconds(attached.pid), time.perf_counter()
        threading.Event().wait(IDLE_S)
        share = (cpu_seconds(attached.pid) - before) / (time.perf_counter() - begin)
        workers = len(attached.workers())
    return {
        "idle topics": IDLE_TOPICS,
        "idle topics: attached after, s": round(attached_s, 1),
        "idle topics: share of a core": round(share, 4),
        "idle topics: Spark tasks": workers,
    }


def wait(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} after {LIMIT_S:g} s")
        time.sleep(0.02)


PARTS: Final[dict[str, Callable[[Lab], dict[str, Any]]]] = {
    "offloads": offloads,
    "availability": availability,
    "latencies": latencies,
    "idle": idle,
}


def main() -> None:
    figures: dict[str, Any] = {"MiB": TOTAL >> 20}
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        directory = Path(name)
        for child in ("pulsar", "s3"):
            (directory / child).mkdir()
        with start_minio(directory / "s3") as s3:
            for bucket in ("pulsar", "attached"):
                s3.create_bucket(bucket)
            settings = {
                **SETTINGS,
                "offloadersDirectory": str(offloaders(directory / "pulsar")),
                "managedLedgerOffloadServiceEndpoint": s3.endpoint,
                "managedLedgerOffloadRegion": s3.region,
            }
            environ = {"ACCESS_KEY_ID": s3.access_key, "ACCESS_KEY_SECRET": s3.secret_key}
            os.environ.update(environ)  # the broker inherits them
            with PulsarCluster(directory / "pulsar", [{}], settings) as cluster:
                lab = Lab(cluster, s3, directory)
                for part, measure in PARTS.items():
                    if ONLY in {"", part}:
                        figures |= measure(lab)
    keep("attach", figures, GOALS)
