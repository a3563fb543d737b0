"""Decoding the text of one JSON value into the columns of a type.

JSON tells by itself what it holds, so nodes follow the type that comes out: fields are found by their names, what the
type does not have is passed over, and what a record lacks is null. The text is checked as strictly as JSON's own rules
say, with two liberties that producers take: ``NaN`` and ``Infinity`` where a floating-point number is due, also quoted.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import typed_layout as v
from afterglow.format._kernels.cells import (
    end_text,
    put_list,
    put_nulls,
    put_number,
    put_struct,
    put_text,
    text_room,
)  # fmt: skip
from afterglow.format._kernels.floats import double_bits, float_bits
from afterglow.format._kernels.memory import get, put, put8, u8, u64
from afterglow.format._kernels.text import is_utf8

_QUOTE = 34
_BACKSLASH = 92
_EACH = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_POWERS = tuple(float(10**n) for n in range(23))
_EXACT = np.uint64(2**53)
_TEN = np.uint64(10)
_MOST = np.uint64(2**63 - 1)
_NAN = float("nan")
_INFINITY = float("inf")
_BAD = np.int64(-1)

# Kinds of levels.
_IN_RECORD = 0
_IN_ARRAY = 1
_IN_MAP = 2
_IN_OBJECT = 3  # passed over
_IN_ITEMS = 4  # passed over


@njit(forceinline=True)
def _space(data, at, end):
    while at < end:
        c = u8(data, at)
        if c != 32 and c != 10 and c != 13 and c != 9:
            break
        at += 1
    return at


@njit
def _string_end(data, at, end):
    """Where the string that begins at ``at`` has its closing quote, and whether it has escapes; -1 if it has none."""
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
                return _BAD, escaped
            if c == _BACKSLASH:
                escaped = True
                at += 1
            at += 1
        if at >= end:
            return _BAD, escaped


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
            return _BAD
        value = (value << 4) | digit
    return value


@njit
def _escape(data, at, end):
    """The character of the escape behind a backslash, and where it ends; -1 where there is none such."""
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
        return _BAD, at
    point = _hex4(data, at)
    at += 4
    if point < 0xD800 or point > 0xDFFF:
        return point, at
    # Half of a pair, which has no meaning alone.
    if point > 0xDBFF or end - at < 6 or u8(data, at) != _BACKSLASH or u8(data, at + 1) != 117:
        return _BAD, at
    second = _hex4(data, at + 2)
    if second < 0xDC00 or second > 0xDFFF:
        return _BAD, at
    return 0x10000 + ((point - 0xD800) << 10) + (second - 0xDC00), at + 6


@njit(forceinline=True)
def _put_utf8(out, to, point):
    """Write a character; returns where it ends."""
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
    """Write text without its escapes; returns its length, or -1. It is never longer than with them."""
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
            return _BAD
        to = _put_utf8(out, to, c)
    return to


@njit
def _sound(data, at, stop, escaped):
    """Whether a string that is passed over would be text."""
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
def _put_string(columns, c, state, data, at, stop, escaped, texts_only):
    """Append a string between its quotes."""
    if not escaped:
        if texts_only and not is_utf8(data, at, stop):
            return v.NO_TEXT
        return v.GOOD if put_text(columns, c, state, data, at, stop - at) else v.FULL
    target = text_room(columns, c, state, stop - at)
    if target < 0:
        return v.FULL
    length = _unescape(data, at, stop, target)
    if length < 0:
        return v.ESCAPE
    if texts_only and not is_utf8(target, 0, length):
        return v.NO_TEXT
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
    return _BAD


@njit
def _put_base64(columns, c, state, data, at, stop):
    """Append the bytes that a string stands for, padded or not."""
    while stop > at and u8(data, stop - 1) == 61:
        stop -= 1
    target = text_room(columns, c, state, stop - at)
    if target < 0:
        return v.FULL
    held = np.int64(0)
    width = 0
    length = 0
    while at < stop:
        bits = _six_bits(u8(data, at))
        if bits < 0:
            return v.NO_BASE64
        held = ((held << 6) | bits) & 0xFFFF
        at += 1
        width += 6
        if width >= 8:
            width -= 8
            put8(target, length, held >> width)
            length += 1
    if width == 6:
        return v.NO_BASE64
    end_text(columns, c, length)
    return v.GOOD


@njit
def _same(data, at, stop, text, length, scratch):
    """Whether a name with escapes is a field's."""
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
def _field(data, at, stop, escaped, words, fields, count, cursor, texts, scratch):
    """The number of the field that a name means; -1 if the type has none such. The one at ``cursor`` is tried first."""
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
    return _BAD


@njit
def _number(data, at, end):
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
def _put_float(columns, c, state, value, op):
    return put_number(columns, c, state, double_bits(value) if op == v.J_DOUBLE else float_bits(value))


@njit
def _note_slow(columns, c, state, place, length):
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
def _word(data, at, end, first, second, third, last, length):
    """Whether a word of ``length`` letters stands here, known by its first three and its last."""
    return (
        end - at >= length
        and u8(data, at) == first
        and u8(data, at + 1) == second
        and u8(data, at + 2) == third
        and u8(data, at + length - 1) == last
    )


@njit
def _boolean(data, at, end):
    """Where ``true`` or ``false`` ends that stands here; -1 if neither does."""
    if _word(data, at, end, 116, 114, 117, 101, 4):
        return at + 4
    if _word(data, at, end, 102, 97, 108, 101, 5) and u8(data, at + 3) == 115:
        return at + 5
    return _BAD


@njit
def _special(data, at, end):
    """The value of NaN, Infinity or -Infinity, and where it ends; -1 if none stands here."""
    if _word(data, at, end, 78, 97, 78, 78, 3):
        return _NAN, at + 3
    sign = 1.0
    if at < end and u8(data, at) == 45:
        sign = -1.0
        at += 1
    if (
        _word(data, at, end, 73, 110, 102, 121, 8)
        and u8(data, at + 3) == 105
        and u8(data, at + 4) == 110
        and u8(data, at + 5) == 105
        and u8(data, at + 6) == 116
    ):
        return sign * _INFINITY, at + 8
    return 0.0, _BAD


@njit
def _put_scalar(data, at, end, node, columns, state):
    """Append a number or a word for ``node``; returns a code and where it ends. None but null fits every node."""
    op = get(node, 0)
    c = get(node, 1)
    first = u8(data, at)
    if op == v.J_FLOAT or op == v.J_DOUBLE:
        value, stop = _special(data, at, end)
        if stop >= 0:
            return v.GOOD if _put_float(columns, c, state, value, op) else v.FULL, stop
    if first == 116 or first == 102:
        stop = _boolean(data, at, end)
        if stop < 0:
            return v.SYNTAX, at
        if op != v.J_BOOLEAN:
            return v.MISFIT, at
        return v.GOOD if put_number(columns, c, state, np.int64(first == 116)) else v.FULL, stop
    stop, negative, digits, power, kind = _number(data, at, end)
    if stop < 0:
        return v.SYNTAX, at
    if op == v.J_WORD:
        return v.GOOD if put_text(columns, c, state, data, at, stop - at) else v.FULL, stop
    if op == v.J_INT or op == v.J_LONG or op == v.J_CLOCK:
        if kind == 1:
            return v.MISFIT, at
        if kind == 2 or digits > _MOST:
            return v.RANGE, at
        value = np.int64(digits)
        if negative:
            value = -value
        if op == v.J_INT:
            if value < -(2**31) or value >= 2**31:
                return v.RANGE, at
        elif get(node, 2) > 1:
            times = get(node, 2)
            limit = np.int64(2**63 - 1) // times
            if value > limit or value < -limit:
                return v.RANGE, at
            value *= times
        elif get(node, 3) > 1:
            value //= get(node, 3)
        if op == v.J_CLOCK and (value < 0 or value >= v.DAY_NANOS):
            return v.RANGE, at
        return v.GOOD if put_number(columns, c, state, value) else v.FULL, stop
    if op == v.J_FLOAT or op == v.J_DOUBLE:
        if kind == 2 or digits > _EXACT or power < -22 or power > 22:
            return v.GOOD if _note_slow(columns, c, state, at, stop - at) else v.FULL, stop
        # Both are exact, so the one rounding is the right one.
        value = np.float64(digits)
        value = value / _POWERS[-power] if power < 0 else value * _POWERS[power]
        if negative:
            value = -value
        return v.GOOD if _put_float(columns, c, state, value, op) else v.FULL, stop
    return v.MISFIT, at


@njit
def _put_quoted(data, at, stop, escaped, node, columns, state):
    """Append a string between its quotes for ``node``."""
    op = get(node, 0)
    c = get(node, 1)
    if op == v.J_STRING or op == v.J_WORD:
        return _put_string(columns, c, state, data, at, stop, escaped, True)
    if op == v.J_TEXT_BYTES:
        return _put_string(columns, c, state, data, at, stop, escaped, False)
    if op == v.J_BASE64:
        return _put_base64(columns, c, state, data, at, stop)
    if op == v.J_FLOAT or op == v.J_DOUBLE:
        value, behind = _special(data, at, stop)
        if behind == stop:
            return v.GOOD if _put_float(columns, c, state, value, op) else v.FULL
    return v.MISFIT


@njit
def _member(data, at, end, words, union):
    """The number of the first member of a union that fits what stands here; -1 if none does."""
    first = u8(data, at)
    if first == 123:
        fits = v.FITS_OBJECT
    elif first == 91:
        fits = v.FITS_ARRAY
    elif first == _QUOTE:
        fits = v.FITS_STRING
    elif first == 116 or first == 102:
        fits = v.FITS_BOOLEAN
    else:
        _, _, _, _, kind = _number(data, at, end)
        fits = v.FITS_FRACTION if kind == 1 else v.FITS_INTEGER
    for k in range(get(union, 3)):
        if get(words, get(union, 2) + v.FIELD * k) & fits != 0:
            return np.int64(k)
    return _BAD


@njit
def _close_record(node, slot, columns, state, words):
    """Append null to the fields that a record lacks."""
    fields = get(node, 2)
    for k in range(get(node, 3)):
        field = words + 8 * (fields + v.FIELD * k)
        first = get(words, get(field, 3))
        if get(columns + 8 * v.WORDS * first, v.COUNT) <= slot and not put_nulls(
            columns, state, words, get(field, 3), get(field, 4)
        ):
            return False
    return True


@njit
def json_value(data, at, end, words, root, texts, columns, stack, state):
    """Append one value for the node at word ``root``; GOOD, FULL, or what is wrong."""
    depth = 0
    n = root  # the word where the node begins that the next value is for; -1: it is passed over
    whole = False  # whether a value has just ended
    while True:
        at = _space(data, at, end)
        if not whole:
            if at >= end:
                return v.ENDS
            first = u8(data, at)
            if n >= 0:
                put(state, v.AT, n)
            node = words + 8 * n
            if first == 110:
                if not (_word(data, at, end, 110, 117, 108, 108, 4)):
                    return v.SYNTAX
                if n >= 0 and not put_nulls(columns, state, words, get(node, 4), get(node, 5)):
                    return v.FULL
                at += 4
                whole = True
                continue
            if n >= 0 and get(node, 0) == v.J_UNION:
                chosen = _member(data, at, end, words, node)
                if chosen < 0:
                    return v.MISFIT
                if not put_struct(columns, get(node, 1), state):
                    return v.FULL
                for k in range(get(node, 3)):
                    member = words + 8 * (get(node, 2) + v.FIELD * k)
                    if k != chosen and not put_nulls(columns, state, words, get(member, 3), get(member, 4)):
                        return v.FULL
                n = get(words, get(node, 2) + v.FIELD * chosen + 2)
                continue
            if first == 123 or first == 91:
                if depth == v.DEEPEST:
                    return v.DEEP
                frame = stack + 8 * v.FRAME * depth
                depth += 1
                at += 1
                if n < 0:
                    put(frame, 0, _IN_OBJECT if first == 123 else _IN_ITEMS)
                else:
                    op = get(node, 0)
                    if first == 91:
                        if op != v.J_ARRAY:
                            return v.MISFIT
                        put(frame, 0, _IN_ARRAY)
                    elif op == v.J_RECORD:
                        put(frame, 0, _IN_RECORD)
                        put(frame, 3, get(columns + 8 * v.WORDS * get(node, 1), v.COUNT))
                        if not put_struct(columns, get(node, 1), state):
                            return v.FULL
                    elif op == v.J_MAP:
                        put(frame, 0, _IN_MAP)
                    else:
                        return v.MISFIT
                put(frame, 1, n)
                put(frame, 2, 0)
                at = _space(data, at, end)
                if at >= end:
                    return v.ENDS
                if u8(data, at) != (125 if first == 123 else 93):
                    whole = False
                    if first == 91:
                        n = get(node, 2) if n >= 0 else _BAD
                        continue
                    # A name follows, as behind a comma.
                else:
                    whole = True
            elif first == _QUOTE:
                stop, escaped = _string_end(data, at + 1, end)
                if stop < 0:
                    return v.SYNTAX
                if n >= 0:
                    code = _put_quoted(data, at + 1, stop, escaped, node, columns, state)
                    if code != v.GOOD:
                        return code
                elif not _sound(data, at + 1, stop, escaped):
                    return v.NO_TEXT
                at = stop + 1
                whole = True
                continue
            elif n >= 0:
                code, at = _put_scalar(data, at, end, node, columns, state)
                if code != v.GOOD:
                    return code
                whole = True
                continue
            else:
                _, behind = _special(data, at, end)
                if behind < 0:
                    behind = _boolean(data, at, end)
                if behind < 0:
                    behind, _, _, _, _ = _number(data, at, end)
                if behind < 0:
                    return v.SYNTAX
                at = behind
                whole = True
                continue
        elif depth == 0:
            return v.GOOD if at == end else v.BEHIND
        elif at >= end:
            return v.ENDS
        frame = stack + 8 * v.FRAME * (depth - 1)
        level = get(frame, 0)
        n = get(frame, 1)
        node = words + 8 * n
        named = level in (_IN_RECORD, _IN_MAP, _IN_OBJECT)
        if whole:
            c = u8(data, at)
            if c == (125 if named else 93):
                at += 1
                depth -= 1
                if level == _IN_RECORD:
                    if not _close_record(node, get(frame, 3), columns, state, words):
                        return v.FULL
                elif (level in (_IN_ARRAY, _IN_MAP)) and not put_list(columns, get(node, 1), state):
                    return v.FULL
                continue
            if c != 44:
                return v.SYNTAX
            at = _space(data, at + 1, end)
            whole = False
            if not named:
                n = get(node, 2) if n >= 0 else _BAD
                continue
        # A name and its colon.
        if at >= end:
            return v.ENDS
        if u8(data, at) != _QUOTE:
            return v.SYNTAX
        stop, escaped = _string_end(data, at + 1, end)
        if stop < 0:
            return v.SYNTAX
        if level == _IN_RECORD:
            # The level above the deepest is never used for one, and takes a character.
            scratch = stack + 8 * v.FRAME * v.DEEPEST
            k = _field(data, at + 1, stop, escaped, words, get(node, 2), get(node, 3), get(frame, 2), texts, scratch)
            if k < 0:
                n = _BAD
            else:
                field = words + 8 * (get(node, 2) + v.FIELD * k)
                first_column = get(words, get(field, 3))
                n = get(field, 2)
                put(frame, 2, k + 1)
                if get(columns + 8 * v.WORDS * first_column, v.COUNT) > get(frame, 3):
                    put(state, v.AT, n)
                    return v.TWICE
        elif level == _IN_MAP:
            key = get(columns + 8 * v.WORDS * get(node, 1), v.CHILD)
            code = _put_string(columns, key, state, data, at + 1, stop, escaped, True)
            if code != v.GOOD:
                return code
            n = get(node, 2)
        else:
            n = _BAD
        if n < 0 and not _sound(data, at + 1, stop, escaped):
            return v.NO_TEXT
        at = _space(data, stop + 1, end)
        if at >= end:
            return v.ENDS
        if u8(data, at) != 58:
            return v.SYNTAX
        at += 1
