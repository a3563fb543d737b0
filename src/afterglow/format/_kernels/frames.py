"""Walking the entry frames of a block: ``length:int32 · id:int64 · length bytes``, ended by padding or its end."""

from __future__ import annotations

from numba import njit

from afterglow.format._kernels import layout
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.memory import be32, be64, put, u8

_FRAME_BYTES = 12
# FE DC DE AD, repeated from the first byte of padding.
_PADDING = (0xFE, 0xDC, 0xDE, 0xAD)


@njit(forceinline=True)
def _padding(data, start, end):
    """WHOLE if padding stands from ``start`` to ``end``."""
    for at in range(start, end):
        if u8(data, at) != _PADDING[(at - start) & 3]:
            return layout.BAD_PADDING
    return layout.WHOLE


@kernel(6)
def find_frames(data, start, end, first_id, offsets, room):
    """Write the offset of each frame between ``start`` and ``end`` into ``offsets``, which has ``room`` numbers.

    Behind the frames' offsets stand the offset behind the last one, and the code that tells what ended them.

    Returns:
        The number of frames, or -1 if the room does not suffice.
    """
    at = start
    count = 0
    code = layout.WHOLE
    while at < end:
        if count + 2 >= room:
            return -1
        put(offsets, count, at)
        length = be32(data, at) if at + 4 <= end else -1
        if length < 0:
            # The first byte of padding has its top bit set, so padding reads as a negative length.
            code = _padding(data, at, end)
            break
        if at + _FRAME_BYTES + length > end:
            code = layout.TORN_FRAME
            break
        if be64(data, at + 4) != first_id + count:
            code = layout.WRONG_ID
            break
        at += _FRAME_BYTES + length
        count += 1
    put(offsets, count, at)
    put(offsets, count + 1, code)
    return count
