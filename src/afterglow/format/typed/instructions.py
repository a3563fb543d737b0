"""Which instruction writes a single value of one schema version into a column that all versions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.format._kernels import typed_layout as v
from afterglow.format.typed.nodes import Kind, Wire

if TYPE_CHECKING:
    from afterglow.format.typed.nodes import Leaf

_TIMES: Final = frozenset({Kind.TIME, Kind.MOMENT, Kind.LOCAL})
_WHOLE: Final = (Kind.INT8, Kind.INT16, Kind.INT, Kind.LONG)
_PLAIN_TEXTS: Final = {
    (Wire.PLAIN_BYTES, Kind.BYTES): v.PLAIN_BYTES,
    (Wire.PLAIN_BYTES, Kind.STRING): v.PLAIN_STRING,
    (Wire.PLAIN_STRING, Kind.BYTES): v.PLAIN_BYTES,
    (Wire.PLAIN_STRING, Kind.STRING): v.PLAIN_STRING,
}
_PLAIN_TIMES: Final = {
    Wire.PLAIN_TIME: v.PLAIN_TIME,
    Wire.PLAIN_DATE: v.PLAIN_DATE,
    Wire.PLAIN_INSTANT: v.PLAIN_INSTANT,
    Wire.PLAIN_LOCAL: v.PLAIN_LOCAL,
}

Line = tuple[int, int, int]
"""Operation, x and y."""


def instruction(writer: Leaf, target: Leaf) -> Line | None:
    """The operation that reads what ``writer`` wrote into a column of the kind of ``target``; None: it does not fit."""
    match writer.wire:
        case Wire.INT | Wire.LONG:
            return _integer(writer, target)
        case Wire.FLOAT:
            return {Kind.FLOAT: (v.FLOAT, 0, 0), Kind.DOUBLE: (v.FLOAT_AS_DOUBLE, 0, 0)}.get(target.kind)
        case Wire.DOUBLE:
            return (v.DOUBLE, 0, 0) if target.kind is Kind.DOUBLE else None
        case Wire.BOOLEAN:
            return (v.BOOLEAN, 0, 0) if target.kind is Kind.BOOLEAN else None
        case Wire.BYTES | Wire.STRING | Wire.FIXED | Wire.ENUM:
            return _text(writer, target)
    return _plain(writer, target)


def _integer(writer: Leaf, target: Leaf) -> Line | None:
    if target.kind is writer.kind and writer.kind in _TIMES:
        # Each version by its own unit.
        return _time(writer.kind), writer.times, writer.divided
    if target.kind is Kind.LONG:
        return v.LONG, 1, 1
    if target.kind is Kind.DOUBLE:
        return v.LONG_AS_DOUBLE, 0, 0
    if target.kind is Kind.FLOAT:
        return v.LONG_AS_FLOAT, 0, 0
    if target.kind is Kind.INT or (target.kind is Kind.DATE and writer.kind in {Kind.INT, Kind.DATE}):
        return (v.INT, 0, 0) if writer.wire is Wire.INT else None
    if target.kind in _TIMES and target.wire is writer.wire and writer.kind in _WHOLE:
        # The number was given its meaning later.
        return _time(target.kind), target.times, target.divided
    return None


def _time(kind: Kind) -> int:
    return v.CLOCK if kind is Kind.TIME else v.LONG


def _text(writer: Leaf, target: Leaf) -> Line | None:
    if target.kind is Kind.DECIMAL:
        same = (writer.kind, writer.precision, writer.scale) == (target.kind, target.precision, target.scale)
        return (v.DECIMAL, 0, writer.size if writer.wire is Wire.FIXED else -1) if same else None
    if target.kind not in {Kind.BYTES, Kind.STRING}:
        return None
    if writer.wire is Wire.ENUM:
        return v.ENUM, 0, 0
    if writer.wire is Wire.FIXED:
        if target.kind is Kind.BYTES:
            return v.FIXED, writer.size, 0
        return (v.UUID, 0, 0) if writer.kind is Kind.STRING else None
    return v.STRING if target.kind is Kind.STRING else v.BYTES, 0, 0


def _plain(writer: Leaf, target: Leaf) -> Line | None:
    if (writer.wire, target.kind) in _PLAIN_TEXTS:
        return _PLAIN_TEXTS[writer.wire, target.kind], 0, 0
    if writer.wire in _PLAIN_TIMES:
        if writer.kind is not target.kind:
            return None
        return v.PLAIN_CLOCK if writer.kind is Kind.TIME else _PLAIN_TIMES[writer.wire], writer.times, writer.divided
    if writer.wire is Wire.PLAIN_NUMBER:
        if target.kind in _WHOLE and _WHOLE.index(target.kind) >= _WHOLE.index(writer.kind):
            return v.PLAIN_NUMBER, writer.size, 0
        wide = {Kind.FLOAT: v.LONG_AS_FLOAT, Kind.DOUBLE: v.LONG_AS_DOUBLE}.get(target.kind)
        return None if wide is None else (v.PLAIN_NUMBER, writer.size, wide)
    if writer.wire is Wire.PLAIN_FLOAT and target.kind in {Kind.FLOAT, Kind.DOUBLE}:
        return v.PLAIN_FLOAT, 0, v.FLOAT_AS_DOUBLE if target.kind is Kind.DOUBLE else 0
    if writer.wire is Wire.PLAIN_DOUBLE and target.kind is Kind.DOUBLE:
        return v.PLAIN_DOUBLE, 0, 0
    if writer.wire is Wire.PLAIN_BOOLEAN and target.kind is Kind.BOOLEAN:
        return v.PLAIN_BOOLEAN, 0, 0
    return None
