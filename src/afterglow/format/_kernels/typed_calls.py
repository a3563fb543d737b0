"""The kernels of typed values as Python calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from afterglow.format._kernels import typed_layout as v
from afterglow.format._kernels.native import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Longs = NDArray[np.int64]


_IMAGE = "typed"


def _at(array: NDArray[np.generic], kind: type[np.generic]) -> int:
    assert array.flags.c_contiguous
    assert array.dtype == kind
    return array.ctypes.data


def decode_values(
    data: Bytes,
    places: Longs,
    lengths: Longs,
    which: Longs,
    row: int,
    words: Longs,
    texts: Bytes,
    columns: Longs,
    state: Longs,
    nulls: tuple[int, int],
    wrong: Longs,
) -> int:
    """Append rows from ``row`` on; returns the one that a column had no room for, or their number."""
    stack = np.empty(v.FRAME * (v.DEEPEST + 1), np.int64)
    return kernels(_IMAGE).decode_values(
        _at(data, np.uint8),
        _at(places, np.int64),
        _at(lengths, np.int64),
        _at(which, np.int64),
        row,
        places.size,
        _at(words, np.int64),
        _at(texts, np.uint8),
        _at(columns, np.int64),
        len(columns),
        _at(stack, np.int64),
        _at(state, np.int64),
        *nulls,
        _at(wrong, np.int64),
    )


def split_pairs(data: Bytes, places: Longs, lengths: Longs) -> Longs:
    """Places and lengths of the keys, then those of the values; the place of the key is -1 where a row is damaged."""
    found = np.empty((4, places.size), np.int64)
    kernels(_IMAGE).split_pairs(
        _at(data, np.uint8),
        _at(places, np.int64),
        _at(lengths, np.int64),
        places.size,
        *(_at(row, np.int64) for row in found),
    )
    return found
