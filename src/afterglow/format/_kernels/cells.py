"""Writing typed values into columns that may have no room left.

A function that appends returns False where a column is full, and has noted which: the row is then taken back, the
column made larger, and the row decoded again.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import typed_layout as v
from afterglow.format._kernels.primitives import copy, get, put, put8, put32, put_bit


@njit(forceinline=True)
def claim(columns, c, state):
    """The next slot of a column, taken; -1 where it is full."""
    column = columns + 8 * v.WORDS * c
    slot = get(column, v.COUNT)
    if slot >= get(column, v.CAPACITY):
        put(state, v.FULL_COLUMN, c)
        put(state, v.FULL_BYTES, 0)
        return np.int64(-1)
    put(column, v.COUNT, slot + 1)
    return slot


@njit(forceinline=True)
def put_number(columns, c, state, bits):
    """Append the low bits of a number, as many as the column is wide."""
    slot = claim(columns, c, state)
    if slot < 0:
        return False
    column = columns + 8 * v.WORDS * c
    kind = get(column, v.KIND)
    values = get(column, v.VALUES)
    if kind == v.W8:
        put(values, slot, bits)
    elif kind == v.W4:
        put32(values, slot, bits)
    elif kind == v.BITS:
        put_bit(values, slot, bits)
    elif kind == v.W1:
        put8(values, slot, bits)
    else:
        put8(values, 2 * slot, bits)
        put8(values, 2 * slot + 1, bits >> 8)
    put_bit(get(column, v.VALID), slot, 1)
    return True


@njit(forceinline=True)
def put_wide(columns, c, state, low, high):
    """Append a number of 128 bits."""
    slot = claim(columns, c, state)
    if slot < 0:
        return False
    column = columns + 8 * v.WORDS * c
    put(get(column, v.VALUES), 2 * slot, low)
    put(get(column, v.VALUES), 2 * slot + 1, high)
    put_bit(get(column, v.VALID), slot, 1)
    return True


@njit(forceinline=True)
def text_room(columns, c, state, length):
    """Where up to ``length`` bytes of text may be written; -1 where there is no room for them."""
    column = columns + 8 * v.WORDS * c
    used = get(column, v.USED)
    short = length > get(column, v.ROOM) - used
    if short or get(column, v.COUNT) >= get(column, v.CAPACITY):
        put(state, v.FULL_COLUMN, c)
        put(state, v.FULL_BYTES, length if short else 0)
        return np.int64(-1)
    return get(column, v.DATA) + used


@njit(forceinline=True)
def end_text(columns, c, length):
    """Append the text whose ``length`` bytes were written; there was room."""
    column = columns + 8 * v.WORDS * c
    slot = get(column, v.COUNT)
    used = get(column, v.USED) + length
    put(column, v.COUNT, slot + 1)
    put(column, v.USED, used)
    put32(get(column, v.VALUES), slot + 1, used)
    put_bit(get(column, v.VALID), slot, 1)


@njit(forceinline=True)
def put_text(columns, c, state, data, at, length):
    """Append ``length`` bytes."""
    target = text_room(columns, c, state, length)
    if target < 0:
        return False
    copy(target, data + at, length)
    end_text(columns, c, length)
    return True


@njit(forceinline=True)
def put_struct(columns, c, state):
    """Append a struct that is there; its fields follow."""
    slot = claim(columns, c, state)
    if slot < 0:
        return False
    put_bit(get(columns + 8 * v.WORDS * c, v.VALID), slot, 1)
    return True


@njit(forceinline=True)
def put_list(columns, c, state):
    """Append the list of all items that were appended since the last one."""
    slot = claim(columns, c, state)
    if slot < 0:
        return False
    column = columns + 8 * v.WORDS * c
    put32(get(column, v.VALUES), slot + 1, get(columns + 8 * v.WORDS * get(column, v.CHILD), v.COUNT))
    put_bit(get(column, v.VALID), slot, 1)
    return True


@njit
def put_nulls(columns, state, words, at, count):
    """Append null to each of the columns that ``count`` words name."""
    for i in range(count):
        c = get(words, at + i)
        slot = claim(columns, c, state)
        if slot < 0:
            return False
        column = columns + 8 * v.WORDS * c
        kind = get(column, v.KIND)
        values = get(column, v.VALUES)
        if kind == v.TEXT:
            put32(values, slot + 1, get(column, v.USED))
        elif kind == v.LIST:
            put32(values, slot + 1, get(columns + 8 * v.WORDS * get(column, v.CHILD), v.COUNT))
        elif kind == v.W8:
            put(values, slot, 0)
        elif kind == v.W4:
            put32(values, slot, 0)
        elif kind == v.BITS:
            put_bit(values, slot, 0)
        elif kind == v.W16:
            put(values, 2 * slot, 0)
            put(values, 2 * slot + 1, 0)
        elif kind == v.W1:
            put8(values, slot, 0)
        elif kind == v.W2:
            put8(values, 2 * slot, 0)
            put8(values, 2 * slot + 1, 0)
        put_bit(get(column, v.VALID), slot, 0)
    return True


@njit(forceinline=True)
def keep(columns, count, state):
    """Count the row that was written as whole."""
    for c in range(count):
        column = columns + 8 * v.WORDS * c
        put(column, v.COUNT_KEPT, get(column, v.COUNT))
        put(column, v.USED_KEPT, get(column, v.USED))
    put(state, v.SLOW_KEPT, get(state, v.SLOW_COUNT))


@njit(forceinline=True)
def take_back(columns, count, state):
    """Forget what was written since the last whole row."""
    for c in range(count):
        column = columns + 8 * v.WORDS * c
        put(column, v.COUNT, get(column, v.COUNT_KEPT))
        put(column, v.USED, get(column, v.USED_KEPT))
    put(state, v.SLOW_COUNT, get(state, v.SLOW_KEPT))
