"""Arrow schemas of messages and entries, and versions of a topic's schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


TIME = pa.timestamp("us", tz="UTC")
"""Spark accepts only microseconds in UTC."""

MESSAGES = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("batch_index", pa.int32()),
        pa.field("producer", pa.string()),
        pa.field("sequence_id", pa.int64()),
        pa.field("publish_time", TIME),
        pa.field("event_time", TIME),
        pa.field("broker_time", TIME),
        pa.field("index", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("ordering_key", pa.binary()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("schema_version", pa.binary()),
        pa.field("encrypted", pa.bool_()),
        pa.field("value", pa.binary()),
        pa.field("tier", pa.string()),
        pa.field("replicated_from", pa.string()),
        pa.field("schema_id", pa.binary()),
    ]
)

ENTRIES = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("data", pa.binary()),
        pa.field("tier", pa.string()),
    ]
)


def choose(schema: pa.Schema, columns: Iterable[str] | None) -> pa.Schema:
    """Return the fields of ``schema`` that ``columns`` names, in that order; all of them for None.

    Raises:
        ConfigError: A column is unknown or named twice.
    """
    if columns is None:
        return schema
    names = list(columns)
    for name in names:
        if name not in schema.names:
            raise ConfigError(f"unknown column {name!r}; use some of {', '.join(schema.names)}")
    if len(set(names)) != len(names):
        raise ConfigError(f"duplicate column in {names}")
    return pa.schema([schema.field(name) for name in names])


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a topic's schema."""

    version: bytes
    """Version in messages: eight bytes, big-endian, from all current producers."""
    type: str
    """Name of the type in the admin API: ``AVRO``, ``JSON``, ``KEY_VALUE``, ``STRING``, ``INT64``, …"""
    definition: bytes = b""
    """Definition as producers send it: JSON of an Avro schema; for ``KEY_VALUE`` those of key and value, each after its
    length; empty for primitive types."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Further properties from producers, such as the encoding of key and value."""
