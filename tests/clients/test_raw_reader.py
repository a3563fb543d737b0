"""Raw entries over the wire against the ledger files of the same server, byte for byte."""

from __future__ import annotations

import base64
import os
import pickle
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
import pulsar
import pytest
from tests.support.certificates import write_certificate
from tests.support.raw_client import RawClient, encode_send
from tests.support.serving import serving, start

from afterglow.errors import AccessDenied, ConfigError, EntriesMissing, HotLogError, NotSupported, TopicMissing
from afterglow.format.entry import encode_batch, encode_entry
from afterglow.format.frames import scan_frames
from afterglow.format.position import LedgerRange, Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.hot.local import open_shared
from afterglow.hot.pulsar import PulsarAddress, RawReader, SubscriptionHolds, partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.support.serving import Served

    from afterglow.hot.pulsar import RawEntries

SECRET = bytes(range(32))
KEEP = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
SMALL_LEDGERS = f"managedLedgerMaxEntriesPerLedger=25\nmanagedLedgerMinLedgerRolloverTimeMinutes=0\n{KEEP}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    """A server whose ledgers end after 25 entries; its client and topic fixtures are those of all client tests."""
    conf = home / "broker.conf"
    conf.write_text(SMALL_LEDGERS)
    with serving(home / "home", "--conf", str(conf)) as served:
        yield served


@pytest.fixture
def address(served: Served) -> PulsarAddress:
    return PulsarAddress(served.service_url)


def entry(number: int, size: int = 1000, batch: int | None = None) -> bytes:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    payload = number.to_bytes(8, "big") * (size // 8)
    if batch is None:
        return encode_entry(metadata, payload)
    metadata.num_messages_in_batch = batch
    return encode_entry(metadata, encode_batch((wire.SingleMessageMetadata(), payload) for _ in range(batch)))


def publish(served: Served, topic: str, entries: Iterable[bytes], messages: int = 1) -> list[Position]:
    with RawClient(served.service_url) as client:
        producer = client.open_producer(topic)
        # Few at once: a ledger that is full takes what is under way all the same.
        return client.publish((encode_send(producer, i, data, messages) for i, data in enumerate(entries)), 5)


def path_of(topic: str) -> str:
    return topic.replace("://", "/", 1)


def layout(served: Served, topic: str) -> list[LedgerRange]:
    """The entries of every ledger of a topic."""
    stats = served.admin("GET", f"{path_of(topic)}/internalStats")
    counts = {row["ledgerId"]: row["entries"] for row in stats["ledgers"]}
    last = Position(*map(int, stats["lastConfirmedEntry"].split(":")))
    counts[last.ledger_id] = last.entry_id + 1
    return [LedgerRange(ledger_id, 0, count - 1) for ledger_id, count in sorted(counts.items()) if count]


def stored(home: Path, ranges: Iterable[LedgerRange]) -> dict[int, bytes]:
    """What the ledger files hold of each range, as frames."""
    found = {}
    for entry_range in ranges:
        with open_shared(home / "home", entry_range.ledger_id) as ledger:
            deadline = time.monotonic() + 10
            while ledger.confirmed < entry_range.last:  # the published end follows
                assert time.monotonic() < deadline
            data, _ = ledger.read_frames(entry_range.first, 1 << 40)
            frames = scan_frames(data, entry_range.first)
            found[entry_range.ledger_id] = bytes(data[: int(frames.offsets[len(entry_range)])])
    return found


def joined(runs: Iterable[RawEntries]) -> dict[int, bytes]:
    """The runs of each ledger, one behind the other; fails if they do not follow each other."""
    found: dict[int, bytes] = {}
    following: dict[int, int] = {}
    for run in runs:
        assert run.first_entry_id == following.get(run.ledger_id, run.first_entry_id)
        assert run.frames.damage is None
        assert len(run.frames) == run.count
        following[run.ledger_id] = run.last_entry_id + 1
        found[run.ledger_id] = found.get(run.ledger_id, b"") + bytes(run.data)
    return found


def ends(ranges: list[LedgerRange]) -> tuple[Position, Position]:
    return Position(ranges[0].ledger_id, ranges[0].first), Position(ranges[-1].ledger_id, ranges[-1].last)


def read_all(address: PulsarAddress, topic: str, ranges: list[LedgerRange], **options: Any) -> dict[int, bytes]:
    with RawReader(address, topic, **options) as reader:
        return joined(reader.read(*ends(ranges), ranges))


# --- the same bytes ------------------------------------------------------------------------------------------------


PRODUCERS: dict[str, dict[str, Any]] = {
    "single": {"batching_enabled": False},
    "batched": {"batching_enabled": True, "batching_max_messages": 7, "batching_max_publish_delay_ms": 1},
    "zstd": {"batching_enabled": True, "batching_max_messages": 5, "compression_type": pulsar.CompressionType.ZSTD},
    "lz4": {"batching_enabled": False, "compression_type": pulsar.CompressionType.LZ4},
    "chunked": {"batching_enabled": False, "chunking_enabled": True},
}


@pytest.mark.parametrize("kind", PRODUCERS)
def test_entries_are_byte_for_byte_those_of_the_ledger_files(
    served: Served, home: Path, client: Any, topic: str, kind: str
) -> None:
    producer = client.create_producer(topic, **PRODUCERS[kind])
    size, count = ((11 << 20) + 5, 2) if kind == "chunked" else (700, 400)
    for number in range(count):
        producer.send_async(os.urandom(size) if number % 2 else bytes(size), None)
        if number % 20 == 0:
            producer.flush()
    producer.flush()
    ranges = layout(served, topic)
    assert len(ranges) > 1 or kind == "chunked"
    with RawReader(PulsarAddress(served.service_url), topic) as reader:
        before = reader.exposes_broker_metadata
        assert joined(reader.read(*ends(ranges), ranges)) == stored(home, ranges)
        assert (before, reader.exposes_broker_metadata) == (None, True)
        assert reader.statistics.entries == reader.statistics.with_broker_metadata == sum(map(len, ranges))
        assert reader.statistics.subscriptions == 1


def test_every_partition_of_a_partitioned_topic_is_read_by_its_own_name(
    served: Served, home: Path, address: PulsarAddress, client: Any, topic: str
) -> None:
    served.admin("PUT", f"{path_of(topic)}/partitions", 3)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(120):
        producer.send(b"%d" % number)
    assert partitions(address, topic) == 3
    assert partitions(address, f"{topic}-partition-1") == 0
    total = 0
    for index in range(3):
        ranges = layout(served, f"{topic}-partition-{index}")
        assert read_all(address, f"{topic}-partition-{index}", ranges) == stored(home, ranges)
        total += sum(map(len, ranges))
    assert total == 120
    with RawReader(address, topic) as reader, pytest.raises(NotSupported, match="use one of its partitions"):
        next(reader.read(Position(1, 0), Position(1, 1)))


def test_markers_and_damaged_entries_come_as_they_are(
    served: Served, home: Path, address: PulsarAddress, topic: str
) -> None:
    marker = wire.MessageMetadata(producer_name="p", sequence_id=9, publish_time=1, marker_type=20)
    positions = publish(served, topic, [entry(0), encode_entry(marker, b"marker"), entry(2, batch=3)])
    ranges = layout(served, topic)
    found = read_all(address, topic, ranges)
    assert found == stored(home, ranges)
    assert b"marker" in found[positions[1].ledger_id]


def test_nothing_but_the_range_is_read(served: Served, home: Path, address: PulsarAddress, topic: str) -> None:
    """Each end in turn; behind the last entry the broker is granted nothing."""
    positions = publish(served, topic, (entry(i, batch=1 + i % 3) for i in range(60)))
    ranges = layout(served, topic)
    with RawReader(address, topic, receive_bytes=16_000) as reader:
        for first, last in [(0, 0), (3, 24), (24, 25), (25, 25), (7, 58), (59, 59), (0, 59)]:
            begin, end = positions[first], positions[last]
            wanted = [
                LedgerRange(
                    entry_range.ledger_id,
                    begin.entry_id if entry_range.ledger_id == begin.ledger_id else 0,
                    end.entry_id if entry_range.ledger_id == end.ledger_id else entry_range.last,
                )
                for entry_range in ranges
                if begin.ledger_id <= entry_range.ledger_id <= end.ledger_id
            ]
            assert joined(reader.read(begin, end, ranges)) == stored(home, wanted)
        assert reader.statistics.subscriptions == 7
    # Each read began with the entry before the first where there is one, and no more than that was sent beyond it.
    stats = served.admin("GET", f"{path_of(topic)}/stats")
    assert stats["bytesOutCounter"] < 1.3 * reader.statistics.size_bytes
    assert stats["subscriptions"] == {}, "a consumer was not closed"


def test_one_reader_serves_several_reads_at_once(
    served: Served, home: Path, address: PulsarAddress, topic: str
) -> None:
    publish(served, topic, (entry(i) for i in range(40)))
    ranges = layout(served, topic)
    with RawReader(address, topic, receive_bytes=16_000) as reader:
        both = [reader.read(*ends(ranges), ranges) for _ in range(2)]
        pairs = list(zip(*both, strict=True))
        assert joined(run for run, _ in pairs) == joined(run for _, run in pairs) == stored(home, ranges)


# --- who gets in ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path, Path]]:
    """A server that asks for tokens, and listens with TLS only."""
    directory = tmp_path_factory.mktemp("secured")
    certificate, key = write_certificate(directory)
    conf = directory / "broker.conf"
    conf.write_text(
        "authenticationEnabled=true\n"
        "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
        f"tokenSecretKey=data:;base64,{base64.b64encode(SECRET).decode()}\n"
        "brokerServicePort=\nwebServicePort=\nbrokerServicePortTls=0\nwebServicePortTls=0\n"
        f"tlsCertificateFilePath={certificate}\ntlsKeyFilePath={key}\n{KEEP}"
    )
    with serving(directory / "home", "--conf", str(conf), plain=False) as served:
        yield served, directory, certificate


def token(**claims: Any) -> str:
    return jwt.encode({"sub": "alice", **claims}, SECRET, algorithm="HS256")


@pytest.mark.parametrize("as_text", [True, False])
def test_a_token_proves_who_reads_over_tls(secured: tuple[Served, Path, Path], topic: str, *, as_text: bool) -> None:
    served, directory, certificate = secured
    with RawClient(served.service_url, token=token(), tls=ssl.create_default_context(cafile=certificate)) as client:
        producer = client.open_producer(topic)
        positions = client.publish(encode_send(producer, i, entry(i, 4000)) for i in range(300))
    trust = certificate.read_text() if as_text else str(certificate)
    address = pickle.loads(pickle.dumps(PulsarAddress(served.service_url, token(), trust)))
    assert token() not in repr(address)
    ranges = [LedgerRange(positions[0].ledger_id, 0, 299)]
    assert read_all(address, topic, ranges) == stored(directory, ranges)


def test_a_client_without_a_valid_token_is_refused_at_once(secured: tuple[Served, Path, Path], topic: str) -> None:
    served, _, certificate = secured
    for bad in (None, "no token", token(exp=time.time() - 60)):
        address = PulsarAddress(served.service_url, bad, str(certificate))
        with RawReader(address, topic) as reader, pytest.raises(AccessDenied, match="AuthenticationError") as caught:
            next(reader.read(Position(1, 0), Position(1, 0)))
        assert bad is None or bad not in str(caught.value)


def test_a_broker_that_is_not_trusted_is_not_read_from(
    secured: tuple[Served, Path, Path], tmp_path: Path, topic: str
) -> None:
    served, _, certificate = secured
    stranger, _ = write_certificate(tmp_path)
    for trust, reason in [(str(stranger), "self-signed"), (str(tmp_path / "none"), "trust_certs"), ("", "trust_certs")]:
        with (
            RawReader(PulsarAddress(served.service_url, token(), trust), topic) as reader,
            pytest.raises(ConfigError, match=reason),
        ):
            next(reader.read(Position(1, 0), Position(1, 0)))
    assert certificate.exists()


def test_the_host_s_name_counts_unless_it_is_not_to(tmp_path: Path, topic: str) -> None:
    certificate, key = write_certificate(tmp_path, hosts=["elsewhere.example"], addresses=[])
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"brokerServicePort=0\nwebServicePort=0\nbrokerServicePortTls=0\n{KEEP}"
        f"tlsCertificateFilePath={certificate}\ntlsKeyFilePath={key}\n"
    )
    with serving(tmp_path / "home", "--conf", str(conf), plain=False) as served:
        with RawClient(served.service_url) as client:
            url = client.lookup(topic).brokerServiceUrlTls
            (position,) = client.publish([encode_send(client.open_producer(topic), 0, entry(0))])
        with (
            RawReader(PulsarAddress(url, trust_certs=str(certificate)), topic) as reader,
            pytest.raises(ConfigError, match="verify_hostname"),
        ):
            next(reader.read(position, position))
        lax = PulsarAddress(url, trust_certs=str(certificate), verify_hostname=False)
        with RawReader(lax, topic) as reader:
            assert next(reader.read(position, position)).count == 1


# --- interruptions -------------------------------------------------------------------------------------------------


def test_a_topic_that_is_unloaded_is_read_on_at_the_next_entry(
    served: Served, home: Path, address: PulsarAddress, topic: str
) -> None:
    publish(served, topic, (entry(i, 4000) for i in range(100)))
    ranges = layout(served, topic)

    def interrupted(reader: RawReader) -> Iterator[RawEntries]:
        for number, run in enumerate(reader.read(*ends(ranges), ranges)):
            yield run
            if number % 5 == 2:
                served.admin("PUT", f"{path_of(topic)}/unload")

    with RawReader(address, topic, receive_bytes=16_000) as reader:
        assert joined(interrupted(reader)) == stored(home, ranges)
        assert reader.statistics.entries == 100
        assert reader.statistics.subscriptions > 2


def test_a_broker_that_is_killed_is_read_on_once_it_is_back(tmp_path: Path, topic: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(SMALL_LEDGERS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    options = ("--conf", str(conf), "--port", port, "--http-port", "0")
    served = start(tmp_path / "home", *options, plain=False)
    try:
        publish(served, topic, (entry(i, 20_000) for i in range(200)))
        ranges = layout(served, topic)
        runs: list[RawEntries] = []
        with RawReader(PulsarAddress(served.service_url), topic, receive_bytes=100_000) as reader:
            for run in reader.read(*ends(ranges), ranges):
                runs.append(run)
                if len(runs) in {5, 30}:
                    served.kill()
                    served = start(tmp_path / "home", *options, plain=False)
            assert reader.statistics.subscriptions == 3
        assert joined(runs) == stored(tmp_path, ranges)
        assert sum(run.count for run in runs) == 200
    finally:
        served.kill()


# --- what is not there ---------------------------------------------------------------------------------------------


def test_entries_that_were_trimmed_are_named_and_not_skipped(
    served: Served, home: Path, address: PulsarAddress, topic: str
) -> None:
    publish(served, topic, (entry(i) for i in range(60)))
    ranges = layout(served, topic)
    served.admin("DELETE", f"{path_of(topic)}/truncate")
    begin, end = ends(ranges)
    with RawReader(address, topic) as reader:
        with pytest.raises(EntriesMissing, match=f"no entry {begin} .*up to {end}.*the log is empty"):
            next(reader.read(begin, end, ranges))
        publish(served, topic, [entry(60)])
        with pytest.raises(EntriesMissing, match=f"no entry {begin} .*up to {end}.*continues with"):
            next(reader.read(begin, end, ranges))
        rest = layout(served, topic)
        assert joined(reader.read(*ends(rest), rest)) == stored(home, rest)


def test_entries_that_go_while_they_are_read_end_the_read_behind_the_last_one_that_came(
    served: Served, address: PulsarAddress, topic: str
) -> None:
    publish(served, topic, (entry(i, 20_000) for i in range(120)))
    ranges = layout(served, topic)
    with RawReader(address, topic, receive_bytes=50_000) as reader:
        runs = reader.read(*ends(ranges), ranges)
        next(runs)
        served.admin("DELETE", f"{path_of(topic)}/truncate")
        with pytest.raises(EntriesMissing) as caught:
            list(runs)
        came = reader.statistics.entries
        assert came < 120
        awaited = [Position(r.ledger_id, i) for r in ranges for i in range(len(r))][came]
        assert f"no entry {awaited} " in str(caught.value)


def test_entries_that_are_not_written_yet_are_not_waited_for(
    served: Served, address: PulsarAddress, topic: str
) -> None:
    (last,) = publish(served, topic, [entry(0)])
    with RawReader(address, topic) as reader:
        runs = reader.read(last, last.next())
        assert next(runs).count == 1
        with pytest.raises(EntriesMissing, match=f"no entry {last.next()} .*the log ends with {last}"):
            next(runs)


def test_a_topic_that_ended_before_the_range_does_is_reported(
    served: Served, address: PulsarAddress, topic: str
) -> None:
    (last,) = publish(served, topic, [entry(0)])
    served.admin("POST", f"{path_of(topic)}/terminate")
    with RawReader(address, topic) as reader, pytest.raises(EntriesMissing, match="terminated"):
        list(reader.read(last, last.next()))


def test_reading_creates_no_topic(served: Served, address: PulsarAddress, topic: str) -> None:
    with RawReader(address, topic) as reader, pytest.raises(TopicMissing, match="does not exist"):
        next(reader.read(Position(1, 0), Position(1, 0)))
    assert partitions(address, topic) == 0
    assert topic not in served.admin("GET", "persistent/public/default")
    with pytest.raises(TopicMissing):
        partitions(address, "persistent://public/nowhere/t")


# --- budgets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "batch"), [(1000, None), (50, None), (400, 10)])
def test_no_more_than_the_budget_is_held_or_under_way(
    served: Served, address: PulsarAddress, topic: str, size: int, batch: int | None
) -> None:
    count = min(3_000_000 // (size * (batch or 1)), 6000)
    positions = publish(served, topic, (entry(i, size, batch) for i in range(count)), batch or 1)
    one = len(entry(0, size, batch)) + 64
    budget = 200_000
    ranges = layout(served, topic)

    def sent() -> int:
        (found,) = served.admin("GET", f"{path_of(topic)}/stats")["subscriptions"].values()
        return int(found["consumers"][0]["bytesOutCounter"])

    with RawReader(address, topic, receive_bytes=budget) as reader:
        taken = 0
        for number, run in enumerate(reader.read(positions[0], positions[-1], ranges)):
            assert run.data.nbytes <= budget // 2 + one
            if number % 40 == 0:
                # Also the run in hand counts: what was handed out before it is the caller's.
                assert sent() - taken <= budget + one, f"at run {number}"
            taken += run.payload_bytes
    assert taken == reader.statistics.size_bytes


def test_an_entry_larger_than_the_budget_comes_by_itself(
    served: Served, home: Path, address: PulsarAddress, topic: str
) -> None:
    sizes = [500, 3_000_000, 500, 5_000_000, 4_900_000, 500]
    publish(served, topic, (entry(i, size) for i, size in enumerate(sizes)))
    ranges = layout(served, topic)
    assert read_all(address, topic, ranges, receive_bytes=10_000) == stored(home, ranges)


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_no_thread_and_no_connection_is_left(served: Served, address: PulsarAddress, topic: str) -> None:
    positions = publish(served, topic, (entry(i) for i in range(20)))
    threads = threading.active_count()
    sockets = open_files()
    with RawReader(address, topic, receive_bytes=16_000) as reader:
        unfinished = reader.read(positions[0], positions[-1])
        next(unfinished)
        list(reader.read(positions[0], positions[-1]))
        assert threading.active_count() == threads
    assert open_files() == sockets
    with pytest.raises(HotLogError, match="was closed"):
        next(unfinished)


# --- who sees what -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "flag"), [(19, False), (17, True), (19, True)])
def test_other_consumers_never_see_the_broker_s_metadata_unless_the_broker_says_so(
    served: Served, topic: str, version: int, *, flag: bool
) -> None:
    publish(served, topic, [entry(0)])
    with RawClient(served.service_url, protocol_version=version, broker_metadata=flag) as client:
        consumer = client.subscribe(topic, "plain")
        client.flow(consumer, 1)
        assert client.message(consumer).payload == entry(0)


def test_a_subscription_is_held_over_tls_with_a_token(secured: tuple[Served, Path, Path], topic: str) -> None:
    served, _, certificate = secured
    with RawClient(served.service_url, token=token(), tls=ssl.create_default_context(cafile=certificate)) as client:
        producer = client.open_producer(topic)
        positions = client.publish(encode_send(producer, i, entry(i, 100)) for i in range(5))
        address = PulsarAddress(served.service_url, token(), str(certificate))
        with SubscriptionHolds(address) as holds:
            assert holds.hold(topic).result(60).held
            assert holds.last_message_id(topic).result(60).last == positions[-1]
            assert holds.acknowledge(topic, positions[2]).result(60) == positions[2]
        stranger = PulsarAddress(served.service_url, "not a token", str(certificate))
        with SubscriptionHolds(stranger) as holds, pytest.raises(AccessDenied, match="--token"):
            holds.hold(topic).result(60)
        with SubscriptionHolds(PulsarAddress(served.service_url, token())) as holds, pytest.raises(ConfigError):
            holds.hold(topic).result(60)
