"""Routes of schemas, and their JSON.

The definition of a schema is a string. That of a KEY_VALUE schema has two, each after its length on the wire; in JSON
it is an object of both, with an empty string for a type without a definition.
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
from afterglow.catalog.schema_compatibility import TYPE_NAMES
from afterglow.catalog.schema_registry import MAX_SCHEMA_BYTES, SchemaPolicies, decode_version, encode_version
from afterglow.errors import CorruptMetadata
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from afterglow.admin.call import BrokerCall
    from afterglow.catalog.schema_registry import StoredSchema
    from afterglow.metadata.names import TopicName

RESOURCES = Resources("/admin/v2/schemas/{tenant}/{namespace}/{topic}")

_MAX_BODY_BYTES: Final = 4 * MAX_SCHEMA_BYTES
"""Of a body: a definition is JSON inside a string, that of a key or value inside two."""

_NAMES: Final = {
    **{
        number: name
        for number, name in TYPE_NAMES.items()
        if number not in {wire.Schema.External, wire.Schema.AutoConsume}
    },
    wire.Schema.Type.Value("None"): "NONE",
}
"""Types that can be stored, as Pulsar's JSON names them."""
_TYPES: Final = {name: number for number, name in _NAMES.items()} | {"BYTES": wire.Schema.Type.Value("None")}
_LENGTH: Final = struct.Struct(">i")


@RESOURCES.on("GET", "/schema", Access.LOOKUP)
async def newest_schema(call: BrokerCall) -> dict[str, Any]:
    """The newest version of a topic's schema."""
    name = await _topic(call)
    found = await call.blocking(call.service.schemas.get, name)
    if found is None:
        raise not_found(f"{name} has no schema")
    return _encode(found)


@RESOURCES.on("GET", "/schema/{version}", Access.LOOKUP)
async def schema_version(call: BrokerCall) -> dict[str, Any]:
    """One version of a topic's schema, by its number from 0."""
    name, version = await _topic(call), call.integer_segment("version")
    found = await call.blocking(call.service.schemas.get, name, encode_version(version))
    if found is None:
        raise not_found(f"{name} has no version {version} of its schema")
    return _encode(found)


@RESOURCES.on("GET", "/schemas", Access.LOOKUP)
async def all_versions(call: BrokerCall) -> dict[str, Any]:
    """All versions of a topic's schema, oldest first."""
    found = await call.blocking(call.service.schemas.versions, await _topic(call))
    return {"getSchemaResponses": [_encode(schema) for schema in found]}


@RESOURCES.on("POST", "/schema", Access.CHANGE_SCHEMA)
async def add_schema(call: BrokerCall) -> dict[str, Any]:
    """Add a version, unless one with the same content exists."""
    name = await _topic(call)
    schema = _decode(await call.body(_MAX_BODY_BYTES), name.base.local_name)
    effective = await call.blocking(call.service.policies.of, name.managed_ledger_name)
    # An administrator may upload schemas where isAllowAutoUpdateSchema keeps clients from adding them.
    policies = replace(SchemaPolicies.of(effective), updates=True)
    version = await call.blocking(call.service.schemas.get_or_create, name, schema, policies)
    return {"version": {"version": decode_version(version)}}


@RESOURCES.on("DELETE", "/schema", Access.TENANT)
async def delete_schema(call: BrokerCall) -> dict[str, Any]:
    """Delete all versions, so that any schema may follow; refused if messages refer to versions, unless forced.

    Version numbers start again at 0 only if the topic does not exist: messages, and connected producers, still refer to
    the old numbers.
    """
    name, force = await _topic(call), call.flag("force")
    versions = await call.blocking(call.service.schemas.versions, name)
    if not versions:
        raise not_found(f"{name} has no schema")
    count = await targets.partitions_of(call.service, name.base)
    named = [name.base.partition(index) for index in range(count)] or [name.base]
    existing = [topic for topic in named if await targets.exists(call.service, topic)]
    if not force and await _has_messages(call, existing):
        raise conflict(f"{name} has messages that refer to its schema: delete the topic, or use force")
    schemas = call.service.schemas
    await call.blocking(schemas.clear if count or existing else schemas.delete, name.base)
    return {"version": decode_version(versions[-1].version)}


async def _topic(call: BrokerCall) -> TopicName:
    """The topic in the path. Its namespace must exist; the topic need not."""
    name = call.topic
    await call.blocking(call.catalog.policies, name.namespace)
    return name


async def _has_messages(call: BrokerCall, topics: list[TopicName]) -> bool:
    for topic in topics:
        opened = await call.service.topic(topic, create=False)
        if opened.ledger.layout.total_entries:
            return True
    return False


# --- JSON ---


def _encode(stored: StoredSchema) -> dict[str, Any]:
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
            end = at + _LENGTH.size + max(length, 0)  # -1: no definition
            text = data[at + _LENGTH.size : end].decode()
            parts[part] = json.loads(text) if text else ""
            at = end
    except (struct.error, ValueError) as error:
        raise CorruptMetadata(f"a stored KEY_VALUE schema does not parse: {error}") from error
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
