"""One type for all versions of a schema.

Fields are united by name, those of the newest version first. Where versions differ in a type, the wider of two numbers
is taken, as Avro promotes them, and else the newest: values of older versions that do not fit it are found when they
are decoded. A long and a float make a double, which a float could not hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.format.typed.nodes import Choice, Items, Kind, Leaf, Pairs, Record

if TYPE_CHECKING:
    from afterglow.format.typed.nodes import Node

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
