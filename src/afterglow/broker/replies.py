"""Commands that the broker sends, and the mapping of errors to protocol errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import (
    AccessDenied,
    AfterglowError,
    CorruptEntry,
    DiskFull,
    Fenced,
    HotLogError,
    InvalidName,
    MetadataError,
    NotSupported,
)
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused

if TYPE_CHECKING:
    from afterglow.broker.producer import Producer

PULSAR_VERSION = "4.0.8"
"""The Pulsar release whose protocol behaviour this broker follows."""

NO_REQUEST = 2**64 - 1
"""Request id of unsolicited commands: -1 in Java."""


def transactions_not_supported() -> Refused:
    """The error for every command of transactions."""
    return Refused(wire.NotAllowedError, "transactions are not supported by this broker")


def refusal(error: Exception) -> Refused:
    """The protocol error for an exception; one that is not an AfterglowError is a bug, and its text is not sent."""
    if isinstance(error, Refused):
        return error
    for kind, code in _CODES:
        if isinstance(error, kind):
            return Refused(code, str(error))
    if isinstance(error, AfterglowError):
        return Refused(wire.UnknownError, str(error))
    return Refused(wire.UnknownError, "internal error of the broker; see its log")


_CODES: tuple[tuple[type[Exception], wire.ServerError.ValueType], ...] = (
    (InvalidName, wire.InvalidTopicName),
    (AccessDenied, wire.AuthorizationError),
    (CorruptEntry, wire.ChecksumError),
    (NotSupported, wire.NotAllowedError),
    (DiskFull, wire.PersistenceError),
    (Fenced, wire.ServiceNotReady),
    (HotLogError, wire.PersistenceError),
    (MetadataError, wire.MetadataError),
)


def error(request_id: int, refused: Refused) -> wire.BaseCommand:
    """ERROR."""
    answer = wire.CommandError(request_id=request_id, error=refused.code, message=str(refused))
    return wire.BaseCommand(type=wire.BaseCommand.ERROR, error=answer)


def success(request_id: int) -> wire.BaseCommand:
    """SUCCESS."""
    return wire.BaseCommand(type=wire.BaseCommand.SUCCESS, success=wire.CommandSuccess(request_id=request_id))


def producer_success(
    request_id: int, producer: Producer, *, topic_epoch: int | None = None, ready: bool = True
) -> wire.BaseCommand:
    """PRODUCER_SUCCESS; a producer that is not ready waits for exclusive access, and gets a second one later."""
    answer = wire.CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer.name,
        last_sequence_id=-1,
        # Java's client reconnects forever if this field is absent; empty means that there is no schema.
        schema_version=producer.schema_version,
        producer_ready=ready,
        topic_epoch=topic_epoch,
    )
    return wire.BaseCommand(type=wire.BaseCommand.PRODUCER_SUCCESS, producer_success=answer)


def send_error(producer_id: int, sequence_id: int, refused: Refused) -> wire.BaseCommand:
    """SEND_ERROR."""
    answer = wire.CommandSendError(
        producer_id=producer_id, sequence_id=sequence_id, error=refused.code, message=str(refused)
    )
    return wire.BaseCommand(type=wire.BaseCommand.SEND_ERROR, send_error=answer)


def close_producer(producer_id: int) -> wire.BaseCommand:
    """CLOSE_PRODUCER, after which the client repeats the lookup."""
    close = wire.CommandCloseProducer(producer_id=producer_id, request_id=NO_REQUEST)
    return wire.BaseCommand(type=wire.BaseCommand.CLOSE_PRODUCER, close_producer=close)


def close_consumer(consumer_id: int) -> wire.BaseCommand:
    """CLOSE_CONSUMER, after which the client subscribes again."""
    close = wire.CommandCloseConsumer(consumer_id=consumer_id, request_id=NO_REQUEST)
    return wire.BaseCommand(type=wire.BaseCommand.CLOSE_CONSUMER, close_consumer=close)


def set_message_id(target: wire.MessageIdData, position: Position, partition: int = -1) -> None:
    """Write a position into a message id, whose unsigned fields hold Java's signed numbers."""
    target.ledgerId = position.ledger_id & 0xFFFFFFFFFFFFFFFF
    target.entryId = position.entry_id & 0xFFFFFFFFFFFFFFFF
    target.partition = partition


def to_position(message_id: wire.MessageIdData) -> Position:
    """The position that a message id names."""
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


def signed(value: int) -> int:
    """Decode Java's signed long from an unsigned field."""
    return value - (1 << 64) if value >= 1 << 63 else value
