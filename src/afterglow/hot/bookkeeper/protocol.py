"""Frames of the bookies' protocol, version 2: requests to read, and the parser of their responses.

A frame is ``length:uint32 · header:uint32 · body``, with ``header = version << 24 | operation << 16 | flags``. The two
headers below are the only ones that this package sends. Bit 0 of the flags would end the ledger for its writer, so both
are constants with flags 0, and no function here takes flags or a key.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from afterglow.errors import InvalidFrame, InvalidPosition

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_HEADER: Final = 0x02020000
"""Read one entry."""
BATCH_READ_HEADER: Final = 0x02070000
"""Read consecutive entries; since BookKeeper 4.17.0."""

_SINGLE: Final = False
_BATCH_RESPONSE: Final = True

LAST_ENTRY: Final = -1
"""Asks one bookie for the last entry that it has of a ledger, confirmed or not."""

_READ: Final = struct.Struct(">IIqq")
_BATCH_READ: Final = struct.Struct(">IIqqqiq")
_LENGTH: Final = struct.Struct(">I")
_READ_RESPONSE: Final = struct.Struct(">IIiqq")
_BATCH_READ_RESPONSE: Final = struct.Struct(">IIiqqq")
_MAX_INT: Final = (1 << 31) - 1
_MAX_LONG: Final = (1 << 63) - 1

_BUFFER_BYTES: Final = 256 << 10
"""Size of the receive buffer. A response that is larger than half of it is received into memory of its own."""
_MAX_FRAME_BYTES: Final = 1 << 30
"""Default limit of a response. A bookie does not limit its responses, and ``maxMessageSize`` of a cluster may be
raised."""


class ReturnCode(IntEnum):
    """Codes of responses that a reader handles; any other means that this bookie cannot serve the entry now."""

    OK = 0
    NO_LEDGER = 1
    """The bookie has no entry of the ledger: collected, or none has reached it yet."""
    NO_ENTRY = 2
    UNAUTHORIZED = 102
    """The bookie requires authentication."""
    TOO_MANY_REQUESTS = 106
    """The request was not executed."""


class Response(NamedTuple):
    """A response. The body is memory of its own."""

    is_batch: bool
    code: int
    ledger_id: int
    """As requested."""
    entry_id: int
    """As requested."""
    request_id: int
    """As requested; 0 for a single read, which has none."""
    body: memoryview
    """The entry of a single read; ``size:int32 · entry``, repeated, of a batch read."""


def encode_read(ledger_id: int, entry_id: int) -> bytes:
    """Encode the request for one entry, or for ``LAST_ENTRY``.

    Raises:
        InvalidPosition: The entry id is invalid.
    """
    if entry_id < LAST_ENTRY:
        raise InvalidPosition(f"invalid entry id {entry_id} of ledger {ledger_id}; it must be 0 or more")
    return _READ.pack(_READ.size - _LENGTH.size, READ_HEADER, ledger_id, entry_id)


def encode_batch_read(ledger_id: int, first: int, request_id: int, max_count: int, max_bytes: int) -> bytes:
    """Encode the request for entries from ``first`` on.

    Args:
        ledger_id: The ledger.
        first: The first entry.
        request_id: Number that the response repeats.
        max_count: Largest number of entries. The bookie sends entries that are not confirmed too, so the caller must
            count up to the last confirmed one.
        max_bytes: Largest size of the response. The bookie sends the first entry in any case.

    Raises:
        InvalidPosition: The entry id or the number of entries is invalid: a bookie takes 0 as no limit.
    """
    if first < 0 or max_count < 1:
        raise InvalidPosition(f"invalid range of {max_count} entries from {first} of ledger {ledger_id}; from 0, 1 up")
    size = _BATCH_READ.size - _LENGTH.size
    return _BATCH_READ.pack(
        size,
        BATCH_READ_HEADER,
        ledger_id,
        first,
        request_id,
        min(max_count, _MAX_INT),
        min(max(max_bytes, 1), _MAX_LONG),
    )


def decode_response(frame: memoryview) -> Response:
    """Decode a whole frame, with its length.

    Raises:
        InvalidFrame: It is not the response to a read.
    """
    if len(frame) >= _READ_RESPONSE.size:
        _, header, code, ledger_id, entry_id = _READ_RESPONSE.unpack_from(frame)
        if header == READ_HEADER:
            return Response(_SINGLE, code, ledger_id, entry_id, 0, frame[_READ_RESPONSE.size :])
        if header == BATCH_READ_HEADER and len(frame) >= _BATCH_READ_RESPONSE.size:
            request_id = _BATCH_READ_RESPONSE.unpack_from(frame)[5]
            return Response(_BATCH_RESPONSE, code, ledger_id, entry_id, request_id, frame[_BATCH_READ_RESPONSE.size :])
    raise InvalidFrame(f"unexpected frame of {len(frame)} bytes from a bookie: {bytes(frame[:16]).hex()}")


class ResponseBuffer:
    """An incremental parser of responses.

    Args:
        max_frame_bytes: Largest response; a larger one is rejected before memory is allocated for it.
    """

    def __init__(self, max_frame_bytes: int = _MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._shared = memoryview(bytearray(_BUFFER_BYTES))
        self._end = 0  # of the received bytes, in the shared buffer or in the large frame
        self._large: memoryview | None = None

    def space(self) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        return self._shared[self._end :] if self._large is None else self._large[self._end :]

    def received(self, count: int) -> Iterator[Response]:
        """Account for ``count`` bytes written to :meth:`space`, and yield the responses that are complete now.

        The iterator must be exhausted before the next bytes are received.

        Raises:
            InvalidFrame: The bytes are not responses to reads, or one is too large.
        """
        self._end += count
        if self._large is not None:
            if self._end == len(self._large):
                whole, self._large, self._end = self._large, None, 0
                yield decode_response(whole)
            return
        start = 0
        while self._end - start >= _LENGTH.size:
            size = _LENGTH.size + int(_LENGTH.unpack_from(self._shared, start)[0])
            if size > self._max_frame_bytes:
                raise InvalidFrame(
                    f"a bookie announced a response of {size} bytes, above the limit of {self._max_frame_bytes}; "
                    "raise max_frame_bytes if the cluster has such entries"
                )
            if start + size > self._end:
                break
            yield decode_response(memoryview(bytes(self._shared[start : start + size])))
            start += size
        self._keep_rest(start)

    def _keep_rest(self, start: int) -> None:
        """Move the bytes of the incomplete response to the beginning of the memory that will hold it."""
        rest = bytes(self._shared[start : self._end])
        self._end = len(rest)
        size = _LENGTH.size + int(_LENGTH.unpack_from(rest)[0]) if len(rest) >= _LENGTH.size else 0
        if size > _BUFFER_BYTES // 2:
            self._large = memoryview(bytearray(size))
            self._large[: self._end] = rest
        else:
            self._shared[: self._end] = rest
