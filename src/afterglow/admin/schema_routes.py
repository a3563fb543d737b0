"""Routes of schemas, and their JSON.

The definition is a string. That of a pair of key and value holds two, each after its length on the wire; in JSON it is
an object of both, where an empty string stands for a type that needs no definition.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, conflict, not_found
from afterglow.admin.resource import Resources
from afterglow.catalog.schema_registry import MAX_SCHEMA_BYTES, SchemaPolicies, decode_version, encode_version
from afterglow.errors import CorruptMetadata
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from afterglow.admin.call import Call
    from afterglow.catalog.schema_registry import StoredSchema
    from afterglow.metadata.names import TopicName

RESOURCES = Resources("/admin/v2/schemas/{tenant}/{namespace}/{topic}")

_MOST_BYTES: Final = 4 * MAX_SCHEMA_BYTES
"""Of a body: a definition is JSON within a string, and that of a key or a value within two."""

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


@RESOURCES.on("GET", "/schema", Access.LOOKUP)
async def newest_schema(call: Call) -> dict[str, Any]:
    """The newest version."""
    name = await _topic(call)
    found = await call.blocking(call.service.schemas.get, name)
    if found is None:
        raise not_found(f"{name} has no schema")
    return _encode(found)


@RESOURCES.on("GET", "/schema/{version}", Access.LOOKUP)
async def schema_version(call: Call) -> dict[str, Any]:
    """One version, by its number from 0."""
    name, version = await _topic(call), call.whole_number("version")
    found = await call.blocking(call.service.schemas.get, name, encode_version(version))
    if found is None:
        raise not_found(f"{name} has no version {version} of its schema")
    return _encode(found)


@RESOURCES.on("GET", "/schemas", Access.LOOKUP)
async def all_versions(call: Call) -> dict[str, Any]:
    """All versions, oldest first."""
    found = await call.blocking(call.service.schemas.versions, await _topic(call))
    return {"getSchemaResponses": [_encode(schema) for schema in found]}


@RESOURCES.on("POST", "/schema", Access.CHANGE_SCHEMA)
async def add_schema(call: Call) -> dict[str, Any]:
    """Add a version, unless there is one with the same content."""
    name = await _topic(call)
    schema = _decode(await call.body(_MOST_BYTES), name.base.local_name)
    effective = await call.blocking(call.service.policies.of, name.managed_ledger_name)
    # Uploads are how schemas come where clients may bring none.
    policies = replace(SchemaPolicies.of(effective), updates=True)
    version = await call.blocking(call.service.schemas.get_or_create, name, schema, policies)
    return {"version": {"version": decode_version(version)}}


@RESOURCES.on("DELETE", "/schema", Access.TENANT)
async def delete_schema(call: Call) -> dict[str, Any]:
    """Forget all versions, after which any schema may follow; messages that name them are in the way.

    Their numbers are given again only where there is no topic: messages, and producers that are connected, go on
    naming those that they know.
    """
    name, force = await _topic(call), call.flag("force")
    versions = await call.blocking(call.service.schemas.versions, name)
    if not versions:
        raise not_found(f"{name} has no schema")
    count = await targets.partitions_of(call.service, name.base)
    named = [name.base.partition(index) for index in range(count)] or [name.base]
    existing = [topic for topic in named if await targets.exists(call.service, topic)]
    if not force and await _has_messages(call, existing):
        raise conflict(f"{name} has messages that name versions of its schema: delete the topic, or delete by force")
    schemas = call.service.schemas
    await call.blocking(schemas.clear if count or existing else schemas.delete, name.base)
    return {"version": decode_version(versions[-1].version)}


async def _topic(call: Call) -> TopicName:
    """The topic in the path, in a namespace that exists; schemas may come before the topic."""
    name = call.topic
    await call.blocking(call.catalog.policies, name.namespace)
    return name


async def _has_messages(call: Call, topics: list[TopicName]) -> bool:
    for topic in topics:
        opened = await call.service.topic(topic, create=False)
        if opened.ledger.layout.total_entries:
            return True
    return False


# --- JSON ---


def _encode(stored: StoredSchema) -> dict[str, Any]:
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


def _decode(body: object, name: str) -> wire.Schema:
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
