"""The value of a topic's messages, or the key of its pairs, under all versions of the schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.format.typed.columns import NOTHING
from afterglow.format.typed.definitions import read_definition
from afterglow.format.typed.merging import merge
from afterglow.format.typed.nodes import Kind, Leaf, Undecodable, arrow_type, column_form
from afterglow.format.typed.plain import BYTES, PLAIN
from afterglow.format.typed.programs import Compiler

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from afterglow.format.schema_version import SchemaVersion
    from afterglow.format.typed.nodes import Node

    Name = tuple[str, bytes]
    """A topic and a version of its schema."""

_JAVA: Final = "__jsr310ConversionEnabled"
"""A property that Java's client gives its schemas: it writes bytes in JSON as base64, where Python's writes text."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the values of one version are decoded."""

    which: int
    """The part of the program; NOTHING where they cannot be decoded."""
    reason: str | None
    """Why they are not; a column of bytes has them all the same."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What a version says of its values."""

    node: Node | None
    """None: they cannot be decoded."""
    as_json: bool
    reason: str | None


class Side:
    """One column under all versions.

    Args:
        name: The column.
        versions: Oldest first.
    """

    def __init__(self, name: str, versions: Mapping[Name, SchemaVersion]) -> None:
        read = {key: _read(version) for key, version in versions.items()}
        target: Node | None = None
        for found in read.values():
            formed = None if found.node is None else column_form(found.node)
            if formed is not None:
                target = formed if target is None else merge(target, formed)
        if target is None:
            target = BYTES
        compiler = Compiler(target)
        raw = compiler.avro(BYTES) if isinstance(target, Leaf) and target.kind is Kind.BYTES else None
        begun = {
            key: raw if found.node is None else compiler.avro(found.node)
            for key, found in read.items()
            if not found.as_json
        }
        self.name = name
        self.type: pa.DataType = arrow_type(target)
        self.program = program = compiler.program()
        self.raw = NOTHING if raw is None else program.by_instruction(raw)
        """How values are given of which nothing is known."""
        self._ways = {}
        for key, found in read.items():
            number = begun.get(key)
            which = NOTHING if number is None else program.by_instruction(number)
            self._ways[key] = Way(program.by_json if found.as_json else which, found.reason)

    def way(self, topic: str, version: bytes) -> Way | None:
        """How values of a version are decoded; None: there is no such version."""
        return self._ways.get((topic, version))


def _read(version: SchemaVersion) -> _Read:
    named = f"schema version {int.from_bytes(version.version, 'big')}"
    try:
        if version.type in {"JSON", "AVRO"}:
            as_json = version.type == "JSON"
            node = read_definition(version.definition, as_json=as_json, base64=_JAVA in version.properties)
            if column_form(node) is not None:
                return _Read(node, as_json, None)
            return _Read(None, as_json=False, reason=f"{named} has nothing but null")
    except Undecodable as error:
        return _Read(None, as_json=False, reason=f"{named} cannot be decoded: {error}")
    if version.type in PLAIN:
        return _Read(PLAIN[version.type], as_json=False, reason=None)
    return _Read(None, as_json=False, reason=f"{named} is of the type {version.type}, which is not decoded")
