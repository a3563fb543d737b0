"""Blocks of messages for the benches."""

from __future__ import annotations

import json
import random

from afterglow.format.compression import Codec, compress
from afterglow.format.entry import encode_batch, encode_broker_metadata, encode_entry
from afterglow.format.frames import frame_entries
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

TIME_MS = 1_790_000_000_000
CITIES = ("Gdańsk", "Kraków", "Łódź", "Poznań", "Warszawa", "Wrocław")


def record(rng: random.Random, size: int) -> bytes:
    """A JSON object of about ``size`` bytes, as services log them; LZ4 makes batches of it four times smaller."""
    out: dict[str, object] = {}
    while len(json.dumps(out)) < size - 150:
        n = len(out)
        out[f"event_{n}"] = {
            "customer_id": rng.randrange(10**7),
            "city": rng.choice(CITIES),
            "amount": round(rng.random() * 1000, 2),
            "accepted": rng.random() < 0.9,
        }
    return json.dumps(out).encode().ljust(size)[:size]


def records(size: int, count: int, batch: int, codec: Codec) -> bytes:
    """Frames of ``count`` records of ``size`` bytes, no two alike, ``batch`` in an entry; 1: messages by themselves."""
    rng = random.Random(4)
    patterns = [record(rng, size)[1:] for _ in range(64)]
    entries: list[bytes] = []
    for i in range(count // batch):
        values = [(b'{"id": "%016x", ' % rng.getrandbits(64) + patterns[at % 64])[:size] for at in range(i, i + batch)]
        keyed = ((SingleMessageMetadata(partition_key=f"key-{at}"), value) for at, value in enumerate(values))
        payload = encode_batch(keyed) if batch > 1 else values[0]
        metadata = MessageMetadata(
            producer_name="standalone-0-12",
            sequence_id=i * batch,
            publish_time=TIME_MS + i,
            compression=codec.value,  # type: ignore[arg-type] # the enums have the same numbers
            uncompressed_size=len(payload),
        )
        if batch > 1:
            metadata.num_messages_in_batch = batch
        else:
            metadata.partition_key = f"key-{i % 1000}"
        packed = compress(codec, payload)
        entries.append(encode_broker_metadata(TIME_MS + i, (i + 1) * batch - 1) + encode_entry(metadata, packed))
    return frame_entries(entries)


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
            (SingleMessageMetadata(partition_key=f"key-{i}", sequence_id=i), record(rng, size)) for i in range(count)
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
