"""The versions of a topic's schema, as they are stored and as the admin API tells them."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from afterglow.errors import CorruptMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY_VALUE: Final = "KEY_VALUE"
_LENGTH: Final = struct.Struct(">i")
_SIDES: Final = ("key", "value")


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a topic's schema."""

    version: bytes
    """As messages carry it: eight bytes, big-endian."""
    type: str
    """As the admin API names it: ``JSON``, ``AVRO``, ``INT32``, ``KEY_VALUE``, …"""
    definition: bytes = b""
    """Avro's definition for JSON and AVRO; for KEY_VALUE two, each behind its length of four bytes."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """What the producer said of it; for KEY_VALUE also the types of both sides and how they are encoded."""

    @property
    def number(self) -> int:
        """The version's number, from 0."""
        return int.from_bytes(self.version, "big")

    @classmethod
    def of_admin(cls, told: Mapping[str, Any]) -> Self:
        """A version from the JSON of the admin API.

        Raises:
            CorruptMetadata: It is not what the API tells.
        """
        try:
            kind, data = told["type"], told.get("data") or ""
            version = int(told["version"]).to_bytes(8, "big")
            definition = _joined(data) if kind == KEY_VALUE else data.encode()
            return cls(version, str(kind), definition, dict(told.get("properties") or {}))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CorruptMetadata(f"a schema version of the admin API is not understood: {error}") from error

    @property
    def separated(self) -> bool:
        """Whether the key of a pair is the key of the message, and not inside its value."""
        return self.properties.get("kv.encoding.type") == "SEPARATED"

    def sides(self) -> tuple[SchemaVersion, SchemaVersion]:
        """The schemas of key and value.

        Raises:
            CorruptMetadata: The definition does not hold two.
        """
        parts = []
        at = 0
        for side in _SIDES:
            head = self.definition[at : at + _LENGTH.size]
            length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -2
            at += _LENGTH.size
            definition = self.definition[at : at + max(length, 0)]  # -1: there is none
            if length < -1 or len(definition) < length:
                raise CorruptMetadata(f"version {self.number} of the schema ends within the definition of its {side}")
            at += len(definition)
            kind = self.properties.get(f"{side}.schema.type", "BYTES")
            parts.append(SchemaVersion(self.version, kind, definition, self._side_properties(side)))
        return parts[0], parts[1]

    def _side_properties(self, side: str) -> dict[str, str]:
        try:
            found = json.loads(self.properties.get(f"{side}.schema.properties") or "{}")
        except ValueError:
            return {}
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _joined(data: str) -> bytes:
    """Both definitions as they are stored; an empty text stands for a type that needs none."""
    both = json.loads(data)
    parts = bytearray()
    for side in _SIDES:
        value = both.get(side, "")
        text = b"" if value == "" else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        parts += _LENGTH.pack(len(text)) + text
    return bytes(parts)
