"""Framing the values of a MapFile: ``length:int32 · length bytes``, value after value."""

from __future__ import annotations

from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.memory import be32, copy, put_be32, put_be64

_LENGTH_BYTES = 4
_FRAME_BYTES = 12


@kernel(6)
def frame_values(data, start, end, first_id, count, out):
    """Write ``count`` values of ``data[start:end]`` to ``out`` as frames with ids from ``first_id`` on.

    ``out`` has room for all bytes of the values and 8 more for each.

    Returns:
        How many bytes were written, or -1 where the values are not that many or do not end there.
    """
    at = start
    to = 0
    for number in range(count):
        length = be32(data, at) if at + _LENGTH_BYTES <= end else -1
        if length < 0 or at + _LENGTH_BYTES + length > end:
            return -1
        put_be32(out, to, length)
        put_be64(out, to + _LENGTH_BYTES, first_id + number)
        copy(out + to + _FRAME_BYTES, data + at + _LENGTH_BYTES, length)
        at += _LENGTH_BYTES + length
        to += _FRAME_BYTES + length
    return to if at == end else -1
