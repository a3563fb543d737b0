"""Decoding of one JSON value to the columns of a type.

JSON is self-describing, so nodes follow the target type: fields are found by name, unknown fields are skipped, and
missing fields are null. The text must be valid JSON, with one extension that producers use: ``NaN`` and ``Infinity`` as
floating-point numbers, also quoted.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import typed_layout as v
from afterglow.format._kernels.cells import put_list, put_nulls, put_number, put_struct, put_text
from afterglow.format._kernels.json_scalars import (
    boolean_end,
    find_field,
    is_sound,
    is_word,
    note_slow,
    put_base64,
    put_float,
    put_string,
    read_number,
    read_special,
    string_end,
)
from afterglow.format._kernels.primitives import get, put, u8

_QUOTE = 34
_POWERS = tuple(float(10**n) for n in range(23))
_EXACT = np.uint64(2**53)
_INT64_MAX = np.uint64(2**63 - 1)
_NONE = np.int64(-1)

# Kinds of levels.
_IN_RECORD = 0
_IN_ARRAY = 1
_IN_MAP = 2
_IN_OBJECT = 3  # skipped
_IN_ITEMS = 4  # skipped


@njit(forceinline=True)
def _space(data, at, end):
    while at < end:
        c = u8(data, at)
        if c != 32 and c != 10 and c != 13 and c != 9:
            break
        at += 1
    return at


@njit
def _put_scalar(data, at, end, node, columns, state):
    """Append a number or a literal for ``node``; returns a code and its end."""
    op = get(node, 0)
    c = get(node, 1)
    first = u8(data, at)
    if op == v.J_FLOAT or op == v.J_DOUBLE:
        value, stop = read_special(data, at, end)
        if stop >= 0:
            return v.GOOD if put_float(columns, c, state, value, op) else v.FULL, stop
    if first == 116 or first == 102:
        stop = boolean_end(data, at, end)
        if stop < 0:
            return v.INVALID_JSON, at
        if op != v.J_BOOLEAN:
            return v.TYPE_MISMATCH, at
        return v.GOOD if put_number(columns, c, state, np.int64(first == 116)) else v.FULL, stop
    stop, negative, digits, power, kind = read_number(data, at, end)
    if stop < 0:
        return v.INVALID_JSON, at
    if op == v.J_WORD:
        return v.GOOD if put_text(columns, c, state, data, at, stop - at) else v.FULL, stop
    if op == v.J_INT or op == v.J_LONG or op == v.J_CLOCK:
        if kind == 1:
            return v.TYPE_MISMATCH, at
        if kind == 2 or digits > _INT64_MAX:
            return v.OUT_OF_RANGE, at
        value = np.int64(digits)
        if negative:
            value = -value
        if op == v.J_INT:
            if value < -(2**31) or value >= 2**31:
                return v.OUT_OF_RANGE, at
        elif get(node, 2) > 1:
            times = get(node, 2)
            limit = np.int64(2**63 - 1) // times
            if value > limit or value < -limit:
                return v.OUT_OF_RANGE, at
            value *= times
        elif get(node, 3) > 1:
            value //= get(node, 3)
        if op == v.J_CLOCK and (value < 0 or value >= v.DAY_NANOS):
            return v.OUT_OF_RANGE, at
        return v.GOOD if put_number(columns, c, state, value) else v.FULL, stop
    if op == v.J_FLOAT or op == v.J_DOUBLE:
        if kind == 2 or digits > _EXACT or power < -22 or power > 22:
            return v.GOOD if note_slow(columns, c, state, at, stop - at) else v.FULL, stop
        # Both operands are exact, so the result is rounded only once.
        value = np.float64(digits)
        value = value / _POWERS[-power] if power < 0 else value * _POWERS[power]
        if negative:
            value = -value
        return v.GOOD if put_float(columns, c, state, value, op) else v.FULL, stop
    return v.TYPE_MISMATCH, at


@njit
def _put_quoted(data, at, stop, escaped, node, columns, state):
    """Append a string between its quotes for ``node``."""
    op = get(node, 0)
    c = get(node, 1)
    if op == v.J_STRING or op == v.J_WORD:
        return put_string(columns, c, state, data, at, stop, escaped, True)
    if op == v.J_TEXT_BYTES:
        return put_string(columns, c, state, data, at, stop, escaped, False)
    if op == v.J_BASE64:
        return put_base64(columns, c, state, data, at, stop)
    if op == v.J_FLOAT or op == v.J_DOUBLE:
        value, behind = read_special(data, at, stop)
        if behind == stop:
            return v.GOOD if put_float(columns, c, state, value, op) else v.FULL
    return v.TYPE_MISMATCH


@njit
def _member(data, at, end, words, union):
    """Return the number of the first member of a union that accepts the value at ``at``; -1 if none does."""
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
        _, _, _, _, kind = read_number(data, at, end)
        fits = v.FITS_FRACTION if kind == 1 else v.FITS_INTEGER
    for k in range(get(union, 3)):
        if get(words, get(union, 2) + v.FIELD * k) & fits != 0:
            return np.int64(k)
    return _NONE


@njit
def _close_record(node, slot, columns, state, words):
    """Append null to the missing fields of a record."""
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
    """Append one value for the node at word ``root``; returns GOOD, FULL, or an error code."""
    depth = 0
    n = root  # the first word of the node of the next value; -1: the value is skipped
    whole = False  # whether a value has just ended
    while True:
        at = _space(data, at, end)
        if not whole:
            if at >= end:
                return v.TRUNCATED
            first = u8(data, at)
            if n >= 0:
                put(state, v.AT, n)
            node = words + 8 * n
            if first == 110:
                if not (is_word(data, at, end, 110, 117, 108, 108, 4)):
                    return v.INVALID_JSON
                if n >= 0 and not put_nulls(columns, state, words, get(node, 4), get(node, 5)):
                    return v.FULL
                at += 4
                whole = True
                continue
            if n >= 0 and get(node, 0) == v.J_UNION:
                chosen = _member(data, at, end, words, node)
                if chosen < 0:
                    return v.TYPE_MISMATCH
                if not put_struct(columns, get(node, 1), state):
                    return v.FULL
                for k in range(get(node, 3)):
                    member = words + 8 * (get(node, 2) + v.FIELD * k)
                    if k != chosen and not put_nulls(columns, state, words, get(member, 3), get(member, 4)):
                        return v.FULL
                n = get(words, get(node, 2) + v.FIELD * chosen + 2)
                continue
            if first == 123 or first == 91:
                if depth == v.MAX_DEPTH:
                    return v.TOO_DEEP
                frame = stack + 8 * v.FRAME * depth
                depth += 1
                at += 1
                if n < 0:
                    put(frame, 0, _IN_OBJECT if first == 123 else _IN_ITEMS)
                else:
                    op = get(node, 0)
                    if first == 91:
                        if op != v.J_ARRAY:
                            return v.TYPE_MISMATCH
                        put(frame, 0, _IN_ARRAY)
                    elif op == v.J_RECORD:
                        put(frame, 0, _IN_RECORD)
                        put(frame, 3, get(columns + 8 * v.WORDS * get(node, 1), v.COUNT))
                        if not put_struct(columns, get(node, 1), state):
                            return v.FULL
                    elif op == v.J_MAP:
                        put(frame, 0, _IN_MAP)
                    else:
                        return v.TYPE_MISMATCH
                put(frame, 1, n)
                put(frame, 2, 0)
                at = _space(data, at, end)
                if at >= end:
                    return v.TRUNCATED
                if u8(data, at) != (125 if first == 123 else 93):
                    whole = False
                    if first == 91:
                        n = get(node, 2) if n >= 0 else _NONE
                        continue
                    # A name follows, as after a comma.
                else:
                    whole = True
            elif first == _QUOTE:
                stop, escaped = string_end(data, at + 1, end)
                if stop < 0:
                    return v.INVALID_JSON
                if n >= 0:
                    code = _put_quoted(data, at + 1, stop, escaped, node, columns, state)
                    if code != v.GOOD:
                        return code
                elif not is_sound(data, at + 1, stop, escaped):
                    return v.INVALID_UTF8
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
                _, behind = read_special(data, at, end)
                if behind < 0:
                    behind = boolean_end(data, at, end)
                if behind < 0:
                    behind, _, _, _, _ = read_number(data, at, end)
                if behind < 0:
                    return v.INVALID_JSON
                at = behind
                whole = True
                continue
        elif depth == 0:
            return v.GOOD if at == end else v.TRAILING_BYTES
        elif at >= end:
            return v.TRUNCATED
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
                return v.INVALID_JSON
            at = _space(data, at + 1, end)
            whole = False
            if not named:
                n = get(node, 2) if n >= 0 else _NONE
                continue
        # A name and its colon.
        if at >= end:
            return v.TRUNCATED
        if u8(data, at) != _QUOTE:
            return v.INVALID_JSON
        stop, escaped = string_end(data, at + 1, end)
        if stop < 0:
            return v.INVALID_JSON
        if level == _IN_RECORD:
            # The stack frame above the maximum depth is unused otherwise: scratch space for a character.
            scratch = stack + 8 * v.FRAME * v.MAX_DEPTH
            k = find_field(
                data, at + 1, stop, escaped, words, get(node, 2), get(node, 3), get(frame, 2), texts, scratch
            )
            if k < 0:
                n = _NONE
            else:
                field = words + 8 * (get(node, 2) + v.FIELD * k)
                first_column = get(words, get(field, 3))
                n = get(field, 2)
                put(frame, 2, k + 1)
                if get(columns + 8 * v.WORDS * first_column, v.COUNT) > get(frame, 3):
                    put(state, v.AT, n)
                    return v.DUPLICATE_FIELD
        elif level == _IN_MAP:
            key = get(columns + 8 * v.WORDS * get(node, 1), v.CHILD)
            code = put_string(columns, key, state, data, at + 1, stop, escaped, True)
            if code != v.GOOD:
                return code
            n = get(node, 2)
        else:
            n = _NONE
        if n < 0 and not is_sound(data, at + 1, stop, escaped):
            return v.INVALID_UTF8
        at = _space(data, stop + 1, end)
        if at >= end:
            return v.TRUNCATED
        if u8(data, at) != 58:
            return v.INVALID_JSON
        at += 1
