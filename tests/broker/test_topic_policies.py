"""Retention and time to live, as a namespace sets them, on a real engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from afterglow.config import BrokerConfig
from afterglow.engine.server import Server
from afterglow.format.entry import encode_entry
from afterglow.format.position import EARLIEST, Position
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.ledger.retention import Retention
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.broker.topic import Topic
    from afterglow.errors import AfterglowError

TOPIC = TopicName.parse("public/default/t")
CONFIG = BrokerConfig(broker_service_port=0, default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1)


async def append(topic: Topic, count: int) -> list[Position]:
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[Position | AfterglowError]] = []
    for i in range(count):
        future: asyncio.Future[Position | AfterglowError] = loop.create_future()
        metadata = MessageMetadata(producer_name="p", sequence_id=i, publish_time=1)
        topic.append(encode_entry(metadata, b"x"), 1, future.set_result)
        waiting.append(future)
    results = await asyncio.gather(*waiting)
    return [result for result in results if isinstance(result, Position)]


def set_policy(name: str, value: Any) -> Any:
    return lambda old: {**old, name: value}


def test_a_change_of_retention_reaches_topics_that_are_open(tmp_path: Path) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        topic = await server.service.topic(TOPIC, create=True)
        assert topic.ledger.retention == Retention.of(-1, -1)
        policy = {"retentionTimeInMinutes": 3, "retentionSizeInMB": 4}
        await server.service.update_policies(TOPIC.namespace, set_policy("retention_policies", policy))
        assert topic.ledger.retention == Retention.of(3, 4)
        await server.service.unload(TOPIC)
        topic = await server.service.topic(TOPIC, create=False)
        assert topic.ledger.retention == Retention.of(3, 4)
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_what_is_older_than_the_time_to_live_counts_as_acknowledged(tmp_path: Path) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        service = server.service
        topic = await service.topic(TOPIC, create=True)
        cursor = await service.blocking(topic.ledger.create_cursor, "s", EARLIEST)
        positions = await append(topic, 5)
        await service.expire_messages()
        assert cursor.backlog == 5
        await service.update_policies(TOPIC.namespace, set_policy("message_ttl_in_seconds", 1))
        # Broker time is the wall clock's: these entries are younger than a second until it has passed.
        await asyncio.sleep(1.1)
        young = await append(topic, 2)
        await service.expire_messages()
        assert cursor.mark_delete == positions[-1]
        assert cursor.backlog == len(young)
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))
