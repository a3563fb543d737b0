"""Strings, numbers and literals of JSON values: skipping them, and writing them into columns."""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import typed_layout as v
from afterglow.format._kernels.cells import end_text, put_number, put_text, reserve_text
from afterglow.format._kernels.primitives import double_bits, float_bits, get, is_utf8, put, put8, u8, u64

_QUOTE = 34
_BACKSLASH = 92
_EACH = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_NONE = np.int64(-1)


@njit
def string_end(data, at, end):
    """Return the offset of the closing quote of the string at ``at``, -1 if missing, and whether it has escapes."""
    escaped = False
    while True:
        while at + 8 <= end:
            word = u64(data, at)
            quotes = word ^ _QUOTES
            slashes = word ^ _BACKSLASHES
            special = ((quotes - _EACH) & ~quotes) | ((slashes - _EACH) & ~slashes) | ((word - _SPACES) & ~word)
            if special & _HIGHS != 0:
                break
            at += 8
        stop = min(at + 8, end)
        while at < stop:
            c = u8(data, at)
            if c == _QUOTE:
                return at, escaped
            if c < 32:
                return _NONE, escaped
            if c == _BACKSLASH:
                escaped = True
                at += 1
            at += 1
        if at >= end:
            return _NONE, escaped


@njit(forceinline=True)
def _hex4(data, at):
    value = np.int64(0)
    for i in range(4):
        c = u8(data, at + i)
        if 48 <= c <= 57:
            digit = c - 48
        elif 97 <= c <= 102:
            digit = c - 87
        elif 65 <= c <= 70:
            digit = c - 55
        else:
            return _NONE
        value = (value << 4) | digit
    return value


@njit
def _escape(data, at, end):
    """Return the character of the escape after a backslash, -1 if it is invalid, and the end of the escape."""
    c = u8(data, at)
    at += 1
    if c in (_QUOTE, _BACKSLASH) or c == 47:
        return c, at
    if c == 110:
        return np.int64(10), at
    if c == 116:
        return np.int64(9), at
    if c == 114:
        return np.int64(13), at
    if c == 98:
        return np.int64(8), at
    if c == 102:
        return np.int64(12), at
    if c != 117 or end - at < 4:
        return _NONE, at
    point = _hex4(data, at)
    at += 4
    if point < 0xD800 or point > 0xDFFF:
        return point, at
    # A surrogate, which is valid only as the first of a pair.
    if point > 0xDBFF or end - at < 6 or u8(data, at) != _BACKSLASH or u8(data, at + 1) != 117:
        return _NONE, at
    second = _hex4(data, at + 2)
    if second < 0xDC00 or second > 0xDFFF:
        return _NONE, at
    return 0x10000 + ((point - 0xD800) << 10) + (second - 0xDC00), at + 6


@njit(forceinline=True)
def _put_utf8(out, to, point):
    """Write a character as UTF-8; returns its end."""
    if point < 0x80:
        put8(out, to, point)
        return to + 1
    if point < 0x800:
        put8(out, to, 0xC0 | (point >> 6))
        put8(out, to + 1, 0x80 | (point & 63))
        return to + 2
    if point < 0x10000:
        put8(out, to, 0xE0 | (point >> 12))
        put8(out, to + 1, 0x80 | ((point >> 6) & 63))
        put8(out, to + 2, 0x80 | (point & 63))
        return to + 3
    put8(out, to, 0xF0 | (point >> 18))
    put8(out, to + 1, 0x80 | ((point >> 12) & 63))
    put8(out, to + 2, 0x80 | ((point >> 6) & 63))
    put8(out, to + 3, 0x80 | (point & 63))
    return to + 4


@njit
def _unescape(data, at, end, out):
    """Write text with its escapes decoded; returns its length, or -1. It is never longer than the input."""
    to = np.int64(0)
    while at < end:
        c = u8(data, at)
        at += 1
        if c != _BACKSLASH:
            put8(out, to, c)
            to += 1
            continue
        c, at = _escape(data, at, end)
        if c < 0:
            return _NONE
        to = _put_utf8(out, to, c)
    return to


@njit
def is_sound(data, at, stop, escaped):
    """Return whether a skipped string is valid text."""
    if not is_utf8(data, at, stop):
        return False
    while escaped and at < stop:
        c = u8(data, at)
        at += 1
        if c == _BACKSLASH:
            c, at = _escape(data, at, stop)
            if c < 0:
                return False
    return True


@njit
def put_string(columns, c, state, data, at, stop, escaped, texts_only):
    """Append a string between its quotes."""
    if not escaped:
        if texts_only and not is_utf8(data, at, stop):
            return v.INVALID_UTF8
        return v.GOOD if put_text(columns, c, state, data, at, stop - at) else v.FULL
    target = reserve_text(columns, c, state, stop - at)
    if target < 0:
        return v.FULL
    length = _unescape(data, at, stop, target)
    if length < 0:
        return v.INVALID_ESCAPE
    if texts_only and not is_utf8(target, 0, length):
        return v.INVALID_UTF8
    end_text(columns, c, length)
    return v.GOOD


@njit(forceinline=True)
def _six_bits(c):
    if 97 <= c <= 122:
        return c - 71
    if 65 <= c <= 90:
        return c - 65
    if 48 <= c <= 57:
        return c + 4
    if c == 43 or c == 45:
        return np.int64(62)
    if c == 47 or c == 95:
        return np.int64(63)
    return _NONE


@njit
def put_base64(columns, c, state, data, at, stop):
    """Append the bytes of a base64 string, padded or not."""
    while stop > at and u8(data, stop - 1) == 61:
        stop -= 1
    target = reserve_text(columns, c, state, stop - at)
    if target < 0:
        return v.FULL
    held = np.int64(0)
    width = 0
    length = 0
    while at < stop:
        bits = _six_bits(u8(data, at))
        if bits < 0:
            return v.INVALID_BASE64
        held = ((held << 6) | bits) & 0xFFFF
        at += 1
        width += 6
        if width >= 8:
            width -= 8
            put8(target, length, held >> width)
            length += 1
    if width == 6:
        return v.INVALID_BASE64
    end_text(columns, c, length)
    return v.GOOD


@njit
def _same(data, at, stop, text, length, scratch):
    """Return whether a name with escapes equals the name of a field."""
    done = np.int64(0)
    while at < stop:
        c = u8(data, at)
        at += 1
        behind = done + 1
        put8(scratch, 0, c)
        if c == _BACKSLASH:
            c, at = _escape(data, at, stop)
            if c < 0:
                return False
            behind = done + _put_utf8(scratch, np.int64(0), c)
        if behind > length:
            return False
        for k in range(behind - done):
            if u8(text, done + k) != u8(scratch, k):
                return False
        done = behind
    return done == length


@njit(forceinline=True)
def _equal(data, at, text, length):
    i = 0
    while i < length and u8(data, at + i) == u8(text, i):
        i += 1
    return i == length


@njit
def find_field(data, at, stop, escaped, words, fields, count, cursor, texts, scratch):
    """Return the number of the field with a name, -1 if the type has none; starts at the field ``cursor``."""
    length = stop - at
    for i in range(count):
        k = cursor + i
        if k >= count:
            k -= count
        field = words + 8 * (fields + v.FIELD * k)
        name = texts + get(field, 0)
        size = get(field, 1)
        if escaped:
            if _same(data, at, stop, name, size, scratch):
                return np.int64(k)
        elif size == length and _equal(data, at, name, length):
            return np.int64(k)
    return _NONE


_TEN = np.uint64(10)
_NAN = float("nan")
_INFINITY = float("inf")


@njit
def read_number(data, at, end):
    """Read a number.

    Returns:
        Its end (-1: it is not a number), whether it is negative, its digits as an integer (at most 19), the exponent of
        ten, and its kind: 0 an integer, 1 a fraction, 2 a number with more digits, left to a library.
    """
    negative = u8(data, at) == 45
    if negative:
        at += 1
    digits = np.uint64(0)
    counted = 0
    power = np.int64(0)
    kind = 0
    if at >= end:
        return _NONE, negative, digits, power, kind
    first = u8(data, at)
    if first < 48 or first > 57:
        return _NONE, negative, digits, power, kind
    begin = at
    while at < end and 48 <= u8(data, at) <= 57:
        if counted < 19:
            digits = digits * _TEN + np.uint64(u8(data, at) - 48)
            counted += 1 if digits != 0 else 0
        else:
            kind = 2
        at += 1
    if first == 48 and at - begin > 1:
        return _NONE, negative, digits, power, kind
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
            return _NONE, negative, digits, power, kind
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
            return _NONE, negative, digits, power, kind
        power += -exponent if below else exponent
    return at, negative, digits, power, kind


@njit
def put_float(columns, c, state, value, op):
    """Append a floating-point number with the width of the operation."""
    return put_number(columns, c, state, double_bits(value) if op == v.J_DOUBLE else float_bits(value))


@njit
def note_slow(columns, c, state, place, length):
    """Append a placeholder for a number that a library will parse, and record its offset."""
    n = get(state, v.SLOW_COUNT)
    if n >= get(state, v.SLOW_CAPACITY):
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
    """Return whether a word of ``length`` letters follows, recognised by its first three letters and its last."""
    return (
        end - at >= length
        and u8(data, at) == first
        and u8(data, at + 1) == second
        and u8(data, at + 2) == third
        and u8(data, at + length - 1) == last
    )


@njit
def boolean_end(data, at, end):
    """Return the end of ``true`` or ``false`` at ``at``; -1 if neither follows."""
    if is_word(data, at, end, 116, 114, 117, 101, 4):
        return at + 4
    if is_word(data, at, end, 102, 97, 108, 101, 5) and u8(data, at + 3) == 115:
        return at + 5
    return _NONE


@njit
def read_special(data, at, end):
    """Return the value of NaN, Infinity or -Infinity at ``at``, and its end; -1 if none follows."""
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
    return 0.0, _NONE
