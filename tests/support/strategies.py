"""Hypothesis strategies for what ledgers hold: metadata, messages, batches, entries, whole ledgers.

Everything drawn here is valid, though some of it is what only a careless or a future client would write: fields given
twice, unknown fields, strings that are not UTF-8. Needs the package ``hypothesis``.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

from crc32c import crc32c
from hypothesis import strategies as st

from afterglow.format import entry as entries_
from afterglow.format.compression import Codec, compress
from afterglow.format.proto.pulsar_api_pb2 import (
    CompressionType,
    EncryptionKeys,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)

TIMES = st.integers(0, 4_102_444_800_000)
"""Epoch milliseconds up to the year 2100."""

CODECS = st.sampled_from(Codec)

PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=20), st.integers(0, 60)),
)

_TEXT = st.text(max_size=12)
_PROPERTIES = st.lists(st.builds(KeyValue, key=_TEXT, value=_TEXT), max_size=3)
_MAYBE_BYTES = st.none() | st.binary(max_size=20)
_MAYBE_FLAG = st.none() | st.booleans()


@dataclass(frozen=True, slots=True)
class LedgerEntries:
    """A drawn ledger."""

    ledger_id: int
    first_entry_id: int
    entries: tuple[bytes, ...]


@st.composite
def keys(draw: st.DrawFn) -> dict[str, object]:
    """The fields that make up a key: none, text, base64 of any bytes, or a null key."""
    kind = draw(st.sampled_from(["none", "text", "base64", "null"]))
    if kind == "none":
        return {}
    if kind == "text":
        return {"partition_key": draw(_TEXT)}
    text = base64.b64encode(draw(st.binary(max_size=20))).decode()
    fields: dict[str, object] = {"partition_key": text, "partition_key_b64_encoded": True}
    return fields | ({"null_partition_key": True} if kind == "null" else {})


@st.composite
def odd_fields(draw: st.DrawFn) -> bytes:
    """Unknown fields of every wire type that Pulsar's own parser passes over, as bytes to put behind any metadata."""
    out = bytearray()
    for number in draw(st.lists(st.integers(1000, 5000), max_size=3)):
        wire = draw(st.sampled_from([0, 1, 2, 5]))
        out += varint(number << 3 | wire)
        if wire == 0:
            out += varint(draw(st.integers(0, 2**64 - 1)))
        elif wire == 2:
            out += sized(draw(st.binary(max_size=10)))
        else:
            width = 8 if wire == 1 else 4
            out += draw(st.binary(min_size=width, max_size=width))
    return bytes(out)


@st.composite
def broken_names(draw: st.DrawFn) -> bytes:
    """A producer name that need not be UTF-8, or nothing: the last one given counts."""
    return draw(st.just(b"") | st.binary(max_size=8).map(lambda name: b"\x0a" + sized(name)))


@st.composite
def single_messages(draw: st.DrawFn) -> bytes:
    """One message as it stands in a batch."""
    metadata = SingleMessageMetadata(
        properties=draw(_PROPERTIES),
        event_time=draw(st.none() | TIMES),
        ordering_key=draw(_MAYBE_BYTES),
        sequence_id=draw(st.none() | st.integers(0, 2**64 - 1)),
        null_value=draw(_MAYBE_FLAG),
        compacted_out=draw(st.none() | st.sampled_from([False, False, True])),
        **draw(keys()),  # type: ignore[arg-type]  # fields by name
    )
    payload = b"" if metadata.null_value or metadata.compacted_out else draw(PAYLOADS)
    wrong = SingleMessageMetadata(payload_size=draw(st.integers(0, 1000))).SerializeToString()
    metadata.payload_size = len(payload)
    # The wrong size stands first: of a field given twice the last counts.
    head = draw(st.sampled_from([b"", wrong])) + metadata.SerializeToString() + draw(odd_fields())
    return len(head).to_bytes(4, "big") + head + payload


@st.composite
def batches(draw: st.DrawFn, max_messages: int = 5) -> tuple[int, bytes]:
    """A batch before compression: how many messages it has, and its payload."""
    messages = draw(st.lists(single_messages(), min_size=1, max_size=max_messages))
    return len(messages), b"".join(messages)


@st.composite
def compressed(draw: st.DrawFn, codec: Codec, payload: bytes) -> bytes:
    """A payload as one of the clients would compress it: Java never finishes its zlib streams."""
    if codec is Codec.ZLIB and draw(st.booleans()):
        deflater = zlib.compressobj()
        return deflater.compress(payload) + deflater.flush(zlib.Z_SYNC_FLUSH)
    return compress(codec, payload)


@st.composite
def entries(draw: st.DrawFn, *, plain: bool = False) -> bytes:
    """An entry as a ledger holds it.

    Args:
        draw: Given by Hypothesis.
        plain: Only messages, batched or not: no markers, chunks or encrypted payloads.
    """
    kind = draw(st.sampled_from(["message", "batch"] if plain else ["message", "batch", "marker", "chunk", "secret"]))
    codec = draw(CODECS)
    metadata = MessageMetadata(
        producer_name=draw(_TEXT),
        sequence_id=draw(st.integers(0, 2**64 - 1)),
        publish_time=draw(TIMES),
        properties=draw(_PROPERTIES),
        event_time=draw(st.none() | TIMES),
        schema_version=draw(_MAYBE_BYTES),
        replicated_from=draw(st.none() | _TEXT),
        schema_id=draw(_MAYBE_BYTES),
        ordering_key=draw(_MAYBE_BYTES),
        null_value=draw(_MAYBE_FLAG),
        compression=CompressionType.ValueType(int(codec)),
        **draw(keys()),  # type: ignore[arg-type]  # fields by name
    )
    if kind == "batch" or (kind == "secret" and draw(st.booleans())):
        metadata.num_messages_in_batch, payload = draw(batches())
    else:
        payload = draw(PAYLOADS)
    metadata.uncompressed_size = len(payload)
    payload = draw(compressed(codec, payload))
    if kind == "marker":
        metadata.marker_type = draw(st.integers(0, 40))
    elif kind == "chunk":
        metadata.num_chunks_from_msg = draw(st.integers(2, 5))
        metadata.chunk_id = draw(st.integers(0, 1))
        payload = payload[: draw(st.integers(0, len(payload)))]
    elif kind == "secret":
        metadata.encryption_keys.append(EncryptionKeys(key="k", value=draw(st.binary(max_size=8))))
        payload = draw(st.binary(max_size=40))
    head = metadata.SerializeToString() + draw(broken_names()) + draw(odd_fields())
    entry = envelope(head, payload, checksum=draw(st.booleans()))
    times = draw(st.none() | st.tuples(st.none() | TIMES, st.none() | st.integers(0, 2**40)))
    return entry if times is None else entries_.encode_broker_metadata(*times) + entry


@st.composite
def ledgers(draw: st.DrawFn, *, max_entries: int = 5, plain: bool = False) -> LedgerEntries:
    """A ledger, or a range of one: its id, the id of its first entry, its entries."""
    return LedgerEntries(
        draw(st.integers(0, 2**40)),
        draw(st.integers(0, 2**40)),
        tuple(draw(st.lists(entries(plain=plain), max_size=max_entries))),
    )


def envelope(head: bytes, payload: bytes, *, checksum: bool = True) -> bytes:
    """An entry around metadata that is given as bytes, valid or not."""
    body = len(head).to_bytes(4, "big") + head + payload
    return entries_.CHECKSUM_MAGIC + crc32c(body).to_bytes(4, "big") + body if checksum else body


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sized(data: bytes) -> bytes:
    """Bytes with their length in front, as protobuf writes them."""
    return varint(len(data)) + data
