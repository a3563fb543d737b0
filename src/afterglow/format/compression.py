"""Codecs of message payloads and metadata values.

For any input, :func:`decompress` returns exactly the claimed size or raises :class:`~afterglow.errors.CorruptEntry`. It
compares the claim with the largest possible expansion of the input before it allocates memory. Both functions are
stateless and thread-safe.

Not guaranteed: detection of corruption. LZ4 and Snappy have no checksum; a flipped literal decompresses to other bytes
of the same length. The checksum of the entry or block detects that.

| codec  | form                                                                                                 |
|--------|------------------------------------------------------------------------------------------------------|
| LZ4    | one raw block: no frame, no length                                                                   |
| ZLIB   | a zlib stream; Java clients end it with a sync flush and leave out the final block and the checksum  |
| ZSTD   | a zstd frame, with or without its content size                                                       |
| SNAPPY | one raw block, which begins with its length                                                          |
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from functools import cache
from typing import Final, TypeAlias

import pyarrow as pa

from afterglow.errors import CorruptEntry
from afterglow.format._kernels import layout

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes."""

MAX_UNCOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""Largest size that :func:`decompress` accepts by default.

A broker accepts messages up to 5 MiB by default, and a chunked message decompresses as a whole: 256 MiB is fifty times
as much, and still affordable for a process that receives a hostile claim.
"""


class Codec(IntEnum):
    """A compression type, by its number on the wire."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


MAX_EXPANSION: Final = {codec: layout.MAX_EXPANSION[codec] for codec in Codec if codec}
"""Largest number of bytes that one compressed byte can expand to."""

_ARROW_NAMES: Final = {Codec.LZ4: "lz4_raw", Codec.ZSTD: "zstd", Codec.SNAPPY: "snappy"}
_ZSTD_LEVEL: Final = 3  # the level of Pulsar's own clients


def compress(codec: Codec, data: BytesLike) -> bytes:
    """Compress ``data`` in a form that every Pulsar client reads."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.ZLIB:
        return zlib.compress(data)
    compressed: bytes = _arrow_codec(codec).compress(data, asbytes=True)
    return compressed


def decompress(
    codec: int, data: BytesLike, uncompressed_bytes: int, *, max_bytes: int = MAX_UNCOMPRESSED_BYTES
) -> BytesLike:
    """Decompress ``data``.

    Args:
        codec: A number of :class:`Codec`.
        data: Exactly the compressed bytes.
        uncompressed_bytes: The size that the metadata claims. Ignored for ``NONE``, where clients leave it at 0 or, in
            a chunk, set it to the size of the whole message.
        max_bytes: Largest claim accepted.

    Returns:
        Exactly ``uncompressed_bytes`` bytes; for ``NONE`` it is ``data`` itself, not a copy.

    Raises:
        CorruptEntry: The codec is unknown, the claim is impossible or too large, or the data is corrupt or has another
            size than claimed.
    """
    try:
        codec = Codec(codec)
    except ValueError:
        raise CorruptEntry(f"unknown compression type {codec}; known are {', '.join(Codec.__members__)}") from None
    if codec is Codec.NONE:
        return data
    _check_claim(codec, data, uncompressed_bytes, max_bytes)
    try:
        if not len(data):
            return b""  # the claim is 0 too
        if codec is Codec.ZLIB:
            return _inflate(data, uncompressed_bytes)
        if codec is Codec.SNAPPY:
            _check_snappy_length(data, uncompressed_bytes)
        elif codec is Codec.LZ4 and uncompressed_bytes:
            _check_lz4_is_longer_than(data, uncompressed_bytes - 1)
        return _arrow_decompress(codec, data, uncompressed_bytes)
    except (zlib.error, pa.ArrowInvalid, OSError) as error:
        raise CorruptEntry(
            f"{codec.name} payload of {len(data)} bytes does not decompress to {uncompressed_bytes} bytes: {error}"
        ) from error


def _check_claim(codec: Codec, data: BytesLike, uncompressed_bytes: int, max_bytes: int) -> None:
    if uncompressed_bytes > max_bytes:
        raise CorruptEntry(
            f"{codec.name} payload claims {uncompressed_bytes} bytes, above the limit of {max_bytes}; "
            "raise max_bytes where such messages are expected"
        )
    if not 0 <= uncompressed_bytes <= len(data) * MAX_EXPANSION[codec]:
        raise CorruptEntry(
            f"{codec.name} payload of {len(data)} bytes claims {uncompressed_bytes} bytes, which it cannot hold"
        )


def _inflate(data: BytesLike, uncompressed_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    # One byte beyond the claim: a longer stream is detected, and a stream of the claimed size is read to its end.
    inflated = stream.decompress(data, uncompressed_bytes + 1)
    if len(inflated) != uncompressed_bytes:
        held = f"only {len(inflated)}" if len(inflated) < uncompressed_bytes else "more"
        raise zlib.error(f"it holds {held}")
    if stream.unused_data:
        raise zlib.error(f"{len(stream.unused_data)} bytes follow the end of the stream")
    return inflated


def _check_snappy_length(data: BytesLike, uncompressed_bytes: int) -> None:
    """Compare the length at the start of a Snappy block, which the decoder uses, with the claim."""
    length = 0
    for index, byte in enumerate(bytes(data[:5])):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    if length != uncompressed_bytes:
        raise CorruptEntry(f"SNAPPY payload has the length {length}; {uncompressed_bytes} bytes are claimed")


def _check_lz4_is_longer_than(data: BytesLike, size_bytes: int) -> None:
    """Check that an LZ4 block does not fit in a buffer of that size.

    A block does not contain its length, and the decoder does not report how much it wrote: with a larger buffer it
    succeeds and leaves the rest unchanged. It fails exactly if the buffer is too small, so a block has the claimed size
    iff it fits in the claim and not in one byte less. The cost is a second pass.
    """
    try:
        _arrow_decompress(Codec.LZ4, data, size_bytes)
    except OSError:
        return
    raise CorruptEntry(f"LZ4 payload of {len(data)} bytes has fewer than the claimed {size_bytes + 1} bytes")


def _arrow_decompress(codec: Codec, data: BytesLike, uncompressed_bytes: int) -> bytes:
    # In one call, never as a stream: zstd's streaming decoder would allocate the window size in the frame, up to
    # 128 MiB for a few bytes; the one-shot decoder writes only to the result, and checks its size.
    decompressed: bytes = _arrow_codec(codec).decompress(data, uncompressed_bytes, asbytes=True)
    return decompressed


@cache
def _arrow_codec(codec: Codec) -> pa.Codec:
    if codec is Codec.ZSTD:
        return pa.Codec(_ARROW_NAMES[codec], compression_level=_ZSTD_LEVEL)
    return pa.Codec(_ARROW_NAMES[codec])
