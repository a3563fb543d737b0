"""Messages that the stock client cuts into chunks are read back whole."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.serving import serving

import afterglow
from afterglow.config import BrokerConfig
from afterglow.read.split_reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serving import Served

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")

TOPIC = "persistent://public/default/chunked"
CONF = """
maxMessageSize=20000
managedLedgerMaxEntriesPerLedger=15
managedLedgerMinLedgerRolloverTimeMinutes=0
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
"""
EACH = 8
CODECS = ("NONE", "LZ4", "ZSTD", "SNAPPY")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    (home / "broker.conf").write_text(CONF)
    with serving(home, "--conf", str(home / "broker.conf")) as served:
        yield served


def produce(client: Any, codec: str, sent: dict[tuple[int, int], bytes]) -> None:
    """Send messages of up to six chunks, one in three of them small."""
    rng = random.Random(codec)
    kind = getattr(pulsar.CompressionType, codec)
    producer = client.create_producer(
        TOPIC, codec.lower(), compression_type=kind, batching_enabled=False, chunking_enabled=True
    )
    for number in range(EACH):
        size = 100 if number % 3 == 0 else rng.randint(25_000, 110_000)
        value = rng.randbytes(size // 2) + bytes(size // 2)
        message_id = producer.send(value, properties={"number": str(number)}, partition_key=codec)
        sent[message_id.ledger_id(), message_id.entry_id()] = value
    producer.close()


def test_chunked_messages_are_whole_in_scans_splits_and_any_range(home: Path, served: Served) -> None:
    client = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    sent: dict[tuple[int, int], bytes] = {}
    producers = [threading.Thread(target=produce, args=(client, codec, sent)) for codec in CODECS]
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join()
    assert len(sent) == EACH * len(CODECS)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    seen = {}
    while reader.has_message_available():
        message = reader.read_next(20_000)
        seen[message.message_id().ledger_id(), message.message_id().entry_id()] = message.data()
    client.close()
    assert seen == sent
    served.stop()

    with afterglow.connect(home) as source:
        topic = source.topic(TOPIC)
        table = topic.scan().read_all()
        rows = table.select(["ledger_id", "entry_id", "value"]).to_pylist()
        found = {(row["ledger_id"], row["entry_id"]): row["value"] for row in rows}
        assert found == sent
        assert list(found) == sorted(found)
        assert len(topic.scan(include="entries").read_all()) > 2 * len(sent)
        assert {row["key"].decode() for row in table.select(["key"]).to_pylist()} == set(CODECS)
        splits = SplitReader(BrokerConfig())
        pieces = [
            row
            for split in topic.splits(split_bytes=1)
            for batch in splits.batches(split, ["ledger_id", "entry_id", "value"])
            for row in batch.to_pylist()
        ]
        assert pieces == rows
        for (ledger_id, entry_id), value in list(sent.items())[::5]:
            position = f"{ledger_id}:{entry_id}"
            alone = topic.scan(position, f"{ledger_id}:{entry_id + 1}", columns=["value"]).read_all()
            assert alone["value"].to_pylist() == [value]
