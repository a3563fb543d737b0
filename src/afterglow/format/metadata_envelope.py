"""Values of the metadata store: managed ledgers and cursors, plain or in Pulsar's compression envelope.

    0x4778 (2 bytes) | header size (int32) | header: codec and uncompressed size | compressed value       big-endian

A value that does not begin with the magic is plain. The headers of ledgers and cursors are two messages with the same
fields, so one pair of functions handles both.

Pulsar parses a value with an invalid envelope as a plain one. That is omitted here: ``0x47`` would be a tag of wire
type 7, which does not exist, so no plain value begins with it and the attempt always fails.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, EncodeError, Message

from afterglow.errors import CorruptEntry, CorruptMetadata
from afterglow.format.compression import Codec, compress, decompress
from afterglow.format.proto.managed_ledger_pb2 import (
    CompressionType,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    ManagedLedgerInfoMetadata,
)

_MAGIC: Final = b"\x47\x78"
_HEAD: Final = struct.Struct(">2si")  # magic, bytes of the header that follows

DEFAULT_CODEC: Final = Codec.LZ4
"""Pulsar's own default (``managedLedgerInfoCompressionType``, ``managedCursorInfoCompressionType``)."""

DEFAULT_THRESHOLD_BYTES: Final = 16384
"""Pulsar's own default (``managedLedgerInfoCompressionThresholdInBytes`` and the cursors' likewise)."""

_M = TypeVar("_M", bound=Message)


def wrap(value: bytes, codec: Codec = DEFAULT_CODEC, threshold_bytes: int = DEFAULT_THRESHOLD_BYTES) -> bytes:
    """Compress a value larger than the threshold into an envelope; return a smaller one unchanged."""
    if codec is Codec.NONE or len(value) <= threshold_bytes:
        return value
    header = ManagedLedgerInfoMetadata(
        compressionType=CompressionType.ValueType(codec), uncompressedSize=len(value)
    ).SerializeToString()
    return _HEAD.pack(_MAGIC, len(header)) + header + compress(codec, value)


def unwrap(value: bytes) -> bytes:
    """Decompress a value from its envelope; return a plain value unchanged.

    Raises:
        CorruptMetadata: The envelope is truncated, its header does not parse, or the value does not decompress to the
            size in the header.
    """
    if not value.startswith(_MAGIC):
        return value
    if len(value) < _HEAD.size:
        raise CorruptMetadata(f"compressed metadata is truncated after {len(value)} bytes")
    _, header_bytes = _HEAD.unpack_from(value)
    if not 0 <= header_bytes <= len(value) - _HEAD.size:
        raise CorruptMetadata(f"compressed metadata of {len(value)} bytes claims a header of {header_bytes} bytes")
    body = _HEAD.size + header_bytes
    header = _parse(ManagedLedgerInfoMetadata, value[_HEAD.size : body], "header of compressed metadata")
    try:
        return bytes(decompress(header.compressionType, memoryview(value)[body:], header.uncompressedSize))
    except CorruptEntry as error:
        raise CorruptMetadata(f"compressed metadata is corrupt: {error}") from error


def parse_managed_ledger(value: bytes) -> ManagedLedgerInfo:
    """Parse a managed ledger's value, plain or compressed, and sort its ledgers by id; an empty value has none.

    Raises:
        CorruptMetadata: The value does not parse, or contains a ledger twice.
    """
    info = _parse(ManagedLedgerInfo, unwrap(value), "managed ledger")
    # Pulsar writes the list in no particular order.
    info.ledgerInfo.sort(key=lambda ledger: ledger.ledgerId)
    ids = [ledger.ledgerId for ledger in info.ledgerInfo]
    if len(set(ids)) != len(ids):
        twice = next(left for left, right in pairwise(ids) if left == right)
        raise CorruptMetadata(f"managed ledger contains ledger {twice} twice")
    return info


def serialize_managed_ledger(
    info: ManagedLedgerInfo, codec: Codec = DEFAULT_CODEC, threshold_bytes: int = DEFAULT_THRESHOLD_BYTES
) -> bytes:
    """Serialize a managed ledger's value, compressed if larger than the threshold.

    Raises:
        CorruptMetadata: A required field is not set.
    """
    return wrap(_serialize(info, "managed ledger"), codec, threshold_bytes)


def parse_managed_cursor(value: bytes) -> ManagedCursorInfo:
    """Parse a cursor's value, plain or compressed.

    Raises:
        CorruptMetadata: The value does not parse; an empty one does not, since a cursor always has a ledger id.
    """
    return _parse(ManagedCursorInfo, unwrap(value), "cursor")


def serialize_managed_cursor(
    info: ManagedCursorInfo, codec: Codec = DEFAULT_CODEC, threshold_bytes: int = DEFAULT_THRESHOLD_BYTES
) -> bytes:
    """Serialize a cursor's value, compressed if larger than the threshold.

    Raises:
        CorruptMetadata: A required field is not set.
    """
    return wrap(_serialize(info, "cursor"), codec, threshold_bytes)


def _parse(message_type: type[_M], value: bytes, what: str) -> _M:
    try:
        message = message_type.FromString(value)
    except DecodeError as error:
        raise CorruptMetadata(f"{what} of {len(value)} bytes does not parse: {error}") from error
    if not message.IsInitialized():  # the parser accepts missing required fields
        missing: list[str] = message.FindInitializationErrors()  # type: ignore[attr-defined]  # the stubs lack it
        raise CorruptMetadata(f"{what} lacks {', '.join(missing)}")
    return message


def _serialize(message: Message, what: str) -> bytes:
    try:
        return message.SerializeToString()
    except EncodeError as error:
        raise CorruptMetadata(f"{what} cannot be stored: {error}") from error
