"""Decoding of typed values to columns, row by row, each with the program of its schema version."""

from __future__ import annotations

from numba import njit

from afterglow.format._kernels import typed_layout as v
from afterglow.format._kernels.avro import avro_value
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.cells import commit_row, put_nulls, roll_back_row
from afterglow.format._kernels.json_text import json_value
from afterglow.format._kernels.primitives import be32, get, put


@njit(forceinline=True)
def _row(data, at, length, which, words, texts, columns, stack, state, nulls, null_count):
    if which == v.NULL_ROW or length < 0:
        return v.GOOD if put_nulls(columns, state, words, nulls, null_count) else v.FULL
    if which & 1:
        return json_value(data, at, at + length, words, which >> 1, texts, columns, stack, state)
    return avro_value(data, at, at + length, words, which >> 1, texts, columns, stack, state)


@kernel(15)
def decode_values(
    data,
    places,
    lengths,
    which,
    row,
    count,
    words,
    texts,
    columns,
    column_count,
    stack,
    state,
    nulls,
    null_count,
    wrong,
):
    """Append the rows from ``row`` to ``count``; returns the first row that did not fit in a column, or ``count``.

    An invalid row becomes null, and ``wrong`` receives its code plus 256 times its instruction or node. ``nulls`` lists
    the columns of a null row.
    """
    while row < count:
        code = _row(
            data, get(places, row), get(lengths, row), get(which, row),
            words, texts, columns, stack, state, nulls, null_count,
        )  # fmt: skip
        if code > 0:
            put(wrong, row, code + 256 * get(state, v.AT))
            roll_back_row(columns, column_count, state)
            code = v.GOOD if put_nulls(columns, state, words, nulls, null_count) else v.FULL
        if code == v.FULL:
            roll_back_row(columns, column_count, state)
            return row
        commit_row(columns, column_count, state)
        row += 1
    return row


@kernel(8)
def split_pairs(data, places, lengths, count, key_places, key_lengths, value_places, value_lengths):
    """Split values that contain key and value, each after its length; a length of -1 is null.

    In a corrupt row, as in a null row, both are null; the offset of the key of a corrupt row is -1.
    """
    for row in range(count):
        at = get(places, row)
        length = get(lengths, row)
        put(key_places, row, 0)
        put(key_lengths, row, -1)
        put(value_places, row, 0)
        put(value_lengths, row, -1)
        if length < 0:
            continue
        end = at + length
        good = length >= 8
        if good:
            key = be32(data, at)
            key_at = at + 4
            behind = key_at + max(key, 0)
            good = key >= -1 and end - behind >= 4
            if good:
                value = be32(data, behind)
                good = value >= -1 and behind + 4 + max(value, 0) == end
                if good:
                    put(key_places, row, key_at)
                    put(key_lengths, row, key)
                    put(value_places, row, behind + 4)
                    put(value_lengths, row, value)
        if not good:
            put(key_places, row, -1)
    return count
