"""Planning and expanding of payloads: the number of messages, the offset of each payload in the arena, LZ4 blocks.

LZ4 payloads are raw blocks, as Pulsar's clients write them; each is measured, and expanded into exactly the size that
its entry claims. Other codecs are left to their libraries.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import layout
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.primitives import copy, copy16, get, put, put8, u8, u16
from afterglow.format.compression import MAX_EXPANSION, Codec


@njit
def lz4_size(source, start, end, limit):
    """Size of the block from ``start`` to ``end`` at an address when expanded; -1 if it is damaged or passes ``limit``.

    It makes a large claim worthless to an attacker: nothing is allocated that the block itself does not account for.
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

    ``source`` can be read up to ``readable``. ``target`` must reach ``layout.SLACK`` bytes further: they may be
    overwritten.

    Returns:
        Whether the block fills ``size`` exactly.
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
            # At most 15 bytes past the match are touched: inside the slack, and overwritten by what follows.
            done = 0
            while done < match:
                copy16(target + to + done, target + origin + done)
                done += 16
        else:
            for k in range(match):
                put8(target, to + k, u8(target, origin + k))
        to += match
    return False


_LAST_CODEC = int(max(Codec))
_EXPANSION = tuple(MAX_EXPANSION.get(codec, 1) for codec in Codec)
"""By codec, the most bytes that one stored byte can stand for."""

_PLAUSIBLE = 16
"""Above so many times its stored size an LZ4 payload is measured before anything is set aside for it.

A block does not contain its size, and the claim may be anything. Measuring costs as much as expanding, except where it
is needed: what expands so far has few tokens.
"""

_REPEATS = 64
"""How many times its own size the producer name and schema version of a batch may take when repeated per message.

A name of 64 bytes on messages of ten takes 6 times; a name of a megabyte on a batch of ten thousand empty messages
would take ten gigabytes, and is refused.
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
    """How many messages the good entries claim to hold: no more than they give rows."""
    total = np.int64(0)
    for i in range(count):
        total += _messages(rows + 8 * layout.COLUMNS * i)
    return total


@kernel(6)
def plan_payloads(data, rows, count, want_value, limit, found):
    """Check what each good entry claims, and give each payload that must be expanded its place (layout.EXPANDED_AT).

    No payload may expand beyond ``limit`` bytes, nor may the names that an entry's messages repeat.

    ``found`` takes the bytes of the arena with slack, the bytes of the repeated names, and the number of payloads
    that are left to a library.
    """
    arena = np.int64(0)
    repeated = np.int64(0)
    others = np.int64(0)
    for i in range(count):
        row = rows + 8 * layout.COLUMNS * i
        if get(row, layout.STATUS) != layout.GOOD or get(row, layout.FLAGS) & (
            layout.MARKER | layout.ENCRYPTED | layout.CHUNK
        ):
            continue
        batched = get(row, layout.MESSAGES) >= 0
        codec = get(row, layout.CODEC)
        if codec < 0 or codec > _LAST_CODEC:
            put(row, layout.STATUS, layout.UNKNOWN_CODEC)
            continue
        stored = get(row, layout.PAYLOAD_LEN)
        size = stored if codec == 0 else get(row, layout.UNPACKED)
        if batched:
            names = get(row, layout.PRODUCER_LEN) + max(get(row, layout.SCHEMA_LEN), 0)
            whole = size + get(row, layout.META_LEN)
            messages = get(row, layout.MESSAGES)
            if (
                messages < 1
                or messages > min(size // layout.SMALLEST_MESSAGE, layout.MOST_MESSAGES)
                or names * messages > min(_REPEATS * whole, limit)
            ):
                put(row, layout.STATUS, layout.BAD_BATCH_SIZE)
                continue
            repeated += names * messages
        if codec == 0 or not (batched or want_value != 0) or (size == 0 and stored == 0):
            continue
        if size > limit or size > stored * _EXPANSION[codec]:
            put(row, layout.STATUS, layout.BAD_COMPRESSION)
            continue
        if codec != layout.LZ4:
            others += 1
        else:
            at = get(row, layout.PAYLOAD_AT)
            if size > _PLAUSIBLE * stored and lz4_size(data, at, at + stored, size) != size:
                put(row, layout.STATUS, layout.BAD_COMPRESSION)
                continue
        put(row, layout.EXPANDED_AT, arena)
        arena += size
    put(found, 0, arena + layout.SLACK)
    put(found, 1, repeated)
    put(found, 2, others)
    return count


@kernel(5)
def expand_lz4(data, readable, rows, count, arena):
    """Expand every planned layout.LZ4 payload into its place; bytes behind it, up to layout.SLACK, may be overwritten.

    The data can be read up to ``readable``.
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
        if not lz4_expand(data, at, at + get(row, layout.PAYLOAD_LEN), readable, target, get(row, layout.UNPACKED)):
            put(row, layout.STATUS, layout.BAD_COMPRESSION)
    return count
