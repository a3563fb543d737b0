"""Messages that consumers could not read are logged at a limited rate."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING

from tests.support.broker_topics import append
from tests.support.clock import ManualClock

from afterglow.broker.consumer import Consumer
from afterglow.config import BrokerConfig
from afterglow.format.position import EARLIEST
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.metadata.names import TopicName
from afterglow.server.process import Server

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from afterglow.format.position import Position


TOPIC = TopicName.parse("public/default/t")


def unreadable(position: Position) -> wire.CommandAck:
    ack = wire.CommandAck(consumer_id=1, ack_type=wire.CommandAck.Individual)
    ack.validation_error = wire.CommandAck.DecryptionError
    ack.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id)
    return ack


def test_a_line_is_logged_per_producer_and_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, BrokerConfig(broker_service_port=0, web_service_port=0))
        topic = await server.service.topic(TOPIC, create=True)
        subscription = await topic.create_subscription("s", wire.CommandSubscribe.Shared, EARLIEST)
        clock = ManualClock()
        subscription.now_ms = clock.now_ms
        consumer = Consumer(1, "c", 0, None, None, subscription)  # type: ignore[arg-type]
        for minute in range(2):
            for producer in ("first", "second"):
                for position in await append(topic, 5, producer=producer):
                    subscription.acknowledge(consumer, unreadable(position))
            clock.advance(59 if minute else 60)
        (position,) = await append(topic, 1, producer="first")
        subscription.acknowledge(consumer, unreadable(position))
        assert topic.ledger.cursors.get("s").backlog == 0
        await server.stop()

    with caplog.at_level(logging.WARNING, "afterglow.broker.subscription"):
        asyncio.run(asyncio.wait_for(test(), 60))
    lines = [record.getMessage() for record in caplog.records if "could not read" in record.getMessage()]
    assert [re.sub(r" \d+:\d+ ", " POSITION ", line) for line in lines] == [
        f"subscription s of {TOPIC}: consumer c could not read POSITION of producer {producer}: DecryptionError"
        f"{dropped}"
        for dropped in ("", " (4 more since it was last logged)")
        for producer in ("first", "second")
    ]
