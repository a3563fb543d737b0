"""Which schemas are well-formed, the same, and compatible; pure functions over the protocol's ``Schema``.

What is checked where a schema follows another is what Pulsar checks by default (strategy FULL): the type must stay, and

=================  =====================================================================================================
JSON, AVRO         each definition, as reader, must be able to read data of the other: so fields that come or go have
                   defaults, and types change only where Avro promotes both ways (:mod:`afterglow.broker.avro_rules`)
KEY_VALUE          the types of key and value must stay, and each follows its own type's rule
PROTOBUF_NATIVE    the root message's name must stay
all others         nothing more (also PROTOBUF, which Pulsar leaves unchecked unless told otherwise)
=================  =====================================================================================================

Only the newest version counts, as for FULL; the transitive strategies and those of namespaces are not offered.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from afterglow.broker.replies import Refused
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from types import ModuleType

    SchemaType = wire.Schema.Type.ValueType

_NONE: Final = wire.Schema.Type.Value("None")
_UNSTORED: Final = frozenset({_NONE, wire.Schema.AutoConsume})
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


def is_stored(schema: wire.Schema) -> bool:
    """Whether a topic remembers such a schema: not raw bytes, and not the wish to take any."""
    return schema.type not in _UNSTORED


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
    match schema.type:
        case wire.Schema.Json | wire.Schema.Avro | wire.Schema.Protobuf:
            parsed = _avro_schema(schema)
            if schema.type == wire.Schema.Avro and _avro().is_union(parsed):
                raise _incompatible("an AVRO schema cannot be a union: put the union into a record's field")
        case wire.Schema.KeyValue:
            for side in _sides(schema):
                if side.type == wire.Schema.AutoConsume:
                    raise _incompatible("a KEY_VALUE schema cannot hold AUTO_CONSUME, which is no type of data")
                if is_stored(side):
                    check_valid(side)
        case wire.Schema.ProtobufNative:
            _root_message(schema)
        case wire.Schema.String:
            if data not in {b"", b"null"}:  # some clients send their language's word for nothing
                raise _incompatible("a STRING schema has no definition: send none")
        case wire.Schema.External:
            pass
        case _:
            if data:
                raise _incompatible(f"a schema of the type {_name(schema)} has no definition: send none")


def check_follows(newest: wire.Schema, schema: wire.Schema) -> None:
    """Check that a schema may become the version after the newest.

    Raises:
        Refused: They are not compatible.
        MissingDependency: Avro's library is not installed.
    """
    _compare(newest, schema, mutual=True)


def check_reads(newest: wire.Schema, schema: wire.Schema) -> None:
    """Check that a consumer with a schema can read what was written with the newest.

    Raises:
        Refused: It cannot.
        MissingDependency: Avro's library is not installed.
    """
    _compare(newest, schema, mutual=False)


def _compare(old: wire.Schema, new: wire.Schema, *, mutual: bool, what: str = "schema") -> None:
    if old.type != new.type:
        raise _incompatible(f"the topic's {what} is of the type {_name(old)}, not {_name(new)}")
    match new.type:
        case wire.Schema.Json | wire.Schema.Avro:
            _compare_avro(old, new, mutual=mutual, what=what)
        case wire.Schema.KeyValue:
            for part, was, is_now in zip(("key", "value"), _sides(old), _sides(new), strict=True):
                _compare(was, is_now, mutual=mutual, what=f"{part} schema")
        case wire.Schema.ProtobufNative:
            before, after = _root_message(old), _root_message(new)
            if before != after:
                raise _incompatible(f"the topic's {what} has the root message {before!r}, not {after!r}")
        case _:
            pass


def _compare_avro(old: wire.Schema, new: wire.Schema, *, mutual: bool, what: str) -> None:
    avro = _avro()
    before, after = _avro_schema(old), _avro_schema(new)
    try:
        reason = avro.unreadable(after, before)
        if reason is not None:
            raise _incompatible(f"the new {what} cannot read what is in the topic: {reason}")
        reason = avro.unreadable(before, after) if mutual else None
    except avro.TooComplex as error:
        raise _incompatible(str(error)) from error
    if reason is not None:
        raise _incompatible(f"readers with the topic's {what} could not read the new one: {reason}")


def _avro() -> ModuleType:
    from afterglow.broker import avro_rules  # noqa: PLC0415 - an extra, needed by few types only

    return avro_rules


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
