"""LZ4 raw blocks, as Pulsar's clients write them: measured, and expanded into a stretch of exactly the claimed size."""

from __future__ import annotations

from numba import njit

from afterglow.format._kernels.memory import copy, copy16, put8, u8, u16


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
