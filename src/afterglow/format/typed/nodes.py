"""Trees that describe the values of a schema, the trees of Pulsar's plain schemas, and the merging of versions.

A value of a plain schema is nothing but the bytes of one number, text or time. ``DATE``, ``TIME`` and ``TIMESTAMP`` are
Java's old classes, which all hold a moment in milliseconds; ``TIME`` too, of the first day of 1970 in the producer's
own time zone, which the value does not carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

import pyarrow as pa

from afterglow.errors import AfterglowError
from afterglow.format.schema import TIME


class Undecodable(AfterglowError, ValueError):
    """Values of a schema version cannot become columns; the message says why, as the end of a sentence."""


class Kind(Enum):
    """What a single value means."""

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
    """How a single value is written."""

    BOOLEAN = auto()
    INT = auto()
    LONG = auto()
    FLOAT = auto()
    DOUBLE = auto()
    BYTES = auto()
    STRING = auto()
    FIXED = auto()
    ENUM = auto()
    # Plain values: alone, big-endian.
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

    kind: Kind
    wire: Wire
    size: int = 0
    """Bytes of a fixed or plain one."""
    symbols: tuple[str, ...] = ()
    """Of an enum."""
    times: int = 1
    """What the stored number is multiplied by."""
    divided: int = 1
    """What it is divided by."""
    precision: int = 0
    scale: int = 0
    base64: bool = False
    """Whether JSON has bytes as base64, and not as text."""
    loose: bool = False
    """Whether JSON may have a number where text is due."""


@dataclass(frozen=True, slots=True)
class Record:
    """Fields by name."""

    fields: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Items:
    """An array."""

    item: Node


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map, whose keys are text."""

    item: Node


@dataclass(frozen=True, slots=True)
class Branches:
    """A union as it is written: the number of a branch comes first. None is null."""

    branches: tuple[tuple[str, Node] | None, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A union as a column: a struct of which one member is there."""

    members: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """The type null, which takes no bytes and no column."""


Node: TypeAlias = Leaf | Nothing | Record | Items | Pairs | Branches | Choice

KEY = Leaf(Kind.STRING, Wire.STRING)
"""The key of a map."""

_TYPES = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT8: pa.int8(),
    Kind.INT16: pa.int16(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.BYTES: pa.binary(),
    Kind.STRING: pa.string(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("ns"),  # what Pulsar's plain type has
    Kind.MOMENT: TIME,
    Kind.LOCAL: pa.timestamp("us"),
}


def column_form(node: Node) -> Node | None:
    """A node as it is in columns: without its nulls, which every column may have. None: it has nothing else.

    Raises:
        Undecodable: There is no such column.
    """
    match node:
        case Nothing():
            return None
        case Branches():
            members = [branch for branch in node.branches if branch is not None]
            if len(members) > 1:
                return Choice(_formed(members))
            return column_form(members[0][1]) if members else None
        case Record():
            return Record(_formed(list(node.fields)))
        case Items():
            return Items(_item(node.item))
        case Pairs():
            return Pairs(_item(node.item))
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
    """The Arrow type of a node in its column form."""
    match node:
        case Leaf(kind=Kind.DECIMAL):
            return pa.decimal128(node.precision, node.scale)
        case Leaf():
            return _TYPES[node.kind]
        case Record():
            return pa.struct([pa.field(name, arrow_type(child)) for name, child in node.fields])
        case Choice():
            return pa.struct([pa.field(name, arrow_type(child)) for name, child in node.members])
        case Items():
            return pa.list_(arrow_type(node.item))
        case Pairs():
            return pa.map_(pa.string(), arrow_type(node.item))
    raise AssertionError("neither null nor a union as it is written is a column")


_MOMENT: Final = Leaf(Kind.MOMENT, Wire.PLAIN_TIME, size=8, times=1_000)

BYTES: Final = Leaf(Kind.BYTES, Wire.PLAIN_BYTES)
"""Bytes as they are: also of types that are not decoded."""

PLAIN: Final = {
    "BYTES": BYTES,
    "NONE": BYTES,
    "STRING": Leaf(Kind.STRING, Wire.PLAIN_STRING),
    "BOOLEAN": Leaf(Kind.BOOLEAN, Wire.PLAIN_BOOLEAN, size=1),
    "INT8": Leaf(Kind.INT8, Wire.PLAIN_NUMBER, size=1),
    "INT16": Leaf(Kind.INT16, Wire.PLAIN_NUMBER, size=2),
    "INT32": Leaf(Kind.INT, Wire.PLAIN_NUMBER, size=4),
    "INT64": Leaf(Kind.LONG, Wire.PLAIN_NUMBER, size=8),
    "FLOAT": Leaf(Kind.FLOAT, Wire.PLAIN_FLOAT, size=4),
    "DOUBLE": Leaf(Kind.DOUBLE, Wire.PLAIN_DOUBLE, size=8),
    "DATE": _MOMENT,
    "TIME": _MOMENT,
    "TIMESTAMP": _MOMENT,
    "INSTANT": Leaf(Kind.MOMENT, Wire.PLAIN_INSTANT, size=12),
    "LOCAL_DATE": Leaf(Kind.DATE, Wire.PLAIN_DATE, size=8),
    "LOCAL_TIME": Leaf(Kind.TIME, Wire.PLAIN_TIME, size=8),
    "LOCAL_DATE_TIME": Leaf(Kind.LOCAL, Wire.PLAIN_LOCAL, size=16),
}
"""By the type's name."""


_WIDTHS: Final = (Kind.INT8, Kind.INT16, Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE)


def merge(older: Node, newer: Node) -> Node:
    """The column form that takes both, as far as there is one; else the newer."""
    match older, newer:
        case Record(), Record():
            return Record(_by_name(older.fields, newer.fields))
        case Items(), Items():
            return Items(merge(older.item, newer.item))
        case Pairs(), Pairs():
            return Pairs(merge(older.item, newer.item))
        case Choice(), Choice():
            return Choice(_by_name(older.members, newer.members))
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
    if low.kind is Kind.LONG and high.kind is Kind.FLOAT:
        return Leaf(Kind.DOUBLE, high.wire, size=high.size)
    return high
