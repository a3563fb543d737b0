"""Planning and expansion of payloads: number of messages, offset of each payload in the arena, LZ4 blocks.

LZ4 payloads are raw blocks, as Pulsar's clients write them; each is expanded to exactly the size that its entry claims.
Other codecs are left to their libraries.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import layout
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.primitives import copy, copy16, get, put, put8, u8, u16


@njit
def lz4_size(source, start, end, limit):
    """Return the expanded size of the block from ``start`` to ``end``; -1 if it is corrupt or exceeds ``limit``.

    It protects against hostile claims: no memory is allocated that the block itself does not fill.
    """
    at = start
    size = 0
    while at < end:
        token = u8(source, at)
        at += 1
        literals = token >> 4
        if literals == 15:
            while True:
                if at >= end:
                    return -1
                more = u8(source, at)
                at += 1
                literals += more
                if more != 255:
                    break
        at += literals
        size += literals
        if at > end or size > limit:
            return -1
        if at == end:
            return size
        if at + 2 > end:
            return -1
        at += 2
        match = (token & 15) + 4
        if match == 19:
            while True:
                if at >= end:
                    return -1
                more = u8(source, at)
                at += 1
                match += more
                if more != 255:
                    break
        size += match
        if size > limit:
            return -1
    return -1


@njit
def lz4_expand(source, start, end, readable, target, size):
    """Expand the block from ``start`` to ``end`` at ``source`` into ``size`` bytes at ``target``.

    ``source`` is readable up to ``readable``. ``layout.SLACK`` bytes after the target may be overwritten.

    Returns:
        Whether the block has exactly ``size`` bytes.
    """
    at = start
    to = 0
    stop = size
    while at < end:
        token = u8(source, at)
        at += 1
        literals = token >> 4
        if literals == 15:
            while True:
                if at >= end:
                    return False
                more = u8(source, at)
                at += 1
                literals += more
                if more != 255:
                    break
        if at + literals > end or to + literals > stop:
            return False
        if literals <= 16 and at + 16 <= readable:
            copy16(target + to, source + at)
        else:
            copy(target + to, source + at, literals)
        at += literals
        to += literals
        if at == end:
            return to == stop
        if at + 2 > end:
            return False
        distance = u16(source, at)
        at += 2
        if distance == 0 or distance > to:
            return False
        match = (token & 15) + 4
        if match == 19:
            while True:
                if at >= end:
                    return False
                more = u8(source, at)
                at += 1
                match += more
                if more != 255:
                    break
        if to + match > stop:
            return False
        origin = to - distance
        if distance >= 16:
            # At most 15 bytes past the match are written: within the slack, and overwritten by what follows.
            done = 0
            while done < match:
                copy16(target + to + done, target + origin + done)
                done += 16
        else:
            for k in range(match):
                put8(target, to + k, u8(target, origin + k))
        to += match
    return False


_LAST_CODEC = len(layout.MAX_EXPANSION) - 1
_EXPANSION = layout.MAX_EXPANSION
"""By codec, the largest number of bytes that one stored byte can expand to."""

_PLAUSIBLE = 16
"""Ratio of claimed to stored size above which an LZ4 payload is measured before memory is allocated for it.

A block does not contain its size, and the claim may be anything. Measuring usually costs as much as expanding, but a
block with such a ratio has few tokens.
"""

_REPEATS = 64
"""Largest ratio of names and schema versions, repeated per message, to the size of their batch.

A name of 64 bytes on messages of ten bytes has a ratio of 6; a name of a megabyte on a batch of ten thousand empty
messages would take ten gigabytes, and is rejected.
"""


@njit(forceinline=True)
def _messages(row):
    if get(row, layout.STATUS) != layout.GOOD or get(row, layout.FLAGS) & layout.MARKER:
        return np.int64(0)
    if get(row, layout.FLAGS) & (layout.ENCRYPTED | layout.CHUNK) or get(row, layout.MESSAGES) < 0:
        return np.int64(1)
    return get(row, layout.MESSAGES)


@kernel(2)
def count_messages(rows, count):
    """Return the number of messages that the good entries claim: at least as many as they have rows."""
    total = np.int64(0)
    for i in range(count):
        total += _messages(rows + 8 * layout.COLUMNS * i)
    return total


@kernel(6)
def plan_payloads(data, rows, count, want_value, limit, found):
    """Check the claims of each good entry, and assign each compressed payload its arena offset (layout.EXPANDED_AT).

    Neither a payload nor the repeated names of an entry's messages may exceed ``limit`` bytes.

    ``found`` receives the bytes of the arena with slack, the bytes of the repeated names, the number of payloads left
    to a library, and the bytes of all payloads, expanded: the values together have at most as many.
    """
    arena = np.int64(0)
    repeated = np.int64(0)
    others = np.int64(0)
    payloads = np.int64(0)
    for i in range(count):
        row = rows + 8 * layout.COLUMNS * i
        if get(row, layout.STATUS) != layout.GOOD or get(row, layout.FLAGS) & layout.MARKER:
            continue
        stored = get(row, layout.PAYLOAD_LEN)
        if get(row, layout.FLAGS) & (layout.ENCRYPTED | layout.CHUNK):
            payloads += stored
            continue
        batched = get(row, layout.MESSAGES) >= 0
        codec = get(row, layout.CODEC)
        if codec < 0 or codec > _LAST_CODEC:
            put(row, layout.STATUS, layout.UNKNOWN_CODEC)
            continue
        size = stored if codec == 0 else get(row, layout.UNCOMPRESSED)
        if batched:
            names = get(row, layout.PRODUCER_LEN) + max(get(row, layout.SCHEMA_LEN), 0)
            names += max(get(row, layout.REPLICATED_LEN), 0) + max(get(row, layout.SCHEMA_ID_LEN), 0)
            whole = size + get(row, layout.META_LEN)
            messages = get(row, layout.MESSAGES)
            if (
                messages < 1
                or messages > min(size // layout.SMALLEST_MESSAGE, layout.MAX_MESSAGES)
                or names * messages > min(_REPEATS * whole, limit)
            ):
                put(row, layout.STATUS, layout.INVALID_BATCH_SIZE)
                continue
            repeated += names * messages
        if codec == 0 or not (batched or want_value != 0) or (size == 0 and stored == 0):
            payloads += size
            continue
        if size > limit or size > stored * _EXPANSION[codec]:
            put(row, layout.STATUS, layout.CORRUPT_COMPRESSION)
            continue
        if codec != layout.LZ4:
            others += 1
        else:
            at = get(row, layout.PAYLOAD_AT)
            if size > _PLAUSIBLE * stored and lz4_size(data, at, at + stored, size) != size:
                put(row, layout.STATUS, layout.CORRUPT_COMPRESSION)
                continue
        put(row, layout.EXPANDED_AT, arena)
        arena += size
        payloads += size
    put(found, 0, arena + layout.SLACK)
    put(found, 1, repeated)
    put(found, 2, others)
    put(found, 3, payloads)
    return count


@kernel(5)
def expand_lz4(data, readable, rows, count, arena):
    """Expand every planned layout.LZ4 payload; up to layout.SLACK bytes after it may be overwritten.

    The data is readable up to ``readable``.
    """
    for i in range(count):
        row = rows + 8 * layout.COLUMNS * i
        if (
            get(row, layout.STATUS) != layout.GOOD
            or get(row, layout.EXPANDED_AT) < 0
            or get(row, layout.CODEC) != layout.LZ4
        ):
            continue
        at = get(row, layout.PAYLOAD_AT)
        target = arena + get(row, layout.EXPANDED_AT)
        if not lz4_expand(data, at, at + get(row, layout.PAYLOAD_LEN), readable, target, get(row, layout.UNCOMPRESSED)):
            put(row, layout.STATUS, layout.CORRUPT_COMPRESSION)
    return count
