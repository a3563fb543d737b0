"""SequenceFiles that expand to more than they may. Files that Hadoop wrote are read in tests/read/test_mapfile.py."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from dataclasses import dataclass

import pytest

from afterglow.errors import CorruptBlock
from afterglow.format import sequence_file
from afterglow.format.sequence_file import BYTES, LONG, decode_header, read_records

SYNC = b"0123456789abcdef"
CODEC = "org.apache.hadoop.io.compress.DefaultCodec"
BOMB_BYTES = 64 << 20


@dataclass(frozen=True)
class Held:
    """A file in memory."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, start: int, count: int) -> memoryview:
        return memoryview(self.data)[start : start + count]


def text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


def number(value: int) -> bytes:
    """Behind a byte that says that four bytes follow."""
    return struct.pack(">bi", -116, value)


def buffer(data: bytes) -> bytes:
    packed = zlib.compress(data, 9)
    return number(len(packed)) + packed


def head(*, blocks: bool) -> bytes:
    return b"SEQ\x06" + text(LONG) + text(BYTES) + bytes([1, blocks]) + text(CODEC) + struct.pack(">i", 0) + SYNC


def in_blocks(keys: bytes, values: bytes) -> Held:
    block = struct.pack(">i", -1) + SYNC + number(1) + buffer(b"\x08") + buffer(keys) + buffer(b"\x05") + buffer(values)
    return Held(head(blocks=True) + block)


def one_by_one(value: bytes) -> Held:
    packed = zlib.compress(value, 9)
    return Held(head(blocks=False) + struct.pack(">iiq", 8 + len(packed), 8, 7) + packed)


KEY = struct.pack(">q", 7)
VALUE = struct.pack(">i", 1) + b"x"


@pytest.mark.parametrize("file", [in_blocks(KEY, VALUE), one_by_one(VALUE)], ids=["blocks", "one by one"])
def test_records_written_by_hand_are_read(file: Held) -> None:
    header = decode_header(file, BYTES)
    records = read_records(file, header, header.end)
    assert records is not None
    assert (records.keys.tolist(), bytes(records.values), records.end) == ([7], VALUE, file.size_bytes)


@pytest.mark.parametrize(
    "file",
    [in_blocks(bytes(BOMB_BYTES), VALUE), in_blocks(KEY, bytes(BOMB_BYTES)), one_by_one(bytes(BOMB_BYTES))],
    ids=["keys", "values", "one by one"],
)
def test_a_buffer_that_expands_beyond_the_bound_is_corrupt_and_not_allocated(
    file: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_file, "MAX_UNCOMPRESSED_BYTES", 1 << 20)
    header = decode_header(file, BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBlock, match="expands to more than"):
            read_records(file, header, header.end)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_buffer_that_is_cut_short_is_corrupt() -> None:
    packed = zlib.compress(VALUE)[:-5]
    file = Held(head(blocks=False) + struct.pack(">iiq", 8 + len(packed), 8, 7) + packed)
    header = decode_header(file, BYTES)
    with pytest.raises(CorruptBlock, match="is truncated"):
        read_records(file, header, header.end)
