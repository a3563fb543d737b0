"""The time of an entry: the broker's if it has one, else the client's publish time. Reads no more than it must."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptEntry
from afterglow.format.entry import BROKER_MAGIC, CHECKSUM_MAGIC
from afterglow.format.proto.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata

if TYPE_CHECKING:
    from typing_extensions import Buffer

M = TypeVar("M", BrokerEntryMetadata, MessageMetadata)

_U32: Final = struct.Struct(">I")
_MAGIC_BYTES: Final = 2
_CHECKSUM_BYTES: Final = 6  # magic and checksum


@dataclass(frozen=True, slots=True)
class EntryTime:
    """When an entry was written."""

    time_ms: int
    """Epoch milliseconds."""
    by_broker: bool
    """Whether the broker gave it: only then it never goes back."""
    parsed_bytes: int
    """Bytes of the entry that were looked at."""


def entry_time(entry: Buffer) -> EntryTime:
    """When an entry was written.

    With a broker time only the envelope in front is parsed; without, also the message's metadata; the payload never.

    Raises:
        CorruptEntry: The envelope or the metadata is torn, or does not parse.
    """
    view = memoryview(entry).cast("B")
    at = 0
    if view[:_MAGIC_BYTES] == BROKER_MAGIC:
        metadata, at = _sized(view, _MAGIC_BYTES, "broker metadata")
        broker = _parse(BrokerEntryMetadata(), metadata, "broker metadata")
        if broker.HasField("broker_timestamp"):
            return EntryTime(broker.broker_timestamp, by_broker=True, parsed_bytes=at)
    if view[at : at + _MAGIC_BYTES] == CHECKSUM_MAGIC:
        at += _CHECKSUM_BYTES
    metadata, at = _sized(view, at, "message metadata")
    message = _parse(MessageMetadata(), metadata, "message metadata")
    return EntryTime(message.publish_time, by_broker=False, parsed_bytes=at)


def _sized(view: memoryview, at: int, what: str) -> tuple[memoryview, int]:
    begin = at + _U32.size
    if begin > view.nbytes:
        raise CorruptEntry(f"an entry of {view.nbytes} bytes ends inside its {what}")
    end = begin + _U32.unpack_from(view, at)[0]
    if end > view.nbytes:
        raise CorruptEntry(f"{what} reaches to byte {end} of an entry of {view.nbytes}")
    return view[begin:end], end


def _parse(message: M, view: memoryview, what: str) -> M:
    try:
        message.ParseFromString(bytes(view))
    except DecodeError as error:
        raise CorruptEntry(f"{what} of {view.nbytes} bytes does not parse: {error}") from error
    return message
