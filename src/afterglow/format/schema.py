"""Schemas: the columns of messages and entries as Arrow and Spark see them, and one version of a topic's schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


TIME = pa.timestamp("us", tz="UTC")
"""Spark takes microseconds in UTC and nothing else."""

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
    """The fields of ``schema`` that ``columns`` names, in that order; all of them for None.

    Raises:
        ConfigError: A column is unknown or named twice.
    """
    if columns is None:
        return schema
    names = list(columns)
    for name in names:
        if name not in schema.names:
            raise ConfigError(f"unknown column {name!r}; there are {', '.join(schema.names)}")
    if len(set(names)) != len(names):
        raise ConfigError(f"a column is named twice in {names}")
    return pa.schema([schema.field(name) for name in names])


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
