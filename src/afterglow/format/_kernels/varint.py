"""Protobuf's wire types, with every read bounded."""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels.memory import u8

TORN = np.int64(-1)


@njit(forceinline=True)
def varint(data, at, end):
    """Read a varint; returns ``(value as int64, offset behind it)``, the offset TORN if it is torn or too long."""
    value = np.int64(0)
    shift = 0
    while at < end:
        byte = u8(data, at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            break
    return value, TORN


@njit(forceinline=True)
def skip(data, at, end, wire):
    """Pass over a field of the given wire type; returns the offset behind it, or TORN."""
    if wire == 0:
        _, at = varint(data, at, end)
        return at
    if wire == 2:
        length, at = varint(data, at, end)
        if at < 0 or length < 0 or length > end - at:
            return TORN
        return at + length
    if wire == 1:
        return at + 8 if end - at >= 8 else TORN
    if wire == 5:
        return at + 4 if end - at >= 4 else TORN
    return TORN
