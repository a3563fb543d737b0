"""A full disk under a real process: producers get errors, readers continue, and writing resumes once there is space."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from tests.support.raw_client import ErrorAnswer, RawClient, encode_send
from tests.support.serving import serving

from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from afterglow.format.position import Position

DISK_MIB = 64
BALLAST_MIB = 48
"""Taken by a file of another's, and freed again: the rest is for the server."""
TOPIC = "persistent://public/default/full"
ENTRY = encode_entry(wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), os.urandom(256 << 10))
WAIT_MS = 20_000


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own that has little room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def publish_until_refused(client: RawClient, producer: int) -> tuple[list[Position], ErrorAnswer]:
    """Send one by one until the broker says no; what was acknowledged, and why no more was."""
    acknowledged: list[Position] = []
    for sequence_id in range(4 * DISK_MIB):
        try:
            acknowledged += client.publish([encode_send(producer, sequence_id, ENTRY)])
        except ErrorAnswer as error:
            return acknowledged, error
    raise AssertionError("the disk never became full")


def publish_until_accepted(client: RawClient, producer: int) -> Position:
    """Send again and again, as producers do, until the broker has noticed that there is room."""
    while True:  # the test's own time limit ends it
        try:
            return client.publish([encode_send(producer, 0, ENTRY)])[0]
        except ErrorAnswer as error:
            if error.code != wire.PersistenceError:
                raise


def received(client: Any, count: int) -> list[tuple[int, int]]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    ids = [reader.read_next(WAIT_MS).message_id() for _ in range(count)]
    more = reader.has_message_available()
    reader.close()
    assert not more
    return [(found.ledger_id(), found.entry_id()) for found in ids]


def as_pairs(positions: list[Position]) -> list[tuple[int, int]]:
    return [(position.ledger_id, position.entry_id) for position in positions]


def test_producers_get_errors_readers_continue_and_writing_resumes(tiny_disk: Path, tmp_path: Path) -> None:
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_MIB << 20))
    conf = tmp_path / "broker.conf"
    conf.write_text("defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\nmanagedLedgerCacheSizeMB=1\n")
    with serving(tiny_disk / "home", "--conf", str(conf)) as served:
        stock = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        with RawClient(served.service_url) as raw:
            producer = raw.open_producer(TOPIC)
            acknowledged, error = publish_until_refused(raw, producer)
            assert error.code == wire.PersistenceError
            assert "full" in str(error) or "space" in str(error)
            assert acknowledged
            # The process lives: it reads everything that it acknowledged, and refuses what it cannot keep, again.
            assert received(stock, len(acknowledged)) == as_pairs(acknowledged)
            with pytest.raises(ErrorAnswer):
                raw.publish([encode_send(producer, 0, ENTRY)])
            assert served.admin("GET", "tenants")
            ballast.unlink()
            acknowledged.append(publish_until_accepted(raw, producer))
            acknowledged += raw.publish(encode_send(producer, n, ENTRY) for n in range(8))
        stock_producer = stock.create_producer(TOPIC, batching_enabled=False)
        last = stock_producer.send(b"by a stock client")
        expected = [*as_pairs(acknowledged), (last.ledger_id(), last.entry_id())]
        assert received(stock, len(expected)) == expected
        stock.close()
        assert served.stop() == 0
    with serving(tiny_disk / "home", "--conf", str(conf)) as served:
        stock = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        assert received(stock, len(expected)) == expected
        stock.close()
        assert served.stop() == 0
