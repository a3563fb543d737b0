"""Parser of Avro definitions, which schemas of the types JSON and AVRO have.

Unknown logical types, and those that do not match their type, are ignored, as Avro specifies. Definitions come from
clients, so their size is limited: repeated references to a name can expand a definition of a kilobyte to any width.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from afterglow.format.typed.nodes import (
    ArrayType,
    Leaf,
    MapType,
    NullType,
    RecordType,
    Undecodable,
    UnionType,
    ValueKind,
    Wire,
)

if TYPE_CHECKING:
    from afterglow.format.typed.nodes import Node

MAX_NODES: Final = 4_000
"""Maximum number of nodes of one definition."""
MAX_LEVELS: Final = 64

_PLAIN: Final = {
    "boolean": Leaf(ValueKind.BOOLEAN, Wire.BOOLEAN),
    "int": Leaf(ValueKind.INT, Wire.INT),
    "long": Leaf(ValueKind.LONG, Wire.LONG),
    "float": Leaf(ValueKind.FLOAT, Wire.FLOAT),
    "double": Leaf(ValueKind.DOUBLE, Wire.DOUBLE),
    "bytes": Leaf(ValueKind.BYTES, Wire.BYTES),
    "string": Leaf(ValueKind.STRING, Wire.STRING),
}
_LOGICAL: Final = {
    ("int", "date"): Leaf(ValueKind.DATE, Wire.INT),
    ("int", "time-millis"): Leaf(ValueKind.TIME, Wire.INT, times=1_000_000),
    ("long", "time-micros"): Leaf(ValueKind.TIME, Wire.LONG, times=1_000),
    ("long", "timestamp-millis"): Leaf(ValueKind.MOMENT, Wire.LONG, times=1_000),
    ("long", "timestamp-micros"): Leaf(ValueKind.MOMENT, Wire.LONG),
    ("long", "timestamp-nanos"): Leaf(ValueKind.MOMENT, Wire.LONG, divided=1_000),
    ("long", "local-timestamp-millis"): Leaf(ValueKind.LOCAL, Wire.LONG, times=1_000),
    ("long", "local-timestamp-micros"): Leaf(ValueKind.LOCAL, Wire.LONG),
    ("long", "local-timestamp-nanos"): Leaf(ValueKind.LOCAL, Wire.LONG, divided=1_000),
}
_MAX_DECIMAL_DIGITS: Final = 38
"""Maximum precision of decimals in Arrow and Spark."""


def read_definition(definition: bytes, *, as_json: bool = False, base64: bool = False) -> Node:
    """Parse a definition to its type tree.

    Args:
        definition: The schema's definition.
        as_json: Whether values are JSON rather than Avro's binary encoding.
        base64: Whether bytes in JSON are base64.

    Raises:
        Undecodable: It is invalid, recursive, or too large.
    """
    try:
        parsed = json.loads(definition)
    except (ValueError, RecursionError) as error:
        raise Undecodable("its definition is not JSON") from error
    return _Reader(as_json=as_json, base64=base64).read(parsed, "", 0)


class _Reader:
    def __init__(self, *, as_json: bool, base64: bool) -> None:
        self._as_json = as_json
        self._base64 = base64
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()
        self._nodes = 0

    def read(self, given: Any, space: str, level: int) -> Node:
        """Parse a part of a definition; names without a dot are in the namespace ``space``."""
        self._nodes += 1
        if level > MAX_LEVELS or self._nodes > MAX_NODES:
            raise Undecodable(
                f"its definition has more than {MAX_NODES:,} parts or is nested more than {MAX_LEVELS} deep"
            )
        if isinstance(given, list):
            return self._union(given, space, level)
        if isinstance(given, str):
            return self._name(given, space, level)
        if not isinstance(given, dict) or "type" not in given:
            raise Undecodable("its definition is not one of Avro")
        kind = given["type"]
        if isinstance(kind, dict | list):
            return self.read(kind, space, level + 1)
        match kind:
            case "record" | "error":
                return self._record(given, space, level)
            case "enum":
                self._remember(given, space)
                symbols = given.get("symbols")
                if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
                    raise Undecodable("an enum of its definition has no symbols")
                return Leaf(ValueKind.STRING, Wire.ENUM, symbols=tuple(symbols), loose=True)
            case "fixed":
                self._remember(given, space)
                size = given.get("size")
                if not isinstance(size, int) or size < 0:
                    raise Undecodable("a fixed of its definition has no size")
                return self._bytes(given, Leaf(ValueKind.BYTES, Wire.FIXED, size=size, base64=self._base64))
            case "array":
                return ArrayType(self.read(given.get("items"), space, level + 1))
            case "map":
                return MapType(self.read(given.get("values"), space, level + 1))
            case "bytes":
                return self._bytes(given, Leaf(ValueKind.BYTES, Wire.BYTES, base64=self._base64))
        logical = given.get("logicalType")
        if isinstance(logical, str) and (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        return self._name(kind, space, level)

    def _name(self, name: Any, space: str, level: int) -> Node:
        if name == "null":
            return NullType()
        if name == "bytes":
            return Leaf(ValueKind.BYTES, Wire.BYTES, base64=self._base64)
        if name in _PLAIN:
            return _PLAIN[name]
        full = name if "." in str(name) or not space else f"{space}.{name}"
        for known in (full, name):
            if known in self._open:
                raise Undecodable(f"its definition refers to itself at {known}, which no column can hold")
            if known in self._named:
                return self.read(self._named[known], space, level + 1)
        raise Undecodable(f"its definition names the type {name!r}, which it does not define")

    def _remember(self, given: dict[str, Any], space: str) -> tuple[str, str]:
        """Register a named definition for later references; returns its full name and its namespace."""
        name = given.get("name")
        if not isinstance(name, str):
            raise Undecodable("a type of its definition has no name")
        own = given.get("namespace")
        if "." in name:
            space, _, name = name.rpartition(".")
        elif isinstance(own, str):
            space = own
        full = f"{space}.{name}" if space else name
        self._named[full] = {**given, "name": name, "namespace": space}
        return full, space

    def _record(self, given: dict[str, Any], space: str, level: int) -> RecordType:
        full, space = self._remember(given, space)
        fields = given.get("fields")
        if not isinstance(fields, list):
            raise Undecodable(f"the record {full} of its definition has no fields")
        found: dict[str, Node] = {}
        self._open.add(full)
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise Undecodable(f"a field of the record {full} has no name or no type")
            if field["name"] in found:
                raise Undecodable(f"the record {full} has two fields {field['name']!r}")
            # A logical type of a field applies to its type if that is a plain name.
            kind = field["type"]
            if isinstance(kind, str) and "logicalType" in field:
                kind = {**field, "type": kind}
            found[field["name"]] = self.read(kind, space, level + 1)
        self._open.discard(full)
        return RecordType(tuple(found.items()))

    def _union(self, given: list[Any], space: str, level: int) -> Node:
        branches: list[tuple[str, Node] | None] = []
        names: set[str] = set()
        for part in given:
            node = self.read(part, space, level + 1)
            if isinstance(node, NullType):
                branches.append(None)
                continue
            name = f"member_{_type_name(part)}"
            while name in names:
                name += "_"
            names.add(name)
            branches.append((name, node))
        return UnionType(tuple(branches))

    def _bytes(self, given: dict[str, Any], plain: Leaf) -> Leaf:
        """Return the type of bytes with their logical type."""
        logical = given.get("logicalType")
        if logical == "uuid" and plain.size == 16 and not self._as_json:
            return Leaf(ValueKind.STRING, Wire.FIXED, size=16)
        if logical != "decimal":
            return plain
        if self._as_json:
            return Leaf(ValueKind.STRING, Wire.STRING, loose=True)
        precision, scale = given.get("precision"), given.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int):
            return plain
        if not 0 < precision <= _MAX_DECIMAL_DIGITS or not 0 <= scale <= precision:
            return plain
        return Leaf(ValueKind.DECIMAL, plain.wire, size=plain.size, precision=precision, scale=scale)


def _type_name(part: Any) -> str:
    """Return the name of a branch of a union, without its namespace."""
    while isinstance(part, dict):
        part = part["name"] if isinstance(part.get("name"), str) else part["type"]
    return str(part).rpartition(".")[2].lower()
