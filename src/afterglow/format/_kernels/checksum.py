"""CRC32C of bytes in memory, inside kernels.

x86-64 has an instruction for it (SSE 4.2, in every processor since 2008), and so has Linux on aarch64. Other machines
process eight bytes at a time with eight tables ("slicing-by-8"), at about a third of the speed.

The instruction has a latency of three cycles and a throughput of one per cycle: three adjacent ranges of bytes are
processed in parallel, and their checksums combined with tables of the effect of zero bytes on a checksum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from afterglow.format._kernels import targets
from afterglow.format._kernels.primitives import u8, u64

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's polynomial, reflected."""


def _tables() -> np.ndarray[Any, Any]:
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        for byte in range(256):
            before = int(tables[k - 1, byte])
            tables[k, byte] = (before >> 8) ^ int(tables[0, before & 0xFF])
    return tables


_TABLES = _tables()

_LONG = 4096
"""Bytes of each of three ranges, for batches."""
_SHORT = 336
"""The same for messages: three of them are a bit less than 1 KiB."""


def _zeros(count: int) -> np.ndarray[Any, Any]:
    """Return tables of the effect of ``count`` zero bytes on a checksum, for each of its four bytes."""
    bits = []
    for bit in range(32):
        crc = 1 << bit
        for _ in range(count):
            crc = (crc >> 8) ^ int(_TABLES[0, crc & 0xFF])
        bits.append(crc)
    tables = np.zeros((4, 256), np.uint64)
    for k in range(4):
        for byte in range(256):
            tables[k, byte] = np.bitwise_xor.reduce([bits[8 * k + bit] for bit in range(8) if byte >> bit & 1] or [0])
    return tables


_LONG_ZEROS = _zeros(_LONG)
_SHORT_ZEROS = _zeros(_SHORT)


@njit(forceinline=True)
def _step8_by_tables(crc, word):
    word ^= crc
    result = np.uint64(0)
    for k in range(8):
        result ^= _TABLES[7 - k, (word >> np.uint64(8 * k)) & np.uint64(0xFF)]
    return result


STEP8 = "afterglow_crc32c_step8"
"""Function for which ``build`` substitutes the target's instruction.

numba emits code for the host even if only LLVM code is wanted, so that it cannot be given another machine's intrinsic.
"""
_INTRINSIC = "llvm.x86.sse42.crc32.64.64"


def _step8_of(name: str) -> Any:
    @intrinsic
    def step8(_typing: Any, _crc: Any, _word: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            word = ir.IntType(64)
            kind = ir.FunctionType(word, [word, word])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

        return types.uint64(types.uint64, types.uint64), codegen

    return step8


def _choose_step8() -> Any:
    target = targets.compiled_target()
    if targets.host_machine() == "x86_64" and (target is None or target.machine == "x86_64"):
        return _step8_of(_INTRINSIC)
    return _step8_by_tables if target is None else _step8_of(STEP8)


_step8 = _choose_step8()


@njit(forceinline=True)
def _behind(zeros, crc):
    """Return the checksum after appending as many zero bytes as ``zeros`` was computed for."""
    byte = np.uint64(0xFF)
    return (
        zeros[0, crc & byte]
        ^ zeros[1, (crc >> np.uint64(8)) & byte]
        ^ zeros[2, (crc >> np.uint64(16)) & byte]
        ^ zeros[3, (crc >> np.uint64(24)) & byte]
    )


@njit(forceinline=True)
def _three(data, at, size, zeros, crc):
    """Continue the checksum over three ranges of ``size`` bytes."""
    second = third = np.uint64(0)
    for i in range(at, at + size, 8):
        crc = _step8(crc, u64(data, i))
        second = _step8(second, u64(data, i + size))
        third = _step8(third, u64(data, i + 2 * size))
    return _behind(zeros, _behind(zeros, crc) ^ second) ^ third


@njit
def crc32c(data, at, end):
    """CRC32C of the bytes from ``at`` to ``end`` at an address."""
    crc = np.uint64(0xFFFFFFFF)
    while at + 3 * _LONG <= end:
        crc = _three(data, at, _LONG, _LONG_ZEROS, crc)
        at += 3 * _LONG
    while at + 3 * _SHORT <= end:
        crc = _three(data, at, _SHORT, _SHORT_ZEROS, crc)
        at += 3 * _SHORT
    while at + 8 <= end:
        crc = _step8(crc, u64(data, at))
        at += 8
    while at < end:
        crc = (crc >> np.uint64(8)) ^ _TABLES[0, (crc ^ np.uint64(u8(data, at))) & np.uint64(0xFF)]
        at += 1
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))
