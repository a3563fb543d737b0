"""Building blocks of all kernels: loads, stores and copies at an address, bits of floats, varints, UTF-8 validation.

Addresses are int64; ``at`` counts bytes from it, ``i`` counts eight-byte words. Loads, stores and copies are single
machine operations without bounds checks: the caller has checked. Varints and UTF-8 sequences are read only up to the
``end`` that they are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable


_BYTE = ir.IntType(8)


def _pointer(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    return builder.inttoptr(builder.add(address, offset), kind.as_pointer())


def _loader(bits: int, result: Any, *, swap: bool = False) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(_pointer(builder, args[0], args[1], ir.IntType(bits)))
        value.align = 1
        if swap:
            value = builder.bswap(value)
        return context.cast(builder, value, result, signature.return_type)

    return codegen


@intrinsic
def u8(_typing: Any, _address: Any, _at: Any) -> Any:
    """The byte at ``at``, as an int64."""
    return types.int64(types.int64, types.int64), _loader(8, types.uint8)


@intrinsic
def u16(_typing: Any, _address: Any, _at: Any) -> Any:
    """The little-endian 16-bit number at ``at``, as an int64."""
    return types.int64(types.int64, types.int64), _loader(16, types.uint16)


@intrinsic
def u64(_typing: Any, _address: Any, _at: Any) -> Any:
    """The little-endian 64-bit number at ``at``, unsigned."""
    return types.uint64(types.int64, types.int64), _loader(64, types.uint64)


@intrinsic
def be32(_typing: Any, _address: Any, _at: Any) -> Any:
    """The signed big-endian 32-bit number at ``at``, as an int64."""
    return types.int64(types.int64, types.int64), _loader(32, types.int32, swap=True)


@intrinsic
def be64(_typing: Any, _address: Any, _at: Any) -> Any:
    """The signed big-endian 64-bit number at ``at``."""
    return types.int64(types.int64, types.int64), _loader(64, types.int64, swap=True)


@intrinsic
def _load_i64(_typing: Any, _address: Any, _at: Any) -> Any:
    return types.int64(types.int64, types.int64), _loader(64, types.int64)


@intrinsic
def _load_i32(_typing: Any, _address: Any, _at: Any) -> Any:
    return types.int64(types.int64, types.int64), _loader(32, types.int32)


def _storer(bits: int, *, swap: bool = False) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.IntType(bits)
        value = args[2] if bits == 64 else builder.trunc(args[2], kind)
        if swap:
            value = builder.bswap(value)
        builder.store(value, _pointer(builder, args[0], args[1], kind), align=1)
        return context.get_dummy_value()

    return codegen


@intrinsic
def put8(_typing: Any, _address: Any, _at: Any, _value: Any) -> Any:
    """Store the low byte of ``value`` at ``at``."""
    return types.void(types.int64, types.int64, types.int64), _storer(8)


@intrinsic
def _store_i32(_typing: Any, _address: Any, _at: Any, _value: Any) -> Any:
    return types.void(types.int64, types.int64, types.int64), _storer(32)


@intrinsic
def _store_i64(_typing: Any, _address: Any, _at: Any, _value: Any) -> Any:
    return types.void(types.int64, types.int64, types.int64), _storer(64)


@intrinsic
def put_be32(_typing: Any, _address: Any, _at: Any, _value: Any) -> Any:
    """Store the low 32 bits of ``value`` at ``at``, big-endian."""
    return types.void(types.int64, types.int64, types.int64), _storer(32, swap=True)


@intrinsic
def put_be64(_typing: Any, _address: Any, _at: Any, _value: Any) -> Any:
    """Store ``value`` at ``at``, big-endian."""
    return types.void(types.int64, types.int64, types.int64), _storer(64, swap=True)


@njit(forceinline=True)
def get(address, i):
    """The ``i``-th int64 at ``address``."""
    return _load_i64(address, 8 * i)


@njit(forceinline=True)
def put(address, i, value):
    """Store the ``i``-th int64 at ``address``."""
    _store_i64(address, 8 * i, value)


@njit(forceinline=True)
def get32(address, i):
    """The ``i``-th int32 at ``address``, as an int64."""
    return _load_i32(address, 4 * i)


@njit(forceinline=True)
def put32(address, i, value):
    """Store the ``i``-th int32 at ``address``."""
    _store_i32(address, 4 * i, value)


@njit(forceinline=True)
def put_bit(address, i, on):
    """Store the ``i``-th bit at ``address``, in Arrow's order."""
    mask = 1 << (i & 7)
    byte = u8(address, i >> 3)
    put8(address, i >> 3, byte | mask if on else byte & ~mask)


def _copier(operation: Callable[..., Any]) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        target = builder.inttoptr(args[0], _BYTE.as_pointer())
        source = builder.inttoptr(args[1], _BYTE.as_pointer())
        operation(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return codegen


@intrinsic
def copy(_typing: Any, _target: Any, _source: Any, _length: Any) -> Any:
    """Copy ``length`` bytes between two addresses; the ranges do not overlap."""
    return types.void(types.int64, types.int64, types.int64), _copier(cgutils.raw_memcpy)


@intrinsic
def move(_typing: Any, _target: Any, _source: Any, _length: Any) -> Any:
    """Copy ``length`` bytes between two addresses; the ranges may overlap."""
    return types.void(types.int64, types.int64, types.int64), _copier(cgutils.raw_memmove)


@intrinsic
def copy16(_typing: Any, _target: Any, _source: Any) -> Any:
    """Copy sixteen bytes by one load and one store; the target may overlap only if it begins 16 bytes later or more."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        vector = ir.VectorType(_BYTE, 16)
        value = builder.load(builder.inttoptr(args[1], vector.as_pointer()))
        value.align = 1
        builder.store(value, builder.inttoptr(args[0], vector.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


TORN = np.int64(-1)


@njit(forceinline=True)
def varint(data, at, end):
    """Read a varint; returns ``(value as int64, end offset)``, the offset TORN if it is truncated or too long."""
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
    """Skip a field of the given wire type; returns its end offset, or TORN."""
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


_FLOAT = ir.FloatType()
_DOUBLE = ir.DoubleType()


@intrinsic
def double_bits(_typing: Any, _value: Any) -> Any:
    """The bits of a double."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def float_bits(_typing: Any, _value: Any) -> Any:
    """The bits of the float that is nearest to a double."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.zext(builder.bitcast(builder.fptrunc(args[0], _FLOAT), ir.IntType(32)), ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def double_of_float(_typing: Any, _bits: Any) -> Any:
    """The value of the float whose bits are the low ones given."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        narrow = builder.bitcast(builder.trunc(args[0], ir.IntType(32)), _FLOAT)
        return builder.fpext(narrow, _DOUBLE)

    return types.float64(types.int64), codegen


_HIGH_BITS = np.uint64(0x8080808080808080)


@njit
def valid_utf8(text, at, end):
    """Return whether bytes are valid UTF-8; fastest if they are not all ASCII."""
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
    """Return whether bytes are valid UTF-8; fastest if they are mostly ASCII."""
    while at + 8 <= end:
        if u64(text, at) & _HIGH_BITS != 0:
            return valid_utf8(text, at, end)
        at += 8
    while at < end:
        if u8(text, at) >= 0x80:
            return valid_utf8(text, at, end)
        at += 1
    return True
