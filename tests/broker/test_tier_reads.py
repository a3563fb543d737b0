"""Subscriptions over entries in a tier: they skip unreadable entries, and leave threads to other topics."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pulsar
import pytest
from tests.support.broker_topics import append

from afterglow.broker.topic import TIER_READS
from afterglow.config import BrokerConfig
from afterglow.config.choices import DamagePolicy
from afterglow.format.objects import ObjectKey, set_uuid
from afterglow.format.position import EARLIEST, Position
from afterglow.metadata.names import TopicName
from afterglow.offload.block_offloader import BlockOffloader
from afterglow.offload.offloader import extra_metadata
from afterglow.server.process import Server
from afterglow.testing.memory_hot import MemoryLog
from afterglow.tier.locations import Tiers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from afterglow.broker.topic import Topic
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

TOPIC = TopicName.parse("public/default/t")
FULL = 3_000
CONFIG = BrokerConfig(
    broker_service_port=0,
    default_retention_time_in_minutes=-1,
    default_retention_size_in_mb=-1,
    managed_ledger_min_ledger_rollover_time_minutes=0,
    managed_ledger_max_entries_per_ledger=FULL,
    managed_ledger_cache_size_mb=0,
    damaged_data_policy=DamagePolicy.SKIP_AND_REPORT,
)


def move_to_tier(server: Server, topic: Topic, home: Path, ledger_id: int) -> Path:
    """Move a closed ledger from the hot log to the tier; returns the file of the object."""
    offloader = BlockOffloader(server.tiering.location, CONFIG, Tiers())
    uuid = uuid4()
    copies = MemoryLog()
    while (ledger := copies.create()).ledger_id != ledger_id:
        pass
    for entry in topic.ledger.reader.read(EARLIEST, FULL * 2, 1 << 30):
        if entry.position.ledger_id == ledger_id:
            ledger.append((entry.data,), lambda _: None)
    extra = extra_metadata(TOPIC.managed_ledger_name, cluster="standalone", instance="i")
    offloader.offload(ledger, uuid, extra)

    def name_it(info: ManagedLedgerInfo) -> None:
        (row,) = (row for row in info.ledgerInfo if row.ledgerId == ledger_id)
        set_uuid(row.offloadContext, uuid)
        row.offloadContext.complete = True
        row.offloadContext.timestamp = 1
        row.offloadContext.driverMetadata.name = server.tiering.location.driver
        for key, value in offloader.driver_metadata().items():
            row.offloadContext.driverMetadata.properties.add(key=key, value=value)

    topic.ledger.update(name_it)
    topic.ledger.trimmer.free([ledger_id])
    return home / "tier" / str(ObjectKey(uuid, ledger_id))


def consume(url: str, kind: pulsar.ConsumerType, wanted: int) -> list[Position]:
    """Receive and acknowledge messages, and check that no more arrive; returns their positions."""
    client = pulsar.Client(url)
    try:
        consumer = client.subscribe(str(TOPIC), "s", kind, initial_position=pulsar.InitialPosition.Earliest)
        found = []
        for _ in range(wanted):
            message = consumer.receive(20_000)
            found.append(Position(message.message_id().ledger_id(), message.message_id().entry_id()))
            consumer.acknowledge(message)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
        consumer.close()
        return found
    finally:
        client.close()


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize(
    "kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared], ids=["exclusive", "shared"]
)
def test_unreadable_entries_are_acknowledged(tmp_path: Path, kind: pulsar.ConsumerType, where: str) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        topic = await server.service.topic(TOPIC, create=True)
        await asyncio.to_thread(topic.ledger.cursors.create, "s", EARLIEST)
        positions = await append(topic, FULL, 1_000)
        first = positions[0].ledger_id
        while positions[-1].ledger_id == first:  # it is full, and the next one is being made
            positions += await append(topic, 1, 1_000)
        file = await asyncio.to_thread(move_to_tier, server, topic, tmp_path, first)
        data = bytearray(file.read_bytes())
        data[{"first": 1_000, "middle": (1 << 20) + 1_000, "last": len(data) - 1_000}[where]] ^= 1
        file.write_bytes(data)

        reading = await asyncio.to_thread(topic.ledger.reader.read_with_gaps, EARLIEST, len(positions), 1 << 30)
        lost = {Position(first, at) for span in reading.skipped for at in range(span.first, span.last + 1)}
        assert 0 < len(lost) <= (1 << 20) // 1_000 + 2

        kept = [position for position in positions if position not in lost]
        assert await asyncio.to_thread(consume, server.service.service_url, kind, len(kept)) == kept
        assert topic.ledger.cursors.get("s").backlog == 0
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


class ManualPool(Executor):
    """An executor that runs nothing until a test asks for it."""

    def __init__(self) -> None:
        self.work: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *_: Any, **__: Any) -> Future[Any]:
        self.work.append((Future(), fn))
        return self.work[-1][0]

    def run(self) -> None:
        held, self.work = self.work, []
        for future, fn in held:
            future.set_result(fn())


def test_one_topic_uses_only_some_threads_of_the_tier_pool(tmp_path: Path) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        topic = await server.service.topic(TOPIC, create=True)
        positions = await append(topic, FULL, 1_000)
        while positions[-1].ledger_id == positions[0].ledger_id:
            positions += await append(topic, 1, 1_000)
        await asyncio.to_thread(move_to_tier, server, topic, tmp_path, positions[0].ledger_id)
        threads, server.service._tier_pool = server.service._tier_pool, ManualPool()
        held = server.service._tier_pool
        assert isinstance(held, ManualPool)
        reads = [asyncio.create_task(topic.read(positions[0], 1, 1)) for _ in range(10)]
        near = await topic.read(positions[-1], 1, 1)  # what the hot log has waits for none of them
        assert near[0].position == positions[-1]
        done = 0
        while done < len(reads):
            assert 0 < len(held.work) <= TIER_READS
            done += len(held.work)
            held.run()
            await asyncio.gather(*reads[:done])
            await asyncio.sleep(0)
        assert all(read.result()[0].position == positions[0] for read in reads)
        server.service._tier_pool = threads
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))
