"""Schemas of pairs: two of them in one, with what tells them apart in the properties."""

from __future__ import annotations

import json
import struct
from typing import Final

from afterglow.errors import CorruptMetadata
from afterglow.format.schema_version import SchemaVersion

KEY_VALUE: Final = "KEY_VALUE"
"""The type of such a schema."""

_LENGTH: Final = struct.Struct(">i")


def is_separated(schema: SchemaVersion) -> bool:
    """Whether the key of a pair is the key of the message, and not inside its value."""
    return schema.properties.get("kv.encoding.type") == "SEPARATED"


def sides(schema: SchemaVersion) -> tuple[SchemaVersion, SchemaVersion]:
    """The schemas of key and value.

    Raises:
        CorruptMetadata: The definition does not hold two.
    """
    parts = []
    at = 0
    for side in ("key", "value"):
        head = schema.definition[at : at + _LENGTH.size]
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -2
        at += _LENGTH.size
        definition = schema.definition[at : at + max(length, 0)]  # -1: there is none
        if length < -1 or len(definition) < length:
            number = int.from_bytes(schema.version, "big")
            raise CorruptMetadata(f"schema version {number} ends within the definition of its {side}")
        at += len(definition)
        kind = schema.properties.get(f"{side}.schema.type", "BYTES")
        parts.append(SchemaVersion(schema.version, kind, definition, _properties(schema, side)))
    return parts[0], parts[1]


def _properties(schema: SchemaVersion, side: str) -> dict[str, str]:
    try:
        found = json.loads(schema.properties.get(f"{side}.schema.properties") or "{}")
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
