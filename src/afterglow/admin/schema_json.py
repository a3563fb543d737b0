"""Schemas as the admin API's JSON, and back. Pure functions.

The definition is a string. That of a pair of key and value holds two, each after its length on the wire; in JSON it is
an object of both, where an empty string stands for a type that needs no definition.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import values
from afterglow.admin.errors import bad_request
from afterglow.broker.schemas import decode_version
from afterglow.errors import CorruptMetadata
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from afterglow.broker.schemas import StoredSchema

_NAMES: Final = {
    wire.Schema.Type.Value("None"): "NONE",
    wire.Schema.String: "STRING",
    wire.Schema.Json: "JSON",
    wire.Schema.Protobuf: "PROTOBUF",
    wire.Schema.Avro: "AVRO",
    wire.Schema.Bool: "BOOLEAN",
    wire.Schema.Int8: "INT8",
    wire.Schema.Int16: "INT16",
    wire.Schema.Int32: "INT32",
    wire.Schema.Int64: "INT64",
    wire.Schema.Float: "FLOAT",
    wire.Schema.Double: "DOUBLE",
    wire.Schema.Date: "DATE",
    wire.Schema.Time: "TIME",
    wire.Schema.Timestamp: "TIMESTAMP",
    wire.Schema.KeyValue: "KEY_VALUE",
    wire.Schema.Instant: "INSTANT",
    wire.Schema.LocalDate: "LOCAL_DATE",
    wire.Schema.LocalTime: "LOCAL_TIME",
    wire.Schema.LocalDateTime: "LOCAL_DATE_TIME",
    wire.Schema.ProtobufNative: "PROTOBUF_NATIVE",
}
_TYPES: Final = {name: number for number, name in _NAMES.items()} | {"BYTES": wire.Schema.Type.Value("None")}
_LENGTH: Final = struct.Struct(">i")


def encode_schema(stored: StoredSchema) -> dict[str, Any]:
    """A stored version.

    Raises:
        CorruptMetadata: The definitions of key and value do not parse.
    """
    schema = stored.schema
    data = schema.schema_data
    return {
        "version": decode_version(stored.version),
        "type": _NAMES.get(schema.type, "NONE"),
        "timestamp": stored.created_ms,
        "data": _split(data) if schema.type == wire.Schema.KeyValue else data.decode(errors="replace"),
        "properties": {pair.key: pair.value for pair in schema.properties},
    }


def decode_schema(body: object, name: str) -> wire.Schema:
    """A schema that is to be stored.

    Raises:
        AdminError: A field is missing or of another type.
    """
    given = values.fields(body, "a schema", ("type", "schema", "properties"))
    kind = values.text(given.get("type"), "type")
    if kind not in _TYPES:
        raise bad_request(f"type must be one of {', '.join(_TYPES)}, not {values.shown(kind)}")
    definition = values.text(given.get("schema", ""), "schema")
    properties = values.text_map(given.get("properties"), "properties")
    return wire.Schema(
        name=name,
        type=_TYPES[kind],
        schema_data=_join(definition) if kind == "KEY_VALUE" else definition.encode(),
        properties=[wire.KeyValue(key=key, value=value) for key, value in sorted(properties.items())],
    )


def _join(definition: str) -> bytes:
    both = values.fields(values.parse(definition.encode()), "schema of type KEY_VALUE", ("key", "value"))
    data = bytearray()
    for part in ("key", "value"):
        value = both.get(part, "")
        encoded = b"" if value == "" else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        data += _LENGTH.pack(len(encoded)) + encoded
    return bytes(data)


def _split(data: bytes) -> str:
    parts: dict[str, Any] = {}
    at = 0
    try:
        for part in ("key", "value"):
            (length,) = _LENGTH.unpack_from(data, at)
            end = at + _LENGTH.size + max(length, 0)  # -1: there is none
            text = data[at + _LENGTH.size : end].decode()
            parts[part] = json.loads(text) if text else ""
            at = end
    except (struct.error, ValueError) as error:
        raise CorruptMetadata(f"a stored schema of key and value does not parse: {error}") from error
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
