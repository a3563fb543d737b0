"""``kill -9`` of ``serve --streaming`` in the middle of segments, its store failing: nothing is lost, nothing twice.

Rounds end at moments of a segment's life: the proxy in front of the store kills the server when the request that was
drawn comes by, before or after its effect. Workers of the killed server may go on for a moment, as those of any crash.
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from itertools import cycle
from typing import TYPE_CHECKING

import pytest
from tests.support.fault_proxy import Moment, fault_proxy
from tests.support.raw_client import RawClient, encode_send
from tests.support.served_topics import eventually, offload_all, on_record, wait_for_tier_alone
from tests.support.servers import start_moto
from tests.support.serving import start

import afterglow
from afterglow.format.entry import decode_entry, encode_entry
from afterglow.format.position import Position
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fault_proxy import FaultProxy
    from tests.support.servers import S3Server
    from tests.support.serving import Served

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

log = logging.getLogger(__name__)

ROUNDS = int(os.environ.get("AFTERGLOW_STREAMING_CRASH_ROUNDS", "1"))
"""20 in a full run."""
SEED = int(os.environ.get("AFTERGLOW_STREAMING_CRASH_SEED", "1"))
FAILING = 0.1
"""Share of requests that fail."""
TIMEOUT_S = 300.0
"""For the moment that a round waits for; then it ends anyhow."""
TOPICS = [f"persistent://public/default/stream-{n}" for n in range(2)]
CONF = """
managedLedgerMaxEntriesPerLedger=300
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerOffloadDeletionLagInMillis=0
managedLedgerCacheSizeMB=0
maxOffloadSegmentSizeInBytes=6M
maxOffloadSegmentRolloverTimeInSeconds=3
streamingOffloadBlockSizeInBytes=256K
streamingOffloadPartSizeInBytes=5M
offloadTickIntervalMillis=100
offloadRetryMinBackoffMillis=50
offloadRetryMaxBackoffMillis=500
retentionCheckIntervalInSeconds=1
"""
PER_SECOND = 100
"""Entries of one producer, of 10 KB on average: a segment of several parts every few seconds."""
LARGEST = 20_000
MOMENTS = [
    ("complete_upload", Moment.AFTER),
    ("put_index", Moment.AFTER),
    ("upload_part", Moment.AFTER),
    ("create_upload", Moment.AFTER),
    ("complete_upload", Moment.BEFORE),
    ("upload_part", Moment.BEFORE),
    ("put_index", Moment.BEFORE),
    ("head", Moment.AFTER),
    ("create_upload", Moment.BEFORE),
]


def value_of(topic: int, round_: int, number: int) -> bytes:
    """What a message holds; its beginning tells which it is."""
    lot = random.Random(f"{topic}/{round_}/{number}")
    return b"%d:%d:" % (round_, number) + lot.randbytes(lot.randrange(LARGEST))


class Load:
    """A producer that sends at a steady rate until its broker is gone, and remembers where what was acknowledged is."""

    def __init__(self, service_url: str, topic: int, round_: int) -> None:
        self.acknowledged: dict[Position, int] = {}
        self._topic = topic
        self._round = round_
        self._client = RawClient(service_url)
        self._producer = self._client.open_producer(TOPICS[topic])
        self._sent = 0
        self._threads = [threading.Thread(target=work) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        begin = time.monotonic()
        with suppress(OSError):
            while self._threads[1].is_alive() or not self._sent:
                metadata = MessageMetadata(producer_name="load", sequence_id=self._sent, publish_time=1)
                entry = encode_entry(metadata, value_of(self._topic, self._round, self._sent))
                self._client.write(encode_send(self._producer, self._sent, entry))
                self._sent += 1
                time.sleep(max(begin + self._sent / PER_SECOND - time.monotonic(), 0))

    def _receive(self) -> None:
        with suppress(OSError):
            while True:
                self.acknowledged[self._client.receipt()] = len(self.acknowledged)

    def end(self) -> dict[Position, int]:
        """Which message stands where, of those that were acknowledged, once the broker is gone."""
        for thread in self._threads:
            thread.join(300)
            assert not thread.is_alive()
        self._client.close()
        assert list(self.acknowledged) == sorted(self.acknowledged), "receipts out of order"
        return self.acknowledged


class Assassin:
    """Kills a server when a request comes by."""

    def __init__(self, served: Served, operation: str, moment: Moment, skip: int) -> None:
        self._served = served
        self._wanted = (operation, moment)
        self._left = skip
        self._lock = threading.Lock()
        self.struck = threading.Event()

    def watch(self, operation: str, moment: Moment) -> None:
        if (operation, moment) != self._wanted:
            return
        with self._lock:
            if self._left:
                self._left -= 1
                return
            if self.struck.is_set():
                return
            self._served.kill()
            self.struck.set()


@pytest.fixture
def store_server() -> Iterator[S3Server]:
    with start_moto() as server:
        server.create_bucket("crash")
        yield server


def lose_uploads(server: S3Server) -> int:
    """Let the store forget all unfinished uploads; returns how many."""
    store = open_store("s3://crash", **server.options())
    uploads = store.list_uploads()
    for upload in uploads:
        store.abort_upload(upload)
    return len(uploads)


def start_server(home: Path, store_server: S3Server, proxy: FaultProxy) -> Served:
    conf = home.with_name("broker.conf")
    conf.write_text(
        CONF + f"s3ManagedLedgerOffloadServiceEndpoint={proxy.endpoint}\n"
        f"s3ManagedLedgerOffloadRegion={store_server.region}\n"
        f"s3ManagedLedgerOffloadCredentialId={store_server.access_key}\n"
        f"s3ManagedLedgerOffloadCredentialSecret={store_server.secret_key}\n"
    )
    return start(home, "--streaming", "--conf", str(conf), "--tier", "s3://crash", "--master", "local[2]")


def one_round(served: Served, proxy: FaultProxy, round_: int, killer: Assassin) -> list[dict[Position, int]]:
    proxy.watch = killer.watch
    loads = [Load(served.service_url, topic, round_) for topic in range(len(TOPICS))]
    if not killer.struck.wait(TIMEOUT_S):
        served.kill()
    return [load.end() for load in loads]


def read_back(home: Path, topic: int) -> dict[Position, tuple[int, int, str]]:
    """Round, number and tier of every message by its position, each found byte-equal to what was sent."""
    found: dict[Position, tuple[int, int, str]] = {}
    with afterglow.connect(str(home)) as source:
        for batch in source.topic(TOPICS[topic]).scan(include="entries"):
            for row in batch.to_pylist():
                payload = bytes(decode_entry(row["data"]).payload)
                round_, number = (int(text) for text in payload.split(b":", 2)[:2])
                assert payload == value_of(topic, round_, number)
                position = Position(row["ledger_id"], row["entry_id"])
                assert not found or position > next(reversed(found))
                found[position] = round_, number, row["tier"]
    return found


@pytest.mark.timeout(900 + 120 * ROUNDS)
def test_segments_survive_kill_9_at_any_moment_with_a_failing_store(
    tmp_path: Path, store_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(SEED)
    home = tmp_path / "home"
    acknowledged: list[list[dict[Position, int]]] = []
    struck = lost = 0
    with ExitStack() as stack:
        proxy = stack.enter_context(fault_proxy(store_server.endpoint, seed=SEED, share=FAILING))
        for round_, (operation, moment) in zip(range(ROUNDS), cycle(MOMENTS), strict=False):
            served = start_server(home, store_server, proxy)
            stack.callback(served.kill)
            killer = Assassin(served, operation, moment, rng.randrange(3))
            acknowledged.append(one_round(served, proxy, round_, killer))
            struck += killer.struck.is_set()
            if rng.random() < 0.3:
                lost += lose_uploads(store_server)
            log.info(
                "seed %s, round %s: %s at %s %s, %s acknowledged, %s of %s requests failed so far",
                *(SEED, round_, "killed" if killer.struck.is_set() else "no kill", operation, moment.value),
                *([len(each) for each in acknowledged[-1]], proxy.spoiled, proxy.requests.total()),
            )
        assert struck > ROUNDS // 2, "rounds must end in the middle of segments"

        proxy.watch = lambda _operation, _moment: None
        monkeypatch.setenv("ACCESS_KEY_ID", store_server.access_key)
        monkeypatch.setenv("ACCESS_KEY_SECRET", store_server.secret_key)
        served = start_server(home, store_server, proxy)
        stack.callback(served.kill)
        for topic in range(len(TOPICS)):
            check(home, topic, acknowledged)
            settle(served, home, TOPICS[topic])
            assert check(home, topic, acknowledged) == {"tiered"}
        store = open_store("s3://crash", **store_server.options())
        eventually(lambda: store.list_uploads() == (), store.list_uploads)
        assert served.stop() == 0
        assert proxy.spoiled
    assert store.list_uploads() == ()
    assert "no faults" in verified(home, store_server)


def check(home: Path, topic: int, acknowledged: list[list[dict[Position, int]]]) -> set[str]:
    """Every round's messages are there from the first on, in order, once.

    Acknowledged messages have the positions of their receipts.

    Returns:
        The tiers that they came from.
    """
    found = read_back(home, topic)
    sent = [(round_, number) for round_, number, _ in found.values()]
    for round_, per_topic in enumerate(acknowledged):
        count = sum(its_round == round_ for its_round, _ in sent)
        assert count >= len(per_topic[topic]), f"topic {topic}, round {round_}: acknowledged messages are gone"
        for position, number in per_topic[topic].items():
            assert found[position][:2] == (round_, number)
    expected = [
        (round_, number)
        for round_ in range(len(acknowledged))
        for number in range(sum(its_round == round_ for its_round, _ in sent))
    ]
    assert sent == expected, f"topic {topic}: a gap, or something twice"
    return {tier for *_, tier in found.values()}


def settle(served: Served, home: Path, topic: str) -> None:
    """Wait until everything is in the tier alone, and nothing is under way."""
    try:
        offload_all(served, topic)
        eventually(lambda: on_record(home, topic) == [], lambda: on_record(home, topic))
        wait_for_tier_alone(home, topic)
    except AssertionError:
        log.warning("the server said:\n%s", "\n".join(served.lines[-60:]))
        raise


def verified(home: Path, server: S3Server) -> str:
    options = [f"--option={name}={value}" for name, value in server.options().items()]
    command = [sys.executable, "-m", "afterglow", "verify", str(home), "--tier", "s3://crash", *options]
    done = subprocess.run([*command, "--deep", "--grace", "0s"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
