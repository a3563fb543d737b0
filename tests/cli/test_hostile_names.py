"""Names that a client has chosen, in the log and in the files of a real ``afterglow serve``."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from tests.support.raw_client import ErrorAnswer, Kind, RawClient, encode_send
from tests.support.serving import serving

from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serving import Served

FORGED = "x\n2026-01-01 00:00:00,000 INFO forged: all is well\r\x1b[2J\x9b2J\u202e"
RECORD = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ (\S+): ")

LEAVING = ("../../../leaving", "..", "/leaving", "a/../../leaving", "..%2f..%2fleaving", "a\0b", "C:\\\\leaving")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "outer").mkdir()
    with serving(tmp_path / "outer" / "home") as served:
        yield served


def until_logged(served: Served, text: str) -> str:
    """The log once it has a text."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        log = "\n".join(served.lines)
        if text in log:
            return log
        time.sleep(0.05)
    raise AssertionError(f"{text!r} is not in the log: {served.lines}")


def subscribe(client: RawClient, topic: str, subscription: str, consumer: str) -> None:
    command = wire.CommandSubscribe(
        topic=topic,
        subscription=subscription,
        subType=wire.CommandSubscribe.Shared,
        consumer_id=1,
        request_id=1001,
        consumer_name=consumer,
        initialPosition=wire.CommandSubscribe.Earliest,
    )
    client.send(Kind(type=Kind.SUBSCRIBE, subscribe=command))
    answer = client.next(lambda frame: frame.command.type in (Kind.SUCCESS, Kind.ERROR)).command
    if answer.type == Kind.ERROR:
        raise ErrorAnswer(answer.error.error, answer.error.message)


def test_names_cannot_forge_records_of_the_log(served: Served) -> None:
    topic = f"persistent://public/default/t{FORGED}"
    with RawClient(served.service_url) as client:
        producer = client.open_producer(topic)
        metadata = wire.MessageMetadata(producer_name=f"p{FORGED}", sequence_id=0, publish_time=1)
        client.write(encode_send(producer, 0, encode_entry(metadata, b"payload")))
        receipt = client.next(lambda frame: frame.command.type == Kind.SEND_RECEIPT).command.send_receipt
        subscribe(client, topic, f"s{FORGED}", f"c{FORGED}")
        ack = wire.CommandAck(consumer_id=1, ack_type=wire.CommandAck.Individual)
        ack.validation_error = wire.CommandAck.DecompressionError
        ack.message_id.add(ledgerId=receipt.message_id.ledgerId, entryId=receipt.message_id.entryId)
        client.send(Kind(type=Kind.ACK, ack=ack))
        log = until_logged(served, "could not read")
    (line,) = [line for line in log.splitlines() if "could not read" in line]
    for prefix in ("t", "s", "c", "p"):
        assert prefix + r"x\n2026-01-01 00:00:00,000 INFO forged: all is well\r\x1b[2J\x9b2J\u202e" in line
    assert "forged" not in {found[1] for each in log.splitlines() if (found := RECORD.match(each))}
    assert not set("\r\x1b\x9b\u202e") & set(log)


def test_names_do_not_leave_the_home(served: Served, tmp_path: Path) -> None:
    before = {path for path in tmp_path.rglob("*") if "home" not in path.parts}
    for name in LEAVING:
        with RawClient(served.service_url) as client:
            try:
                producer = client.open_producer(f"persistent://public/default/{name}")
                subscribe(client, f"persistent://public/default/{name}", name, name)
            except ErrorAnswer:
                continue
            metadata = wire.MessageMetadata(producer_name=name, sequence_id=0, publish_time=1)
            client.write(encode_send(producer, 0, encode_entry(metadata, b"payload")))
            client.next(lambda frame: frame.command.type == Kind.SEND_RECEIPT)
    for name in LEAVING:
        for path in (f"tenants/{quote(name, safe='')}", f"namespaces/public/{quote(name, safe='')}"):
            try:
                served.admin("PUT", path, {"allowedClusters": ["standalone"]} if "tenants" in path else None)
            except HTTPError as refused:
                assert 400 <= refused.code < 500, (path, refused.code)  # noqa: PT017 - others are taken
    assert served.stop() == 0
    assert {path for path in tmp_path.rglob("*") if "home" not in path.parts} == before
    assert not [path for path in tmp_path.rglob("*") if "leaving" in path.name]
