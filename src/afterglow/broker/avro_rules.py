"""Avro definitions: whether one is well-formed, and whether data written by one can be read by another.

The rules are those of Avro's own library. Before it sees a definition, names of logical types are taken out: they do
not count for compatibility, and the library warns of those that it does not know. As in Pulsar, names may have any
characters (Java's nested classes have ``$``), and defaults are not checked against their types.

Definitions come from clients, so the work is bounded: a comparison that takes too many steps is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import AfterglowError, MissingDependency

try:
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    from avro.errors import AvroException
    from avro.schema import UnionSchema, make_avsc_object
except ImportError as error:
    raise MissingDependency("schemas of the types JSON and AVRO need avro: pip install 'afterglow[serve]'") from error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from avro.compatibility import SchemaCompatibilityResult
    from avro.schema import Schema

MAX_STEPS: Final = 50_000
"""Pairs of types that one comparison looks at, some 10 µs each; 1,000 nullable fields make 6,000."""

MAX_DEPTH: Final = 64
"""Definitions nested deeper than this are refused; the recursion over them must end well before Python's does."""


class NotAvro(AfterglowError, ValueError):
    """A definition is not one of Avro."""


class TooComplex(AfterglowError, ValueError):
    """Two definitions take too long to compare."""


def parse(definition: Any) -> Schema:
    """Return the schema that a definition, parsed from JSON, stands for.

    Raises:
        NotAvro: It stands for none.
    """
    try:
        return make_avsc_object(_plain(definition), validate_enum_symbols=False, validate_names=False)
    except (AvroException, TypeError, AttributeError, KeyError, ValueError) as error:
        # The library looks into what it was given before it checks its type.
        raise NotAvro(str(error)[:200]) from error


def is_union(schema: Schema) -> bool:
    """Whether the whole schema is a union, which Pulsar does not take for AVRO."""
    return isinstance(schema, UnionSchema)


def unreadable(reader: Schema, writer: Schema) -> str | None:
    """Return why a reader may fail on data of a writer; None where it never does.

    Raises:
        TooComplex: The comparison would take too long.
    """
    result = _Checker().get_compatibility(reader, writer)
    if result.compatibility is SchemaCompatibilityType.compatible:
        return None
    reasons = (kind.value.replace("_", " ") for kind in dict.fromkeys(result.incompatibilities))
    return f"{', '.join(reasons)} ({_listed(result.messages)}) at {_listed(result.locations)}"


class _Checker(ReaderWriterCompatibilityChecker):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # the library leaves its constructor without types
        self._steps = 0

    def get_compatibility(
        self,
        reader: Schema,
        writer: Schema,
        reference_token: str = "/",  # noqa: S107 - a place in a definition, no secret
        location: list[str] | None = None,
    ) -> SchemaCompatibilityResult:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooComplex(f"comparing the definitions takes more than {MAX_STEPS:,} steps: make them smaller")
        return super().get_compatibility(reader, writer, reference_token, location)


def _plain(definition: Any, depth: int = 0) -> Any:
    """A definition without logical types, and with ``{"type": {…}}`` unfolded, which the library does not know."""
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
        plain["fields"] = [_plain_field(field, depth) for field in plain["fields"]]
    return plain


def _plain_field(field: Any, depth: int) -> Any:
    return {**field, "type": _plain(field["type"], depth + 1)} if isinstance(field, dict) and "type" in field else field


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(sorted(texts))[:200]
