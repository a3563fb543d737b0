"""JSON objects of messages and entries, with the keys of the public interface."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from afterglow.format.schema import ENTRIES, MESSAGES
from afterglow.read.typed import CORRUPT

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMES: Final = frozenset({"publish_time", "event_time", "broker_time"})
_ENTRY_KEYS: Final = {"data": "data_base64"}
_ORDER: Final = {name: at for at, name in enumerate((*MESSAGES.names, CORRUPT))}
_BLOCK_COLUMNS: Final = frozenset(MESSAGES.names) - {"topic", "tier"}
"""Columns of messages that come from their object alone."""


def message_rows(
    batch: pa.RecordBatch, *, topic: str | None = None, tier: str | None = None
) -> Iterator[dict[str, Any]]:
    """Each message of a batch as a JSON object. One Python object per message: not for bulk.

    Args:
        batch: The messages, with all columns or some; the object has the keys of those.
        topic: The topic's name, if the batch has all columns but ``topic``.
        tier: The copy that served them, if the batch has all columns but ``tier``.
    """
    columns: dict[str, list[Any]] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        columns[name] = (column.cast(pa.int64()) if name in _TIMES else column).to_pylist()
    is_whole = columns.keys() >= _BLOCK_COLUMNS
    if is_whole:
        columns.setdefault("topic", [topic] * batch.num_rows)
        columns.setdefault("tier", [tier] * batch.num_rows)
    typed = {name for name in ("key", "value") if name in columns and not pa.types.is_binary(batch.column(name).type)}
    if CORRUPT in columns:
        typed.add("value")
    # The keys have the order of the public interface if all columns are there, otherwise that of the columns.
    order = sorted(columns, key=_ORDER.__getitem__) if is_whole else list(columns)
    for i in range(batch.num_rows):
        row: dict[str, Any] = {}
        for name in order:
            _add_column(row, name, columns[name][i], is_typed=name in typed)
        yield row


def _add_column(row: dict[str, Any], name: str, value: Any, *, is_typed: bool) -> None:
    """Add the keys of a column to an object."""
    if name in _TIMES:
        row[name] = None if value is None else value // 1000
    elif name == "ledger_id":
        row[name] = value if value >= 0 else None
    elif name in {"ordering_key", "schema_version", "schema_id"}:
        row[f"{name}_base64"] = _base64(value)
    elif name == "properties":
        row[name] = dict(value)
    elif name in {"key", "value"}:
        if name == "value":
            row["null_value"] = value is None
        row[name] = plain(value) if is_typed else _text(value)
        row[f"{name}_base64"] = _base64(value) if value is None or isinstance(value, bytes) else None
    else:
        row[name] = value


def entry_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Each raw entry of a batch as a JSON object, without its topic if all columns are there. Not for bulk."""
    omitted = "topic" if batch.schema.names == ENTRIES.names else None
    for row in batch.to_pylist():
        row.pop(omitted, None)
        yield {_ENTRY_KEYS.get(name, name): _base64(value) if name == "data" else value for name, value in row.items()}


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
