"""Validity, identity and compatibility of schemas: pure functions over the protocol's ``Schema``.

The compatibility strategy of a topic decides which schema may follow, as in Pulsar. BACKWARD: the new schema must read
data of the old ones; FORWARD: they must read its data; FULL: both. Only the newest version counts, with _TRANSITIVE all
of them. Under each of these strategies the type must stay, and

=================  =====================================================================================================
JSON, AVRO         one definition, as reader, must resolve the other, as writer; see :mod:`.avro_compatibility`
KEY_VALUE          the types of key and value must stay, and each follows its own type's rule
PROTOBUF_NATIVE    the root message's name must stay
all others         nothing more (also PROTOBUF, which Pulsar does not check by default)
=================  =====================================================================================================

ALWAYS_COMPATIBLE accepts every schema, also of another type; ALWAYS_INCOMPATIBLE none. A consumer must read the newest
version under every strategy; under BACKWARD_TRANSITIVE and FULL_TRANSITIVE it is checked like a producer, and under
ALWAYS_INCOMPATIBLE every consumer with a schema is refused, even with the topic's own.
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
"""Types with an Avro definition."""
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
"""Names of types in the admin API."""
_ADMIN_NAMES: Final = {
    **{name.upper(): number for name, number in wire.Schema.Type.items()},
    **{name: number for number, name in TYPE_NAMES.items()},
}
"""Types by their names in properties of KEY_VALUE schemas."""


@dataclass(frozen=True, slots=True)
class CompatibilityRule:
    """Requirements on a new schema."""

    reads: bool = False
    """It must read data of the topic's versions."""
    is_read: bool = False
    """The topic's versions must read its data."""
    all_versions: bool = False
    """All versions count, not only the newest."""


_PRODUCERS: Final = {
    Strategy.BACKWARD: CompatibilityRule(reads=True),
    Strategy.FORWARD: CompatibilityRule(is_read=True),
    Strategy.FULL: CompatibilityRule(reads=True, is_read=True),
    Strategy.BACKWARD_TRANSITIVE: CompatibilityRule(reads=True, all_versions=True),
    Strategy.FORWARD_TRANSITIVE: CompatibilityRule(is_read=True, all_versions=True),
    Strategy.FULL_TRANSITIVE: CompatibilityRule(reads=True, is_read=True, all_versions=True),
}


def rule_for(strategy: Strategy, *, consumer: bool) -> CompatibilityRule:
    """The requirements on the schema of a producer or a consumer, by a topic's strategy.

    Raises:
        Refused: The strategy is ALWAYS_INCOMPATIBLE.
    """
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise _incompatible("the topic's schema compatibility strategy is ALWAYS_INCOMPATIBLE: set another one")
    if consumer and strategy not in {Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE}:
        return _PRODUCERS[Strategy.BACKWARD]
    return _PRODUCERS[strategy]


def is_any(schema: wire.Schema) -> bool:
    """Whether it is AUTO_CONSUME: the consumer accepts any schema."""
    return schema.type == wire.Schema.AutoConsume


def definition_digest(schema: wire.Schema) -> str:
    """Digest of type and definition, without documentation and aliases.

    Schemas with equal digests are the same schema to Pulsar. Properties, which may affect decoding, are left out.

    Raises:
        Refused: The definition is not valid JSON and must be.
    """
    bare = wire.Schema(name=schema.name, type=schema.type, schema_data=schema.schema_data)
    if schema.type in _STRUCTS:
        bare.schema_data = json.dumps(_undocumented(_json(schema.schema_data))).encode()
    elif schema.type == wire.Schema.KeyValue:
        # The same bytes are another definition if the types of key and value differ.
        bare.properties.extend(pair for pair in schema.properties if pair.key.endswith(".schema.type"))
    return digest(bare)


def digest(schema: wire.Schema) -> str:
    """Digest of type, properties and data. JSON definitions may differ in white space and in the order of keys.

    Raises:
        Refused: The definition is not valid JSON and must be.
    """
    raw = schema.schema_data
    data = _json(raw) if schema.type in _STRUCTS else base64.b64encode(raw).decode()
    properties = sorted((pair.key, pair.value) for pair in schema.properties)
    try:
        # The digest is over text, not over values: in Python, 1, 1.0 and True are equal.
        canonical = json.dumps([wire.Schema.Type.Name(schema.type), data, properties], sort_keys=True)
    except RecursionError as error:
        raise _incompatible("the schema's definition is nested too deep") from error
    return hashlib.sha256(canonical.encode()).hexdigest()


def check_valid(schema: wire.Schema) -> None:
    """Check that a schema's data is valid for its type.

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
            if data not in {b"", b"null"}:  # some clients send "null" for an absent definition
                raise _incompatible("a STRING schema has no definition: leave it empty")
        case wire.Schema.External:
            pass
        case wire.Schema.AutoConsume:
            raise _incompatible("AUTO_CONSUME is not a type of data: use another schema")
        case _:
            if data:
                raise _incompatible(f"a schema of the type {_name(schema)} has no definition: leave it empty")


def check_follows(rule: CompatibilityRule, versions: Iterable[wire.Schema], schema: wire.Schema) -> None:
    """Check that a schema is compatible with versions of a topic's schema.

    Raises:
        Refused: It is not.
        MissingDependency: Avro's library is not installed.
    """
    for version in versions:
        _compare(rule, version, schema)


def _compare(rule: CompatibilityRule, old: wire.Schema, new: wire.Schema, what: str = "schema") -> None:
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


def _compare_avro(rule: CompatibilityRule, old: wire.Schema, new: wire.Schema, what: str) -> None:
    avro = _avro()
    before, after = _avro_schema(old), _avro_schema(new)
    try:
        reason = avro.unreadable(after, before) if rule.reads else None
        if reason is not None:
            raise _incompatible(f"the new {what} cannot read the topic's data: {reason}")
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
        # A default is data, in which these keys are not documentation.
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
        raise _incompatible(f"the definition of the {_name(schema)} schema is not valid Avro: {error}") from error


def _sides(schema: wire.Schema) -> tuple[wire.Schema, wire.Schema]:
    """Schemas of key and value: ``[length:i32][key's data][length:i32][value's data]``, the rest in properties."""
    properties = {pair.key: pair.value for pair in schema.properties}
    rest = schema.schema_data
    sides = []
    for part in ("key", "value"):
        length = int.from_bytes(rest[:4], "big", signed=True)
        data = rest[4 : 4 + max(length, 0)]  # -1: no definition
        if len(rest) < 4 or len(data) < length:
            raise _incompatible(f"the definition of the KEY_VALUE schema ends within its {part} schema")
        rest = rest[4 + len(data) :]
        named = properties.get(f"{part}.schema.type", "BYTES")
        if named not in _ADMIN_NAMES:
            raise _incompatible(f"the KEY_VALUE schema's property {part}.schema.type is not a known type")
        sides.append(wire.Schema(name=part, type=_ADMIN_NAMES[named], schema_data=data))
    if rest:
        raise _incompatible("the definition of the KEY_VALUE schema has bytes after its value schema")
    return sides[0], sides[1]


def _root_message(schema: wire.Schema) -> str:
    definition = _json(schema.schema_data)
    name = definition.get("rootMessageTypeName") if isinstance(definition, dict) else None
    if not isinstance(name, str) or not name:
        raise _incompatible("the definition of the PROTOBUF_NATIVE schema has no rootMessageTypeName")
    return name


def _json(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _incompatible("the schema's definition is not valid JSON") from error


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not valid JSON")


def _name(schema: wire.Schema) -> str:
    return TYPE_NAMES[schema.type]


def _incompatible(message: str) -> Refused:
    return Refused(wire.IncompatibleSchema, message)
