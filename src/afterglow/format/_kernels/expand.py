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
from afterglow.format.compression import _MAX_EXPANSION, Codec

LZ4 = int(Codec.LZ4)
LAST_CODEC = int(max(Codec))

_EXPANSION = tuple(_MAX_EXPANSION.get(codec, 1) for codec in Codec)
"""By codec, the most bytes that one stored byte can stand for."""

REPEATS = 64
"""How many times its own size the producer name and schema version of a batch may take when repeated per message.

A name of 64 bytes on messages of ten takes 6 times; a name of a megabyte on a batch of ten thousand empty messages
would take ten gigabytes, and is refused.
"""

MOST_MESSAGES = 1 << 21
"""Messages that one entry may claim, and that one record batch holds.

A row takes up to 142 bytes in all columns before any text, a message in a batch as little as six: two million rows take
300 MB, and are twice what an uncompressed batch of 5 MiB can hold. Without a bound ten kilobytes of ZSTD would ask for
six gigabytes.
"""


@njit(forceinline=True)
def _messages(row):
    if get(row, STATUS) != GOOD or get(row, FLAGS) & MARKER:
        return np.int64(0)
    if get(row, FLAGS) & (ENCRYPTED | CHUNK) or get(row, MESSAGES) < 0:
        return np.int64(1)
    return get(row, MESSAGES)


@njit(types.int64(TABLE), cache=True, nogil=True)
def count_messages(rows):
    """How many messages the good entries claim to hold: no more than they give rows."""
    total = np.int64(0)
    for i in range(rows.shape[0]):
        total += _messages(rows.ctypes.data + 8 * COLUMNS * i)
    return total


@njit(types.UniTuple(types.int64, 3)(BYTES, TABLE, types.boolean, types.int64), cache=True, nogil=True)
def plan_payloads(data, rows, want_value, limit):
    """Check what each good entry claims, and give each payload that must be expanded its place (EXPANDED_AT).

    No payload may expand beyond ``limit`` bytes, nor may the names that an entry's messages repeat.

    Returns:
        ``(arena bytes with slack, bytes of the repeated names, payloads left to a library)``
    """
    data = data.ctypes.data
    arena = np.int64(0)
    repeated = np.int64(0)
    others = np.int64(0)
    for i in range(rows.shape[0]):
        row = rows.ctypes.data + 8 * COLUMNS * i
        if get(row, STATUS) != GOOD or get(row, FLAGS) & (MARKER | ENCRYPTED | CHUNK):
            continue
        batched = get(row, MESSAGES) >= 0
        codec = get(row, CODEC)
        if codec < 0 or codec > LAST_CODEC:
            put(row, STATUS, UNKNOWN_CODEC)
            continue
        stored = get(row, PAYLOAD_LEN)
        size = stored if codec == 0 else get(row, UNPACKED)
        if batched:
            names = get(row, PRODUCER_LEN) + max(get(row, SCHEMA_LEN), 0)
            whole = size + get(row, META_LEN)
            messages = get(row, MESSAGES)
            if (
                messages < 1
                or messages > min(size // SMALLEST_MESSAGE, MOST_MESSAGES)
                or names * messages > min(REPEATS * whole, limit)
            ):
                put(row, STATUS, BAD_BATCH_SIZE)
                continue
            repeated += names * messages
        if codec == 0 or not (batched or want_value) or (size == 0 and stored == 0):
            continue
        if size > limit or size > stored * _EXPANSION[codec]:
            put(row, STATUS, BAD_COMPRESSION)
            continue
        if codec != LZ4:
            others += 1
        else:
            at = get(row, PAYLOAD_AT)
            if lz4_size(data, at, at + stored, size) != size:
                put(row, STATUS, BAD_COMPRESSION)
                continue
        put(row, EXPANDED_AT, arena)
        arena += size
    return arena + SLACK, repeated, others


@njit(types.void(BYTES, TABLE, types.uint8[::1]), cache=True, nogil=True)
def expand_lz4(data, rows, arena):
    """Expand every planned LZ4 payload into its place; bytes behind it, up to SLACK, may be overwritten."""
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
