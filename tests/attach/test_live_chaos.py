"""Stock producers of every kind write to a real cluster while everything around ``afterglow attach`` is killed.

Topics of namespace ``keep`` stay in the cluster, so that the tier is compared with the bookies, entry by entry. Topics
of ``trim`` are trimmed as soon as attach has acknowledged them, so that the tier is their only copy.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

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
from tests.support.live_load import At, Kind, StockProducer, TransactionProducer, crypto_keys
from tests.support.pulsar_cluster import PulsarCluster
from tests.support.served_topics import eventually
from tests.support.servers import ServerUnavailable

import afterglow
from afterglow.errors import MissingDependency
from afterglow.format.entry import decode_entry
from afterglow.hot.bookkeeper import BookKeeperClient, BookKeeperCluster
from afterglow.metadata.zookeeper import ZooKeeperMetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

MINUTES = float(os.environ.get("AFTERGLOW_ATTACH_CHAOS_MINUTES", "3"))
"""Time during which things are killed; 30 in a full run."""
SEED = int(os.environ.get("AFTERGLOW_ATTACH_CHAOS_SEED", str(random.randrange(10_000))))
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(1_500 + 120 * MINUTES)]

log = logging.getLogger(__name__)

TIER = "s3://attached/chaos"
SETTINGS = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "managedLedgerMaxEntriesPerLedger": "1500",
    "defaultRetentionTimeInMinutes": "0",
    "defaultRetentionSizeInMB": "0",
    "maxMessageSize": str(256 << 10),
    "transactionCoordinatorEnabled": "true",
    "brokerEntryMetadataInterceptors": ",".join(
        f"org.apache.pulsar.common.intercept.Append{name}MetadataInterceptor" for name in ("BrokerTimestamp", "Index")
    ),
}
QUIET_S = (2.0, 8.0)
"""Between two blows."""
OUTAGE_S = (1.0, 8.0)
TXN_COMMIT, TXN_ABORT = 21, 22
"""Types of markers in topics; see ``PulsarMarkers.proto``."""

KEEP, TRIM = "persistent://public/keep", "persistent://public/trim"
CODECS = {name: pulsar.CompressionType.__members__[name] for name in ("LZ4", "ZLib", "ZSTD", "SNAPPY")}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PulsarCluster]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    try:
        started = PulsarCluster(directory, [{}] * 4, SETTINGS)
    except MissingDependency as error:
        pytest.skip(str(error))
    with started:
        for namespace, retention in (("keep", -1), ("trim", 0)):
            started.admin("PUT", f"namespaces/public/{namespace}")
            policy = {"retentionTimeInMinutes": retention, "retentionSizeInMB": retention}
            started.admin("POST", f"namespaces/public/{namespace}/retention", policy)
        yield started


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[KillableS3]:
    directory = tmp_path / "s3"
    directory.mkdir()
    try:
        server = KillableS3(directory)
    except ServerUnavailable as error:
        pytest.skip(str(error))
    with server:
        server.create_bucket("attached")
        yield server


# --- load -------------------------------------------------------------------------------------------------------------


@dataclass
class Load:
    """All producers."""

    stock: list[StockProducer] = field(default_factory=list)
    transactions: list[TransactionProducer] = field(default_factory=list)

    @property
    def topics(self) -> list[str]:
        """Every topic that is written, each partition by itself."""
        plain = {f"{KEEP}/{name}" for name in ("plain", "codecs", "encrypted", "transactions")}
        plain |= {f"{TRIM}/{name}" for name in ("unbatched", "batched", "chunked")}
        return sorted(plain | {f"{TRIM}/parts-partition-{number}" for number in range(3)})

    def stop(self) -> None:
        for stock in self.stock:
            stock.stop()
        for transactional in self.transactions:
            transactional.stop()


def create_topics(cluster: PulsarCluster, load: Load) -> None:
    for topic in load.topics:
        if "-partition-" not in topic:
            cluster.admin("PUT", topic.replace("://", "/"))
    cluster.admin("PUT", f"{TRIM.replace('://', '/')}/parts/partitions", 3)


def start_load(load: Load, client: Any, cluster: PulsarCluster, directory: Path) -> None:
    batched = {"batching_enabled": True, "batching_max_messages": 30, "batching_max_publish_delay_ms": 20}
    add = load.stock.append
    add(StockProducer(client, f"{KEEP}/plain", Kind("plain", per_second=150)))
    add(StockProducer(client, f"{TRIM}/unbatched", Kind("unbatched", per_second=200)))
    lz4 = {**batched, "compression_type": CODECS["LZ4"]}
    add(StockProducer(client, f"{TRIM}/batched", Kind("batched", lz4, per_second=400, max_bytes=1_000)))
    for number, (name, codec) in enumerate(CODECS.items()):
        options = {"compression_type": codec, **(batched if number % 2 else {})}
        add(StockProducer(client, f"{KEEP}/codecs", Kind(f"codec-{name}", options, per_second=40)))
    chunked = Kind("chunked", {"chunking_enabled": True}, per_second=2, max_bytes=1 << 20)
    add(StockProducer(client, f"{TRIM}/chunked", chunked))
    encrypted = {"encryption_key": "k", "crypto_key_reader": crypto_keys(directory)}
    add(StockProducer(client, f"{KEEP}/encrypted", Kind("encrypted", encrypted)))
    add(StockProducer(client, f"{TRIM}/parts", Kind("parts", per_second=150, keys=20), typed=True))
    load.transactions.append(TransactionProducer(cluster.service_url, f"{KEEP}/transactions", directory, SEED))


# --- blows ------------------------------------------------------------------------------------------------------------


class Chaos:
    """Kills what runs, one thing after another, and starts it again."""

    def __init__(self, cluster: PulsarCluster, s3: KillableS3, attached: AttachedProcess, load: Load) -> None:
        self._cluster = cluster
        self._s3 = s3
        self._attached = attached
        self._topics = load.topics
        self._rng = random.Random(SEED)
        self._clock = Event()
        self.struck: dict[str, int] = {}
        self._blows: dict[str, Callable[[], bool]] = {
            "kill -9 of attach": self._crash_attach,
            "kill -9 of a Spark worker": self._kill_worker,
            "kill -9 of the S3 server": self._kill_s3,
            "kill -9 of the broker": self._kill_broker,
            "restart of the broker": self._restart_broker,
            "unload of a topic": self._unload_topic,
            "kill -9 of a bookie": self._kill_bookie,
        }

    def run(self, minutes: float) -> None:
        """Strike until the time is over; every kind of blow at least once."""
        deadline = time.monotonic() + minutes * 60
        due = list(self._blows)
        self._rng.shuffle(due)
        while due or time.monotonic() < deadline:
            self._wait(*QUIET_S)
            name = due.pop() if due else self._rng.choice(list(self._blows))
            begin = time.monotonic()
            if self._blows[name]():
                self.struck[name] = self.struck.get(name, 0) + 1
                log.info("seed %d: %s (%.1f s)", SEED, name, time.monotonic() - begin)
            elif name not in self.struck:
                due.insert(0, name)
            assert self._attached.is_running, "attach has ended by itself"

    def _wait(self, shortest: float, longest: float) -> None:
        self._clock.wait(self._rng.uniform(shortest, longest))

    def _crash_attach(self) -> bool:
        self._attached.crash()
        self._attached.start()
        return True

    def _kill_worker(self) -> bool:
        """Kill one that runs a task; False if no task runs."""
        for pid in self._attached.workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def _kill_s3(self) -> bool:
        self._s3.kill()
        self._wait(*OUTAGE_S)
        self._s3.start()
        return True

    def _kill_broker(self) -> bool:
        self._cluster.kill_broker()
        self._cluster.start_broker()
        return True

    def _restart_broker(self) -> bool:
        self._cluster.stop_broker()
        self._cluster.start_broker()
        return True

    def _unload_topic(self) -> bool:
        self._cluster.admin("PUT", f"{self._rng.choice(self._topics).replace('://', '/')}/unload")
        return True

    def _kill_bookie(self) -> bool:
        """Kill one of the four; a fifth replaces it the next time, for its entries have another replica."""
        bookies = list(self._cluster.bookies.values())
        if "kill -9 of a bookie" in self.struck:
            return False
        self._rng.choice(bookies).kill()
        return True


# --- what must be there -----------------------------------------------------------------------------------------------


def entries_in_tier(source: Any, topic: str) -> dict[tuple[int, int], bytes]:
    """Every entry of a topic by its position; in order, once, and without a gap within a ledger."""
    found: dict[tuple[int, int], bytes] = {}
    last = (-1, -1)
    for batch in source.topic(topic).scan(include="entries", fail_on_data_loss=True):
        for row in batch.to_pylist():
            position = (row["ledger_id"], row["entry_id"])
            assert position > last, f"{topic}: {position} comes after {last}"
            assert position[1] == (last[1] + 1 if position[0] == last[0] else 0), f"{topic}: {last} to {position}"
            assert row["tier"] == "tiered"
            found[position] = bytes(row["data"])
            last = position
    return found


def entries_in_bookies(client: BookKeeperClient, cluster: PulsarCluster, topic: str) -> dict[tuple[int, int], bytes]:
    """Every entry of a topic that the cluster keeps, by the list and the last confirmed entry of its broker."""
    stats = cluster.admin("GET", f"{topic.replace('://', '/')}/internalStats")
    end_ledger, end_entry = map(int, stats["lastConfirmedEntry"].split(":"))
    found: dict[tuple[int, int], bytes] = {}
    for ledger in stats["ledgers"]:
        ledger_id, last = ledger["ledgerId"], ledger["entries"] - 1
        if ledger_id == end_ledger:
            last = end_entry
        if last >= 0:
            entries = client.open(ledger_id, last).read(0, last)
            assert len(entries) == last + 1
            found |= {(ledger_id, entry_id): bytes(entry) for entry_id, entry in enumerate(entries)}
    return found


def check_messages(source: Any, topic: str, producers: list[StockProducer]) -> int:
    """Every acknowledged message is where its receipt said, with its content; what is there beside was sent twice."""
    found: dict[str, dict[At, bytes]] = {producer.kind.name: {} for producer in producers}
    columns = ["topic", "ledger_id", "entry_id", "batch_index", "producer", "value"]
    for batch in source.topic(topic).scan(columns=columns):
        for row in batch.to_pylist():
            _, is_partition, number = row["topic"].rpartition("-partition-")
            at = At(int(number) if is_partition else -1, row["ledger_id"], row["entry_id"], max(row["batch_index"], 0))
            assert at not in found[row["producer"]], f"{topic}: {at} is there twice"
            found[row["producer"]][at] = bytes(row["value"])
    for producer in producers:
        assert not producer.failed
        assert len(producer.acknowledged) == producer.sent
        there = found[producer.kind.name]
        order = []
        for at, number in sorted(producer.acknowledged.items()):
            acknowledged = at._replace(batch_index=max(at.batch_index, 0))  # the stock client has -1 outside of batches
            assert acknowledged in there, f"{topic}: message {number} of {producer.kind.name} is not at {at}"
            check_value(producer, number, there.pop(acknowledged))
            order.append(number)
        assert producer.kind.keys or order == sorted(order), f"{topic}: {producer.kind.name} is out of order"
        for value in there.values():  # sent again, because a broker was gone before it answered
            check_value(producer, number_of(producer, value), value)
    return sum(producer.sent for producer in producers)


def number_of(producer: StockProducer, value: bytes) -> int:
    if producer.kind.name == "parts":
        return int(json.loads(value)["number"])
    return int(value.split(b":", 2)[1])


def check_value(producer: StockProducer, number: int, value: bytes) -> None:
    if producer.kind.name == "parts":
        assert json.loads(value) == {"producer": producer.kind.name, "number": number}
    else:
        assert value == producer.kind.value(number)


def check_transactions(source: Any, load: Load, entries: dict[tuple[int, int], bytes]) -> tuple[int, int]:
    """Messages of committed transactions are read, of aborted ones not; both are in the tier, with their markers."""
    (producer,) = load.transactions
    rows = source.topic(producer.topic).scan(columns=["ledger_id", "entry_id", "value"]).read_all().to_pylist()
    visible = {(row["ledger_id"], row["entry_id"]): int(row["value"]) for row in rows}
    ended: dict[tuple[int, int], int] = {}
    for entry in entries.values():
        metadata = decode_entry(entry).metadata
        if metadata.marker_type in {TXN_COMMIT, TXN_ABORT}:
            ended[metadata.txnid_most_bits, metadata.txnid_least_bits] = metadata.marker_type
    committed = aborted = 0
    for transaction in producer.transactions:
        for position, number in transaction.messages.items():
            assert position in entries
            if transaction.outcome in {"committed", "plain"}:
                assert visible[position] == number
            elif transaction.outcome == "aborted":
                assert position not in visible
        if transaction.outcome == "committed":
            assert ended[transaction.txn] == TXN_COMMIT  # type: ignore[index]
            committed += 1
        elif transaction.outcome == "aborted":
            assert ended[transaction.txn] == TXN_ABORT  # type: ignore[index]
            aborted += 1
    return committed, aborted


def test_the_tier_equals_what_was_acknowledged_whatever_is_killed(
    cluster: PulsarCluster, s3: KillableS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.info("seed %d, %g minutes", SEED, MINUTES)
    print(f"AFTERGLOW_ATTACH_CHAOS_SEED={SEED}")  # noqa: T201 - repeats a failed run
    metadata = f"sqlite:{tmp_path / 'attach.db'}"
    monkeypatch.setenv("ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("ACCESS_KEY_SECRET", s3.secret_key)
    load = Load()
    create_topics(cluster, load)
    with ExitStack() as stack:
        client = pulsar.Client(
            cluster.service_url,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log")),
            operation_timeout_seconds=120,
        )
        stack.callback(client.close)
        options = ["--master", "local[2]", *attach_options(s3)]
        attached = stack.enter_context(
            AttachedProcess(cluster.admin_url, "public/(keep|trim)/.*", TIER, metadata, *options)
        )
        for topic in load.topics:
            eventually(lambda topic=topic: backlog_of(cluster, topic) is not None, lambda: attached.lines[-20:])  # type: ignore[misc]
        start_load(load, client, cluster, tmp_path)
        for producer in load.transactions:
            stack.callback(producer.kill)
        chaos = Chaos(cluster, s3, attached, load)
        chaos.run(MINUTES)
        load.stop()
        wait_for_tier(cluster, load.topics)
        for topic in load.topics:
            eventually(lambda topic=topic: not unfinished_of(metadata, topic), lambda: unfinished_of(metadata, topic))  # type: ignore[misc] # noqa: B023
        store = s3.store(TIER)
        eventually(lambda: store.list_uploads() == (), store.list_uploads)
        assert attached.stop() == 0
        check(cluster, s3, load, metadata)
        log.info("seed %d: %s", SEED, chaos.struck)


def check(cluster: PulsarCluster, s3: KillableS3, load: Load, metadata: str) -> None:
    with (
        afterglow.connect(cluster.admin_url, metadata=metadata, hot="skip") as source,
        closing(ZooKeeperMetadataStore(cluster.zookeeper.hosts)) as zookeeper,
        BookKeeperClient(BookKeeperCluster(zookeeper)) as bookies,
    ):
        entries = {topic: entries_in_tier(source, topic) for topic in load.topics}
        for topic in load.topics:
            if topic.startswith(KEEP):
                assert entries[topic] == entries_in_bookies(bookies, cluster, topic)
        for name in ("plain", "unbatched", "batched", "codecs", "chunked", "parts"):
            producers = [each for each in load.stock if each.topic.endswith(f"/{name}")]
            log.info("%s: %d messages", name, check_messages(source, producers[0].topic, producers))
        (encrypted,) = [each for each in load.stock if each.kind.name == "encrypted"]
        assert {(at.ledger_id, at.entry_id) for at in encrypted.acknowledged} <= entries[encrypted.topic].keys()
        log.info("transactions: %s", check_transactions(source, load, entries[f"{KEEP}/transactions"]))
    assert "no faults" in verified(cluster.admin_url, metadata, s3, "--deep")
