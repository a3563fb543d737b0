"""A stored entry as an HTTP answer: the payload is the body, its metadata are headers.

Names and their case are those that Pulsar's Java client expects. Header values contain text of producers, which must
not end a line: properties are encoded as ASCII JSON; a key that a header cannot carry as base64, with a flag that says
so; in other text, characters that are not valid in headers become question marks.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from afterglow.admin.errors import precondition_failed
from afterglow.format.compression import decompress
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.format.compression import BytesLike
    from afterglow.format.entry import Entry
    from afterglow.format.position import Position
    from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE_YEARS: Final = 400
_CYCLE_MS: Final = 146_097 * 86_400_000
"""Of 400 years, after which the Gregorian calendar repeats."""

_NUMBERS: Final = (
    ("sequence_id", "sequence-id"),
    ("uncompressed_size", "uncompressed-size"),
    ("marker_type", "marker-type"),
    ("txnid_least_bits", "txnid-least-bits"),
    ("txnid_most_bits", "txnid-most-bits"),
    ("highest_sequence_id", "highest-sequence-id"),
    ("num_chunks_from_msg", "num-chunks-from-msg"),
    ("total_chunk_msg_size", "total-chunk-msg-size"),
    ("chunk_id", "chunk-id"),
)
_FLAGS: Final = (("null_value", "null-value"), ("null_partition_key", "null-partition-key"))
_TIMES: Final = (("publish_time", "publish-time"), ("event_time", "event-time"), ("deliver_at_time", "deliver-at-time"))
_TEXTS: Final = (
    ("producer_name", "producer-name"),
    ("replicated_from", "replicated-from"),
    ("encryption_algo", "encryption-algo"),
    ("uuid", "uuid"),
)
_BYTES: Final = (
    ("encryption_param", "encryption-param"),
    ("schema_version", "schema-version"),
    ("ordering_key", "ordering-key"),
)


def payload_of(entry: Entry, max_bytes: int) -> BytesLike:
    """The decompressed payload; of an encrypted message or a chunk the payload as it is stored.

    Args:
        entry: The entry.
        max_bytes: Limit of the decompressed size.

    Raises:
        AdminError: The metadata claims a larger size; nothing was decompressed.
        CorruptEntry: The payload does not decompress to the size that the metadata claims.
    """
    metadata = entry.metadata
    if metadata.encryption_keys or metadata.num_chunks_from_msg > 1:
        return entry.payload
    if metadata.compression and metadata.uncompressed_size > max_bytes:
        raise precondition_failed(
            f"the payload of {len(entry.payload)} bytes claims to decompress to {metadata.uncompressed_size}, above "
            f"maxMessageSize={max_bytes}: read the message with a client"
        )
    return decompress(metadata.compression, entry.payload, metadata.uncompressed_size, max_bytes=max_bytes)


def headers_of(position: Position, entry: Entry, entry_bytes: int) -> list[tuple[str, str]]:
    """Headers of an entry; names may repeat.

    Args:
        position: Of the entry.
        entry: The entry.
        entry_bytes: Stored size of the entry.
    """
    return [(f"X-Pulsar-{name}", value) for name, value in _headers(position, entry, entry_bytes)]


def _headers(position: Position, entry: Entry, entry_bytes: int) -> Iterator[tuple[str, str]]:
    metadata = entry.metadata
    yield "Message-ID", str(position)
    yield "PROPERTY", json.dumps({_text(pair.key): _text(pair.value) for pair in metadata.properties})
    if entry.broker is not None and entry.broker.HasField("broker_timestamp"):
        yield "Broker-Entry-METADATA-timestamp", _time(entry.broker.broker_timestamp)
    if entry.broker is not None and entry.broker.HasField("index"):
        yield "Broker-Entry-METADATA-index", str(_signed(entry.broker.index))
    if metadata.HasField("num_messages_in_batch"):
        yield "num-batch-message", str(metadata.num_messages_in_batch)
        yield "batch-size", str(entry_bytes - metadata.ByteSize())
    if metadata.HasField("num_chunks_from_msg"):
        yield "PROPERTY-TOTAL-CHUNKS", str(metadata.num_chunks_from_msg)
        yield "PROPERTY-CHUNK-ID", str(metadata.chunk_id)
    yield "Is-Encrypted", _flag(bool(metadata.encryption_keys))
    yield from _key(metadata)
    if metadata.HasField("compression"):
        yield "compression", wire.CompressionType.Name(metadata.compression)
    yield from _fields(metadata)
    for cluster in metadata.replicate_to:
        yield "replicated-to", _safe(_text(cluster))
    for key in metadata.encryption_keys:
        yield "Base64-encryption-keys", _base64(key.SerializeToString())
    if metadata.HasField("txnid_least_bits") and metadata.HasField("txnid_most_bits"):
        yield "txn-aborted", "false"
    yield "txn-uncommitted", "false"


def _fields(metadata: MessageMetadata) -> Iterator[tuple[str, str]]:
    for names, write in (
        (_NUMBERS, lambda value: str(_signed(value))),
        (_FLAGS, _flag),
        (_TIMES, _time),
        (_TEXTS, lambda value: _safe(_text(value))),
    ):
        for field, name in names:
            if metadata.HasField(field):  # type: ignore[arg-type]  # every name is a field's
                yield name, write(getattr(metadata, field))
    for field, name in _BYTES:
        if metadata.HasField(field):  # type: ignore[arg-type]  # every name is a field's
            yield f"Base64-{name}", _base64(getattr(metadata, field))


def _key(metadata: MessageMetadata) -> Iterator[tuple[str, str]]:
    encoded = metadata.partition_key_b64_encoded
    if metadata.HasField("partition_key"):
        key = _text(metadata.partition_key)
        if _safe(key) != key or key.strip() != key:
            key, encoded = _base64(key.encode()), True
        yield "partition-key", key
    if encoded or metadata.HasField("partition_key_b64_encoded"):
        yield "partition-key-b64-encoded", _flag(encoded)


def _text(value: str | bytes) -> str:
    """A string of a message; the parser returns strings that are not UTF-8 as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _safe(text: str) -> str:
    return "".join(char if " " <= char <= "~" or "\xa0" <= char <= "\xff" else "?" for char in text).strip()


def _flag(value: bool) -> str:  # noqa: FBT001 - the value itself
    return "true" if value else "false"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _signed(value: int) -> int:
    """As Java represents it, which has no unsigned integers."""
    return value - 2**64 if value >= 2**63 else value


def _time(epoch_ms: int) -> str:
    """A time as Java prints it, also beyond the years of ``datetime``: times of producers are not checked."""
    cycles, left_ms = divmod(_signed(epoch_ms), _CYCLE_MS)
    moment = _EPOCH + timedelta(milliseconds=left_ms)
    year = moment.year + _CYCLE_YEARS * cycles
    sign = "+" if year > 9999 else ""
    return f"{sign}{year:04d}-{moment:%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
