"""Decoding of Hadoop's SequenceFile, as MapFiles of Pulsar's ``filesystem`` driver use it.

A file begins with ``SEQ`` and the version 6; the names of key and value classes; two flags, for compression and for
blocks; the codec's name; metadata as pairs of texts; and a sync marker of sixteen bytes. Then follow either

* records ``length:int32 · key length:int32 · key · value``, the value compressed by itself or not at all, with sync
  markers, after a length of -1, between some of them; or
* blocks: -1 and the sync marker, the number of records, and four compressed buffers, each after its length: lengths of
  keys, keys, lengths of values, values.

Keys are ``LongWritable``, eight bytes; values are ``LongWritable`` or ``BytesWritable``, bytes after their length.
Numbers are big-endian; lengths of texts and in blocks are Hadoop's variable-length integers of one to nine bytes.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from afterglow.errors import CorruptBlock, NotSupported
from afterglow.format._kernels import calls
from afterglow.format.compression import MAX_UNCOMPRESSED_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONG: Final = "org.apache.hadoop.io.LongWritable"
BYTES: Final = "org.apache.hadoop.io.BytesWritable"

_MAGIC: Final = b"SEQ\x06"
_SYNC_BYTES: Final = 16
_SYNC_ESCAPE: Final = -1
_INT: Final = struct.Struct(">i")
_RECORD: Final = struct.Struct(">ii")
_LONG_BYTES: Final = 8
_MAX_HEADER: Final = 1 << 16
"""Bytes read for a header; those that Hadoop writes have about 150."""
_GROUP_BYTES: Final = 1 << 20
"""Bytes of records returned at a time if the file has no blocks."""
_CODECS: Final = {
    "org.apache.hadoop.io.compress.DefaultCodec": zlib.MAX_WBITS,
    "org.apache.hadoop.io.compress.DeflateCodec": zlib.MAX_WBITS,
    "org.apache.hadoop.io.compress.GzipCodec": zlib.MAX_WBITS | 16,
}
"""Supported codecs, with zlib's window bits for their wrapper."""


class ByteSource(Protocol):
    """A file with random access."""

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        ...

    def read(self, start: int, count: int) -> memoryview:
        """Read ``count`` bytes from ``start``, or fewer at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file."""

    compressed: bool
    blocks: bool
    """Whether records are compressed in blocks."""
    window_bits: int
    """Window bits for zlib."""
    sync: bytes
    """Sync marker of the file."""
    end: int
    """End offset of the header."""


@dataclass(frozen=True, slots=True)
class Records:
    """One or more consecutive records."""

    keys: NDArray[np.int64]
    values: bytes | bytearray
    """Concatenated values, as Hadoop writes them."""
    end: int
    """End offset of the records in the file."""


def decode_header(source: ByteSource, value_class: str) -> Header:
    """Decode a file's header.

    Args:
        source: The file.
        value_class: Expected class of its values.

    Raises:
        CorruptBlock: It is not a valid header.
        NotSupported: The classes of keys or values, or the codec, are not supported.
    """
    data = source.read(0, _MAX_HEADER)
    if bytes(data[:4]) != _MAGIC:
        raise CorruptBlock(f"{bytes(data[:4])!r} is not the magic of a SequenceFile of version 6")
    try:
        key_class, at = _text(data, 4)
        held, at = _text(data, at)
        compressed, blocks = bool(data[at]), bool(data[at + 1])
        at += 2
        codec = next(iter(_CODECS))
        if compressed:
            codec, at = _text(data, at)
        (pairs,) = _INT.unpack_from(data, at)
        at += _INT.size
        for _ in range(2 * pairs):
            _, at = _text(data, at)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise CorruptBlock(f"its header does not parse: {error}") from error
    if (key_class, held) != (LONG, value_class):
        raise NotSupported(f"its classes are {key_class} and {held}; MapFiles of Pulsar have {LONG} and {value_class}")
    if codec not in _CODECS:
        raise NotSupported(f"its codec {codec} is not supported; supported are {', '.join(_CODECS)}")
    sync = bytes(data[at : at + _SYNC_BYTES])
    if len(sync) < _SYNC_BYTES:
        raise CorruptBlock("its header is truncated")
    return Header(compressed, blocks, _CODECS[codec], sync, at + _SYNC_BYTES)


def read_records(source: ByteSource, header: Header, at: int) -> Records | None:
    """Read the records at an offset, which must be that of a record, block or sync marker; None at the end of the file.

    Raises:
        CorruptBlock: The bytes at the offset do not parse or do not decompress.
    """
    if at >= source.size_bytes:
        return None
    try:
        found = _read_block(source, header, at) if header.blocks else _read_group(source, header, at)
    except (zlib.error, struct.error, IndexError) as error:
        raise CorruptBlock(f"the bytes at offset {at} do not parse: {error}") from error
    return found


def frame_records(records: Records, skipped: int) -> memoryview:
    """Convert records to frames with their keys as entry ids; see :mod:`afterglow.format.frames`.

    Args:
        records: The records.
        skipped: Number of records to skip at the beginning; fewer than there are.

    Raises:
        CorruptBlock: The keys are not consecutive, or the values do not parse.
    """
    keys, values, start = records.keys[skipped:], records.values, 0
    if not (np.diff(keys) == 1).all():
        raise CorruptBlock(f"entries from {keys[0]} on are not consecutive")
    for _ in range(skipped):
        start += _INT.size + max(int.from_bytes(values[start : start + _INT.size], "big", signed=True), 0)
    whole = np.frombuffer(values, np.uint8)
    framed = calls.frame_values(whole, start, whole.size, int(keys[0]), keys.size) if start <= whole.size else None
    if framed is None:
        raise CorruptBlock(f"the values of entries {keys[0]} to {keys[-1]} do not parse")
    return memoryview(framed.data)


def _read_block(source: ByteSource, header: Header, at: int) -> Records:
    head = source.read(at, _INT.size + _SYNC_BYTES + 9)
    if _INT.unpack_from(head)[0] != _SYNC_ESCAPE or bytes(head[_INT.size : _INT.size + _SYNC_BYTES]) != header.sync:
        raise CorruptBlock(f"no block found at offset {at}")
    count, at_head = _number(head, _INT.size + _SYNC_BYTES)
    at += at_head
    if count <= 0:
        raise CorruptBlock(f"the block at offset {at} has {count} records")
    _, at = _skip_buffer(source, at)
    keys, at = _read_buffer(source, header, at, min(_LONG_BYTES * count, MAX_UNCOMPRESSED_BYTES))
    _, at = _skip_buffer(source, at)
    values, at = _read_buffer(source, header, at, MAX_UNCOMPRESSED_BYTES)
    if len(keys) != _LONG_BYTES * count:
        raise CorruptBlock(f"{count} keys have {len(keys)} bytes, not {_LONG_BYTES * count}")
    return Records(np.frombuffer(keys, ">i8").astype(np.int64), values, at)


def _read_group(source: ByteSource, header: Header, at: int) -> Records | None:
    """Read records one by one; files written with Pulsar's default profile have blocks instead."""
    keys: list[int] = []
    values = bytearray()
    while at < source.size_bytes and len(values) < _GROUP_BYTES:
        (length,) = _INT.unpack_from(source.read(at, _INT.size))
        if length == _SYNC_ESCAPE:
            if bytes(source.read(at + _INT.size, _SYNC_BYTES)) != header.sync:
                raise CorruptBlock(f"no sync marker found at offset {at}")
            at += _INT.size + _SYNC_BYTES
            continue
        record = source.read(at, _RECORD.size + max(length, 0))
        _, key_bytes = _RECORD.unpack_from(record)
        if key_bytes != _LONG_BYTES or len(record) < _RECORD.size + length:
            raise CorruptBlock(f"the record at offset {at} has {length} bytes and a key of {key_bytes}")
        keys.append(int.from_bytes(record[_RECORD.size : _RECORD.size + _LONG_BYTES], "big", signed=True))
        value = record[_RECORD.size + _LONG_BYTES :]
        values += _inflate(value, header, MAX_UNCOMPRESSED_BYTES) if header.compressed else value
        at += len(record)
    return Records(np.array(keys, np.int64), values, at) if keys else None


def _skip_buffer(source: ByteSource, at: int) -> tuple[int, int]:
    length, used = _number(source.read(at, 9), 0)
    if length < 0 or at + used + length > source.size_bytes:
        raise CorruptBlock(f"the buffer at offset {at} has {length} bytes")
    return at + used, at + used + length


def _read_buffer(source: ByteSource, header: Header, at: int, max_bytes: int) -> tuple[bytes, int]:
    start, end = _skip_buffer(source, at)
    return _inflate(source.read(start, end - start), header, max_bytes), end


def _inflate(data: memoryview, header: Header, max_bytes: int) -> bytes:
    """Decompress a buffer. The file does not contain the size of the result, so a limit protects against bombs."""
    stream = zlib.decompressobj(header.window_bits)
    inflated = stream.decompress(data, max_bytes + 1)
    if len(inflated) > max_bytes:
        raise CorruptBlock(f"a buffer of {len(data)} compressed bytes expands to more than {max_bytes}")
    if not stream.eof:
        raise CorruptBlock(f"a buffer of {len(data)} compressed bytes is truncated")
    return inflated


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """Decode a variable-length integer; a first byte below -112 has sign and length. Returns it and its end offset."""
    first = data[at] - 256 if data[at] > 127 else data[at]
    if first >= -112:
        return first, at + 1
    negative = first < -120
    length = -120 - first if negative else -112 - first
    if at + 1 + length > len(data):
        raise IndexError(f"a number of {length} bytes is truncated")
    value = int.from_bytes(data[at + 1 : at + 1 + length], "big")
    return (~value if negative else value), at + 1 + length


def _text(data: memoryview, at: int) -> tuple[str, int]:
    length, at = _number(data, at)
    if length < 0 or at + length > len(data):
        raise IndexError(f"a text of {length} bytes is truncated")
    return bytes(data[at : at + length]).decode("utf-8"), at + length
