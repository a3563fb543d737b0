"""Encoding and decoding of single entries, for the broker and for tools; ``columns`` decodes in bulk.

``[0x0e02 size:u32 BrokerEntryMetadata]? [0x0e01 crc32c:u32]? size:u32 MessageMetadata payload``. The checksum covers
only the bytes after it, so that the broker can prepend its metadata without changing it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from crc32c import crc32c
from google.protobuf.message import DecodeError

from afterglow.errors import CorruptEntry
from afterglow.format.proto.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

BROKER_MAGIC = b"\x0e\x02"
CHECKSUM_MAGIC = b"\x0e\x01"

M = TypeVar("M", BrokerEntryMetadata, MessageMetadata, SingleMessageMetadata)

_U32 = struct.Struct(">I")
_TAGGED = struct.Struct(">2sI")
_DELIVERY_TIME_TAG = bytes((19 << 3 & 0x7F | 0x80, 19 << 3 >> 7))
"""Before ``deliver_at_time`` in message metadata."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A decoded entry; its payload is neither decompressed nor decrypted."""

    broker: BrokerEntryMetadata | None
    checksum: int | None
    """CRC32C as stored, None if the client sent none."""
    metadata: MessageMetadata
    payload: memoryview
    """As stored."""


def encode_entry(metadata: MessageMetadata, payload: Buffer, *, checksum: bool = True) -> bytes:
    """Encode an entry as a client sends it."""
    head = metadata.SerializeToString()
    body = _U32.pack(len(head)) + head + bytes(payload)
    return _TAGGED.pack(CHECKSUM_MAGIC, crc32c(body)) + body if checksum else body


def encode_broker_metadata(broker_time_ms: int | None, index: int | None) -> bytes:
    """Encode the broker entry metadata that precedes an entry."""
    metadata = BrokerEntryMetadata(broker_timestamp=broker_time_ms, index=index).SerializeToString()
    return _TAGGED.pack(BROKER_MAGIC, len(metadata)) + metadata


def split_broker_metadata(entry: Buffer) -> tuple[BrokerEntryMetadata | None, memoryview]:
    """Return the broker's metadata, and the entry as the client sent it.

    Raises:
        CorruptEntry: The metadata is truncated or does not parse.
    """
    view = memoryview(entry).cast("B")
    if view[:2] != BROKER_MAGIC:
        return None, view
    if view.nbytes < _TAGGED.size:
        raise CorruptEntry(f"broker metadata is truncated in an entry of {view.nbytes} bytes")
    _, size = _TAGGED.unpack_from(view)
    end = _TAGGED.size + size
    if end > view.nbytes:
        raise CorruptEntry(f"broker metadata of {size} bytes exceeds an entry of {view.nbytes}")
    return _parse(BrokerEntryMetadata(), view[_TAGGED.size : end], "broker metadata"), view[end:]


def may_be_delayed(entry: bytes | memoryview) -> bool:
    """Whether an entry may have a delivery time. Cheaper than decoding it: of a few without one it says so too."""
    try:
        at = 0
        if entry[:2] == BROKER_MAGIC:
            at = _TAGGED.size + _TAGGED.unpack_from(entry)[1]
        if entry[at : at + 2] == CHECKSUM_MAGIC:
            at += _TAGGED.size
        (size,) = _U32.unpack_from(entry, at)
    except struct.error:  # it is damaged
        return True
    begin = at + _U32.size
    return _DELIVERY_TIME_TAG in bytes(entry[begin : begin + size])


def decode_entry(entry: Buffer, *, check: bool = True) -> Entry:
    """Decode an entry.

    Args:
        entry: The entry as stored.
        check: Verify the checksum if the entry has one.

    Raises:
        CorruptEntry: The entry is truncated, does not parse, or does not match its checksum.
    """
    broker, view = split_broker_metadata(entry)
    checksum = None
    if view[:2] == CHECKSUM_MAGIC:
        if view.nbytes < _TAGGED.size:
            raise CorruptEntry("the checksum of an entry is truncated")
        _, checksum = _TAGGED.unpack_from(view)
        view = view[_TAGGED.size :]
        if check and crc32c(view) != checksum:
            raise CorruptEntry(f"an entry has CRC32C {crc32c(view):08x}, its checksum is {checksum:08x}")
    metadata, payload = _split_sized(view, MessageMetadata(), "message metadata")
    return Entry(broker, checksum, metadata, payload)


def encode_batch(messages: Iterable[tuple[SingleMessageMetadata, Buffer]]) -> bytes:
    """Encode a batch's payload before compression; sets the payload size in each metadata."""
    out = bytearray()
    for metadata, payload in messages:
        view = memoryview(payload).cast("B")
        metadata.payload_size = view.nbytes
        head = metadata.SerializeToString()
        out += _U32.pack(len(head))
        out += head
        out += view
    return bytes(out)


def iter_batch(payload: Buffer, count: int) -> Iterator[tuple[SingleMessageMetadata, memoryview]]:
    """Yield the messages of a batch's payload after decompression.

    Raises:
        CorruptEntry: A message is truncated or its metadata does not parse.
    """
    view = memoryview(payload).cast("B")
    for _ in range(count):
        metadata, view = _split_sized(view, SingleMessageMetadata(), "a batched message's metadata")
        if not 0 <= metadata.payload_size <= view.nbytes:
            raise CorruptEntry(f"a batched message of {metadata.payload_size} bytes exceeds its batch")
        yield metadata, view[: metadata.payload_size]
        view = view[metadata.payload_size :]


def _split_sized(view: memoryview, message: M, what: str) -> tuple[M, memoryview]:
    if view.nbytes < _U32.size:
        raise CorruptEntry(f"{view.nbytes} bytes are too few for {what}")
    (size,) = _U32.unpack_from(view)
    end = _U32.size + size
    if end > view.nbytes:
        raise CorruptEntry(f"{what} of {size} bytes exceeds the remaining {view.nbytes}")
    return _parse(message, view[_U32.size : end], what), view[end:]


def _parse(message: M, view: memoryview, what: str) -> M:
    try:
        message.ParseFromString(bytes(view))
    except DecodeError as error:
        raise CorruptEntry(f"{what} of {view.nbytes} bytes does not parse: {error}") from error
    if not message.IsInitialized():  # the parser accepts missing required fields
        raise CorruptEntry(f"{what} of {view.nbytes} bytes lacks a required field")
    return message
