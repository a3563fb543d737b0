"""Walking the entry frames of a block: ``length:int32 · id:int64 · length bytes``, ended by padding or its end."""

from __future__ import annotations

from numba import njit, types

from afterglow.format._kernels.memory import BYTES, LONGS, be32, be64, u8

FRAME_BYTES = 12
"""Length and id in front of each entry."""

WHOLE = 0
"""The stretch ends with the last frame, or with proper padding."""
TORN_FRAME = 1
"""A frame reaches beyond the stretch."""
WRONG_ID = 2
"""A frame carries an id that does not follow the one before."""
BAD_PADDING = 3
"""Bytes behind the last frame are neither a frame nor padding."""

_FRAMES = types.UniTuple(types.int64, 3)
# FE DC DE AD, repeated from the first byte of padding.
_PADDING = (0xFE, 0xDC, 0xDE, 0xAD)


@njit(forceinline=True)
def _padded(data, start, end):
    for at in range(start, end):
        phase = (at - start) & 3
        if u8(data, at) != _PADDING[phase]:
            return False
    return True


@njit(_FRAMES(BYTES, types.int64, types.int64, types.int64), cache=True, nogil=True)
def count_frames(data, start, end, first_id):
    """Count the frames in ``data[start:end]``.

    Returns ``(frames, offset behind the last good frame, code)``.
    """
    data = data.ctypes.data
    at = start
    count = 0
    while at < end:
        if at + 4 > end:
            return count, at, WHOLE if _padded(data, at, end) else BAD_PADDING
        length = be32(data, at)
        if length < 0:
            # The first padding byte has its top bit set, so padding reads as a negative length.
            return count, at, WHOLE if _padded(data, at, end) else BAD_PADDING
        if at + FRAME_BYTES + length > end:
            return count, at, TORN_FRAME
        if be64(data, at + 4) != first_id + count:
            return count, at, WRONG_ID
        at += FRAME_BYTES + length
        count += 1
    return count, at, WHOLE


@njit(types.void(BYTES, types.int64, LONGS), cache=True, nogil=True)
def locate_frames(data, start, offsets):
    """Write the offset of each frame, and behind the last, into ``offsets``; the frames were counted before."""
    data = data.ctypes.data
    at = start
    for i in range(offsets.size - 1):
        offsets[i] = at
        at += FRAME_BYTES + be32(data, at)
    offsets[-1] = at
