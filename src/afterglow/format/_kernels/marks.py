"""What chunks, markers and messages of transactions say beyond other entries.

A second walk over their metadata, so that entries which are none of these pay nothing for it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import layout
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.memory import get, put
from afterglow.format._kernels.varint import skip, varint


@njit(forceinline=True)
def _note(data, at, end, mark):
    """Note the fields of metadata that was parsed before: nothing in it is torn."""
    while at < end:
        tag, at = varint(data, at, end)
        field = tag >> 3
        wire = tag & 7
        if wire == 0:
            value, at = varint(data, at, end)
            if field == 20:
                put(mark, layout.MARK_MARKER, np.int64(np.int32(value)))
            elif field == 22:
                put(mark, layout.MARK_TXN_LEAST, value)
            elif field == 23:
                put(mark, layout.MARK_TXN_MOST, value)
            elif field == 27:
                put(mark, layout.MARK_CHUNKS, np.int64(np.int32(value)))
            elif field == 28:
                put(mark, layout.MARK_TOTAL, np.int64(np.int32(value)))
            elif field == 29:
                put(mark, layout.MARK_CHUNK, np.int64(np.int32(value)))
        elif wire == 2:
            length, at = varint(data, at, end)
            if field == 26:
                put(mark, layout.MARK_UUID_AT, at)
                put(mark, layout.MARK_UUID_LEN, length)
            at += length
        else:
            at = skip(data, at, end, wire)


@kernel(5)
def read_marks(data, rows, count, first_id, marks):
    """Note what each good entry says that is MARKED, in order; returns how many these are."""
    n = np.int64(0)
    for i in range(count):
        row = rows + 8 * layout.COLUMNS * i
        if get(row, layout.STATUS) != layout.GOOD or get(row, layout.FLAGS) & layout.MARKED == 0:
            continue
        mark = marks + 8 * layout.MARK_COLUMNS * n
        put(mark, layout.MARK_ENTRY_ID, first_id + i)
        put(mark, layout.MARK_FLAGS, get(row, layout.FLAGS))
        put(mark, layout.MARK_MARKER, -1)
        for k in range(layout.MARK_TXN_MOST, layout.MARK_PAYLOAD_AT):
            put(mark, k, 0)
        put(mark, layout.MARK_PAYLOAD_AT, get(row, layout.PAYLOAD_AT))
        put(mark, layout.MARK_PAYLOAD_LEN, get(row, layout.PAYLOAD_LEN))
        put(mark, layout.MARK_CODEC, get(row, layout.CODEC))
        put(mark, layout.MARK_UNPACKED, get(row, layout.UNPACKED))
        at = get(row, layout.META_AT)
        _note(data, at, at + get(row, layout.META_LEN), mark)
        n += 1
    return n
