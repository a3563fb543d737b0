"""Where a running engine finds the entries that tasks read from afar."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from afterglow.config import BrokerConfig
from afterglow.engine.server import Server
from afterglow.format.entry import encode_entry
from afterglow.format.position import LATEST, Position
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.metadata.names import TopicName
from afterglow.offload.manual import OffloadState
from afterglow.testing.served_topics import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.broker.topic import Topic
    from afterglow.errors import AfterglowError

pytest.importorskip("pyspark", reason="the extra afterglow[spark] is not installed")

TOPIC: Final = TopicName.parse("public/default/t")
MIB: Final = 1 << 20
COUNT: Final = 240
SIZE: Final = 100_000
PATIENCE_S: Final = 150.0
"""A loaded machine takes long to start a Spark."""


async def append(topic: Topic, count: int) -> list[Position]:
    loop = asyncio.get_running_loop()
    waiting = []
    for number in range(count):
        future: asyncio.Future[Position | AfterglowError] = loop.create_future()
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        topic.append(encode_entry(metadata, bytes(SIZE)), 1, future.set_result)
        waiting.append(future)
    return [found for found in await asyncio.gather(*waiting) if isinstance(found, Position)]


async def stream_out(home: Path) -> tuple[Server, int]:
    """Streams entries to a tier while they are written, far more than the tail cache holds.

    Returns the engine, which has ended, and the bytes of entries that came before the stream began.
    """
    server = await Server.start(
        home,
        BrokerConfig(
            broker_service_port=0,
            spark_master="local[2]",
            offload_tasks_read_files=False,
            streaming_offload_enabled=True,
            streaming_offload_part_size_in_bytes=5 * MIB,
            managed_ledger_cache_size_mb=1,
            offload_tick_interval_millis=50,
        ),
    )
    offload, buffer = server.tiering.offload, server.tiering.buffer
    name = TOPIC.managed_ledger_name
    assert buffer is not None
    try:
        topic = await server.service.topic(TOPIC, create=True)
        early = 0
        while not buffer.statistics.entries:
            early += len(await append(topic, 1))
            await asyncio.sleep(0.05)
        assert len(await append(topic, COUNT)) == COUNT
        await server.service.blocking(offload.offload_prefix, name, LATEST)
        await asyncio.to_thread(
            eventually,
            lambda: offload.status(name).state is not OffloadState.RUNNING,
            lambda: offload.segments(name),
        )
        assert offload.status(name).state is OffloadState.SUCCESS
    finally:
        await server.stop()
    return server, early * SIZE


def test_tasks_from_afar_are_served_from_memory_before_the_log(tmp_path: Path) -> None:
    server, early_bytes = asyncio.run(asyncio.wait_for(stream_out(tmp_path), PATIENCE_S))
    read = server.service.raw_reads
    total_bytes = COUNT * SIZE
    assert read.cache_bytes + read.buffer_bytes + read.log_bytes >= total_bytes
    assert read.buffer_bytes > 0.8 * total_bytes
    assert read.log_bytes < early_bytes + 0.1 * total_bytes
    assert server.tiering.offload.read_bytes.files == 0
    assert server.tiering.offload.read_bytes.protocol >= total_bytes
    assert server.tiering.buffer is not None
    assert server.tiering.buffer.statistics.bytes_held == 0
    jobs, requests = server.service.offload_jobs(), server.service.tier_requests()
    assert jobs.succeeded
    assert jobs.seconds > 0
    assert requests["create_upload"].requests
