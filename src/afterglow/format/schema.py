"""The columns of messages and entries, as Arrow and Spark see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

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
