"""Hadoop's SequenceFile, as far as MapFiles of Pulsar's ``filesystem`` driver use it: keys and values of fixed kinds.

``SEQ`` and the version 6; the names of key and value classes; two flags, for compression and for blocks; the codec's
name; pairs of texts; sixteen bytes that mark places to begin at. Behind this stand

* records ``length:int32 · key length:int32 · key · value``, the value compressed by itself or not at all, with the mark
  behind a length of -1 between some of them; or
* blocks: -1 and the mark, the number of records, and four compressed buffers, each behind its length: lengths of keys,
  keys, lengths of values, values.

Keys are ``LongWritable``, eight bytes; values are these or ``BytesWritable``, bytes behind their length. Numbers are
big-endian; lengths in a block and of texts are of one to nine bytes.
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
"""Bytes that are searched for a header; Hadoop's own have some 150."""
_GROUP_BYTES: Final = 1 << 20
"""Of records that are handed over as one where the file has no blocks."""
_CODECS: Final = {
    "org.apache.hadoop.io.compress.DefaultCodec": zlib.MAX_WBITS,
    "org.apache.hadoop.io.compress.DeflateCodec": zlib.MAX_WBITS,
    "org.apache.hadoop.io.compress.GzipCodec": zlib.MAX_WBITS | 16,
}
"""Codecs of zlib, by the window bits of their wrapping."""


class ByteSource(Protocol):
    """A file of which ranges can be read."""

    @property
    def size_bytes(self) -> int:
        """Its length."""
        ...

    def read(self, start: int, count: int) -> memoryview:
        """Bytes from ``start`` on: ``count`` of them, or fewer at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Header:
    """What stands at the beginning of a file."""

    compressed: bool
    blocks: bool
    """Whether records are compressed together."""
    window_bits: int
    """Of zlib."""
    sync: bytes
    """Marks places to begin at."""
    end: int
    """Offset behind it."""


@dataclass(frozen=True, slots=True)
class Records:
    """Some records that follow each other; at least one."""

    keys: NDArray[np.int64]
    values: bytes | bytearray
    """Value after value, as Hadoop writes them."""
    end: int
    """Offset in the file behind them."""


def decode_header(source: ByteSource, value_class: str) -> Header:
    """Read a file's header.

    Args:
        source: The file.
        value_class: Of which its values are to be.

    Raises:
        CorruptBlock: It is not a header.
        NotSupported: Keys, values or codec are of another kind.
    """
    data = source.read(0, _MAX_HEADER)
    if bytes(data[:4]) != _MAGIC:
        raise CorruptBlock(f"it does not begin as a SequenceFile of version 6 does, but with {bytes(data[:4])!r}")
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
        raise NotSupported(f"it holds {held} by {key_class}; in a MapFile of Pulsar it is {value_class} by {LONG}")
    if codec not in _CODECS:
        raise NotSupported(f"it is compressed by {codec}; of Hadoop's codecs {', '.join(_CODECS)} are read")
    sync = bytes(data[at : at + _SYNC_BYTES])
    if len(sync) < _SYNC_BYTES:
        raise CorruptBlock("its header is cut short")
    return Header(compressed, blocks, _CODECS[codec], sync, at + _SYNC_BYTES)


def read_records(source: ByteSource, header: Header, at: int) -> Records | None:
    """The records from an offset on, at which a record or a mark must stand; None at the end of the file.

    Raises:
        CorruptBlock: What stands there is neither, or does not decompress.
    """
    if at >= source.size_bytes:
        return None
    try:
        found = _read_block(source, header, at) if header.blocks else _read_group(source, header, at)
    except (zlib.error, struct.error, IndexError) as error:
        raise CorruptBlock(f"what stands at offset {at} does not parse: {error}") from error
    return found


def frame_records(records: Records, skipped: int) -> memoryview:
    """Bytes by consecutive keys as frames, whose ids the keys are; see :mod:`afterglow.format.frames`.

    Args:
        records: Of which one at least is not skipped.
        skipped: How many are left out at the beginning.

    Raises:
        CorruptBlock: The keys do not follow each other, or the values do not parse.
    """
    keys, values, start = records.keys[skipped:], records.values, 0
    if not (np.diff(keys) == 1).all():
        raise CorruptBlock(f"entries from {keys[0]} on do not follow each other")
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
        raise CorruptBlock(f"no block begins at offset {at}")
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
    """Records one by one: a Python step for each, which the profile that comes with Pulsar avoids."""
    keys: list[int] = []
    values = bytearray()
    while at < source.size_bytes and len(values) < _GROUP_BYTES:
        (length,) = _INT.unpack_from(source.read(at, _INT.size))
        if length == _SYNC_ESCAPE:
            mark = source.read(at + _INT.size, _SYNC_BYTES)
            if bytes(mark) != header.sync:
                raise CorruptBlock(f"no mark stands at offset {at}")
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
    """A buffer decompressed. The file names no size of the result, so that a bound is all that stops a bomb."""
    stream = zlib.decompressobj(header.window_bits)
    inflated = stream.decompress(data, max_bytes + 1)
    if len(inflated) > max_bytes:
        raise CorruptBlock(f"a buffer of {len(data)} compressed bytes holds more than {max_bytes}")
    if not stream.eof:
        raise CorruptBlock(f"a buffer of {len(data)} compressed bytes is cut short")
    return inflated


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and the offset behind it: the first tells sign and length where it is below."""
    first = data[at] - 256 if data[at] > 127 else data[at]
    if first >= -112:
        return first, at + 1
    negative = first < -120
    length = -120 - first if negative else -112 - first
    if at + 1 + length > len(data):
        raise IndexError(f"a number of {length} bytes is cut short")
    value = int.from_bytes(data[at + 1 : at + 1 + length], "big")
    return (~value if negative else value), at + 1 + length


def _text(data: memoryview, at: int) -> tuple[str, int]:
    length, at = _number(data, at)
    if length < 0 or at + length > len(data):
        raise IndexError(f"a text of {length} bytes is cut short")
    return bytes(data[at : at + length]).decode("utf-8"), at + length
