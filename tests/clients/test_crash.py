"""``kill -9`` at random moments under load: what was acknowledged is there, in order, once, and nothing is torn."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from afterglow.format.entry import decode_entry
from afterglow.format.frames import iter_entries, scan_frames
from afterglow.testing.serving import start

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

ROUNDS = int(os.environ.get("AFTERGLOW_CRASH_ROUNDS", "3"))
"""50 in a full run."""
SEED = 4
TOPICS = [f"persistent://public/default/crash-{n}" for n in range(3)]
CONF = "managedLedgerMaxEntriesPerLedger=300\nmanagedLedgerMinLedgerRolloverTimeMinutes=0\n"
RETENTION = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
WAIT_MS = 20_000


class Load:
    """A producer that sends until its broker is gone, and remembers what was acknowledged."""

    def __init__(self, service_url: str, topic: str, round_: int, *, batching: bool) -> None:
        self.acknowledged = -1
        self.broken = threading.Event()
        self._round = round_
        # Fewer than the client's own queue takes, so that no send ever waits inside the client.
        self._room = threading.Semaphore(500)
        # Its shutdown may wait as long as an operation may take, for a broker that is gone.
        self._client = pulsar.Client(
            service_url, operation_timeout_seconds=3, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self._producer = self._client.create_producer(topic, batching_enabled=batching, max_pending_messages=1000)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        i = 0
        while not self.broken.is_set():
            if self._room.acquire(timeout=0.05):
                self._producer.send_async(f"{self._round}:{i}".encode() + bytes(i % 700), self._receipt(i))
                i += 1

    def _receipt(self, i: int) -> Any:
        def received(result: pulsar.Result, _message_id: object) -> None:
            self._room.release()
            if result == pulsar.Result.Ok:
                # Receipts come in order: the last one tells of all before.
                assert i == self.acknowledged + 1
                self.acknowledged = i

        return received

    def end(self) -> int:
        """Stop; returns the number of the last message that was acknowledged."""
        self.broken.set()
        self._thread.join(30)
        self._client.shutdown()
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

    The ledgers' own files are read, after the broker has ended. Topics are told apart by their ledgers' producers.
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


@pytest.mark.timeout(60 + 30 * ROUNDS)
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
        next(iter(loads.values())).broken.wait(moment_s)
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
