"""A producer that a client has opened: the path of a message from SEND to its receipt."""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from afterglow.broker import replies
from afterglow.broker.traffic import Traffic, TrafficMeter
from afterglow.errors import CorruptEntry, TopicTerminated
from afterglow.format.entry import CHECKSUM_MAGIC, decode_entry
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused, encode_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.broker.connection import Connection
    from afterglow.broker.producer_access import AccessMode
    from afterglow.broker.topic import Topic
    from afterglow.errors import AfterglowError

log = logging.getLogger(__name__)

_U32: Final = struct.Struct(">I")
_CHECKSUM_END: Final = len(CHECKSUM_MAGIC) + _U32.size


@dataclass(slots=True, eq=False)
class Producer:
    """An open producer. Belongs to the event loop's thread."""

    producer_id: int
    """Chosen by the client, unique on its connection."""
    name: str
    epoch: int
    access_mode: AccessMode
    topic: Topic
    connection: Connection
    topic_epoch: int | None = None
    """The topic's epoch; of a client that reconnects, that of its earlier access."""
    schema_version: bytes = b""
    since_ms: int = 0
    """When it was opened, in epoch milliseconds."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Metadata that the client gave in PRODUCER."""
    closed: bool = False
    messages_in: int = 0
    bytes_in: int = 0
    meter: TrafficMeter = field(default_factory=TrafficMeter)
    _unanswered: int = 0
    """SENDs without a receipt or an error yet."""
    _all_answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the last answer, for :meth:`wait_answered`."""
    _receipt: wire.BaseCommand = field(default_factory=lambda: wire.BaseCommand(type=wire.BaseCommand.SEND_RECEIPT))

    def send(self, command: wire.CommandSend, payload: memoryview) -> None:
        """Check and store the message of one SEND, and answer it in the order of the SENDs.

        The topic completes appends in order, so receipts need no queue.
        """
        sequence_id, highest = command.sequence_id, command.highest_sequence_id
        problem = check_payload(payload)
        if problem is None and self.topic.policy.delayed_delivery_max_delay_in_millis:
            problem = check_delay(payload, self.topic.policy.delayed_delivery_max_delay_in_millis)
        if problem is not None:
            self.connection.send(replies.send_error(self.producer_id, sequence_id, problem))
            return
        data = bytes(payload)
        messages = max(command.num_messages, 1)
        self.messages_in += messages
        self.bytes_in += len(data)
        self._unanswered += 1
        self.connection.publish_started(len(data))
        self.topic.append(data, messages, partial(self._done, sequence_id, highest, len(data)))

    @property
    def traffic_in(self) -> Traffic:
        """Messages that it has sent."""
        return Traffic(self.messages_in, self.bytes_in)

    async def wait_answered(self) -> None:
        """Wait until every SEND has its receipt or its error."""
        while self._unanswered:
            self._all_answered.clear()
            await self._all_answered.wait()

    def _done(self, sequence_id: int, highest: int, size: int, result: Position | AfterglowError) -> None:
        self.connection.publish_ended(size)
        self._unanswered -= 1
        if not self._unanswered:
            self._all_answered.set()
        if isinstance(result, TopicTerminated):
            # CLOSE_PRODUCER goes first, as in Pulsar: the client reconnects and learns at once that the topic is
            # terminated. After the error alone, Go's client does not reconnect, and its messages time out.
            self.topic.disconnect_producers()
            refused = Refused(wire.TopicTerminatedError, str(result))
            self.connection.send(replies.send_error(self.producer_id, sequence_id, refused))
            return
        if isinstance(result, Position):
            self.topic.entries_added += 1
        if self.closed:
            return
        if isinstance(result, Position):
            receipt = self._receipt.send_receipt
            receipt.producer_id = self.producer_id
            receipt.sequence_id = sequence_id
            receipt.highest_sequence_id = highest
            message_id = receipt.message_id
            # Ids of existing entries are never negative, so no sign needs conversion.
            message_id.ledgerId = result.ledger_id
            message_id.entryId = result.entry_id
            self.connection.send_bytes(encode_command(self._receipt))
        else:
            refused = replies.refusal(result)
            self.connection.send(replies.send_error(self.producer_id, sequence_id, refused))


def check_payload(payload: memoryview) -> Refused | None:
    """Check the bytes of a message as sent, with its checksum if it has one; returns the error, or None."""
    size, at = len(payload), 0
    if payload[:2] == CHECKSUM_MAGIC:
        if size < _CHECKSUM_END:
            return Refused(wire.ChecksumError, "message is truncated within its checksum")
        if crc32c(payload[_CHECKSUM_END:]) != _U32.unpack_from(payload, len(CHECKSUM_MAGIC))[0]:
            return Refused(wire.ChecksumError, "Checksum failed on the broker")
        at = _CHECKSUM_END
    metadata = at + _U32.size
    if size < metadata or _U32.unpack_from(payload, at)[0] > size - metadata:
        return Refused(wire.UnknownError, "message metadata exceeds the frame")
    return None


def check_delay(payload: memoryview, longest_ms: int) -> Refused | None:
    """Check the delivery time of a message, which corrupt metadata does not have; returns the error, or None."""
    try:
        metadata = decode_entry(payload, check=False).metadata
    except CorruptEntry:
        return None
    if metadata.HasField("deliver_at_time") and metadata.deliver_at_time - metadata.publish_time > longest_ms:
        return Refused(wire.NotAllowedError, f"Exceeds max allowed delivery delay of {longest_ms} milliseconds")
    return None
