"""``kill -9`` at random moments under load: what was acknowledged is there, in order, once, and nothing is torn."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pulsar
import pytest
from tests.support.raw_client import RawClient, encode_send
from tests.support.serving import start

from afterglow.format.entry import decode_entry, encode_batch, encode_entry
from afterglow.format.frames import iter_entries, scan_frames
from afterglow.format.position import Position
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

ROUNDS = int(os.environ.get("AFTERGLOW_CRASH_ROUNDS", "6"))
"""50 in a full run."""
SEED = 4
TOPICS = [f"persistent://public/default/crash-{n}" for n in range(3)]
CONF = "managedLedgerMaxEntriesPerLedger=300\nmanagedLedgerMinLedgerRolloverTimeMinutes=0\n"
RETENTION = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
WAIT_MS = 20_000


WINDOW = 500
"""Entries that a producer has under way."""
BATCH = 7


class Load:
    """A producer that sends until its broker is gone, and remembers what was acknowledged.

    A raw client: the stock one takes ten seconds to give up a broker that is dead.
    """

    def __init__(self, service_url: str, topic: str, round_: int, *, batching: bool) -> None:
        self.acknowledged = -1
        self._round = round_
        self._messages = BATCH if batching else 1
        self._client = RawClient(service_url)
        self._producer = self._client.open_producer(topic)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        sent = received = 0
        last = Position(-1, -1)
        with suppress(OSError):
            while True:
                while sent - received < WINDOW:
                    self._client.write(encode_send(self._producer, sent, self._entry(sent), self._messages))
                    sent += 1
                position = self._client.receipt()
                assert position > last, "receipts out of order"
                last = position
                received += 1
                self.acknowledged = received * self._messages - 1

    def _entry(self, number: int) -> bytes:
        first = number * self._messages
        values = [f"{self._round}:{first + k}".encode() + bytes(first % 700) for k in range(self._messages)]
        metadata = MessageMetadata(producer_name="load", sequence_id=number, publish_time=1)
        if self._messages == 1:
            return encode_entry(metadata, values[0])
        metadata.num_messages_in_batch = self._messages
        return encode_entry(metadata, encode_batch((SingleMessageMetadata(), value) for value in values))

    def end(self) -> int:
        """The number of the last message that was acknowledged, once the broker is gone."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._client.close()
        return self.acknowledged


def values(service_url: str, topic: str) -> list[tuple[int, int]]:
    """Round and number of every message of a topic, as a reader gets them."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        round_, _, number = reader.read_next(WAIT_MS).data().rstrip(b"\0").partition(b":")
        found.append((int(round_), int(number)))
    client.close()
    return found


def check_stamps(home: Path) -> int:
    """Index and broker time of every topic have neither gap nor step back; returns how many entries were seen.

    The ledgers' own files are read, after the broker has ended. Topics are recognised by their ledgers' producers.
    """
    from afterglow.format.metadata_envelope import parse_managed_ledger
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.paths import managed_ledger_path
    from afterglow.metadata.sqlite import SqliteMetadataStore

    metadata = SqliteMetadataStore(home / "metadata.db", read_only=True)
    seen = 0
    for topic in TOPICS:
        stored = metadata.get(managed_ledger_path(TopicName.parse(topic).managed_ledger_name))
        assert stored is not None
        index = -1
        time_ms = 0
        for ledger in parse_managed_ledger(stored.value).ledgerInfo:
            data = (home / "hot" / "ledgers" / f"{ledger.ledgerId}.ledger").read_bytes()
            frames = scan_frames(data, 0)
            assert frames.damage is None
            for _, entry in iter_entries(data, frames):
                parsed = decode_entry(entry)
                assert parsed.broker is not None
                messages = max(parsed.metadata.num_messages_in_batch, 1)
                assert parsed.broker.index == index + messages
                assert parsed.broker.broker_timestamp >= time_ms
                index, time_ms = parsed.broker.index, parsed.broker.broker_timestamp
                seen += 1
    metadata.close()
    return seen


@pytest.mark.timeout(900 + 30 * ROUNDS)
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF + RETENTION)
    home = tmp_path / "home"
    complaints: list[str] = []
    acknowledged: dict[str, dict[int, int]] = {topic: {} for topic in TOPICS}
    for round_ in range(ROUNDS):
        served = start(home, "--conf", str(conf))
        loads = {topic: Load(served.service_url, topic, round_, batching=n % 2 == 0) for n, topic in enumerate(TOPICS)}
        moment_s = rng.uniform(0.05, 1.5)
        time.sleep(moment_s)  # the moment is the test's own choice
        served.kill()
        for topic, load in loads.items():
            acknowledged[topic][round_] = load.end()
        complaints += [f"round {round_}: {line}" for line in served.lines if " WARNING " in line or " ERROR " in line]
        counts = [of_topic[round_] for of_topic in acknowledged.values()]
        log.info("seed %s, round %s: killed after %.3f s, last acknowledged %s", SEED, round_, moment_s, counts)

    served = start(home, "--conf", str(conf))
    total = 0
    for topic in TOPICS:
        found = values(served.service_url, topic)
        total += len(found)
        twice = [value for value, count in Counter(found).items() if count > 1]
        said = f"{topic}, acknowledged {acknowledged[topic]}, {complaints}"
        assert not twice, f"{len(twice)} came twice, from {twice[0]} to {twice[-1]}: {said}"
        assert found == sorted(found), f"out of order: {said}"
        for round_, last in acknowledged[topic].items():
            numbers = [number for r, number in found if r == round_]
            assert numbers == list(range(len(numbers))), f"a gap in round {round_}: {said}"
            assert len(numbers) > last, f"{round_}:{last} is gone: {said}"
    assert served.stop() == 0
    assert check_stamps(home) > 0
    assert total > 100 * ROUNDS
