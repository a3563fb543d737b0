"""Opens Pulsar's compression envelope around a metadata value.

``0x4778`` · header size (int32) · header {1: codec, 2: uncompressed size} · compressed value; big-endian. What does not
begin with the magic is plain: no message of ours can begin with those bytes.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import pyarrow as pa

from afterglow.errors import FormatError
from afterglow.verify.wire import Message

_MAGIC: Final = b"\x47\x78"
_HEAD: Final = struct.Struct(">2si")
_NONE, _LZ4, _ZLIB, _ZSTD, _SNAPPY = range(5)
_ARROW: Final = {_LZ4: "lz4_raw", _ZSTD: "zstd", _SNAPPY: "snappy"}
_MAX_BYTES: Final = 256 << 20
"""Most bytes of a plain value; a node holds 1 MB compressed."""
_MAX_EXPANSION: Final = {_LZ4: 255, _ZLIB: 1032, _ZSTD: 32768, _SNAPPY: 22}
"""The most bytes that one compressed byte can stand for: a claim above that is damage, and must not cost the memory."""


def open_envelope(value: bytes) -> bytes:
    """The plain value.

    Raises:
        FormatError: The envelope is cut short, or does not hold what it claims.
    """
    if not value.startswith(_MAGIC):
        return value
    if len(value) < _HEAD.size:
        raise FormatError(f"a compressed value ends after {len(value)} bytes, within its envelope")
    size = _HEAD.unpack_from(value)[1]
    if not 0 <= size <= len(value) - _HEAD.size:
        raise FormatError(f"a compressed value of {len(value)} bytes claims a header of {size}")
    header = Message(value[_HEAD.size : _HEAD.size + size])
    codec, plain_bytes = header.integer(1), header.integer(2)
    data = value[_HEAD.size + size :]
    if not 0 <= plain_bytes <= min(_MAX_BYTES, len(data) * _MAX_EXPANSION.get(codec, 1)):
        raise FormatError(f"a compressed value of {len(data)} bytes claims {plain_bytes} bytes, which it cannot hold")
    plain = _decompress(codec, data, plain_bytes)
    if len(plain) != plain_bytes:
        raise FormatError(f"a compressed value claims {plain_bytes} bytes and holds {len(plain)}")
    return plain


def _decompress(codec: int, data: bytes, plain_bytes: int) -> bytes:
    try:
        if codec == _NONE:
            return data
        if codec == _ZLIB:
            # Java ends the stream with a sync flush, without the final block: a plain decompress would refuse it.
            return zlib.decompressobj().decompress(data, plain_bytes + 1)
        if codec in _ARROW:
            if codec == _SNAPPY and _snappy_bytes(data) != plain_bytes:
                raise FormatError(f"a value with codec {codec} holds {_snappy_bytes(data)} bytes, not {plain_bytes}")
            if codec == _LZ4 and plain_bytes and _fits(data, plain_bytes - 1):
                raise FormatError(f"a value with codec {codec} holds fewer than {plain_bytes} bytes")
            plain: bytes = pa.decompress(data, decompressed_size=plain_bytes, codec=_ARROW[codec], asbytes=True)
            return plain
    except (zlib.error, pa.ArrowInvalid, OSError) as error:
        raise FormatError(f"a value with codec {codec} does not decompress: {error}") from error
    raise FormatError(f"a compressed value has the unknown codec {codec}")


def _snappy_bytes(data: bytes) -> int:
    """The length in front of a Snappy block. The decoder obeys it, and leaves the rest of its buffer as it was."""
    length = 0
    for place, byte in enumerate(data[:5]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            break
    return length


def _fits(data: bytes, plain_bytes: int) -> bool:
    """Whether an LZ4 block needs no more room. It does not tell its length, and the decoder not how much it wrote."""
    try:
        pa.decompress(data, decompressed_size=plain_bytes, codec=_ARROW[_LZ4], asbytes=True)
    except OSError:
        return False
    return True
