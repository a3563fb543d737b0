"""Floating-point numbers and their bits."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

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
