"""Compiler from schema versions to programs that decode their values to the columns of one common type.

Avro's bytes are not self-describing, so each version has its own instructions, which follow its definition. JSON
contains the names of fields, so one tree of nodes, which follows the common type, decodes all versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from afterglow.format._kernels import typed_layout as v
from afterglow.format.typed.columns import Program, lay_out
from afterglow.format.typed.nodes import (
    ArrayType,
    Leaf,
    MapType,
    NullType,
    RecordType,
    UnionColumn,
    UnionType,
    ValueKind,
    Wire,
    arrow_type,
)

if TYPE_CHECKING:
    from afterglow.format.typed.columns import Column
    from afterglow.format.typed.nodes import Node


_TIMES: Final = frozenset({ValueKind.TIME, ValueKind.MOMENT, ValueKind.LOCAL})
_WHOLE: Final = (ValueKind.INT8, ValueKind.INT16, ValueKind.INT, ValueKind.LONG)
_PLAIN_TEXTS: Final = {
    (Wire.PLAIN_BYTES, ValueKind.BYTES): v.PLAIN_BYTES,
    (Wire.PLAIN_BYTES, ValueKind.STRING): v.PLAIN_STRING,
    (Wire.PLAIN_STRING, ValueKind.BYTES): v.PLAIN_BYTES,
    (Wire.PLAIN_STRING, ValueKind.STRING): v.PLAIN_STRING,
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
    """Return the instruction that decodes ``writer`` to a column of ``target``; None if the types do not match."""
    match writer.wire:
        case Wire.INT | Wire.LONG:
            return _integer(writer, target)
        case Wire.FLOAT:
            return {ValueKind.FLOAT: (v.FLOAT, 0, 0), ValueKind.DOUBLE: (v.FLOAT_AS_DOUBLE, 0, 0)}.get(target.kind)
        case Wire.DOUBLE:
            return (v.DOUBLE, 0, 0) if target.kind is ValueKind.DOUBLE else None
        case Wire.BOOLEAN:
            return (v.BOOLEAN, 0, 0) if target.kind is ValueKind.BOOLEAN else None
        case Wire.BYTES | Wire.STRING | Wire.FIXED | Wire.ENUM:
            return _text(writer, target)
    return _plain(writer, target)


def _integer(writer: Leaf, target: Leaf) -> Line | None:
    if target.kind is writer.kind and writer.kind in _TIMES:
        # Each version has its own unit.
        return _time(writer.kind), writer.times, writer.divided
    if target.kind is ValueKind.LONG:
        return v.LONG, 1, 1
    if target.kind is ValueKind.DOUBLE:
        return v.LONG_AS_DOUBLE, 0, 0
    if target.kind is ValueKind.FLOAT:
        return v.LONG_AS_FLOAT, 0, 0
    if target.kind is ValueKind.INT or (
        target.kind is ValueKind.DATE and writer.kind in {ValueKind.INT, ValueKind.DATE}
    ):
        return (v.INT, 0, 0) if writer.wire is Wire.INT else None
    if target.kind in _TIMES and target.wire is writer.wire and writer.kind in _WHOLE:
        # The logical type was added in a later version.
        return _time(target.kind), target.times, target.divided
    return None


def _time(kind: ValueKind) -> int:
    return v.CLOCK if kind is ValueKind.TIME else v.LONG


def _text(writer: Leaf, target: Leaf) -> Line | None:
    if target.kind is ValueKind.DECIMAL:
        same = (writer.kind, writer.precision, writer.scale) == (target.kind, target.precision, target.scale)
        return (v.DECIMAL, 0, writer.size if writer.wire is Wire.FIXED else -1) if same else None
    if target.kind not in {ValueKind.BYTES, ValueKind.STRING}:
        return None
    if writer.wire is Wire.ENUM:
        return v.ENUM, 0, 0
    if writer.wire is Wire.FIXED:
        if target.kind is ValueKind.BYTES:
            return v.FIXED, writer.size, 0
        return (v.UUID, 0, 0) if writer.kind is ValueKind.STRING else None
    return v.STRING if target.kind is ValueKind.STRING else v.BYTES, 0, 0


def _plain(writer: Leaf, target: Leaf) -> Line | None:
    if (writer.wire, target.kind) in _PLAIN_TEXTS:
        return _PLAIN_TEXTS[writer.wire, target.kind], 0, 0
    if writer.wire in _PLAIN_TIMES:
        if writer.kind is not target.kind:
            return None
        return (
            v.PLAIN_CLOCK if writer.kind is ValueKind.TIME else _PLAIN_TIMES[writer.wire],
            writer.times,
            writer.divided,
        )
    if writer.wire is Wire.PLAIN_NUMBER:
        if target.kind in _WHOLE and _WHOLE.index(target.kind) >= _WHOLE.index(writer.kind):
            return v.PLAIN_NUMBER, writer.size, 0
        wide = {ValueKind.FLOAT: v.LONG_AS_FLOAT, ValueKind.DOUBLE: v.LONG_AS_DOUBLE}.get(target.kind)
        return None if wide is None else (v.PLAIN_NUMBER, writer.size, wide)
    if writer.wire is Wire.PLAIN_FLOAT and target.kind in {ValueKind.FLOAT, ValueKind.DOUBLE}:
        return v.PLAIN_FLOAT, 0, v.FLOAT_AS_DOUBLE if target.kind is ValueKind.DOUBLE else 0
    if writer.wire is Wire.PLAIN_DOUBLE and target.kind is ValueKind.DOUBLE:
        return v.PLAIN_DOUBLE, 0, 0
    if writer.wire is Wire.PLAIN_BOOLEAN and target.kind is ValueKind.BOOLEAN:
        return v.PLAIN_BOOLEAN, 0, 0
    return None


_TEXT_KEY: Final = (v.STRING, 1, 1)

_JSON: Final = {
    ValueKind.BOOLEAN: v.J_BOOLEAN,
    ValueKind.INT: v.J_INT,
    ValueKind.DATE: v.J_INT,
    ValueKind.LONG: v.J_LONG,
    ValueKind.TIME: v.J_CLOCK,
    ValueKind.MOMENT: v.J_LONG,
    ValueKind.LOCAL: v.J_LONG,
    ValueKind.FLOAT: v.J_FLOAT,
    ValueKind.DOUBLE: v.J_DOUBLE,
    ValueKind.STRING: v.J_STRING,
    ValueKind.BYTES: v.J_TEXT_BYTES,
}
_FITS: Final = {
    ValueKind.BOOLEAN: v.FITS_BOOLEAN,
    ValueKind.STRING: v.FITS_STRING,
    ValueKind.BYTES: v.FITS_STRING,
    ValueKind.FLOAT: v.FITS_INTEGER | v.FITS_FRACTION,
    ValueKind.DOUBLE: v.FITS_INTEGER | v.FITS_FRACTION,
}


class Compiler:
    """Compiles the programs of all versions of one column.

    Args:
        target: Their common type, in its column form.
    """

    def __init__(self, target: Node) -> None:
        self.target = target
        self.root = lay_out(arrow_type(target))
        self._code: list[list[int]] = []
        self._tables: list[int] = []
        self._code_references: list[int] = []
        """Instructions whose x is an index in the tables."""
        self._table_references: list[int] = []
        """Words of the tables that are such indexes themselves."""
        self._texts = bytearray()
        self._paths: dict[int, str] = {}
        self._json_paths: dict[int, str] = {}

    def avro(self, writer: Node) -> int:
        """Add the instructions of a definition; returns the number of the first."""
        begin = len(self._code)
        self._emit(writer, self.target, self.root, "")
        self._add(v.END, 0, 0, 0, "")
        return begin

    def program(self) -> Program:
        """Return the compiled program, with the nodes for JSON. Call it once, at the end."""
        nulls = self._nulls(self.root)
        root = self._node(self.target, self.root, "")
        base = v.INSTRUCTION * len(self._code)
        for number in self._code_references:
            self._code[number][2] += base
        for place in self._table_references:
            self._tables[place] += base
        words = np.array([word for line in self._code for word in line] + self._tables, np.int64)
        texts = np.frombuffer(bytes(self._texts) or b"\0", np.uint8)
        paths = {**self._paths, **{base + place: path for place, path in self._json_paths.items()}}
        return Program(self.root, words, texts, (base + nulls[0], nulls[1]), base + root, paths)

    # --- instructions ---------------------------------------------------------------------------------------------

    def _emit(self, writer: Node, target: Node | None, column: Column | None, path: str) -> None:
        """Add the instructions that decode one value of the type ``writer``."""
        match writer:
            case NullType():
                self._emit_nulls(column, path)
            case UnionType():
                self._emit_union(writer, target, column, path)
            case _:
                assert target is not None
                assert column is not None
                self._emit_value(writer, target, column, path)

    def _emit_union(self, writer: UnionType, target: Node | None, column: Column | None, path: str) -> None:
        table = self._table([0] * len(writer.branches))
        self._add(v.UNION, 0, table, len(writer.branches), path, refers=True)
        jumps = []
        for number, branch in enumerate(writer.branches):
            self._tables[table + number] = len(self._code)
            if branch is None:
                self._emit_nulls(column, path)
            else:
                assert target is not None
                assert column is not None
                self._emit_branch(branch, target, column, path)
            jumps.append(self._add(v.JUMP, 0, 0, 0, path))
        for jump in jumps:
            self._code[jump][2] = len(self._code)

    def _emit_branch(self, branch: tuple[str, Node], target: Node, column: Column, path: str) -> None:
        name, writer = branch
        if isinstance(target, UnionColumn) and any(name == member for member, _ in target.members):
            chosen = next(number for number, (member, _) in enumerate(target.members) if member == name)
            self._emit_member(writer, chosen, target, column, path)
        else:
            self._emit(writer, target, column, path)

    def _emit_value(self, writer: Node, target: Node, column: Column, path: str) -> None:
        match writer, target:
            case RecordType(), RecordType():
                self._add(v.STRUCT_BEGIN, column.number, 0, 0, path)
                places = {name: (node, column.children[i]) for i, (name, node) in enumerate(target.fields)}
                for name, node in writer.fields:
                    fitting, child = places.pop(name, (None, None))
                    self._emit(node, fitting, child, _below(path, name))
                for _, left in places.values():
                    self._emit_nulls(left, path)
            case ArrayType(), ArrayType():
                self._emit_items(writer.item, target.item, column, 0, path)
            case MapType(), MapType():
                self._emit_items(writer.item, target.item, column, 1, path)
            case Leaf(), Leaf():
                line = instruction(writer, target)
                if line is None:
                    self._add(v.FAIL, 0, 0, 0, path)
                    return
                op, x, y = line
                if op == v.ENUM:
                    table = self._table([word for symbol in writer.symbols for word in self._text(symbol)])
                    self._add(op, column.number, table, len(writer.symbols), path, refers=True)
                elif op == v.DECIMAL:
                    self._add(op, column.number, self._table(_bounds(target.precision)), y, path, refers=True)
                else:
                    self._add(op, column.number, x, y, path)
            case _, UnionColumn():
                chosen = next((n for n, (_, member) in enumerate(target.members) if _accepts(member, writer)), None)
                if chosen is None:
                    self._add(v.FAIL, 0, 0, 0, path)
                else:
                    self._emit_member(writer, chosen, target, column, path)
            case _:
                self._add(v.FAIL, 0, 0, 0, path)

    def _emit_member(self, writer: Node, chosen: int, target: UnionColumn, column: Column, path: str) -> None:
        self._add(v.STRUCT_BEGIN, column.number, 0, 0, path)
        for number, (name, member) in enumerate(target.members):
            if number == chosen:
                self._emit(writer, member, column.children[number], _below(path, name))
            else:
                self._emit_nulls(column.children[number], path)

    def _emit_items(self, writer: Node, target: Node, column: Column, item: int, path: str) -> None:
        items = self._add(v.ITEMS, column.number, len(self._code) + 1, 0, path)
        if item:
            op, x, y = _TEXT_KEY
            self._add(op, column.children[0].number, x, y, path)
        self._emit(writer, target, column.children[item], _below(path, "[]"))
        self._add(v.NEXT, 0, 0, 0, path)
        self._code[items][3] = len(self._code)

    def _emit_nulls(self, column: Column | None, path: str) -> None:
        if column is not None:
            table, count = self._nulls(column)
            self._add(v.NULLS, 0, table, count, path, refers=True)

    def _add(self, op: int, column: int, x: int, y: int, path: str, *, refers: bool = False) -> int:
        number = len(self._code)
        if refers:
            self._code_references.append(number)
        self._paths[number] = path
        self._code.append([op, column, x, y])
        return number

    # --- nodes of JSON --------------------------------------------------------------------------------------------

    def _node(self, target: Node, column: Column, path: str) -> int:
        """Add a node and its children; returns its index in the tables."""
        place = self._table([0] * v.NODE)
        self._json_paths[place] = path
        nulls, count = self._nulls(column)
        op, x, y = v.J_FAIL, 1, 1
        match target:
            case RecordType():
                op, y = v.J_RECORD, len(target.fields)
                fields = self._table([0] * (v.FIELD * y))
                x = fields
                for number, (name, node) in enumerate(target.fields):
                    self._set_field(fields + v.FIELD * number, self._text(name), node, column.children[number],
                                    _below(path, name))  # fmt: skip
            case UnionColumn():
                op, y = v.J_UNION, len(target.members)
                x = self._table([0] * (v.FIELD * y))
                for number, (name, node) in enumerate(target.members):
                    self._set_field(x + v.FIELD * number, (_fits(node), 0), node, column.children[number],
                                    _below(path, name))  # fmt: skip
            case ArrayType():
                op, x = v.J_ARRAY, self._node(target.item, column.children[0], _below(path, "[]"))
            case MapType():
                op, x = v.J_MAP, self._node(target.item, column.children[1], _below(path, "[]"))
            case Leaf():
                op, x, y = _JSON.get(target.kind, v.J_FAIL), target.times, target.divided
                if op == v.J_STRING and target.loose:
                    op = v.J_WORD
                elif op == v.J_TEXT_BYTES and target.base64:
                    op = v.J_BASE64
        self._tables[place : place + v.NODE] = [op, column.number, x, y, nulls, count]
        self._table_references.append(place + 4)
        if not isinstance(target, Leaf):
            self._table_references.append(place + 2)
        return place

    def _set_field(self, place: int, head: tuple[int, int], node: Node, column: Column, path: str) -> None:
        below = self._node(node, column, path)
        nulls, count = self._nulls(column)
        self._tables[place : place + v.FIELD] = [*head, below, nulls, count]
        self._table_references += [place + 2, place + 3]

    # --- tables ---------------------------------------------------------------------------------------------------

    def _nulls(self, column: Column) -> tuple[int, int]:
        numbers = column.nulls
        return self._table(list(numbers)), len(numbers)

    def _table(self, words: list[int]) -> int:
        self._tables += words
        return len(self._tables) - len(words)

    def _text(self, text: str) -> tuple[int, int]:
        coded = text.encode()
        self._texts += coded
        return len(self._texts) - len(coded), len(coded)


def _accepts(target: Node, writer: Node) -> bool:
    if isinstance(writer, Leaf) and isinstance(target, Leaf):
        return instruction(writer, target) is not None
    return type(writer) is type(target)


def _fits(node: Node) -> int:
    """Return the JSON types that a member of a union accepts."""
    match node:
        case RecordType() | MapType():
            return v.FITS_OBJECT
        case ArrayType():
            return v.FITS_ARRAY
        case Leaf():
            return _FITS.get(node.kind, v.FITS_INTEGER)
    return 0


def _bounds(precision: int) -> list[int]:
    """Return the exclusive bounds of a decimal, plus and minus ten to the power of the precision, in two words each."""
    words = []
    for bound in (10**precision, -(10**precision)):
        raw = bound.to_bytes(16, "big", signed=True)
        words += [int.from_bytes(raw[:8], "big", signed=True), int.from_bytes(raw[8:], "big", signed=True)]
    return words


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
