"""Type trees of schemas, the types of Pulsar's primitive schemas, and the merging of versions.

A value of a primitive schema is the bytes of one number, text or time. ``DATE``, ``TIME`` and ``TIMESTAMP`` are Java's
old classes, which all contain an instant in milliseconds; for ``TIME`` it is on the first day of 1970 in the producer's
time zone, which the value does not contain.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

import pyarrow as pa

from afterglow.errors import AfterglowError
from afterglow.format.schema import TIME


class Undecodable(AfterglowError, ValueError):
    """Values of a schema version cannot be decoded to columns; the message completes one about the version."""


class ValueKind(Enum):
    """Logical type of a single value."""

    BOOLEAN = auto()
    INT8 = auto()
    INT16 = auto()
    INT = auto()
    LONG = auto()
    FLOAT = auto()
    DOUBLE = auto()
    BYTES = auto()
    STRING = auto()
    DATE = auto()
    TIME = auto()
    MOMENT = auto()
    LOCAL = auto()
    DECIMAL = auto()


class Wire(Enum):
    """Encoding of a single value."""

    BOOLEAN = auto()
    INT = auto()
    LONG = auto()
    FLOAT = auto()
    DOUBLE = auto()
    BYTES = auto()
    STRING = auto()
    FIXED = auto()
    ENUM = auto()
    # Values of primitive schemas, big-endian.
    PLAIN_BOOLEAN = auto()
    PLAIN_NUMBER = auto()
    PLAIN_TIME = auto()
    PLAIN_DATE = auto()
    PLAIN_FLOAT = auto()
    PLAIN_DOUBLE = auto()
    PLAIN_BYTES = auto()
    PLAIN_STRING = auto()
    PLAIN_INSTANT = auto()
    PLAIN_LOCAL = auto()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A single value."""

    kind: ValueKind
    wire: Wire
    size: int = 0
    """Bytes of a fixed or primitive value."""
    symbols: tuple[str, ...] = ()
    """Symbols of an enum."""
    times: int = 1
    """Factor of the stored number."""
    divided: int = 1
    """Divisor of the stored number."""
    precision: int = 0
    scale: int = 0
    base64: bool = False
    """Whether bytes in JSON are base64 rather than text."""
    loose: bool = False
    """Whether JSON may contain a number instead of text."""


@dataclass(frozen=True, slots=True)
class RecordType:
    """A record: fields by name."""

    fields: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class ArrayType:
    """An array."""

    item: Node


@dataclass(frozen=True, slots=True)
class MapType:
    """A map with text keys."""

    item: Node


@dataclass(frozen=True, slots=True)
class UnionType:
    """A union as written: the number of a branch precedes the value. None is the branch null."""

    branches: tuple[tuple[str, Node] | None, ...]


@dataclass(frozen=True, slots=True)
class UnionColumn:
    """A union as a column: a struct of which one member is not null."""

    members: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class NullType:
    """The type null, without bytes and without a column."""


Node: TypeAlias = Leaf | NullType | RecordType | ArrayType | MapType | UnionType | UnionColumn

KEY = Leaf(ValueKind.STRING, Wire.STRING)
"""The key of a map."""

_TYPES = {
    ValueKind.BOOLEAN: pa.bool_(),
    ValueKind.INT8: pa.int8(),
    ValueKind.INT16: pa.int16(),
    ValueKind.INT: pa.int32(),
    ValueKind.LONG: pa.int64(),
    ValueKind.FLOAT: pa.float32(),
    ValueKind.DOUBLE: pa.float64(),
    ValueKind.BYTES: pa.binary(),
    ValueKind.STRING: pa.string(),
    ValueKind.DATE: pa.date32(),
    ValueKind.TIME: pa.time64("ns"),  # what Pulsar's plain type has
    ValueKind.MOMENT: TIME,
    ValueKind.LOCAL: pa.timestamp("us"),
}


def column_form(node: Node) -> Node | None:
    """Return the column type of a node: without nulls, since every column is nullable. None for a type of nulls only.

    Raises:
        Undecodable: No column can hold the type.
    """
    match node:
        case NullType():
            return None
        case UnionType():
            members = [branch for branch in node.branches if branch is not None]
            if len(members) > 1:
                return UnionColumn(_formed(members))
            return column_form(members[0][1]) if members else None
        case RecordType():
            return RecordType(_formed(list(node.fields)))
        case ArrayType():
            return ArrayType(_item(node.item))
        case MapType():
            return MapType(_item(node.item))
    return node


def _item(node: Node) -> Node:
    formed = column_form(node)
    if formed is None:
        raise Undecodable("its definition has an array or a map of nulls, which no column can hold")
    return formed


def _formed(fields: list[tuple[str, Node]]) -> tuple[tuple[str, Node], ...]:
    formed = ((name, column_form(node)) for name, node in fields)
    return tuple((name, node) for name, node in formed if node is not None)


def arrow_type(node: Node) -> pa.DataType:
    """Return the Arrow type of a node in its column form."""
    match node:
        case Leaf(kind=ValueKind.DECIMAL):
            return pa.decimal128(node.precision, node.scale)
        case Leaf():
            return _TYPES[node.kind]
        case RecordType():
            return pa.struct([pa.field(name, arrow_type(child)) for name, child in node.fields])
        case UnionColumn():
            return pa.struct([pa.field(name, arrow_type(child)) for name, child in node.members])
        case ArrayType():
            return pa.list_(arrow_type(node.item))
        case MapType():
            return pa.map_(pa.string(), arrow_type(node.item))
    raise AssertionError("null and written unions have no column")


_MOMENT: Final = Leaf(ValueKind.MOMENT, Wire.PLAIN_TIME, size=8, times=1_000)

BYTES: Final = Leaf(ValueKind.BYTES, Wire.PLAIN_BYTES)
"""Raw bytes, also for types that are not decoded."""

PLAIN: Final = {
    "BYTES": BYTES,
    "NONE": BYTES,
    "STRING": Leaf(ValueKind.STRING, Wire.PLAIN_STRING),
    "BOOLEAN": Leaf(ValueKind.BOOLEAN, Wire.PLAIN_BOOLEAN, size=1),
    "INT8": Leaf(ValueKind.INT8, Wire.PLAIN_NUMBER, size=1),
    "INT16": Leaf(ValueKind.INT16, Wire.PLAIN_NUMBER, size=2),
    "INT32": Leaf(ValueKind.INT, Wire.PLAIN_NUMBER, size=4),
    "INT64": Leaf(ValueKind.LONG, Wire.PLAIN_NUMBER, size=8),
    "FLOAT": Leaf(ValueKind.FLOAT, Wire.PLAIN_FLOAT, size=4),
    "DOUBLE": Leaf(ValueKind.DOUBLE, Wire.PLAIN_DOUBLE, size=8),
    "DATE": _MOMENT,
    "TIME": _MOMENT,
    "TIMESTAMP": _MOMENT,
    "INSTANT": Leaf(ValueKind.MOMENT, Wire.PLAIN_INSTANT, size=12),
    "LOCAL_DATE": Leaf(ValueKind.DATE, Wire.PLAIN_DATE, size=8),
    "LOCAL_TIME": Leaf(ValueKind.TIME, Wire.PLAIN_TIME, size=8),
    "LOCAL_DATE_TIME": Leaf(ValueKind.LOCAL, Wire.PLAIN_LOCAL, size=16),
}
"""Primitive schemas by type name."""


_WIDTHS: Final = (ValueKind.INT8, ValueKind.INT16, ValueKind.INT, ValueKind.LONG, ValueKind.FLOAT, ValueKind.DOUBLE)


def merge(older: Node, newer: Node) -> Node:
    """Return the column form that accepts both; the newer one if none exists."""
    match older, newer:
        case RecordType(), RecordType():
            return RecordType(_by_name(older.fields, newer.fields))
        case ArrayType(), ArrayType():
            return ArrayType(merge(older.item, newer.item))
        case MapType(), MapType():
            return MapType(merge(older.item, newer.item))
        case UnionColumn(), UnionColumn():
            return UnionColumn(_by_name(older.members, newer.members))
        case Leaf(), Leaf():
            return _merge_leaves(older, newer)
    return newer


def _by_name(older: tuple[tuple[str, Node], ...], newer: tuple[tuple[str, Node], ...]) -> tuple[tuple[str, Node], ...]:
    before = dict(older)
    merged = {name: merge(before[name], node) if name in before else node for name, node in newer}
    return tuple({**merged, **{name: node for name, node in older if name not in merged}}.items())


def _merge_leaves(older: Leaf, newer: Leaf) -> Leaf:
    if older.kind not in _WIDTHS or newer.kind not in _WIDTHS or older.kind is newer.kind:
        return newer
    low, high = sorted((older, newer), key=lambda leaf: _WIDTHS.index(leaf.kind))
    if low.kind is ValueKind.LONG and high.kind is ValueKind.FLOAT:
        return Leaf(ValueKind.DOUBLE, high.wire, size=high.size)
    return high
