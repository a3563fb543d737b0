"""Loads of ``bench.broker``: messages of 1 KiB, by the raw client and by the stock one."""

from __future__ import annotations

import itertools
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Any

import pulsar
from tests.support.raw_client import RawClient, encode_send

from afterglow.format.entry import encode_batch, encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import FrameBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.raw_client import Frame

PAYLOAD = os.urandom(1024)
BATCH = 100  # messages in a batch
WINDOW = 2_000  # most SENDs without a receipt
STEP = 32  # SENDs in one write to the socket
PERMITS = 1_000
_MAX_FRAME = 8 << 20


def entry(messages: int) -> bytes:
    """An entry of one message, or of a batch."""
    metadata = wire.MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1_700_000_000_000)
    if messages == 1:
        return encode_entry(metadata, PAYLOAD)
    metadata.num_messages_in_batch = messages
    return encode_entry(metadata, encode_batch((wire.SingleMessageMetadata(), PAYLOAD) for _ in range(messages)))


def sends(producers: Sequence[int], count: int, messages: int) -> list[bytes]:
    """SENDs over all producers in turn, with sequence ids that count them all."""
    data = entry(messages)
    turns = itertools.cycle(producers)
    return [encode_send(next(turns), number, data, messages) for number in range(count)]


class Receipts:
    """Takes answers to SENDs off a connection."""

    def __init__(self, client: RawClient) -> None:
        self._socket = client.socket
        self._buffer = FrameBuffer(_MAX_FRAME)

    def take(self) -> list[int]:
        """Sequence ids of the receipts that one read brings."""
        count = self._socket.recv_into(self._buffer.space())
        if not count:
            raise ConnectionError("the broker closed the connection")
        found = []
        for data, _ in self._buffer.received(count):
            command = wire.BaseCommand.FromString(bytes(data))
            if command.type != wire.BaseCommand.SEND_RECEIPT:
                raise RuntimeError(f"no receipt: {command}")
            found.append(command.send_receipt.sequence_id)
        return found


def push(client: RawClient, frames: Sequence[bytes], window: int) -> float:
    """Seconds until all SENDs have receipts, with as many under way as the window lets."""
    receipts = Receipts(client)
    sent = received = 0
    start = time.perf_counter()
    while received < len(frames):
        while sent < len(frames) and sent - received + STEP <= window:
            client.write(b"".join(frames[sent : sent + STEP]))
            sent = min(sent + STEP, len(frames))
        received += len(receipts.take())
    return time.perf_counter() - start


def pace(client: RawClient, frames: Sequence[bytes], rate: int) -> list[float]:
    """Seconds from when each SEND was due to its receipt, one every ``1 / rate`` seconds, whatever the broker does."""
    receipts = Receipts(client)
    latencies: list[float] = []
    sent = 0
    start = time.perf_counter()
    while len(latencies) < len(frames):
        now = time.perf_counter()
        due = min(int((now - start) * rate) + 1, len(frames))
        if due > sent:
            client.write(b"".join(frames[sent:due]))
            sent = due
        wait = max(start + sent / rate - time.perf_counter(), 0) if sent < len(frames) else 30.0
        if select.select([client.socket], [], [], wait)[0]:
            found = receipts.take()
            now = time.perf_counter()
            latencies += [now - (start + number / rate) for number in found]
    return latencies


def pull(service_url: str, topic: str, messages: int) -> float:
    """Seconds until a raw consumer has all messages of a topic."""

    def arriving(client: RawClient, consumer: int) -> Iterator[Frame]:
        while True:
            yield client.message(consumer)

    with RawClient(service_url) as client:
        consumer = client.subscribe(topic, "raw")
        start = time.perf_counter()
        client.flow(consumer, 2 * PERMITS)
        got = granted = 0
        size = len(entry(1))
        for frame in arriving(client, consumer):
            got += 1 if len(frame.payload) == size else BATCH
            if got >= messages:
                return time.perf_counter() - start
            if got - granted >= PERMITS:
                client.flow(consumer, got - granted)
                granted = got
    raise AssertionError("unreachable: the loop returns")


def stock_client(service_url: str) -> Any:
    return pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def stock_produce(client: Any, topic: str, count: int, *, batching: bool) -> float:
    """Seconds until the stock client has receipts for all messages."""
    producer = client.create_producer(
        topic,
        batching_enabled=batching,
        batching_max_messages=1000,
        batching_max_allowed_size_in_bytes=128 << 10,
        batching_max_publish_delay_ms=1,
        block_if_queue_full=True,
        max_pending_messages=WINDOW,
    )
    producer.send(PAYLOAD)
    all_done = threading.Event()
    left = count

    def done(result: Any, _: Any) -> None:
        nonlocal left
        if result != pulsar.Result.Ok:
            raise RuntimeError(f"not sent: {result}")
        left -= 1
        if not left:
            all_done.set()

    start = time.perf_counter()
    for _ in range(count):
        producer.send_async(PAYLOAD, done)
    if not all_done.wait(120):
        raise TimeoutError("the broker did not answer")
    seconds = time.perf_counter() - start
    producer.close()
    return seconds


def stock_consume(client: Any, topic: str, count: int) -> float:
    """Seconds until the stock client has received and acknowledged all messages."""
    consumer = client.subscribe(topic, "stock", initial_position=pulsar.InitialPosition.Earliest)
    start = time.perf_counter()
    for number in range(count):
        message = consumer.receive(20_000)
        if number % 1_000 == 999:
            consumer.acknowledge_cumulative(message)
    seconds = time.perf_counter() - start
    consumer.close()
    return seconds
