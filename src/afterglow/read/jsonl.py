"""JSON objects of messages and entries, with the keys of the public interface."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMES = ("publish_time", "event_time", "broker_time")


def message_rows(
    batch: pa.RecordBatch, *, topic: str | None = None, tier: str | None = None
) -> Iterator[dict[str, Any]]:
    """Each message of a batch as a JSON object. One Python object per message: not for bulk.

    Args:
        batch: The messages, with all block columns.
        topic: The topic's name, if the batch has no column ``topic``.
        tier: The copy that served them, if the batch has no column ``tier``.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    for name in _TIMES:
        columns[name] = columns[name].cast(pa.int64())
    binary = {name: pa.types.is_binary(columns[name].type) for name in ("key", "value")}
    lists = {name: column.to_pylist() for name, column in columns.items()}
    for i in range(batch.num_rows):
        row = {name: values[i] for name, values in lists.items()}
        times = {name: None if row[name] is None else row[name] // 1000 for name in _TIMES}
        yield {
            "topic": row.get("topic", topic),
            "ledger_id": row["ledger_id"] if row["ledger_id"] >= 0 else None,
            "entry_id": row["entry_id"],
            "batch_index": row["batch_index"],
            "producer": row["producer"],
            "sequence_id": row["sequence_id"],
            **times,
            "index": row["index"],
            "key": _text(row["key"]) if binary["key"] else plain(row["key"]),
            "key_base64": _base64(row["key"]) if binary["key"] else None,
            "ordering_key_base64": _base64(row["ordering_key"]),
            "properties": dict(row["properties"]),
            "schema_version_base64": _base64(row["schema_version"]),
            "encrypted": row["encrypted"],
            "null_value": row["value"] is None,
            "value_base64": _base64(row["value"]) if binary["value"] else None,
            "tier": row.get("tier", tier),
            "replicated_from": row["replicated_from"],
            "schema_id_base64": _base64(row["schema_id"]),
            **({"value": plain(row["value"]), "_corrupt": row["_corrupt"]} if "_corrupt" in row else {}),
        }


def entry_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Each raw entry of a batch as a JSON object. One Python object per entry: not for bulk."""
    columns = (batch.column(name).to_pylist() for name in ("ledger_id", "entry_id", "data", "tier"))
    for row in zip(*columns, strict=True):
        yield entry_row(*row)


def entry_row(ledger_id: int | None, entry_id: int, data: bytes | memoryview, tier: str) -> dict[str, Any]:
    """One raw entry as a JSON object."""
    return {"ledger_id": ledger_id, "entry_id": entry_id, "data_base64": _base64(data), "tier": tier}


def plain(value: Any) -> Any:
    """A typed value as JSON: bytes as base64, times and decimals as text."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):  # a map
            return {name: plain(item) for name, item in value}
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return _base64(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _base64(data: bytes | memoryview | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
