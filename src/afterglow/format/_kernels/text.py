"""Whether bytes are text."""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels.memory import u8, u64

_HIGH_BITS = np.uint64(0x8080808080808080)


@njit
def valid_utf8(text, at, end):
    """Whether bytes are text; best where they are known not to be all ASCII."""
    while at < end:
        lead = u8(text, at)
        if lead < 0x80:
            at += 1
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else (2 if lead < 0xF0 else 3)
        if at + more >= end:
            return False
        second = u8(text, at + 1)
        low = 0xA0 if lead == 0xE0 else (0x90 if lead == 0xF0 else 0x80)
        high = 0x9F if lead == 0xED else (0x8F if lead == 0xF4 else 0xBF)
        if second < low or second > high:
            return False
        for k in range(2, more + 1):
            if u8(text, at + k) & 0xC0 != 0x80:
                return False
        at += more + 1
    return True


@njit(forceinline=True)
def is_utf8(text, at, end):
    """Whether bytes are text, most of which is ASCII."""
    while at + 8 <= end:
        if u64(text, at) & _HIGH_BITS != 0:
            return valid_utf8(text, at, end)
        at += 8
    while at < end:
        if u8(text, at) >= 0x80:
            return valid_utf8(text, at, end)
        at += 1
    return True
