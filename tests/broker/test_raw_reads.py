"""Raw readers: origins of their entries, and limits that do not apply to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.raw_client import ErrorAnswer, RawClient

from afterglow.config import BrokerConfig
from afterglow.format.entry import encode_entry
from afterglow.format.new_entries import NewEntry
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.format.wire import INSTANCE_PROPERTY, RAW_PROPERTY, START_PROPERTY
from afterglow.hot.pulsar import PulsarAddress, RawReader
from afterglow.ledger.reader import ReadOrigin
from afterglow.metadata.names import TopicName
from afterglow.server.process import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from afterglow.broker.service import BrokerService
    from afterglow.broker.traffic import OriginBytes
    from afterglow.errors import AfterglowError

TOPIC = TopicName.parse("public/default/t")
COUNT = 300


async def read_raw(
    home: Path, read: Callable[[RawReader, list[Position]], None], *, offloads: bool, **settings: Any
) -> tuple[int, BrokerService]:
    """Write entries and read some with a raw reader; returns the bytes read, and the stopped broker."""
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
        topic.append(NewEntry(encode_entry(metadata, bytes(500)), 1), future.set_result)
        waiting.append(future)
    results = await asyncio.gather(*waiting)
    positions = [result for result in results if isinstance(result, Position)]
    assert len(positions) == COUNT

    def read_some() -> int:
        with RawReader(PulsarAddress(server.service.service_url), str(TOPIC), offloads=offloads) as reader:
            read(reader, positions)
            return reader.statistics.size_bytes

    size = await asyncio.to_thread(read_some)
    await topic.read(positions[0], COUNT, 1 << 20)  # not for a raw reader
    await server.stop()
    return size, server.service


def read_all(reader: RawReader, positions: list[Position]) -> None:
    assert sum(run.count for run in reader.read(positions[0], positions[-1])) == COUNT


def read_ranges(reader: RawReader, positions: list[Position]) -> None:
    """Read two ranges; none starts at the topic's first entry, and one ends before its last."""
    for first, last in ((1, 120), (200, COUNT - 1)):
        assert sum(run.count for run in reader.read(positions[first], positions[last])) == last - first + 1


def counted(reads: OriginBytes) -> dict[ReadOrigin, int]:
    return {origin: reads[origin] for origin in ReadOrigin if reads[origin]}


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("offloads", [True, False])
def test_bytes_are_counted_by_origin(tmp_path: Path, *, cached: bool, offloads: bool) -> None:
    settings = {} if cached else {"managed_ledger_cache_size_mb": 0}
    size, service = asyncio.run(asyncio.wait_for(read_raw(tmp_path, read_all, offloads=offloads, **settings), 60))
    assert size > COUNT * 500
    expected = {ReadOrigin.CACHE if cached else ReadOrigin.HOT: size}
    assert counted(service.raw_reads) == expected
    assert counted(service.offload_reads) == (expected if offloads else {})


def test_a_raw_reader_receives_requested_entries_only(tmp_path: Path) -> None:
    size, service = asyncio.run(asyncio.wait_for(read_raw(tmp_path, read_ranges, offloads=True), 60))
    assert counted(service.offload_reads) == {ReadOrigin.CACHE: size}


def test_a_start_that_is_not_a_position_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, BrokerConfig(broker_service_port=0))
        await server.service.topic(TOPIC, create=True)

        def subscribe() -> None:
            given = {RAW_PROPERTY: "true", START_PROPERTY: "somewhere"}
            with (
                RawClient(server.service.service_url) as client,
                pytest.raises(ErrorAnswer, match="invalid position 'somewhere'"),
            ):
                client.subscribe(str(TOPIC), "s", durable=False, properties=given)

        await asyncio.to_thread(subscribe)
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_limits_for_clients_do_not_apply_to_internal_readers(tmp_path: Path) -> None:
    def subscribe(service: BrokerService) -> None:
        kinds, topic = wire.CommandSubscribe, str(TOPIC)
        own = {RAW_PROPERTY: "true", INSTANCE_PROPERTY: service.hot_instance}
        with RawClient(service.service_url) as client:
            for name in ("one", "two"):
                client.subscribe(topic, name, durable=False, properties=own)
            client.subscribe(topic, "s", kinds.Shared)  # internal readers do not count as clients
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
