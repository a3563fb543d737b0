"""Which schemas are well-formed, the same, and compatible; pure functions over the protocol's ``Schema``.

A schema that follows others is held to the topic's strategy, as in Pulsar. BACKWARD: it must be able to read what they
wrote; FORWARD: they must be able to read what it writes; FULL: both. Only the newest version counts, with _TRANSITIVE
all. Under each of these the type must stay, and

=================  =====================================================================================================
JSON, AVRO         one definition, as reader, must resolve the other, as writer; see :mod:`.avro_compatibility`
KEY_VALUE          the types of key and value must stay, and each follows its own type's rule
PROTOBUF_NATIVE    the root message's name must stay
all others         nothing more (also PROTOBUF, which Pulsar leaves unchecked unless told otherwise)
=================  =====================================================================================================

ALWAYS_COMPATIBLE lets everything follow, another type too; ALWAYS_INCOMPATIBLE nothing. A consumer must be able to read
the newest version whatever the strategy says of producers; under BACKWARD_TRANSITIVE and FULL_TRANSITIVE it is held to
what producers are, and under ALWAYS_INCOMPATIBLE none that brings a schema is let in, even if it is the topic's own.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from afterglow.config.choices import SchemaCompatibilityStrategy as Strategy
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    SchemaType = wire.Schema.Type.ValueType

_NONE: Final = wire.Schema.Type.Value("None")
_STRUCTS: Final = frozenset({wire.Schema.Json, wire.Schema.Avro, wire.Schema.Protobuf})
"""Types whose definition is one of Avro."""
_SPELLED: Final = {
    "None": "BYTES",
    "Bool": "BOOLEAN",
    "KeyValue": "KEY_VALUE",
    "LocalDate": "LOCAL_DATE",
    "LocalTime": "LOCAL_TIME",
    "LocalDateTime": "LOCAL_DATE_TIME",
    "ProtobufNative": "PROTOBUF_NATIVE",
    "AutoConsume": "AUTO_CONSUME",
}
TYPE_NAMES: Final = {number: _SPELLED.get(name, name.upper()) for name, number in wire.Schema.Type.items()}
"""Types as the admin API names them."""
_ADMIN_NAMES: Final = {
    **{name.upper(): number for name, number in wire.Schema.Type.items()},
    **{name: number for number, name in TYPE_NAMES.items()},
}
"""Types as properties of a KEY_VALUE schema name them."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a schema is held to."""

    reads: bool = False
    """It must be able to read what was written with the topic's versions."""
    is_read: bool = False
    """The topic's versions must be able to read what is written with it."""
    all_versions: bool = False
    """Not only the newest counts."""


_PRODUCERS: Final = {
    Strategy.BACKWARD: Rule(reads=True),
    Strategy.FORWARD: Rule(is_read=True),
    Strategy.FULL: Rule(reads=True, is_read=True),
    Strategy.BACKWARD_TRANSITIVE: Rule(reads=True, all_versions=True),
    Strategy.FORWARD_TRANSITIVE: Rule(is_read=True, all_versions=True),
    Strategy.FULL_TRANSITIVE: Rule(reads=True, is_read=True, all_versions=True),
}


def rule_for(strategy: Strategy, *, consumer: bool) -> Rule:
    """Return what the schema of a producer or of a consumer is held to where a topic has other schemas.

    Raises:
        Refused: The strategy is ALWAYS_INCOMPATIBLE, which lets none in.
    """
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise _incompatible("the topic's schema compatibility strategy is ALWAYS_INCOMPATIBLE: set another one")
    if consumer and strategy not in {Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE}:
        return _PRODUCERS[Strategy.BACKWARD]
    return _PRODUCERS[strategy]


def is_any(schema: wire.Schema) -> bool:
    """Whether it is the wish of a consumer to take any schema."""
    return schema.type == wire.Schema.AutoConsume


def definition_digest(schema: wire.Schema) -> str:
    """Return what two schemas share if they have one type and one definition; documentation and aliases do not count.

    That is what Pulsar calls the same schema; properties, which may say how a definition is to be read, are left out.

    Raises:
        Refused: A definition that should be JSON is none.
    """
    bare = wire.Schema(name=schema.name, type=schema.type, schema_data=schema.schema_data)
    if schema.type in _STRUCTS:
        bare.schema_data = json.dumps(_undocumented(_json(schema.schema_data))).encode()
    elif schema.type == wire.Schema.KeyValue:
        # The same bytes mean something else where the types of key and value are others.
        bare.properties.extend(pair for pair in schema.properties if pair.key.endswith(".schema.type"))
    return digest(bare)


def digest(schema: wire.Schema) -> str:
    """Return what two schemas share if and only if they are the same.

    The same are those of one type with the same properties and the same data; definitions in JSON may differ in white
    space and in the order of keys.

    Raises:
        Refused: A definition that should be JSON is none.
    """
    raw = schema.schema_data
    data = _json(raw) if schema.type in _STRUCTS else base64.b64encode(raw).decode()
    properties = sorted((pair.key, pair.value) for pair in schema.properties)
    try:
        # Text is compared and not values: to Python 1, 1.0 and true are equal.
        canonical = json.dumps([wire.Schema.Type.Name(schema.type), data, properties], sort_keys=True)
    except RecursionError as error:
        raise _incompatible("the schema's definition is nested too deep") from error
    return hashlib.sha256(canonical.encode()).hexdigest()


def check_valid(schema: wire.Schema) -> None:
    """Check that a schema's data is what its type promises.

    Raises:
        Refused: It is not.
        MissingDependency: Avro's library is not installed.
    """
    data = schema.schema_data
    if schema.type == _NONE:
        return
    match schema.type:
        case wire.Schema.Json | wire.Schema.Avro | wire.Schema.Protobuf:
            parsed = _avro_schema(schema)
            if schema.type == wire.Schema.Avro and _avro().is_union(parsed):
                raise _incompatible("an AVRO schema cannot be a union: put the union into a record's field")
        case wire.Schema.KeyValue:
            for side in _sides(schema):
                check_valid(side)
        case wire.Schema.ProtobufNative:
            _root_message(schema)
        case wire.Schema.String:
            if data not in {b"", b"null"}:  # some clients send their language's word for nothing
                raise _incompatible("a STRING schema has no definition: send none")
        case wire.Schema.External:
            pass
        case wire.Schema.AutoConsume:
            raise _incompatible("AUTO_CONSUME is a wish of consumers and not a type of data: give another schema")
        case _:
            if data:
                raise _incompatible(f"a schema of the type {_name(schema)} has no definition: send none")


def check_follows(rule: Rule, versions: Iterable[wire.Schema], schema: wire.Schema) -> None:
    """Check that a schema is what a rule asks for next to versions of a topic's schema.

    Raises:
        Refused: It is not.
        MissingDependency: Avro's library is not installed.
    """
    for version in versions:
        _compare(rule, version, schema)


def _compare(rule: Rule, old: wire.Schema, new: wire.Schema, what: str = "schema") -> None:
    if old.type != new.type:
        raise _incompatible(f"the topic's {what} is of the type {_name(old)}, not {_name(new)}")
    match new.type:
        case wire.Schema.Json | wire.Schema.Avro:
            _compare_avro(rule, old, new, what)
        case wire.Schema.KeyValue:
            for part, was, is_now in zip(("key", "value"), _sides(old), _sides(new), strict=True):
                _compare(rule, was, is_now, f"{part} schema")
        case wire.Schema.ProtobufNative:
            before, after = _root_message(old), _root_message(new)
            if before != after:
                raise _incompatible(f"the topic's {what} has the root message {before!r}, not {after!r}")
        case _:
            pass


def _compare_avro(rule: Rule, old: wire.Schema, new: wire.Schema, what: str) -> None:
    avro = _avro()
    before, after = _avro_schema(old), _avro_schema(new)
    try:
        reason = avro.unreadable(after, before) if rule.reads else None
        if reason is not None:
            raise _incompatible(f"the new {what} cannot read what is in the topic: {reason}")
        reason = avro.unreadable(before, after) if rule.is_read else None
    except avro.TooComplex as error:
        raise _incompatible(str(error)) from error
    if reason is not None:
        raise _incompatible(f"readers with the topic's {what} could not read the new one: {reason}")


def _undocumented(definition: Any) -> Any:
    if isinstance(definition, list):
        return [_undocumented(each) for each in definition]
    if not isinstance(definition, dict):
        return definition
    return {
        # A default is data, in which the same words mean something else.
        key: value if key == "default" else _undocumented(value)
        for key, value in definition.items()
        if key not in {"doc", "aliases"}
    }


def _avro() -> ModuleType:
    from afterglow.catalog import avro_compatibility  # noqa: PLC0415 - an extra, needed by few types only

    return avro_compatibility


def _avro_schema(schema: wire.Schema) -> Any:
    avro = _avro()
    try:
        return avro.parse(_json(schema.schema_data))
    except avro.NotAvro as error:
        raise _incompatible(f"the definition of the {_name(schema)} schema is not one of Avro: {error}") from error


def _sides(schema: wire.Schema) -> tuple[wire.Schema, wire.Schema]:
    """Key and value schema: ``[length:i32][key's data][length:i32][value's data]``, all else in properties."""
    properties = {pair.key: pair.value for pair in schema.properties}
    rest = schema.schema_data
    sides = []
    for part in ("key", "value"):
        length = int.from_bytes(rest[:4], "big", signed=True)
        data = rest[4 : 4 + max(length, 0)]  # -1: none
        if len(rest) < 4 or len(data) < length:
            raise _incompatible(f"the definition of the KEY_VALUE schema ends within its {part} schema")
        rest = rest[4 + len(data) :]
        named = properties.get(f"{part}.schema.type", "BYTES")
        if named not in _ADMIN_NAMES:
            raise _incompatible(f"the KEY_VALUE schema's property {part}.schema.type names no known type")
        sides.append(wire.Schema(name=part, type=_ADMIN_NAMES[named], schema_data=data))
    if rest:
        raise _incompatible("the definition of the KEY_VALUE schema has bytes behind its value schema")
    return sides[0], sides[1]


def _root_message(schema: wire.Schema) -> str:
    definition = _json(schema.schema_data)
    name = definition.get("rootMessageTypeName") if isinstance(definition, dict) else None
    if not isinstance(name, str) or not name:
        raise _incompatible("the definition of the PROTOBUF_NATIVE schema has no rootMessageTypeName")
    return name


def _json(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _incompatible("the schema's definition is no JSON") from error


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _name(schema: wire.Schema) -> str:
    return TYPE_NAMES[schema.type]


def _incompatible(message: str) -> Refused:
    return Refused(wire.IncompatibleSchema, message)
