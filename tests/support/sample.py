"""A ledger of made-up messages as Pulsar clients send them: batched and not, in every codec."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.offloaded import OffloadedTopic

from afterglow.format.compression import Codec, compress
from afterglow.format.entry import encode_batch, encode_broker_metadata, encode_entry
from afterglow.format.proto.pulsar_api_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.storage.store import ObjectStore

START_MS = 1_790_000_000_000
"""Broker time of the first entry."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as it was sent."""

    key: bytes | None
    properties: dict[str, str]
    event_time_ms: int
    value: bytes


def sample_messages(count: int, seed: int) -> list[Sent]:
    """Messages that differ in size, key, properties and time."""
    random_ = random.Random(seed)
    return [
        Sent(
            key=f"key-{i % 97}".encode() if i % 3 else None,
            properties={"n": str(i)} if i % 5 == 0 else {},
            event_time_ms=START_MS + i if i % 2 else 0,
            value=random_.randbytes(random_.randrange(2_000)) + b"." * random_.randrange(2_000),
        )
        for i in range(count)
    ]


def sample_entries(messages: list[Sent], seed: int) -> Iterator[bytes]:
    """The entries that a broker would store for them, with broker time and index in front."""
    random_ = random.Random(seed)
    at = 0
    while at < len(messages):
        size = random_.choice([1, 1, 7, 40])
        chunk = messages[at : at + size]
        entry = _single(chunk[0], at) if size == 1 else _batch(chunk, at, random_.choice(list(Codec)))
        at += len(chunk)
        yield encode_broker_metadata(START_MS + at, at - 1) + entry


def sample_objects(tier: ObjectStore, count: int, seed: int) -> tuple[str, str]:
    """Put the entries of so many messages into a tier, as a V1 and as a V2 object of ledger 1; returns their keys."""
    entries = list(sample_entries(sample_messages(count, seed), seed))
    topic = OffloadedTopic(tier)
    topic.ledger(1, entries)
    return topic.offload(1), topic.segment([(1, 0, len(entries) - 1)])


def _single(message: Sent, sequence: int) -> bytes:
    metadata = MessageMetadata(
        producer_name="demo-0",
        sequence_id=sequence,
        publish_time=START_MS + sequence,
        partition_key=None if message.key is None else message.key.decode(),
        event_time=message.event_time_ms or None,
        properties=[KeyValue(key=key, value=value) for key, value in message.properties.items()],
    )
    return encode_entry(metadata, message.value)


def _batch(messages: list[Sent], sequence: int, codec: Codec) -> bytes:
    payload = encode_batch(
        (
            SingleMessageMetadata(
                partition_key=None if message.key is None else message.key.decode(),
                event_time=message.event_time_ms or None,
                properties=[KeyValue(key=key, value=value) for key, value in message.properties.items()],
                sequence_id=sequence + i,
            ),
            message.value,
        )
        for i, message in enumerate(messages)
    )
    metadata = MessageMetadata(
        producer_name="demo-0",
        sequence_id=sequence,
        highest_sequence_id=sequence + len(messages) - 1,
        publish_time=START_MS + sequence,
        num_messages_in_batch=len(messages),
        compression=codec.value,  # type: ignore[arg-type] # the enums have the same numbers
        uncompressed_size=len(payload),
    )
    return encode_entry(metadata, compress(codec, payload))
