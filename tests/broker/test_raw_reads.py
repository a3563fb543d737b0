"""Where entries come from that are read as they are stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.broker.raw_reads import RawReads
from afterglow.config import BrokerConfig
from afterglow.engine.server import Server
from afterglow.format.entry import encode_entry
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.format.wire import INSTANCE_PROPERTY, RAW_PROPERTY
from afterglow.hot.pulsar import PulsarAddress, RawReader
from afterglow.metadata.names import TopicName
from afterglow.testing.raw_client import ErrorAnswer, RawClient

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.broker.service import BrokerService
    from afterglow.errors import AfterglowError

TOPIC = TopicName.parse("public/default/t")
COUNT = 300


async def read_raw(home: Path, **settings: Any) -> tuple[int, RawReads]:
    """Writes entries, reads them raw; returns their bytes, and where these came from."""
    server = await Server.start(
        home,
        BrokerConfig(
            broker_service_port=0, default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1, **settings
        ),
    )
    loop = asyncio.get_running_loop()
    topic = await server.service.topic(TOPIC, create=True)
    waiting = []
    for number in range(COUNT):
        future: asyncio.Future[Position | AfterglowError] = loop.create_future()
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        topic.append(encode_entry(metadata, bytes(500)), 1, future.set_result)
        waiting.append(future)
    results = await asyncio.gather(*waiting)
    positions = [result for result in results if isinstance(result, Position)]
    assert len(positions) == COUNT

    def read() -> int:
        with RawReader(PulsarAddress(server.service.service_url), str(TOPIC)) as reader:
            assert sum(run.count for run in reader.read(positions[0], positions[-1])) == COUNT
            return reader.statistics.size_bytes

    size = await asyncio.to_thread(read)
    counted = server.service.raw_reads
    await topic.read(positions[0], COUNT, 1 << 20)  # not for a raw consumer
    await server.stop()
    return size, counted


@pytest.mark.parametrize("cached", [True, False])
def test_bytes_are_counted_by_where_they_came_from(tmp_path: Path, *, cached: bool) -> None:
    settings = {} if cached else {"managed_ledger_cache_size_mb": 0}
    size, counted = asyncio.run(asyncio.wait_for(read_raw(tmp_path, **settings), 60))
    assert size > COUNT * 500
    assert counted == (RawReads(cache_bytes=size) if cached else RawReads(log_bytes=size))


def test_limits_for_clients_are_not_for_readers_of_the_engine(tmp_path: Path) -> None:
    def subscribe(service: BrokerService) -> None:
        kinds, topic = wire.CommandSubscribe, str(TOPIC)
        own = {RAW_PROPERTY: "true", INSTANCE_PROPERTY: service.hot_instance}
        with RawClient(service.service_url) as client:
            for name in ("one", "two"):
                client.subscribe(topic, name, durable=False, properties=own)
            client.subscribe(topic, "s", kinds.Shared)  # they take no client's place
            client.subscribe(topic, "three", durable=False, properties=own)  # nor clients theirs
            with pytest.raises(ErrorAnswer, match="maxConsumersPerTopic"):
                client.subscribe(topic, "s", kinds.Shared)
            # What anybody can ask for is not enough, nor is a subscription that would hold messages back.
            with pytest.raises(ErrorAnswer, match="types Shared"):
                client.subscribe(topic, "other", durable=False, properties={RAW_PROPERTY: "true"})
            with pytest.raises(ErrorAnswer, match="types Shared"):
                client.subscribe(topic, "other", durable=True, properties=own)

    async def test() -> None:
        server = await Server.start(tmp_path, BrokerConfig(broker_service_port=0))
        await server.service.topic(TOPIC, create=True)
        limits = {"subscription_types_enabled": ["Shared"], "max_consumers_per_topic": 1}
        await server.service.update_policies(TOPIC.namespace, lambda _old: limits)
        await asyncio.to_thread(subscribe, server.service)
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))
