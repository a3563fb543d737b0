"""Blocks of messages for the benches."""

from __future__ import annotations

import random

from afterglow.format.compression import Codec, compress
from afterglow.format.entry import encode_batch, encode_broker_metadata, encode_entry
from afterglow.format.frames import frame_entries
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

TIME_MS = 1_790_000_000_000
WORDS = [random.Random(1).randbytes(6) for _ in range(400)]


def text(rng: random.Random, size: int) -> bytes:
    """Bytes that LZ4 shrinks to about a half, as it does with JSON."""
    out = b"".join(rng.choice(WORDS) + rng.randbytes(2) for _ in range(size // 8 + 1))
    return out[:size]


def unbatched(size: int, total: int) -> bytes:
    """Frames of single messages of ``size`` bytes, ``total`` bytes in all."""
    rng = random.Random(2)
    payloads = [rng.randbytes(size) for _ in range(64)]
    entries: list[bytes] = []
    for i in range(total // (size + 90)):
        metadata = MessageMetadata(
            producer_name="standalone-0-12", sequence_id=i, publish_time=TIME_MS + i, partition_key=f"key-{i % 1000}"
        )
        entries.append(encode_broker_metadata(TIME_MS + i, i) + encode_entry(metadata, payloads[i % 64]))
    return frame_entries(entries)


def batched(size: int, count: int, total: int, codec: Codec) -> bytes:
    """Frames of batches of ``count`` messages of ``size`` bytes."""
    rng = random.Random(3)
    payloads = [
        encode_batch(
            (SingleMessageMetadata(partition_key=f"key-{i}", sequence_id=i), text(rng, size)) for i in range(count)
        )
        for _ in range(8)
    ]
    packed = [compress(codec, payload) for payload in payloads]
    entries: list[bytes] = []
    at = 0
    while at < total:
        k = len(entries) % 8
        metadata = MessageMetadata(
            producer_name="standalone-0-12",
            sequence_id=len(entries) * count,
            publish_time=TIME_MS,
            num_messages_in_batch=count,
            compression=codec.value,  # type: ignore[arg-type] # the enums have the same numbers
            uncompressed_size=len(payloads[k]),
        )
        entries.append(encode_broker_metadata(TIME_MS, len(entries) * count) + encode_entry(metadata, packed[k]))
        at += len(packed[k])
    return frame_entries(entries)
