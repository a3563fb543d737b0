"""Shared subscriptions with one consumer: entries that are sent together are treated like those sent one by one."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from tests.support.raw_client import RawClient, encode_send

from afterglow.config import BrokerConfig
from afterglow.format.entry import encode_batch, encode_entry, may_be_delayed
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.metadata.names import TopicName
from afterglow.server.process import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from afterglow.broker.consumer import Consumer
    from afterglow.broker.topic import Topic
    from afterglow.format.position import Position

TOPIC = TopicName.parse("public/default/t")
SHARED = wire.CommandSubscribe.Shared
HOUR_MS = 3_600_000


def entry(number: int, *, deliver_at_ms: int = 0, batch: int = 0) -> bytes:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    if not batch:
        return encode_entry(metadata, b"%d" % number)
    metadata.num_messages_in_batch = batch
    return encode_entry(metadata, encode_batch((wire.SingleMessageMetadata(), b"%d" % number) for _ in range(batch)))


def publish(client: RawClient, entries: list[bytes]) -> list[Position]:
    producer = client.open_producer(str(TOPIC))
    return client.publish(encode_send(producer, number, data) for number, data in enumerate(entries))


def run(path: Path, test: Callable[[str, Topic], None], **settings: int) -> None:
    """Run a test in a thread, beside a server."""

    async def serve() -> None:
        config = BrokerConfig(broker_service_port=0, web_service_port=None, **settings)  # type: ignore[arg-type]
        server = await Server.start(path, config)
        try:
            topic = await server.service.topic(TOPIC, create=True)
            await asyncio.to_thread(test, server.service.service_url, topic)
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(serve(), 300))


def only_consumer(topic: Topic) -> Consumer:
    (consumer,) = topic.subscriptions["s"].consumers
    return consumer


def test_messages_arrive_once_in_order_and_those_not_acknowledged_again(tmp_path: Path) -> None:
    entries = [entry(number) for number in range(250)]

    def test(url: str, topic: Topic) -> None:
        with RawClient(url) as client:
            positions = publish(client, entries)
            consumer = client.subscribe(str(TOPIC), "s", SHARED)
            client.flow(consumer, 1_000)
            frames = [client.message(consumer) for _ in entries]
            assert [frame.position for frame in frames] == positions
            assert [frame.payload for frame in frames] == entries
            assert only_consumer(topic).unacknowledged == 250
            for position in positions[::2]:
                client.ack(consumer, position)
            client.close_consumer(consumer)

            consumer = client.subscribe(str(TOPIC), "s", SHARED)
            client.flow(consumer, 1_000)
            frames = [client.message(consumer) for _ in positions[1::2]]
            assert [frame.position for frame in frames] == positions[1::2]
            assert {frame.command.message.redelivery_count for frame in frames} == {1}

    run(tmp_path, test)


def test_no_message_is_sent_without_a_permit(tmp_path: Path) -> None:
    def test(url: str, topic: Topic) -> None:
        with RawClient(url) as client:
            positions = publish(client, [entry(number) for number in range(30)])
            consumer = client.subscribe(str(TOPIC), "s", SHARED)
            client.flow(consumer, 10)
            found = [client.message(consumer).position for _ in range(10)]
            assert (only_consumer(topic).permits, only_consumer(topic).messages_out) == (0, 10)
            client.flow(consumer, 20)
            assert found + [client.message(consumer).position for _ in range(20)] == positions

    run(tmp_path, test)


def test_no_more_messages_are_sent_than_may_be_unacknowledged(tmp_path: Path) -> None:
    def test(url: str, topic: Topic) -> None:
        with RawClient(url) as client:
            positions = publish(client, [entry(number) for number in range(30)])
            consumer = client.subscribe(str(TOPIC), "s", SHARED)
            client.flow(consumer, 1_000)
            assert [client.message(consumer).position for _ in range(20)] == positions[:20]
            assert only_consumer(topic).messages_out == 20
            client.ack(consumer, positions[0])
            assert client.message(consumer).position == positions[20]

    run(tmp_path, test, max_unacked_messages_per_consumer=20)


def test_a_delayed_message_waits_while_those_around_it_are_sent(tmp_path: Path) -> None:
    later = time.time_ns() // 1_000_000 + HOUR_MS
    entries = [entry(0), entry(1, deliver_at_ms=later), *map(entry, range(2, 20))]

    def test(url: str, topic: Topic) -> None:
        with RawClient(url) as client:
            positions = publish(client, entries)
            consumer = client.subscribe(str(TOPIC), "s", SHARED)
            client.flow(consumer, 1_000)
            sent = [client.message(consumer).position for _ in range(19)]
            assert sent == [positions[0], *positions[2:]]
            assert topic.subscriptions["s"].delayed == 1

    run(tmp_path, test)


def test_batches_take_a_permit_for_each_message(tmp_path: Path) -> None:
    entries = [entry(0), entry(1, batch=5), *map(entry, range(2, 20))]

    def test(url: str, topic: Topic) -> None:
        with RawClient(url) as client:
            positions = publish(client, entries)
            consumer = client.subscribe(str(TOPIC), "s", SHARED)
            client.flow(consumer, 1_000)
            assert [client.message(consumer).position for _ in entries] == positions
            assert only_consumer(topic).permits == 1_000 - 19 - 5
            assert only_consumer(topic).unacknowledged == 19 + 5

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("stored", "delayed"),
    [
        pytest.param(entry(1), False, id="plain"),
        pytest.param(entry(1, deliver_at_ms=1), True, id="with a delivery time"),
        pytest.param(b"\x0e\x02\x00\x00\x00\x02\x08\x01" + entry(1), False, id="with broker metadata"),
        pytest.param(b"\x0e\x02\x00\x00\x00\x02\x08\x01" + entry(1, deliver_at_ms=1), True, id="with both"),
        pytest.param(entry(1)[6:], False, id="without a checksum"),
        pytest.param(b"\x0e\x02\x00", True, id="damaged"),
        pytest.param(b"", True, id="empty"),
    ],
)
def test_a_delivery_time_is_noticed_without_decoding(stored: bytes, delayed: bool) -> None:  # noqa: FBT001
    assert may_be_delayed(memoryview(stored)) is delayed
