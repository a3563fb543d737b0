"""Interpreter of compiled definitions for one value: Avro's binary encoding, and values of primitive schemas.

An Avro record is the concatenation of its fields, so a program is a list of instructions, with a stack only for arrays
and maps. Every length is checked before use, and no value may claim more items than it has bytes: without that limit a
few bytes could claim any number of items of size zero.
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
    put_wide,
    reserve_text,
)  # fmt: skip
from afterglow.format._kernels.primitives import (
    be32,
    be64,
    double_bits,
    double_of_float,
    float_bits,
    get,
    is_utf8,
    put,
    put8,
    u8,
    u64,
    varint,
)

_INT64_MAX = np.int64(2**63 - 1)
_HEX = np.int64(0x27)
_DAY_NANOS = np.int64(v.DAY_NANOS)
_DAYS = np.int64(2**31)
_SIGN = np.int64(-(2**63))


@njit(forceinline=True)
def _zigzag(data, at, end):
    coded, at = varint(data, at, end)
    return ((coded >> 1) & _INT64_MAX) ^ -(coded & 1), at


@njit(forceinline=True)
def _scaled(value, times, divided):
    """Return ``(value * times // divided, whether it fits)``; one of both factors is 1."""
    if times > 1:
        if value > _INT64_MAX // times or value < -(_INT64_MAX // times):
            return np.int64(0), False
        return value * times, True
    if divided > 1:
        quotient = value // divided
        return quotient, True
    return value, True


@njit(forceinline=True)
def _number(data, at, length):
    """Read a signed big-endian number of 1, 2, 4 or 8 bytes."""
    if length == 8:
        return be64(data, at)
    if length == 4:
        return be32(data, at)
    first = u8(data, at)
    if length == 2:
        value = (first << 8) | u8(data, at + 1)
        return value - 0x10000 if value >= 0x8000 else value
    return first - 0x100 if first >= 0x80 else first


@njit(forceinline=True)
def _below(high, low, other_high, other_low):
    """Return whether one signed 128-bit number is less than another."""
    if high != other_high:
        return high < other_high
    return (low ^ _SIGN) < (other_low ^ _SIGN)


@njit
def _put_decimal(columns, c, state, data, at, length, bounds):
    """Append a big-endian number of any length; returns a code if it does not fit."""
    negative = length > 0 and u8(data, at) >= 0x80
    fill = np.int64(0xFF) if negative else np.int64(0)
    while length > 16:
        if u8(data, at) != fill:
            return v.OUT_OF_RANGE
        at += 1
        length -= 1
    low = np.int64(-1) if negative else np.int64(0)
    high = low
    for i in range(length):
        high = (high << 8) | ((low >> 56) & 0xFF)
        low = (low << 8) | u8(data, at + i)
    if (high < 0) != negative:
        return v.OUT_OF_RANGE
    too_much = not _below(high, low, get(bounds, 0), get(bounds, 1))
    if too_much or not _below(get(bounds, 2), get(bounds, 3), high, low):
        return v.OUT_OF_RANGE
    return v.GOOD if put_wide(columns, c, state, low, high) else v.FULL


@njit
def _put_uuid(columns, c, state, data, at):
    """Append sixteen bytes as the text of a UUID."""
    target = reserve_text(columns, c, state, 36)
    if target < 0:
        return False
    to = 0
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            put8(target, to, 45)
            to += 1
        byte = u8(data, at + i)
        for digit in (byte >> 4, byte & 15):
            put8(target, to, 48 + digit + (_HEX if digit > 9 else 0))
            to += 1
    end_text(columns, c, 36)
    return True


@njit
def plain_value(data, at, end, op, c, x, y, columns, state):
    """Append a value of a primitive schema: all bytes from ``at`` to ``end``."""
    length = end - at
    appended = True
    if op == v.PLAIN_STRING:
        if not is_utf8(data, at, end):
            return v.INVALID_UTF8
        appended = put_text(columns, c, state, data, at, length)
    elif op == v.PLAIN_BYTES:
        appended = put_text(columns, c, state, data, at, length)
    elif op == v.PLAIN_NUMBER:
        if length != x:
            return v.WRONG_LENGTH
        number = _number(data, at, x)
        if y == v.LONG_AS_FLOAT:
            number = float_bits(np.float64(number))
        elif y == v.LONG_AS_DOUBLE:
            number = double_bits(np.float64(number))
        appended = put_number(columns, c, state, number)
    elif op == v.PLAIN_BOOLEAN:
        if length != 1:
            return v.WRONG_LENGTH
        appended = put_number(columns, c, state, np.int64(u8(data, at) != 0))
    elif op == v.PLAIN_FLOAT:
        if length != 4:
            return v.WRONG_LENGTH
        bits = be32(data, at)
        appended = put_number(columns, c, state, double_bits(double_of_float(bits)) if y == v.FLOAT_AS_DOUBLE else bits)
    elif op == v.PLAIN_DOUBLE:
        if length != 8:
            return v.WRONG_LENGTH
        appended = put_number(columns, c, state, be64(data, at))
    elif op == v.PLAIN_TIME or op == v.PLAIN_CLOCK:
        if length != 8:
            return v.WRONG_LENGTH
        time, fits = _scaled(be64(data, at), x, y)
        if not fits or (op == v.PLAIN_CLOCK and (time < 0 or time >= _DAY_NANOS)):
            return v.OUT_OF_RANGE
        appended = put_number(columns, c, state, time)
    elif op == v.PLAIN_DATE:
        if length != 8:
            return v.WRONG_LENGTH
        days = be64(data, at)
        if days < -_DAYS or days >= _DAYS:
            return v.OUT_OF_RANGE
        appended = put_number(columns, c, state, days)
    elif op == v.PLAIN_INSTANT:
        if length != 12:
            return v.WRONG_LENGTH
        seconds, fits = _scaled(be64(data, at), np.int64(1_000_000), np.int64(1))
        nanos = be32(data, at + 8)
        if not fits or nanos < 0 or nanos >= 1_000_000_000 or seconds > _INT64_MAX - 1_000_000:
            return v.OUT_OF_RANGE
        appended = put_number(columns, c, state, seconds + nanos // 1000)
    else:  # PLAIN_LOCAL
        if length != 16:
            return v.WRONG_LENGTH
        days, fits = _scaled(be64(data, at), np.int64(86_400_000_000), np.int64(1))
        nanos = be64(data, at + 8)
        if not fits or nanos < 0 or nanos >= _DAY_NANOS or days > _INT64_MAX - 86_400_000_000:
            return v.OUT_OF_RANGE
        appended = put_number(columns, c, state, days + nanos // 1000)
    return v.GOOD if appended else v.FULL


@njit
def avro_value(data, at, end, program, pc, texts, columns, stack, state):
    """Append one value, decoded by the program at instruction ``pc``; returns GOOD, FULL, or an error code."""
    depth = 0
    budget = end - at
    while True:
        instruction = program + 8 * v.INSTRUCTION * pc
        put(state, v.AT, pc)
        pc += 1
        op = get(instruction, 0)
        c = get(instruction, 1)
        x = get(instruction, 2)
        y = get(instruction, 3)
        appended = True
        if op == v.ITEMS:
            # Start in the state after the last item of a block.
            frame = stack + 8 * v.FRAME * depth
            put(frame, 0, c)
            put(frame, 1, x)
            put(frame, 2, y)
            put(frame, 3, 1)
            depth += 1
            op = np.int64(v.NEXT)
        if op == v.NEXT:
            frame = stack + 8 * v.FRAME * (depth - 1)
            left = get(frame, 3) - 1
            if left == 0:
                left, at = _zigzag(data, at, end)
                if at < 0:
                    return v.TRUNCATED
                if left < 0:
                    left = -left
                    size, at = _zigzag(data, at, end)
                    if at < 0 or size < 0:
                        return v.TRUNCATED
                if left == 0:
                    depth -= 1
                    if not put_list(columns, get(frame, 0), state):
                        return v.FULL
                    pc = get(frame, 2)
                    continue
                if left < 0 or left > budget:
                    return v.TOO_MANY_ITEMS
                budget -= left
            put(frame, 3, left)
            pc = get(frame, 1)
        elif op == v.LONG or op == v.INT or op == v.CLOCK or op == v.LONG_AS_DOUBLE or op == v.LONG_AS_FLOAT:
            number, at = _zigzag(data, at, end)
            if at < 0:
                return v.TRUNCATED
            if op == v.LONG or op == v.CLOCK:
                number, fits = _scaled(number, x, y)
                if not fits or (op == v.CLOCK and (number < 0 or number >= _DAY_NANOS)):
                    return v.OUT_OF_RANGE
            elif op == v.INT:
                if number < -(2**31) or number >= 2**31:
                    return v.OUT_OF_RANGE
            elif op == v.LONG_AS_DOUBLE:
                number = double_bits(np.float64(number))
            else:
                number = float_bits(np.float64(number))
            appended = put_number(columns, c, state, number)
        elif op == v.STRING or op == v.BYTES:
            length, at = _zigzag(data, at, end)
            if at < 0 or length < 0 or length > end - at:
                return v.TRUNCATED
            if op == v.STRING and not is_utf8(data, at, at + length):
                return v.INVALID_UTF8
            appended = put_text(columns, c, state, data, at, length)
            at += length
        elif op == v.UNION:
            branch, at = _zigzag(data, at, end)
            if at < 0:
                return v.TRUNCATED
            if branch < 0 or branch >= y:
                return v.UNKNOWN_BRANCH
            pc = get(program, x + branch)
        elif op == v.NULLS:
            appended = put_nulls(columns, state, program, x, y)
        elif op == v.JUMP:
            pc = x
        elif op == v.STRUCT_BEGIN:
            appended = put_struct(columns, c, state)
        elif op == v.BOOLEAN:
            if at >= end:
                return v.TRUNCATED
            appended = put_number(columns, c, state, np.int64(u8(data, at) != 0))
            at += 1
        elif op == v.DOUBLE:
            if end - at < 8:
                return v.TRUNCATED
            appended = put_number(columns, c, state, np.int64(u64(data, at)))
            at += 8
        elif op == v.FLOAT or op == v.FLOAT_AS_DOUBLE:
            if end - at < 4:
                return v.TRUNCATED
            bits = u8(data, at) | (u8(data, at + 1) << 8) | (u8(data, at + 2) << 16) | (u8(data, at + 3) << 24)
            appended = put_number(columns, c, state, bits if op == v.FLOAT else double_bits(double_of_float(bits)))
            at += 4
        elif op == v.ENUM:
            symbol, at = _zigzag(data, at, end)
            if at < 0:
                return v.TRUNCATED
            if symbol < 0 or symbol >= y:
                return v.UNKNOWN_SYMBOL
            appended = put_text(
                columns, c, state, texts, get(program, x + 2 * symbol), get(program, x + 2 * symbol + 1)
            )
        elif op == v.FIXED:
            if x > end - at:
                return v.TRUNCATED
            appended = put_text(columns, c, state, data, at, x)
            at += x
        elif op == v.DECIMAL:
            length = y
            if y < 0:
                length, at = _zigzag(data, at, end)
                if at < 0 or length < 0:
                    return v.TRUNCATED
            if length > end - at:
                return v.TRUNCATED
            code = _put_decimal(columns, c, state, data, at, length, program + 8 * x)
            if code != v.GOOD:
                return code
            at += length
        elif op == v.UUID:
            if end - at < 16:
                return v.TRUNCATED
            appended = _put_uuid(columns, c, state, data, at)
            at += 16
        elif op == v.END:
            return v.GOOD if at == end else v.TRAILING_BYTES
        elif op == v.FAIL:
            return v.TYPE_MISMATCH
        else:
            code = plain_value(data, at, end, op, c, x, y, columns, state)
            if code != v.GOOD:
                return code
            at = end
        if not appended:
            return v.FULL
