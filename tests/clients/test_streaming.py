"""PIP-76's own test plan: one topic by ledgers, then streaming, then back, then streaming; readers notice nothing."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.served_topics import eventually, offload_all, on_record, rows_of, wait_for_tier_alone
from tests.support.serving import serving

from afterglow.format.entry import decode_entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serving import Served

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

CONF = """
managedLedgerMaxEntriesPerLedger=25
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerOffloadThresholdInBytes=0
managedLedgerOffloadDeletionLagInMillis=0
managedLedgerCacheSizeMB=0
maxOffloadSegmentSizeInBytes=4000
streamingOffloadPartSizeInBytes=5M
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
offloadTickIntervalMillis=100
"""
TOPIC = "persistent://public/default/pip-76"
NEVER = "persistent://public/default/never-switched"
COUNT = 60


class Sent:
    """What a topic was sent, and where each message stands."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, int], bytes] = {}

    def produce(self, client: Any, topic: str, count: int = COUNT, size: int = 200) -> None:
        producer = client.create_producer(topic, batching_enabled=False)
        for _ in range(count):
            value = os.urandom(size)
            message_id = producer.send(value)
            self.values[message_id.ledger_id(), message_id.entry_id()] = value
        producer.close()


@contextmanager
def client_of(served: Served) -> Iterator[Any]:
    client = pulsar.Client(
        served.service_url, operation_timeout_seconds=30, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        yield client
    finally:
        client.close()


def consume(client: Any, topic: str, count: int) -> list[bytes]:
    """Everything from the earliest message on."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    values = [reader.read_next(timeout_millis=30_000).data() for _ in range(count)]
    assert not reader.has_message_available()
    reader.close()
    return values


def read_entries(home: Path, topic: str) -> list[tuple[int, int, bytes, str]]:
    """Ledger, entry, value and tier of every entry, as ``afterglow read`` tells."""
    command = [sys.executable, "-m", "afterglow", "read", str(home), topic, "--entries", "--format", "jsonl"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [json.loads(line) for line in output.splitlines()]
    return [
        (
            row["ledger_id"],
            row["entry_id"],
            bytes(decode_entry(base64.b64decode(row["data_base64"])).payload),
            row["tier"],
        )
        for row in rows
    ]


def verified(home: Path) -> str:
    command = [sys.executable, "-m", "afterglow", "verify", str(home), "--deep", "--grace", "0s"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def switch(served: Served, **policies: object) -> None:
    served.admin("POST", "persistent/public/default/pip-76/offloadPolicies", policies)


def reads(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.admin("GET", "persistent/public/default/pip-76/stats")["afterglowReads"]
    return found


def way(row: ManagedLedgerInfo.LedgerInfo) -> str:
    """How a ledger went to the tier."""
    context = row.offloadContext
    if context.complete:
        assert not context.offloadSegment
        return "ledger"
    assert all(item.complete for item in context.offloadSegment)
    return "segments" if context.offloadSegment else "none"


def ways(rows: list[ManagedLedgerInfo.LedgerInfo]) -> list[str]:
    """How ledgers went, neighbours that went alike taken together."""
    found: list[str] = []
    for row in rows:
        if found[-1:] != [way(row)]:
            found.append(way(row))
    return found


def test_both_ways_of_offload_mixed_in_one_topic_read_back_from_the_tier_alone(tmp_path: Path) -> None:
    home, conf = tmp_path / "home", tmp_path / "broker.conf"
    conf.write_text(CONF)
    options = ("--conf", str(conf), "--master", "local[2]")
    sent, never = Sent(), Sent()
    with serving(home, *options) as served, client_of(served) as client:
        sent.produce(client, TOPIC)
        never.produce(client, NEVER)
        wait_for_tier_alone(home, TOPIC)
        switch(served, streamingOffloadEnabled=True)
        sent.produce(client, TOPIC)
        offload_all(served, TOPIC)  # closes the segment in the middle of a ledger
        sent.produce(client, TOPIC)
        assert consume(client, TOPIC, len(sent.values)) == list(sent.values.values())
        switch(served, streamingOffloadEnabled=False)
        eventually(lambda: on_record(home, TOPIC) == [], lambda: on_record(home, TOPIC))
        assert served.stop() == 0

    with serving(home, *options) as served, client_of(served) as client:
        sent.produce(client, TOPIC)
        wait_for_tier_alone(home, TOPIC)
        assert ways(rows_of(home, TOPIC)[:-1]) == ["ledger", "segments", "ledger"]
        # Messages of a MiB, so that a segment has several parts and spans ledgers.
        switch(served, streamingOffloadEnabled=True, maxOffloadSegmentSizeInBytes=12 << 20)
        sent.produce(client, TOPIC, count=30, size=1 << 20)
        offload_all(served, TOPIC)
        assert served.stop() == 0

    with serving(home, *options) as served, client_of(served) as client:
        # Opened by the reader: only now is it known that the last ledger is closed.
        assert consume(client, TOPIC, len(sent.values)) == list(sent.values.values())
        rows = wait_for_tier_alone(home, TOPIC)
        assert ways(rows) == ["ledger", "segments", "ledger", "segments"]
        before = reads(served)
        assert consume(client, TOPIC, len(sent.values)) == list(sent.values.values())
        after = reads(served)
        assert after["tiered"]["entries"] - before["tiered"]["entries"] >= len(sent.values)
        assert (after["hot"], after["fallbacks"]) == (before["hot"], before["fallbacks"])

        wait_for_tier_alone(home, NEVER)
        assert consume(client, NEVER, len(never.values)) == list(never.values.values())
        assert not any(row.offloadContext.offloadSegment for row in rows_of(home, NEVER))
        assert read_entries(home, TOPIC) == [(*at, value, "tiered") for at, value in sent.values.items()]
        assert served.stop() == 0
        assert not [line for line in served.lines if "Traceback" in line or " ERROR " in line]
    assert read_entries(home, TOPIC) == [(*at, value, "tiered") for at, value in sent.values.items()]
    assert "no faults" in verified(home)
    assert on_record(home, TOPIC) == []
