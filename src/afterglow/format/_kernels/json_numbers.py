"""Numbers of JSON, and the few words that may stand in their place."""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import typed_layout as v
from afterglow.format._kernels.cells import put_number
from afterglow.format._kernels.floats import double_bits, float_bits
from afterglow.format._kernels.memory import get, put, u8

_TEN = np.uint64(10)
_NAN = float("nan")
_INFINITY = float("inf")
_BAD = np.int64(-1)


@njit
def read_number(data, at, end):
    """Read a number.

    Returns:
        Where it ends (-1: it is none), whether it is negative, its digits as an integer (19 at most), the power of ten
        they are to be taken by, and what it is: 0 an integer, 1 a fraction, 2 one that takes more care to read.
    """
    negative = u8(data, at) == 45
    if negative:
        at += 1
    digits = np.uint64(0)
    counted = 0
    power = np.int64(0)
    kind = 0
    if at >= end:
        return _BAD, negative, digits, power, kind
    first = u8(data, at)
    if first < 48 or first > 57:
        return _BAD, negative, digits, power, kind
    begin = at
    while at < end and 48 <= u8(data, at) <= 57:
        if counted < 19:
            digits = digits * _TEN + np.uint64(u8(data, at) - 48)
            counted += 1 if digits != 0 else 0
        else:
            kind = 2
        at += 1
    if first == 48 and at - begin > 1:
        return _BAD, negative, digits, power, kind
    if at < end and u8(data, at) == 46:
        at += 1
        begin = at
        kind = max(kind, 1)
        while at < end and 48 <= u8(data, at) <= 57:
            if counted < 19:
                digits = digits * _TEN + np.uint64(u8(data, at) - 48)
                counted += 1 if digits != 0 else 0
                power -= 1
            else:
                kind = 2
            at += 1
        if at == begin:
            return _BAD, negative, digits, power, kind
    if at < end and u8(data, at) | 32 == 101:
        at += 1
        kind = max(kind, 1)
        below = False
        if at < end and (u8(data, at) == 43 or u8(data, at) == 45):
            below = u8(data, at) == 45
            at += 1
        begin = at
        exponent = np.int64(0)
        while at < end and 48 <= u8(data, at) <= 57:
            exponent = min(exponent * 10 + u8(data, at) - 48, np.int64(100_000))
            at += 1
        if at == begin:
            return _BAD, negative, digits, power, kind
        power += -exponent if below else exponent
    return at, negative, digits, power, kind


@njit
def put_float(columns, c, state, value, op):
    """Append a floating-point number, as wide as the operation says."""
    return put_number(columns, c, state, double_bits(value) if op == v.J_DOUBLE else float_bits(value))


@njit
def note_slow(columns, c, state, place, length):
    """Append a number that a library is to read, and note where it stands."""
    n = get(state, v.SLOW_COUNT)
    if n >= get(state, v.SLOW_ROOM):
        put(state, v.FULL_COLUMN, v.SLOW)
        put(state, v.FULL_BYTES, 0)
        return False
    slot = get(columns + 8 * v.WORDS * c, v.COUNT)
    if not put_number(columns, c, state, np.int64(0)):
        return False
    note = get(state, v.SLOW_NOTES) + 8 * v.NOTE * n
    put(note, 0, c)
    put(note, 1, slot)
    put(note, 2, place)
    put(note, 3, length)
    put(state, v.SLOW_COUNT, n + 1)
    return True


@njit(forceinline=True)
def is_word(data, at, end, first, second, third, last, length):
    """Whether a word of ``length`` letters stands here, known by its first three and its last."""
    return (
        end - at >= length
        and u8(data, at) == first
        and u8(data, at + 1) == second
        and u8(data, at + 2) == third
        and u8(data, at + length - 1) == last
    )


@njit
def boolean_end(data, at, end):
    """Where ``true`` or ``false`` ends that stands here; -1 if neither does."""
    if is_word(data, at, end, 116, 114, 117, 101, 4):
        return at + 4
    if is_word(data, at, end, 102, 97, 108, 101, 5) and u8(data, at + 3) == 115:
        return at + 5
    return _BAD


@njit
def read_special(data, at, end):
    """The value of NaN, Infinity or -Infinity, and where it ends; -1 if none stands here."""
    if is_word(data, at, end, 78, 97, 78, 78, 3):
        return _NAN, at + 3
    sign = 1.0
    if at < end and u8(data, at) == 45:
        sign = -1.0
        at += 1
    if (
        is_word(data, at, end, 73, 110, 102, 121, 8)
        and u8(data, at + 3) == 105
        and u8(data, at + 4) == 110
        and u8(data, at + 5) == 105
        and u8(data, at + 6) == 116
    ):
        return sign * _INFINITY, at + 8
    return 0.0, _BAD
