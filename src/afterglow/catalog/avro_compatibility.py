"""Avro definitions: validity, and whether a reader's schema resolves a writer's.

Avro's Python library parses. Resolution follows Avro's Java library, which Pulsar's brokers use and which differs from
the Python one: names of records and missing symbols of an enum are ignored; enums and fixed types are compared by short
name; aliases of the reader rename the writer's types and fields; in a union the reader takes the first branch that
matches, a record by its full name or else by its fields.

Names of logical types are removed before parsing: they do not affect compatibility, and the library warns of unknown
ones. Names may have any characters (Java's nested classes have ``$``), and defaults are not checked against their types
until a reader needs them.

Definitions come from clients, so the work is limited: a comparison that takes too many steps is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from afterglow.errors import AfterglowError, MissingDependency

try:
    from avro.errors import AvroException
    from avro.schema import (
        ArraySchema,
        EnumSchema,
        FixedSchema,
        MapSchema,
        NamedSchema,
        RecordSchema,
        UnionSchema,
        make_avsc_object,
    )
except ImportError as error:
    raise MissingDependency.of_extra("schemas of the types JSON and AVRO need avro", "serve") from error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from avro.schema import Schema

    Node: TypeAlias = Any
    """A schema that has the same kind as the one that it is compared with, and so the same attributes."""

MAX_STEPS: Final = 50_000
"""Pairs of types in one comparison, some 5 µs each; 1,000 nullable fields make 5,000."""

MAX_DEPTH: Final = 64
"""Nesting of a definition. The recursion over it must end well before Python's limit."""

_PROMOTED: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""Types that a reader may have for a writer's type."""


class NotAvro(AfterglowError, ValueError):
    """A definition is not valid Avro."""


class TooComplex(AfterglowError, ValueError):
    """A comparison of two definitions takes too many steps."""


def parse(definition: Any) -> Schema:
    """Parse a definition that was decoded from JSON.

    Raises:
        NotAvro: It is not valid Avro.
    """
    try:
        return make_avsc_object(_plain(definition), validate_enum_symbols=False, validate_names=False)
    except (AvroException, TypeError, AttributeError, KeyError, ValueError) as error:
        # The library accesses attributes of its argument before it checks the type.
        raise NotAvro(str(error)[:200]) from error


def is_union(schema: Schema) -> bool:
    """Whether the schema is a union, which Pulsar refuses for AVRO."""
    return isinstance(schema, UnionSchema)


def unreadable(reader: Schema, writer: Schema) -> str | None:
    """The reason why a reader may fail on data of a writer; None if it never does.

    Raises:
        TooComplex: The comparison takes too many steps.
    """
    try:
        return _Resolver(reader).resolve(writer, reader, "").first_error(set())
    except RecursionError:
        raise TooComplex("the definitions are nested too deeply to compare: make them smaller") from None


@dataclass(eq=False, slots=True)
class _Resolution:
    """Result of resolving one type of the writer."""

    error: str | None = None
    parts: list[_Resolution] = field(default_factory=list)

    def first_error(self, visited: set[int]) -> str | None:
        if self.error is not None or id(self) in visited:
            return self.error
        visited.add(id(self))
        return next((found for part in self.parts if (found := part.first_error(visited)) is not None), None)

    @property
    def has_match_error(self) -> bool:
        """Whether this level fails; errors below it do not exclude a branch of a union."""
        return self.error is not None or any(part.error is not None for part in self.parts)


class _Resolver:
    """Resolves a writer's schema against a reader's, whose aliases rename the writer's types and fields."""

    def __init__(self, reader: Schema) -> None:
        self._steps = 0
        self._records: dict[tuple[int, int], _Resolution] = {}
        self._aliases: dict[str, str] = {}
        self._field_aliases: dict[str, dict[str, str]] = {}
        self._collect_aliases(reader, set())

    def resolve(self, writer: Node, reader: Node, path: str) -> _Resolution:
        self._step()
        if isinstance(writer, UnionSchema):
            if self._is_same(writer, reader, {}):
                return _Resolution()
            return _Resolution(parts=[self.resolve(branch, reader, path) for branch in writer.schemas])
        kind = _kind(writer)
        if kind == _kind(reader):
            return self._resolve_same_kind(writer, reader, path)
        if isinstance(reader, UnionSchema):
            found = self._matching_branch(writer, reader, path)
            if found is None:
                return _failed(path, f"no branch of the reader's union takes {_name(writer)}")
            return self.resolve(writer, found, path)
        if _kind(reader) in _PROMOTED.get(kind, ()):
            return _Resolution()
        return _failed(path, f"{_name(writer)} is not read as {_name(reader)}")

    def _resolve_same_kind(self, writer: Node, reader: Node, path: str) -> _Resolution:
        match writer:
            case RecordSchema():
                return self._resolve_record(writer, reader, path)
            case ArraySchema():
                return _Resolution(parts=[self.resolve(writer.items, reader.items, f"{path}[]")])
            case MapSchema():
                return _Resolution(parts=[self.resolve(writer.values, reader.values, f"{path}{{}}")])
            case EnumSchema() | FixedSchema():
                if self._short_name(writer) != reader.name:
                    return _failed(path, f"{writer.type} {self._short_name(writer)} is not {reader.name}")
                if isinstance(writer, FixedSchema) and writer.size != reader.size:
                    return _failed(path, f"{writer.size} bytes are not {reader.size}")
        return _Resolution()

    def _resolve_record(self, writer: Node, reader: Node, path: str) -> _Resolution:
        pair = (id(writer), id(reader))
        if pair in self._records:
            return self._records[pair]
        # Stored before its fields are resolved: a record may contain itself.
        result = self._records[pair] = _Resolution()
        theirs = {self._field_name(writer, each): each for each in writer.fields}
        ours = {each.name: each for each in reader.fields}
        for name, each in theirs.items():
            if name in ours:
                result.parts.append(self.resolve(each.type, ours[name].type, f"{path}.{name}"))
        for name, each in ours.items():
            if name in theirs:
                continue
            if not each.has_default:
                result.error = f"{path}.{name}: the reader has no default for a field that the writer lacks"
                break
            if not self._is_of_type(each.default, each.type):
                result.error = f"{path}.{name}: the reader's default is not of the type {_name(each.type)}"
                break
        return result

    def _matching_branch(self, writer: Node, union: Node, path: str) -> Node | None:
        kind = _kind(writer)
        by_structure: Node | None = None
        for branch in union.schemas:
            if kind != _kind(branch):
                continue
            if not isinstance(writer, NamedSchema) or self._full_name(writer) == branch.fullname:
                return branch
            if isinstance(writer, RecordSchema) and not self._resolve_record(writer, branch, path).has_match_error:
                self._step()
                if by_structure is None or self._short_name(writer) == branch.name:
                    by_structure = branch
        if by_structure is not None:
            return by_structure
        promoted = _PROMOTED.get(kind, ())
        return next((branch for branch in union.schemas if _kind(branch) in promoted), None)

    def _is_same(self, writer: Node, reader: Node, seen: dict[tuple[int, int], bool]) -> bool:
        """Whether two unions, or parts of them, have the same branches in the same order: then all data is readable."""
        self._step()
        if _kind(writer) != _kind(reader):
            return False
        if isinstance(writer, NamedSchema) and self._short_name(writer) != reader.name:
            return False
        match writer:
            case ArraySchema():
                return self._is_same(writer.items, reader.items, seen)
            case MapSchema():
                return self._is_same(writer.values, reader.values, seen)
            case FixedSchema():
                return bool(writer.size == reader.size)
            case EnumSchema():
                return list(writer.symbols) == list(reader.symbols)
            case UnionSchema():
                return len(writer.schemas) == len(reader.schemas) and all(
                    self._is_same(one, other, seen) for one, other in zip(writer.schemas, reader.schemas, strict=True)
                )
            case RecordSchema():
                pair = (id(writer), id(reader))
                if pair not in seen:
                    seen[pair] = True
                    seen[pair] = len(writer.fields) == len(reader.fields) and all(
                        self._field_name(writer, one) == other.name and self._is_same(one.type, other.type, seen)
                        for one, other in zip(writer.fields, reader.fields, strict=True)
                    )
                return seen[pair]
        return True

    def _is_of_type(self, value: Any, schema: Node) -> bool:
        """Whether a default is valid for its type; that of a union has the type of the first branch."""
        self._step()
        match schema:
            case UnionSchema():
                return self._is_of_type(value, schema.schemas[0])
            case RecordSchema():
                return isinstance(value, dict) and all(
                    (each.name in value or each.has_default)
                    and self._is_of_type(value.get(each.name, each.default), each.type)
                    for each in schema.fields
                )
            case ArraySchema():
                return isinstance(value, list) and all(self._is_of_type(item, schema.items) for item in value)
            case MapSchema():
                return isinstance(value, dict) and all(self._is_of_type(item, schema.values) for item in value.values())
            case EnumSchema():
                return value in schema.symbols
        match schema.type:
            case "null":
                return value is None
            case "boolean":
                return isinstance(value, bool)
            case "int" | "long":
                return isinstance(value, int | float) and not isinstance(value, bool)
            case "float" | "double":
                return isinstance(value, int | float | str) and not isinstance(value, bool)
        return isinstance(value, str)

    def _collect_aliases(self, schema: Node, seen: set[int]) -> None:
        self._step()
        if isinstance(schema, NamedSchema):
            if id(schema) in seen:
                return
            seen.add(id(schema))
            aliases = [_qualified(alias, schema) for alias in _texts(schema.props.get("aliases"))]
            self._aliases.update(dict.fromkeys(aliases, schema.fullname))
        match schema:
            case RecordSchema():
                for each in schema.fields:
                    for alias in _texts(each.other_props.get("aliases")):
                        self._field_aliases.setdefault(schema.fullname, {})[alias] = each.name
                    self._collect_aliases(each.type, seen)
            case ArraySchema():
                self._collect_aliases(schema.items, seen)
            case MapSchema():
                self._collect_aliases(schema.values, seen)
            case UnionSchema():
                for branch in schema.schemas:
                    self._collect_aliases(branch, seen)

    def _full_name(self, writer: Node) -> str:
        name: str = writer.fullname
        return self._aliases.get(name, name)

    def _short_name(self, writer: Node) -> str:
        return self._full_name(writer).rpartition(".")[2]

    def _field_name(self, record: Node, each: Node) -> str:
        name: str = each.name
        return self._field_aliases.get(self._full_name(record), {}).get(name, name)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooComplex(f"comparing the definitions takes more than {MAX_STEPS:,} steps: make them smaller")


def _kind(schema: Node) -> str:
    return "record" if isinstance(schema, RecordSchema) else str(schema.type)


def _name(schema: Node) -> str:
    return f"{schema.type} {schema.name}" if isinstance(schema, NamedSchema) else str(schema.type)


def _failed(path: str, why: str) -> _Resolution:
    return _Resolution(f"{path}: {why}" if path else why)


def _qualified(alias: str, schema: Node) -> str:
    namespace = schema.fullname.rpartition(".")[0]
    return alias if "." in alias or not namespace else f"{namespace}.{alias}"


def _texts(value: object) -> Iterable[str]:
    return (each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _plain(definition: Any, depth: int = 0) -> Any:
    """A definition without logical types, and with ``{"type": {…}}`` unfolded, which the library does not support."""
    if depth > MAX_DEPTH:
        raise NotAvro(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(definition, list):
        return [_plain(branch, depth + 1) for branch in definition]
    if not isinstance(definition, dict):
        return definition
    kind = definition.get("type")
    if isinstance(kind, dict | list):
        return _plain(kind, depth + 1)
    plain = {key: value for key, value in definition.items() if key != "logicalType"}
    for key in ("items", "values"):
        if key in plain:
            plain[key] = _plain(plain[key], depth + 1)
    if isinstance(plain.get("fields"), list):
        plain["fields"] = [_plain_field(each, depth) for each in plain["fields"]]
    return plain


def _plain_field(given: Any, depth: int) -> Any:
    return {**given, "type": _plain(given["type"], depth + 1)} if isinstance(given, dict) and "type" in given else given
