"""Random messages as clients send them: the entries that go to the broker, and the rows that must come back.

Rows are put together from the values that are sent, never from the entries: nothing here decodes.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from afterglow.format.compression import Codec, compress
from afterglow.format.entry import encode_batch, encode_entry
from afterglow.format.proto.pulsar_api_pb2 import (
    CompressionType,
    EncryptionKeys,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)

if TYPE_CHECKING:
    import random

Row: TypeAlias = dict[str, Any]
"""Columns of a message by name, but those that the broker and the readers bring; times in microseconds."""

COMMIT: Final = 21
ABORT: Final = 22
_JITTER_MS: Final = 5_000
"""By how much the clocks of producers differ from the broker's, at most."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One entry as a client sends it."""

    data: bytes
    rows: tuple[Row, ...]
    """Its messages; one in chunks comes with its last chunk."""
    messages: int = 1
    """How many the broker counts, also those that are no rows."""
    chunk_of: str | None = None
    """The message that it is a chunk of."""
    transaction: int | None = None
    """That its messages belong to, or that it ends."""


class Producer:
    """Sends random messages. What is in pieces comes entry by entry, so that others may stand between.

    Args:
        name: Its name.
        draw: Where all its chances come from.
    """

    def __init__(self, name: str, draw: random.Random) -> None:
        self._name = name
        self._draw = draw
        self._sequence_id = 0

    def message(self, now_ms: int, transaction: int | None = None) -> list[Sent]:
        """The entries of one message, or of one batch of them."""
        draw = self._draw
        self._sequence_id += draw.randint(1, 3)
        metadata = MessageMetadata(
            producer_name=self._name,
            sequence_id=self._sequence_id,
            publish_time=max(now_ms + draw.randint(-_JITTER_MS, _JITTER_MS), 0),
        )
        if draw.random() < 0.2:
            metadata.schema_version = draw.choice([bytes(8), bytes(7) + b"\1"])
        if draw.random() < 0.1:
            metadata.replicated_from = draw.choice(["us-west", "zürich"])
            metadata.schema_id = draw.randbytes(draw.randint(1, 5))
        if transaction is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = 1, transaction
        row: Row = {
            "batch_index": -1,
            "producer": self._name,
            "sequence_id": self._sequence_id,
            "publish_time": metadata.publish_time * 1000,
            "event_time": None,
            "key": None,
            "ordering_key": None,
            "properties": {},
            "schema_version": metadata.schema_version or None,
            "encrypted": False,
            "value": None,
            "replicated_from": metadata.replicated_from or None,
            "schema_id": metadata.schema_id or None,
        }
        kind = draw.choices(["plain", "batch", "chunked", "encrypted"], [10, 10, 3, 1])[0]
        if kind == "batch":
            return [self._batch(metadata, row, transaction)]
        row |= self._fields(metadata)
        if kind == "chunked":
            return self._chunks(metadata, row, transaction)
        if kind == "plain" and draw.random() < 0.1:
            metadata.null_value = True
            return [Sent(encode_entry(metadata, b""), (row,), transaction=transaction)]
        row["value"] = payload = self._payload()
        stored = self._compress(metadata, payload)
        if kind == "encrypted":
            metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
            row |= {"encrypted": True, "value": stored}
        checksum = draw.random() < 0.9
        return [Sent(encode_entry(metadata, stored, checksum=checksum), (row,), transaction=transaction)]

    def _batch(self, metadata: MessageMetadata, shared: Row, transaction: int | None) -> Sent:
        draw, count = self._draw, self._draw.randint(1, 6)
        singles: list[tuple[SingleMessageMetadata, bytes]] = []
        rows: list[Row] = []
        for number in range(count):
            single = SingleMessageMetadata(sequence_id=self._sequence_id + number)
            payload = self._payload()
            row = shared | {"batch_index": number, "sequence_id": single.sequence_id, **self._fields(single)}
            if draw.random() < 0.1:
                single.null_value, payload = True, b""
            else:
                row["value"] = payload
            if draw.random() < 0.05:
                single.compacted_out = True
            else:
                rows.append(row)
            singles.append((single, payload))
        self._sequence_id += count
        metadata.num_messages_in_batch = count
        stored = self._compress(metadata, encode_batch(singles))
        return Sent(encode_entry(metadata, stored), tuple(rows), count, transaction=transaction)

    def _chunks(self, metadata: MessageMetadata, row: Row, transaction: int | None) -> list[Sent]:
        count = self._draw.randint(2, 4)
        row["value"] = payload = self._draw.randbytes(self._draw.randint(count, 3_000))
        stored = self._compress(metadata, payload)
        metadata.uuid = f"{self._name}-{self._sequence_id}"
        metadata.num_chunks_from_msg = count
        metadata.total_chunk_msg_size = len(stored)
        size = -(-len(stored) // count)
        sent = []
        for number in range(count):
            metadata.chunk_id = number
            data = encode_entry(metadata, stored[number * size : (number + 1) * size])
            last = number == count - 1
            sent.append(Sent(data, (row,) if last else (), chunk_of=metadata.uuid, transaction=transaction))
        return sent

    def _fields(self, metadata: MessageMetadata | SingleMessageMetadata) -> Row:
        """What a message may bring beside its value."""
        draw, found = self._draw, Row()
        if draw.random() < 0.5:
            found["key"] = key = draw.choice([b"", b"k", "schlüssel".encode(), draw.randbytes(4)])
            metadata.partition_key_b64_encoded = draw.random() < 0.5 or not _is_text(key)
            metadata.partition_key = (
                base64.b64encode(key).decode() if metadata.partition_key_b64_encoded else key.decode()
            )
        if draw.random() < 0.2:
            found["ordering_key"] = metadata.ordering_key = draw.randbytes(draw.randint(0, 5))
        if draw.random() < 0.3:
            pairs = {f"p{number}": draw.choice(["", "v", "wört"]) for number in range(draw.randint(1, 3))}
            metadata.properties.extend(KeyValue(key=key, value=value) for key, value in pairs.items())
            found["properties"] = pairs
        if draw.random() < 0.3:
            metadata.event_time = draw.randint(1, 2_000_000_000_000)
            found["event_time"] = metadata.event_time * 1000
        return found

    def _payload(self) -> bytes:
        draw = self._draw
        return draw.randbytes(draw.randint(0, 20)) * draw.randint(1, 40)

    def _compress(self, metadata: MessageMetadata, payload: bytes) -> bytes:
        codec = self._draw.choice(list(Codec))
        metadata.compression = CompressionType.ValueType(int(codec))
        metadata.uncompressed_size = len(payload)
        return compress(codec, payload)


def marker(transaction: int, kind: int, now_ms: int) -> Sent:
    """What ends a transaction: ``COMMIT`` or ``ABORT``."""
    metadata = MessageMetadata(producer_name="", sequence_id=0, publish_time=now_ms, marker_type=kind)
    metadata.txnid_most_bits, metadata.txnid_least_bits = 1, transaction
    return Sent(encode_entry(metadata, b""), (), 0, transaction=transaction)


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
