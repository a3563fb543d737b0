"""From parsed entries to readable payloads: how many messages there are, and where their bytes will stand."""

from __future__ import annotations

import numpy as np
from numba import njit, types

from afterglow.format._kernels.entries import (
    BAD_BATCH_SIZE,
    BAD_COMPRESSION,
    CHUNK,
    CODEC,
    COLUMNS,
    ENCRYPTED,
    EXPANDED_AT,
    FLAGS,
    GOOD,
    MARKER,
    MESSAGES,
    META_LEN,
    PAYLOAD_AT,
    PAYLOAD_LEN,
    PRODUCER_LEN,
    SCHEMA_LEN,
    SMALLEST_MESSAGE,
    STATUS,
    UNKNOWN_CODEC,
    UNPACKED,
)
from afterglow.format._kernels.lz4 import SLACK, lz4_expand, lz4_size
from afterglow.format._kernels.memory import BYTES, TABLE, get, put

LZ4 = 1
LAST_CODEC = 4

BY_CODEC = -2
"""EXPANDED_AT of a payload that a library must expand."""

REPEATS = 64
"""How many times its own size the producer name and schema version of a batch may take when repeated per message.

A name of 64 bytes on messages of ten takes 6 times; a name of a megabyte on a batch of ten thousand empty messages
would take ten gigabytes, and is refused.
"""


@njit(types.UniTuple(types.int64, 3)(BYTES, TABLE, types.boolean, types.int64), cache=True, nogil=True)
def plan_payloads(data, rows, want_value, limit):
    """Decide for each good entry how many messages it can hold and whether its payload must be expanded.

    LZ4 payloads get their place in the arena (EXPANDED_AT), those of other codecs the mark BY_CODEC. No payload may
    expand beyond ``limit`` bytes.

    Returns:
        ``(messages at most, arena bytes for LZ4 with slack, payloads left to a library)``
    """
    data = data.ctypes.data
    messages = np.int64(0)
    arena = np.int64(0)
    others = np.int64(0)
    for i in range(rows.shape[0]):
        row = rows.ctypes.data + 8 * COLUMNS * i
        if get(row, STATUS) != GOOD or get(row, FLAGS) & MARKER:
            continue
        if get(row, FLAGS) & (ENCRYPTED | CHUNK):
            messages += 1
            continue
        batched = get(row, MESSAGES) >= 0
        codec = get(row, CODEC)
        if codec < 0 or codec > LAST_CODEC:
            put(row, STATUS, UNKNOWN_CODEC)
            continue
        size = get(row, PAYLOAD_LEN) if codec == 0 else get(row, UNPACKED)
        if batched:
            names = get(row, PRODUCER_LEN) + max(get(row, SCHEMA_LEN), 0)
            whole = size + get(row, META_LEN)
            if (
                get(row, MESSAGES) < 1
                or get(row, MESSAGES) > size // SMALLEST_MESSAGE
                or names > REPEATS * whole // get(row, MESSAGES)
            ):
                put(row, STATUS, BAD_BATCH_SIZE)
                continue
        if codec != 0 and (batched or want_value):
            if size > limit:
                put(row, STATUS, BAD_COMPRESSION)
                continue
            if codec == LZ4:
                at = get(row, PAYLOAD_AT)
                if lz4_size(data, at, at + get(row, PAYLOAD_LEN), size) != size:
                    put(row, STATUS, BAD_COMPRESSION)
                    continue
                put(row, EXPANDED_AT, arena)
                arena += size
            else:
                put(row, EXPANDED_AT, BY_CODEC)
                others += 1
        messages += get(row, MESSAGES) if batched else 1
    return messages, arena + SLACK, others


@njit(types.void(BYTES, TABLE, types.uint8[::1]), cache=True, nogil=True)
def expand_lz4(data, rows, arena):
    """Expand every planned LZ4 payload into its place."""
    readable = data.size
    data = data.ctypes.data
    for i in range(rows.shape[0]):
        row = rows.ctypes.data + 8 * COLUMNS * i
        if get(row, STATUS) != GOOD or get(row, EXPANDED_AT) < 0 or get(row, CODEC) != LZ4:
            continue
        at = get(row, PAYLOAD_AT)
        target = arena.ctypes.data + get(row, EXPANDED_AT)
        if not lz4_expand(data, at, at + get(row, PAYLOAD_LEN), readable, target, get(row, UNPACKED)):
            put(row, STATUS, BAD_COMPRESSION)
