"""Copying noted texts and bytes together, once their total length is known."""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import layout
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.memory import copy, copy16, get, get32, put, put8, put32, u8, u64
from afterglow.format._kernels.text import valid_utf8
from afterglow.format._kernels.varint import skip, varint

_HIGH_BITS = np.uint64(0x8080808080808080)


@njit(forceinline=True)
def _copy_in_order(out, to, out_end, source, at, source_end, length):
    """Copy, by one instruction where sixteen bytes may be touched: what is too much is overwritten by the next copy."""
    if length <= 16 and to + 16 <= out_end and at + 16 <= source_end:
        copy16(out + to, source + at)
    else:
        copy(out + to, source + at, length)


@kernel(8)
def gather(data, readable, arena, arena_readable, places, offsets, count, out):
    """Copy ``count`` noted stretches to their offsets in ``out``, in ascending order.

    The data can be read up to ``readable``, the arena up to ``arena_readable``.
    """
    total = get32(offsets, count)
    for i in range(count):
        place = get(places, i)
        to = get32(offsets, i)
        length = get32(offsets, i + 1) - to
        if place >= 0:
            _copy_in_order(out, to, total, data, place, readable, length)
        else:
            _copy_in_order(out, to, total, arena, ~place, arena_readable, length)
    return count


@njit(forceinline=True)
def _six_bits(c):
    if c >= 97:
        return c - 71
    if c >= 65:
        return c - 65
    if c >= 48:
        return c + 4
    return np.int64(62) if c == 43 else np.int64(63)


@njit
def _decode_base64(source, at, out, length):
    held = np.int64(0)
    width = 0
    done = 0
    while done < length:
        held = ((held << 6) | _six_bits(u8(source, at))) & 0xFFFF
        at += 1
        width += 6
        if width >= 8:
            width -= 8
            put8(out, done, held >> width)
            done += 1


@kernel(7)
def gather_keys(data, arena, places, offsets, coded, count, out):
    """As ``gather``, with those keys decoded that stand as base64; their text was checked when it was noted."""
    for i in range(count):
        place = get(places, i)
        to = get32(offsets, i)
        length = get32(offsets, i + 1) - to
        source = data
        if place < 0:
            place = ~place
            source = arena
        if u8(coded, i) != 0:
            _decode_base64(source, place, out + to, length)
        else:
            copy(out + to, source + place, length)
    return count


@njit
def _note_properties(source, complement, at, end, tag, n, key_places, key_offsets, value_places, value_offsets):
    while at < end:
        found, at = varint(source, at, end)
        if found != tag:
            at = skip(source, at, end, found & 7)
            continue
        length, at = varint(source, at, end)
        stop = at + length
        while at < stop:
            inner, at = varint(source, at, stop)
            if inner == 10 or inner == 18:
                size, at = varint(source, at, stop)
                place = ~at if complement else at
                if inner == 10:
                    put(key_places, n, place)
                    put32(key_offsets, n + 1, get32(key_offsets, n) + size)
                else:
                    put(value_places, n, place)
                    put32(value_offsets, n + 1, get32(value_offsets, n) + size)
                at += size
            else:
                at = skip(source, at, stop, inner & 7)
        n += 1
    return n


@kernel(9)
def note_properties(data, arena, spans, counts, count, key_places, key_offsets, value_places, value_offsets):
    """Note where each key and value of each row's properties stands; they were checked when the row was written."""
    n = np.int64(0)
    for r in range(count):
        if get32(counts, r + 1) == get32(counts, r):
            continue
        span = spans + 24 * r
        at = get(span, 0)
        source = data
        complement = at < 0
        if complement:
            at = ~at
            source = arena
        n = _note_properties(
            source, complement, at, at + get(span, 1), get(span, 2), n,
            key_places, key_offsets, value_places, value_offsets,
        )  # fmt: skip
    return n


@kernel(3)
def text_kind(text, offsets, count):
    """ASCII, UTF8 or BROKEN: what the ``count`` texts at ``offsets`` are, each for itself."""
    total = get32(offsets, count)
    at = np.int64(0)
    high = np.uint64(0)
    while at + 8 <= total:
        high |= u64(text, at)
        at += 8
    while at < total:
        high |= np.uint64(u8(text, at))
        at += 1
    if high & _HIGH_BITS == 0:
        return layout.ASCII
    for i in range(count):
        if not valid_utf8(text, get32(offsets, i), get32(offsets, i + 1)):
            return layout.BROKEN
    return layout.UTF8
