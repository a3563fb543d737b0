"""Ledgers of a real Pulsar cluster with four bookies, read from the bookies while stock clients write."""

from __future__ import annotations

import inspect
import socket
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.pulsar_cluster import OldBookie, PulsarCluster

from afterglow.errors import AccessDenied, HotLogUnavailable, MissingDependency
from afterglow.format.entry import decode_entry
from afterglow.format.frames import iter_entries, scan_frames
from afterglow.format.position import Position
from afterglow.hot.bookkeeper import BookKeeperClient, BookKeeperCluster, ReadLimits
from afterglow.hot.bookkeeper.connection import ReadRequest
from afterglow.hot.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from afterglow.hot.bookkeeper.protocol import encode_read
from afterglow.hot.pulsar import PulsarAddress, RawReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from afterglow.hot.bookkeeper import BookKeeperLedger
    from afterglow.hot.bookkeeper.bookie import Bookie
    from afterglow.metadata.zookeeper import ZooKeeperMetadataStore

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

SMALL_QUEUE = "bk-four"
"""A bookie with one read thread for all ledgers, and a queue of 100 requests; its id is not an address."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    small = {"bookieId": SMALL_QUEUE, "numReadWorkerThreads": "1", "maxPendingReadRequestsPerThread": "100"}
    try:
        recovery = {"autoRecoveryDaemonEnabled": "true"}
        bookies = [recovery, recovery, recovery, {**small, **recovery}]
        started = PulsarCluster(tmp_path_factory.mktemp("cluster"), bookies)
    except MissingDependency as error:
        pytest.skip(str(error))
    with started:
        for name, (ensemble, write, ack) in {"full": (2, 2, 2), "wide": (4, 4, 3)}.items():
            started.admin("PUT", f"namespaces/public/{name}")
            quorums = {"bookkeeperEnsemble": ensemble, "bookkeeperWriteQuorum": write, "bookkeeperAckQuorum": ack}
            started.admin(
                "POST", f"namespaces/public/{name}/persistence", {**quorums, "managedLedgerMaxMarkDeleteRate": 0}
            )
        yield started


@pytest.fixture(scope="module")
def store(cluster: PulsarCluster) -> Iterator[ZooKeeperMetadataStore]:
    from afterglow.metadata.zookeeper import ZooKeeperMetadataStore

    store = ZooKeeperMetadataStore(cluster.zookeeper.hosts)
    yield store
    store.close()


@pytest.fixture
def client(store: ZooKeeperMetadataStore) -> Iterator[BookKeeperClient]:
    with BookKeeperClient(BookKeeperCluster(store), ReadLimits(timeout_s=10, deadline_s=60)) as client:
        yield client


@pytest.fixture
def stock(cluster: PulsarCluster) -> Iterator[Any]:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


class Writer:
    """A stock producer that writes until it is stopped, with every acknowledged payload by its position."""

    def __init__(self, stock: Any, topic: str, size: int = 200) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self._size = size
        self._producer = stock.create_producer(
            topic,
            batching_enabled=False,
            block_if_queue_full=True,
            max_pending_messages=500,
            send_timeout_millis=60_000,
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def write(self, count: int) -> None:
        """Send some messages and wait for their receipts."""
        for number in range(count):
            self._send(number)
        self._producer.flush()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()

    def last(self, ledger_id: int) -> int:
        return max((entry for ledger, entry in dict(self.acknowledged) if ledger == ledger_id), default=-1)

    def _write(self) -> None:
        number = 0
        while not self._ended.is_set():
            self._send(number)
            number += 1
            if number % 50 == 0:
                time.sleep(0.02)

    def _send(self, number: int) -> None:
        payload = (b"%d " % number) * (self._size // 8 + number % 5)

        def on_receipt(result: Any, message_id: Any) -> None:
            assert result == pulsar.Result.Ok, result
            self.acknowledged[message_id.ledger_id(), message_id.entry_id()] = payload

        self._producer.send_async(payload, on_receipt)


def end_of(cluster: PulsarCluster, topic: str) -> Position:
    """The last confirmed entry, by the broker."""
    stats = cluster.admin("GET", f"{topic.replace('://', '/')}/internalStats")
    ledger_id, _, entry_id = stats["lastConfirmedEntry"].partition(":")
    return Position(int(ledger_id), int(entry_id))


def entries_of(ledger: BookKeeperLedger, max_bytes: int = 1 << 20) -> list[memoryview]:
    """All confirmed entries, by frames."""
    found: list[memoryview] = []
    while len(found) <= ledger.confirmed:
        data, count = ledger.read_frames(len(found), max_bytes)
        frames = scan_frames(data, len(found))
        assert len(frames) == count
        assert not frames.damage
        found += [entry for _, entry in iter_entries(data, frames)]
    return found


def check(ledger: BookKeeperLedger, writer: Writer) -> None:
    """Every acknowledged payload is there, at its position, and the cumulative lengths are right."""
    entries = entries_of(ledger)
    assert len(entries) == ledger.confirmed + 1
    for entry_id, entry in enumerate(entries):
        payload = bytes(decode_entry(entry).payload)
        acknowledged = writer.acknowledged.get((ledger.ledger_id, entry_id))
        assert acknowledged is None or payload == acknowledged  # a receipt may still be under way
    missing = set(range(min(len(entries), writer.last(ledger.ledger_id)))) - {
        entry for each, entry in writer.acknowledged if each == ledger.ledger_id
    }
    assert not missing
    for entry_id in (0, len(entries) // 2, len(entries) - 1):
        assert ledger.bytes_up_to(entry_id) == sum(map(len, entries[: entry_id + 1]))


@pytest.mark.parametrize("namespace", ["default", "full"])
def test_rule_1_a_live_ledger_is_read_and_its_producer_writes_on_to_it(
    cluster: PulsarCluster, store: ZooKeeperMetadataStore, client: BookKeeperClient, stock: Any, namespace: str
) -> None:
    topic = f"persistent://public/{namespace}/live"
    writer = Writer(stock, topic)
    writer.start()
    wait_until(lambda: len(writer.acknowledged) > 500)
    position = end_of(cluster, topic)
    ledger = client.open(position.ledger_id, position.entry_id)
    before = store.get(_node(position.ledger_id))
    for _ in range(10):
        ledger.advance(end_of(cluster, topic).entry_id)
        check(ledger, writer)
    read_to, written = ledger.confirmed, len(writer.acknowledged)
    assert read_to > position.entry_id
    wait_until(lambda: len(writer.acknowledged) > written + 500)
    writer.stop()
    assert {ledger_id for ledger_id, _ in writer.acknowledged} == {position.ledger_id}
    after = store.get(_node(position.ledger_id))
    assert before is not None
    assert after is not None
    assert (before.version, before.value) == (0, after.value)
    ledger.advance(end_of(cluster, topic).entry_id)
    check(ledger, writer)
    assert len(writer.acknowledged) == ledger.confirmed + 1
    writer.close()
    # As a broker serves them, byte for byte.
    reader = RawReader(PulsarAddress(cluster.service_url), topic)
    last = Position(ledger.ledger_id, ledger.confirmed)
    raw = b"".join(bytes(each.data) for each in reader.read(Position(ledger.ledger_id, 0), last))
    reader.close()
    assert raw == ledger.read_frames(0, 1 << 30)[0]
    metadata = ledger._replicas.metadata
    assert (metadata.ensemble_size, metadata.write_quorum) == ((3, 2) if namespace == "default" else (2, 2))
    probed = {bookie._has_batches for bookie in client._bookies.values()} - {None}
    assert probed == {True}


def test_rule_2_the_end_without_a_broker_is_no_later_than_that_of_the_broker(
    cluster: PulsarCluster, client: BookKeeperClient, stock: Any
) -> None:
    topic = "persistent://public/default/ends"
    writer = Writer(stock, topic)
    writer.write(150)
    writer.write(150)
    position = end_of(cluster, topic)
    assert position.entry_id == 299
    bound = client.confirmed_by_bookies(position.ledger_id)
    assert 149 <= bound < 299  # it lags behind by what was in flight when the last entry was sent
    assert len(entries_of(client.open(position.ledger_id, bound))) == bound + 1
    # Closed by an unload: its metadata has the end.
    cluster.admin("PUT", f"{topic.replace('://', '/')}/unload")
    wait_until(lambda: client.open(position.ledger_id).closed)
    assert client.confirmed_by_bookies(position.ledger_id) == 299
    check(client.open(position.ledger_id), writer)
    # The next ledger is fresh: no bookie knows it, and it is not lost.
    wait_until(lambda: end_of(cluster, topic).entry_id >= -1)
    ledgers = cluster.admin("GET", f"{topic.replace('://', '/')}/internalStats")["ledgers"]
    fresh = max(each["ledgerId"] for each in ledgers)
    if fresh != position.ledger_id:
        assert client.confirmed_by_bookies(fresh) == -1
        assert client.open(fresh).read(0, 10) == []
    writer.close()


def test_rejected_requests_are_sent_again_until_all_are_read(
    cluster: PulsarCluster, client: BookKeeperClient, stock: Any
) -> None:
    topic = "persistent://public/wide/overload"
    writer = Writer(stock, topic)
    writer.write(6_000)
    position = end_of(cluster, topic)
    ledger = client.open(position.ledger_id, position.entry_id)
    prefer(ledger, SMALL_QUEUE)
    bookie = client.bookie(SMALL_QUEUE)
    bookie._has_batches = False  # batches would need too few requests for an overload
    rejections = 0
    count = bookie._window.on_rejection

    def on_rejection() -> None:
        nonlocal rejections
        rejections += 1
        count()

    bookie._window.on_rejection = on_rejection  # type: ignore[method-assign]
    check(ledger, writer)
    assert rejections
    assert set(client._bookies) >= {SMALL_QUEUE}
    writer.close()


def test_rule_4_a_slow_consumer_does_not_stall_the_bookie_for_others(
    cluster: PulsarCluster, client: BookKeeperClient, store: ZooKeeperMetadataStore, stock: Any
) -> None:
    large, small = (
        Writer(stock, f"persistent://public/wide/{name}", size) for name, size in (("a", 400_000), ("b", 99))
    )
    large.write(60)
    small.write(100)
    large_end, small_end = (end_of(cluster, f"persistent://public/wide/{name}") for name in ("a", "b"))
    # 24 MB are requested, and nobody takes the answers from the queue.
    connection = client.bookie(SMALL_QUEUE).connection()
    answers: SimpleQueue[ReadRequest] = SimpleQueue()
    requests = [ReadRequest(large_end.ledger_id, n % 60, None, 1, 0, answers=answers) for n in range(60)]
    connection.send(requests)
    with BookKeeperClient(BookKeeperCluster(store), ReadLimits(timeout_s=10, deadline_s=60)) as other:
        ledger = other.open(small_end.ledger_id, small_end.entry_id)
        prefer(ledger, SMALL_QUEUE)
        check(ledger, small)
        assert set(_connected(other)) == {SMALL_QUEUE}
        wait_until(lambda: not connection.in_flight)
        assert answers.qsize() == 60
        # The same requests on a socket that is not drained stall the only read thread of this bookie.
        with socket.create_connection(("127.0.0.1", cluster.bookies[SMALL_QUEUE].port)) as undrained:
            undrained.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            undrained.sendall(b"".join(encode_read(large_end.ledger_id, n) for n in range(60)))
            time.sleep(1)
            waiting = ReadRequest(small_end.ledger_id, 0, None, 1, 0, answers=SimpleQueue())
            other.bookie(SMALL_QUEUE).connection().send([waiting])
            time.sleep(2)
            assert waiting.response is None
        assert waiting.wait(10).code == 0
    large.close()
    small.close()


def test_a_bookie_with_authentication_is_refused_plainly(
    cluster: PulsarCluster, store: ZooKeeperMetadataStore, client: BookKeeperClient
) -> None:
    jaas = cluster.directory / "jaas.conf"
    jaas.write_text('Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required user_hd="pw"; };\n')
    provider = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
    bookie = cluster.add_bookie(
        {"bookieId": "bk-sasl", "bookieAuthProviderFactoryClass": provider, "forceReadOnlyBookie": "true"},
        [f"-Djava.security.auth.login.config={jaas}"],
    )
    try:
        wait_until(lambda: store.get("/ledgers/available/readonly/bk-sasl") is not None)
        assert client._cluster.address("bk-sasl") == ("127.0.0.1", bookie.port)
        # A bookie resets connections while it starts, and it is not the time to refuse it for good.
        wait_until(lambda: not is_unavailable(client.bookie("bk-sasl")))
        with pytest.raises(AccessDenied, match=r"bookie bk-sasl requires authentication, .*; read through a broker"):
            client.bookie("bk-sasl").can_batch(1, 0)
    finally:
        bookie.kill()


def is_unavailable(bookie: Bookie) -> bool:
    try:
        bookie.can_batch(1, 0)
    except HotLogUnavailable:
        return True
    except AccessDenied:
        pass
    return False


class DeletedLedger(BookKeeperCluster):
    """A cluster with the metadata of a ledger that was deleted while it was read, without the digest."""

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata | None:
        (bookie_id,) = self.bookies()
        return LedgerMetadata(1, 1, 1, LedgerState.CLOSED, 699, 0, (Fragment(0, (bookie_id,)),), None)


def test_a_bookie_of_an_older_release_is_read_entry_by_entry(
    cluster: PulsarCluster, store: ZooKeeperMetadataStore, tmp_path: Path
) -> None:
    with (
        OldBookie(tmp_path, cluster.zookeeper.hosts, "/old-ledgers") as old,
        BookKeeperClient(DeletedLedger(store, "/old-ledgers"), ReadLimits(timeout_s=10)) as client,
    ):
        old.write_ledger(700)
        assert BookKeeperCluster(store, "/old-ledgers").ledger_metadata(0) is None
        ledger = client.open(0)
        entries = entries_of(ledger)
        assert len(entries) == 700
        assert sum(map(len, entries)) == ledger.bytes_up_to(699) > 0
        assert [bookie._has_batches for bookie in client._bookies.values()] == [False]


def test_rule_6_a_killed_bookie_changes_the_ensemble_and_nothing_is_missing(
    cluster: PulsarCluster, client: BookKeeperClient, stock: Any
) -> None:
    topic = "persistent://public/default/killed"
    writer = Writer(stock, topic)
    writer.start()
    wait_until(lambda: len(writer.acknowledged) > 1_000)
    position = end_of(cluster, topic)
    ledger = client.open(position.ledger_id, position.entry_id)
    check(ledger, writer)
    victim = next(name for name in ledger._replicas.metadata.fragments[0].ensemble if name != SMALL_QUEUE)
    cluster.bookies[victim].kill()
    written = len(writer.acknowledged)
    wait_until(lambda: len(writer.acknowledged) > written + 1_000)
    writer.stop()
    ledger.advance(end_of(cluster, topic).entry_id)
    check(ledger, writer)
    assert len(writer.acknowledged) == ledger.confirmed + 1
    ledger.refresh()
    first, *_, last = ledger._replicas.metadata.fragments
    assert victim in first.ensemble
    assert victim not in last.ensemble
    before = entries_of(ledger)
    # Re-replication replaces the bookie in place, in the closed ledger, and a reader with the old metadata goes on.
    writer.close()
    cluster.admin("PUT", f"{topic.replace('://', '/')}/unload")
    wait_until(lambda: victim not in client.open(position.ledger_id)._replicas.metadata.fragments[0].ensemble)
    assert victim in ledger._replicas.metadata.fragments[0].ensemble
    assert entries_of(ledger) == before
    replaced = client.open(position.ledger_id)
    assert (replaced.closed, replaced.confirmed) == (True, ledger.confirmed)
    assert entries_of(replaced) == before
    cluster.bookies[victim].start()


@pytest.mark.parametrize("digest", ["MAC", "CRC32", "DUMMY"])
def test_every_digest_is_verified_also_after_the_broker_has_died(
    cluster: PulsarCluster, client: BookKeeperClient, digest: str
) -> None:
    cluster.kill_broker()
    cluster.start_broker({"managedLedgerDigestType": digest})
    stock = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    topic = f"persistent://public/default/digest-{digest}"
    writer = Writer(stock, topic)
    writer.write(500)
    position = end_of(cluster, topic)
    ledger = client.open(position.ledger_id, position.entry_id)
    found = ledger._replicas.metadata.digest
    assert found is not None
    assert found.name == digest.replace("MAC", "HMAC")
    check(ledger, writer)
    cluster.kill_broker()
    bound = client.confirmed_by_bookies(position.ledger_id)
    assert -1 <= bound < 500
    left = client.open(position.ledger_id, bound)
    assert left._replicas.metadata.state == LedgerState.OPEN
    assert len(entries_of(left)) == bound + 1
    check(ledger, writer)  # the bookies serve entries without an owner of the topic too
    cluster.start_broker()
    stock.close()


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, for two minutes at most."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, inspect.getsource(holds)
        time.sleep(0.05)


def prefer(ledger: BookKeeperLedger, bookie_id: str) -> None:
    """Have a ledger read from one bookie."""
    for name in ledger._replicas.metadata.fragments[0].ensemble:
        if name != bookie_id:
            ledger._replicas._avoided[name] = time.monotonic() + 600


def _connected(client: BookKeeperClient) -> list[str]:
    return [name for name, bookie in client._bookies.items() if bookie._connection is not None]


def _node(ledger_id: int) -> str:
    digits = f"{ledger_id:010d}"
    return f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
