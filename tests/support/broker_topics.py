"""Messages appended to an open topic of a broker, as its producers append them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from afterglow.format.entry import encode_entry
from afterglow.format.new_entries import NewEntry
from afterglow.format.position import Position
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata

if TYPE_CHECKING:
    from afterglow.broker.topic import Topic
    from afterglow.errors import AfterglowError


async def append(topic: Topic, count: int, size_bytes: int = 1, producer: str = "p") -> list[Position]:
    """Append messages of zero bytes; returns their positions once all are durable."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[Position | AfterglowError]] = []
    for number in range(count):
        future: asyncio.Future[Position | AfterglowError] = loop.create_future()
        metadata = MessageMetadata(producer_name=producer, sequence_id=number, publish_time=1)
        topic.append(NewEntry(encode_entry(metadata, bytes(size_bytes)), 1), future.set_result)
        waiting.append(future)
    return [result for result in await asyncio.gather(*waiting) if isinstance(result, Position)]
