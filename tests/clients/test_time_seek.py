"""PIP-70 over the wire and on disk: seek by time, expiry, and who sees the broker's metadata.

The publish times of all messages are random, so that only the broker's own time can be bisected. The home has one topic
that was stamped from its first entry on, and one that began before the interceptors were switched on.
"""

from __future__ import annotations

import contextlib
import logging
import random
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulsar
import pytest
from tests.support.raw_client import RawClient, encode_send
from tests.support.serving import serving

from afterglow.config import BrokerConfig
from afterglow.format.entry import BROKER_MAGIC, CHECKSUM_MAGIC, decode_entry, encode_entry
from afterglow.format.position import EARLIEST
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.hot.local import LocalLog
from afterglow.ledger.store import LedgerStore
from afterglow.metadata.names import TopicName
from afterglow.metadata.sqlite import SqliteMetadataStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serving import Served

    from afterglow.format.position import Position
    from afterglow.ledger.managed_ledger import ManagedLedger

log = logging.getLogger(__name__)

STAMPED = "persistent://public/default/stamped"
SWITCHED = "persistent://public/default/switched-on-half-way"
CONF = """\
managedLedgerMaxEntriesPerLedger=1000
managedLedgerMinLedgerRolloverTimeMinutes=0
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
exposingBrokerEntryMetadataToClientEnabled=true
"""
OFF = "brokerEntryMetadataInterceptors=\n"
TIME_ONLY = (
    "brokerEntryMetadataInterceptors=org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor\n"
)
BOTH = "brokerEntryMetadataInterceptors=broker-timestamp,index\n"

PRODUCERS = 8
WAVES = 150
"""Of one entry by each producer, and each awaited: so that broker times differ."""
UNSTAMPED_WAVES = 40
"""Fewer, since every seek behind them scans them all."""
RANDOM_MOMENTS = {STAMPED: 3_000, SWITCHED: 1_000}
WIRE_MOMENTS = 24
SEED = 70

UNSTAMPED = {STAMPED: 0, SWITCHED: PRODUCERS * UNSTAMPED_WAVES}
PER_RUN = PRODUCERS * WAVES
ENTRIES = {topic: unstamped + 2 * PER_RUN for topic, unstamped in UNSTAMPED.items()}


@dataclass(frozen=True)
class Stored:
    """An entry as a plain scan finds it."""

    position: Position
    time_ms: int
    """By the broker where it gave one, else by the client."""
    stamped: bool
    publish_time_ms: int
    metadata_bytes: int
    """What a search by publish time has to parse of it."""


def metadata(rng: random.Random, publish_time_ms: int, sequence_id: int) -> MessageMetadata:
    """Of a message as applications send them: with a key, and properties that say where it came from."""
    made = MessageMetadata(
        producer_name="standalone-3-17", sequence_id=sequence_id, publish_time=publish_time_ms, partition_key="a key"
    )
    for name in ("trace-id", "span-id", "tenant", "source", "content-type", "schema", "region", "version"):
        made.properties.add(key=name, value=f"{rng.getrandbits(128):032x}")
    return made


def produce(served: Served, topic: str, rng: random.Random, waves: int = WAVES) -> None:
    """Waves of messages by many producers over two connections, with publish times in random order."""
    with RawClient(served.service_url) as one, RawClient(served.service_url) as other:
        producers = [(client, client.open_producer(topic)) for client in (one, other) for _ in range(PRODUCERS // 2)]
        now_ms = 1_700_000_000_000
        for wave in range(waves):
            rng.shuffle(producers)
            for client, producer in producers:
                made = metadata(rng, now_ms + rng.randrange(-(10**9), 10**9), wave)
                client.write(encode_send(producer, wave, encode_entry(made, rng.randbytes(rng.randrange(200)))))
            for client, _ in producers:
                client.receipt()


def as_stored(position: Position, data: bytes) -> Stored:
    entry = decode_entry(data)
    stamped = entry.broker is not None and entry.broker.HasField("broker_timestamp")
    publish = entry.metadata.publish_time
    time_ms = entry.broker.broker_timestamp if stamped and entry.broker is not None else publish
    return Stored(position, time_ms, stamped, publish, entry.metadata.ByteSize())


def scan_wire(served: Served, topic: str, count: int) -> list[Stored]:
    """Every entry of a topic with the broker's metadata, as a client gets it that may see it."""
    with RawClient(served.service_url, broker_metadata=True) as client:
        consumer = client.subscribe(topic, "scan")
        client.flow(consumer, count)
        frames = [client.message(consumer) for _ in range(count)]
    return [as_stored(frame.position, frame.payload) for frame in frames]


def conf(directory: Path, name: str, text: str) -> tuple[str, str]:
    path = directory / f"{name}.conf"
    path.write_text(CONF + text)
    return "--conf", str(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home on which the interceptors were off, then half on, then on, with clean ends and one crash between."""
    directory = tmp_path_factory.mktemp("time-seek")
    home = directory / "home"
    rng = random.Random(SEED)
    with serving(home, *conf(directory, "off", OFF)) as served:
        produce(served, SWITCHED, rng, UNSTAMPED_WAVES)
        assert served.stop() == 0
    with serving(home, *conf(directory, "half", TIME_ONLY)) as served:
        produce(served, SWITCHED, rng)
        produce(served, STAMPED, rng)
        served.kill()
    with serving(home, *conf(directory, "both", BOTH)) as served:
        produce(served, SWITCHED, rng)
        produce(served, STAMPED, rng)
        assert served.stop() == 0
    return home


@contextlib.contextmanager
def opened(home: Path, topic: str) -> Iterator[ManagedLedger]:
    """A topic of a home on which no broker runs."""
    metadata_store = SqliteMetadataStore(home / "metadata.db")
    with ThreadPoolExecutor(2) as pool, LocalLog(home) as hot:
        store = LedgerStore(hot=hot, states=hot, metadata=metadata_store, config=BrokerConfig(), executor=pool)
        yield store.open(TopicName.parse(topic).managed_ledger_name, create=False)
        store.close()
    metadata_store.close()


def entries_of(ledger: ManagedLedger) -> list[Stored]:
    return [as_stored(entry.position, bytes(entry.data)) for entry in ledger.reader.read(EARLIEST, 1 << 20, 1 << 30)]


def moments(rng: random.Random, entries: list[Stored], count: int) -> list[int]:
    """Random ones over all the time that a topic spans and a little beyond; half of them close to an entry's time."""
    stamped = [entry.time_ms for entry in entries if entry.stamped]
    spans = [(min(stamped), max(stamped))]
    if len(stamped) < len(entries):
        by_client = [entry.time_ms for entry in entries if not entry.stamped]
        spans.append((min(by_client), max(by_client)))
    found = []
    for number in range(count):
        first, last = spans[number // 2 % len(spans)]
        near = rng.choice(entries).time_ms + rng.randrange(-1, 2)
        found.append(near if number % 2 else rng.randrange(first - 50, last + 50))
    return found


def first_at_or_after(entries: list[Stored], time_ms: int) -> Position | None:
    return next((entry.position for entry in entries if entry.time_ms >= time_ms), None)


@pytest.mark.parametrize("topic", [STAMPED, SWITCHED])
def test_seek_and_expiry_by_time_land_where_a_plain_scan_does(home: Path, topic: str) -> None:
    rng = random.Random(SEED)
    with opened(home, topic) as ledger:
        entries = entries_of(ledger)
        assert [entry.stamped for entry in entries] == [False] * UNSTAMPED[topic] + [True] * 2 * PER_RUN
        assert len({entry.time_ms for entry in entries if entry.stamped}) > 100
        assert len(ledger.ledgers) > 2
        for moment in moments(rng, entries, RANDOM_MOMENTS[topic]):
            older = next((at for at, entry in enumerate(entries) if entry.time_ms >= moment), len(entries))
            expected = entries[older].position if older < len(entries) else None
            assert ledger.reader.first_at_or_after(moment).position == expected, moment
            assert ledger.reader.last_before(moment) == (entries[older - 1].position if older else None), moment


def test_a_seek_parses_a_tenth_of_what_a_search_by_publish_time_parses(home: Path) -> None:
    """The old way bisects over all entries, and parses the whole metadata of each message that it probes.

    The messages have eight properties. Of messages with none at all it would parse some 35 bytes each, not 400.
    """
    rng = random.Random(SEED)
    new_entries = new_bytes = old_entries = old_bytes = 0
    with opened(home, STAMPED) as ledger:
        entries = entries_of(ledger)
        for moment in moments(rng, entries, 500):
            cost = ledger.reader.first_at_or_after(moment).cost
            new_entries += cost.entries
            new_bytes += cost.parsed_bytes
            probed: list[Stored] = []

            def publish_time(entry: Stored, probed: list[Stored] = probed) -> int:
                probed.append(entry)
                return entry.publish_time_ms

            bisect_left(entries, moment, key=publish_time)
            old_entries += len(probed)
            old_bytes += sum(entry.metadata_bytes for entry in probed)
    assert new_entries <= old_entries
    log.info("%d bytes of %d entries, the old way %d of %d", new_bytes, new_entries, old_bytes, old_entries)
    assert new_bytes * 10 <= old_bytes


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    """The home served once more, with metadata exposed to those who can read it."""
    with serving(home, *conf(home.parent, "again", BOTH)) as served:
        yield served


@pytest.mark.parametrize("topic", [STAMPED, SWITCHED])
def test_a_seek_over_the_wire_delivers_the_same_entry_first(served: Served, topic: str) -> None:
    rng = random.Random(SEED)
    entries = scan_wire(served, topic, ENTRIES[topic])
    with RawClient(served.service_url) as client:
        consumer = client.subscribe(topic, "seek")
        for moment in moments(rng, entries, WIRE_MOMENTS):
            expected = first_at_or_after(entries, moment)
            client.seek_time(consumer, moment)
            consumer = client.subscribe(topic, "seek")
            if expected is not None:
                client.flow(consumer, 1)
                assert client.message(consumer).position == expected, moment


@pytest.mark.parametrize("topic", [STAMPED, SWITCHED])
def test_a_stock_client_reads_entries_from_before_and_after_the_switch(served: Served, topic: str) -> None:
    client = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    for _ in range(ENTRIES[topic]):
        message = reader.read_next(20_000)
        assert message.partition_key() == "a key"
        assert len(message.properties()) == 8
    assert not reader.has_message_available()
    client.close()


@pytest.mark.parametrize(
    ("protocol_version", "broker_metadata", "visible"),
    [
        pytest.param(19, True, True, id="new"),
        pytest.param(18, True, True, id="the first that can"),
        pytest.param(17, True, False, id="too old"),
        pytest.param(19, False, False, id="does not say that it can"),
    ],
)
def test_broker_metadata_is_on_the_wire_for_those_only_who_can_read_it(
    served: Served, protocol_version: int, *, broker_metadata: bool, visible: bool
) -> None:
    with RawClient(served.service_url, protocol_version=protocol_version, broker_metadata=broker_metadata) as client:
        consumer = client.subscribe(SWITCHED, f"visible-{protocol_version}-{broker_metadata}")
        client.flow(consumer, ENTRIES[SWITCHED])
        payloads = [client.message(consumer).payload for _ in range(ENTRIES[SWITCHED])]
    unstamped = UNSTAMPED[SWITCHED]
    assert all(payload.startswith(CHECKSUM_MAGIC) for payload in payloads[:unstamped])
    assert all(payload.startswith(BROKER_MAGIC if visible else CHECKSUM_MAGIC) for payload in payloads[unstamped:])
    entries = [decode_entry(payload) for payload in payloads]  # also checks the client's own checksums
    brokers = [entry.broker for entry in entries if entry.broker is not None]
    assert len(brokers) == (2 * PER_RUN if visible else 0)
    assert all(broker.HasField("broker_timestamp") for broker in brokers)
    times = [broker.broker_timestamp for broker in brokers]
    assert times == sorted(times)
    assert not any(broker.HasField("index") for broker in brokers[:PER_RUN])
    assert [broker.index for broker in brokers[PER_RUN:]] == list(range(len(brokers[PER_RUN:])))


def test_broker_metadata_is_hidden_from_all_unless_it_is_exposed(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden.conf"
    hidden.write_text(BOTH)
    topic = "persistent://public/default/hidden"
    with serving(tmp_path / "home", "--conf", str(hidden)) as served:
        entry = encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"payload")
        with RawClient(served.service_url, broker_metadata=True) as client:
            producer = client.open_producer(topic)
            consumer = client.subscribe(topic, "s")
            client.publish([encode_send(producer, 0, entry)])
            client.flow(consumer, 1)
            assert client.message(consumer).payload == entry
