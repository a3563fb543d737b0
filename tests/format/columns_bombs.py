"""Decoding of small inputs that claim more memory than the process may use; run as a program."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from afterglow.format.columns import decode_messages
from afterglow.format.compression import Codec, compress
from afterglow.format.entry import encode_entry
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.proto.pulsar_api_pb2 import CompressionType, MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOM_BYTES = 2 << 30
"""Address space beyond what the process has when it starts.

A step may hold 256 MiB of expanded payloads, once more as a codec gives one back, and once more as values; 300 MB of
rows; 256 MiB of repeated names: about 1.3 GiB.
"""

EMPTY = b"\0\0\0\2\x18\0"
"""The smallest message of a batch."""


def entry(codec: Codec, payload: bytes, size: int, messages: int | None = None, name: str = "p") -> bytes:
    metadata = MessageMetadata(producer_name=name, sequence_id=1, publish_time=1)
    metadata.compression = CompressionType.ValueType(int(codec))
    metadata.uncompressed_size = size
    if messages is not None:
        metadata.num_messages_in_batch = messages
    return encode_entry(metadata, payload)


def batch(codec: Codec, messages: int, name: str = "p") -> bytes:
    payload = EMPTY * messages
    return entry(codec, compress(codec, payload), len(payload), messages, name)


def bombs() -> Iterator[tuple[str, list[bytes], int, int]]:
    """Name, entries, and how many rows and bad entries they give."""
    most = 1 << 21
    yield "two million empty messages", [batch(Codec.ZSTD, most)], most, 0
    yield "one message more", [batch(Codec.ZSTD, most + 1)], 0, 1
    yield "four times two million in one step", [batch(Codec.LZ4, most)] * 4, 4 * most, 0
    zeros = compress(Codec.ZSTD, bytes(255 << 20))
    yield "values of 2 GiB in one step", [entry(Codec.ZSTD, zeros, 255 << 20)] * 8, 8, 0
    yield "a value past the limit", [entry(Codec.ZSTD, zeros, 257 << 20)], 0, 1
    yield "claims of 256 MiB in a few bytes", [entry(Codec.ZSTD, b"x" * 8, 256 << 20)] * 20_000, 0, 20_000
    yield "claims that zstd could keep", [entry(Codec.ZSTD, b"x" * 8, 256 << 10, 9)] * 5_000, 0, 5_000
    yield "a name of a megabyte ten thousand times", [batch(Codec.NONE, 10_000, "n" * (1 << 20))], 0, 1
    yield "names of 400 MB under a large payload", [batch(Codec.ZSTD, 1 << 20, "n" * 400)], 0, 1
    yield "names of 200 MB five times", [batch(Codec.ZSTD, 1 << 20, "n" * 200)] * 5, 5 << 20, 0
    yield "a batch of all the numbers there are", [entry(Codec.NONE, b"x" * 60, 0, 2**31 - 1)], 0, 1


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main() -> None:
    decode("to have everything loaded", [batch(codec, 2) for codec in Codec], 10, 0)
    limit = address_space() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for bomb in bombs():
        decode(*bomb)


def decode(name: str, entries: list[bytes], rows: int, bad: int) -> None:
    data = frame_entries(entries)
    started = time.monotonic()
    found_rows = found_bad = 0
    for messages in decode_messages(data, scan_frames(data, 0), 1):
        found_rows += messages.batch.num_rows
        found_bad += len(messages.unreadable)
        del messages
    sys.stdout.write(f"{name}: {len(data)} bytes in {time.monotonic() - started:.2f} s\n")
    assert (found_rows, found_bad) == (rows, bad), (name, found_rows, found_bad)


if __name__ == "__main__":
    main()
