"""Varints that kernels write; reading is in ``primitives``."""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels.primitives import put8


@njit(forceinline=True)
def varint_bytes(value):
    """Return the bytes that a number takes as a varint."""
    rest = np.uint64(value)
    count = 1
    while rest >= np.uint64(128):
        rest >>= np.uint64(7)
        count += 1
    return count


@njit(forceinline=True)
def put_varint(out, at, value):
    """Write a number as a varint; returns the offset after it."""
    rest = np.uint64(value)
    while rest >= np.uint64(128):
        put8(out, at, np.int64(rest & np.uint64(127)) | 128)
        rest >>= np.uint64(7)
        at += 1
    put8(out, at, np.int64(rest))
    return at + 1
