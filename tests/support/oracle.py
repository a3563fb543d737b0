"""A second, plain decoder of messages, to hold the fast one against.

It is built on ``format.entry``, ``format.compression`` and protobuf's own parser, and shares nothing with the compiled
kernels. One Python object per field: for tests and for looking at a single entry, never for bulk.

A row is a dict with the columns of ``schema.MESSAGES`` but ``topic`` and ``tier``. Times are epoch microseconds, and
properties are pairs in their stored order, so that rows can be compared with what an Arrow column really holds.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from afterglow.errors import CorruptEntry
from afterglow.format import entry as entries
from afterglow.format.compression import decompress

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from afterglow.format.proto.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata, SingleMessageMetadata

Row: TypeAlias = dict[str, Any]

_TIME_MAX_MS = (2**63 - 1) // 1000


def decode_rows(entry: Buffer, ledger_id: int, entry_id: int, *, check: bool = False) -> list[Row]:
    """The messages of one entry: none for a marker, one for an encrypted entry or a chunk.

    Args:
        entry: The entry as a ledger holds it.
        ledger_id: The ledger.
        entry_id: The entry.
        check: Verify the entry's own CRC32C where it has one.

    Raises:
        CorruptEntry: It cannot be read.
    """
    parts = entries.decode_entry(entry, check=check)
    metadata = parts.metadata
    if metadata.HasField("marker_type"):
        return []
    row = _shared(parts.broker, metadata, ledger_id, entry_id)
    if row["encrypted"] or metadata.num_chunks_from_msg > 1:
        return [_own(row, metadata, parts.payload, metadata.null_value)]
    payload = decompress(metadata.compression, parts.payload, metadata.uncompressed_size)
    if not metadata.HasField("num_messages_in_batch"):
        return [_own(row, metadata, payload, metadata.null_value)]
    count = metadata.num_messages_in_batch
    if count < 1:
        raise CorruptEntry(f"a batch of {count} messages cannot be")
    rows: list[Row] = []
    for i, (single, value) in enumerate(entries.iter_batch(payload, count)):
        if single.compacted_out:
            continue
        null = single.null_value if single.HasField("null_value") else metadata.null_value
        message = _own(row, single, value, null) | {"batch_index": i}
        if not single.HasField("sequence_id"):
            message["sequence_id"] = row["sequence_id"]
        if not single.HasField("event_time"):
            message["event_time"] = _micros(metadata.event_time) or None
        if message["index"] is not None:
            message["index"] += i + 1 - count
        rows.append(message)
    return rows


def batch_rows(batch: pa.RecordBatch | pa.Table) -> list[Row]:
    """The rows of Arrow columns in the oracle's terms."""
    columns = {
        name: (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _shared(broker: BrokerEntryMetadata | None, metadata: MessageMetadata, ledger_id: int, entry_id: int) -> Row:
    """What all messages of an entry have in common, and what is theirs unless they say otherwise."""
    broker_time = _signed(broker.broker_timestamp) if broker and broker.HasField("broker_timestamp") else -1
    index = _signed(broker.index) if broker and broker.HasField("index") else -1
    return {
        "ledger_id": ledger_id,
        "entry_id": entry_id,
        "batch_index": -1,
        "producer": _text(metadata.producer_name),
        "sequence_id": _signed(metadata.sequence_id),
        "publish_time": _micros(metadata.publish_time),
        "event_time": None,
        "broker_time": _micros(broker_time) if broker_time >= 0 else None,
        "index": index if index >= 0 else None,
        "key": None,
        "ordering_key": None,
        "properties": [],
        "schema_version": metadata.schema_version or None,
        "encrypted": bool(metadata.encryption_keys),
        "value": None,
        "replicated_from": _text(metadata.replicated_from) if metadata.HasField("replicated_from") else None,
        "schema_id": metadata.schema_id if metadata.HasField("schema_id") else None,
    }


def _own(shared: Row, metadata: MessageMetadata | SingleMessageMetadata, value: Buffer, null: bool) -> Row:  # noqa: FBT001 (a field, not a mode)
    return shared | {
        "sequence_id": _signed(metadata.sequence_id),
        "event_time": _micros(metadata.event_time) or None,
        "key": _key(metadata),
        "ordering_key": metadata.ordering_key if metadata.HasField("ordering_key") else None,
        "properties": [(_text(pair.key), _text(pair.value)) for pair in metadata.properties],
        "value": None if null else bytes(value),
    }


def _key(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    if metadata.null_partition_key or not metadata.HasField("partition_key"):
        return None
    key = _raw(metadata.partition_key)
    if not metadata.partition_key_b64_encoded:
        return key
    key = key.rstrip(b"=")
    try:
        return base64.b64decode(key + b"=" * (-len(key) % 4), validate=True)
    except binascii.Error as error:
        raise CorruptEntry(f"a key is marked as base64 and is none: {error}") from error


def _raw(text: str | bytes) -> bytes:
    """The bytes of a string field: protobuf gives those back as they are which are not UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


def _text(text: str | bytes) -> str:
    return _raw(text).decode("utf-8", "replace")


def _signed(value: int) -> int:
    """An unsigned 64-bit number as the signed column holds it."""
    return value - 2**64 if value >= 2**63 else value


def _micros(milliseconds: int) -> int:
    return min(max(_signed(milliseconds), -_TIME_MAX_MS), _TIME_MAX_MS) * 1000
