"""Appending of typed values to columns of limited capacity.

A function that appends returns False if a column is full, and records which: the caller rolls the row back, grows the
column, and decodes the row again.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import typed_layout as v
from afterglow.format._kernels.primitives import copy, get, put, put8, put32, put_bit


@njit(forceinline=True)
def claim_slot(columns, c, state):
    """Claim the next slot of a column; returns -1 if it is full."""
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
    """Append the low bits of a number, up to the width of the column."""
    slot = claim_slot(columns, c, state)
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
    slot = claim_slot(columns, c, state)
    if slot < 0:
        return False
    column = columns + 8 * v.WORDS * c
    put(get(column, v.VALUES), 2 * slot, low)
    put(get(column, v.VALUES), 2 * slot + 1, high)
    put_bit(get(column, v.VALID), slot, 1)
    return True


@njit(forceinline=True)
def reserve_text(columns, c, state, length):
    """Return the address for ``length`` bytes of text; -1 if they exceed the capacity."""
    column = columns + 8 * v.WORDS * c
    used = get(column, v.USED)
    short = length > get(column, v.TEXT_CAPACITY) - used
    if short or get(column, v.COUNT) >= get(column, v.CAPACITY):
        put(state, v.FULL_COLUMN, c)
        put(state, v.FULL_BYTES, length if short else 0)
        return np.int64(-1)
    return get(column, v.DATA) + used


@njit(forceinline=True)
def end_text(columns, c, length):
    """Append the text whose ``length`` bytes were written after :func:`reserve_text`."""
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
    target = reserve_text(columns, c, state, length)
    if target < 0:
        return False
    copy(target, data + at, length)
    end_text(columns, c, length)
    return True


@njit(forceinline=True)
def put_struct(columns, c, state):
    """Append a struct that is not null; its fields follow."""
    slot = claim_slot(columns, c, state)
    if slot < 0:
        return False
    put_bit(get(columns + 8 * v.WORDS * c, v.VALID), slot, 1)
    return True


@njit(forceinline=True)
def put_list(columns, c, state):
    """Append a list of all items appended since the previous list."""
    slot = claim_slot(columns, c, state)
    if slot < 0:
        return False
    column = columns + 8 * v.WORDS * c
    put32(get(column, v.VALUES), slot + 1, get(columns + 8 * v.WORDS * get(column, v.CHILD), v.COUNT))
    put_bit(get(column, v.VALID), slot, 1)
    return True


@njit
def put_nulls(columns, state, words, at, count):
    """Append null to each of the columns listed in ``count`` words."""
    for i in range(count):
        c = get(words, at + i)
        slot = claim_slot(columns, c, state)
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
def commit_row(columns, count, state):
    """Commit the row that was written."""
    for c in range(count):
        column = columns + 8 * v.WORDS * c
        put(column, v.COUNT_COMMITTED, get(column, v.COUNT))
        put(column, v.USED_COMMITTED, get(column, v.USED))
    put(state, v.SLOW_COMMITTED, get(state, v.SLOW_COUNT))


@njit(forceinline=True)
def roll_back_row(columns, count, state):
    """Discard everything written since the last commit."""
    for c in range(count):
        column = columns + 8 * v.WORDS * c
        put(column, v.COUNT, get(column, v.COUNT_COMMITTED))
        put(column, v.USED, get(column, v.USED_COMMITTED))
    put(state, v.SLOW_COUNT, get(state, v.SLOW_COMMITTED))
