"""One version of a topic's schema, wherever it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A schema that producers have written messages with."""

    version: bytes
    """As messages carry it: eight bytes, big-endian, in all that is written today."""
    type: str
    """As the admin API names it: ``AVRO``, ``JSON``, ``KEY_VALUE``, ``STRING``, ``INT64``, …"""
    definition: bytes = b""
    """As producers send it: JSON of an Avro schema; of a key and a value, both behind one another with their lengths;
    empty for plain types."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """What producers say beside it, such as how a key and a value are laid out."""
