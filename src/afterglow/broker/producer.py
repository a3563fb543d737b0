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
from afterglow.format.new_entries import EntryTable, NewEntry
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused

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

    def send(self, command: wire.CommandSend, payload: memoryview) -> None:
        """Check and store the message of one SEND, and answer it in the order of the SENDs.

        The topic completes appends in order, so receipts need no queue.
        """
        problem = check_payload(payload)
        if problem is None and self.topic.policy.delayed_delivery_max_delay_in_millis:
            problem = check_delay(payload, self.topic.policy.delayed_delivery_max_delay_in_millis)
        if problem is not None:
            self.connection.send(replies.send_error(self.producer_id, command.sequence_id, problem))
            return
        self._store(NewEntry(payload, max(command.num_messages, 1), command.sequence_id, command.highest_sequence_id))

    def send_all(self, entries: NewEntry | EntryTable) -> None:
        """Store messages with valid checksums, and answer them."""
        longest_ms = self.topic.policy.delayed_delivery_max_delay_in_millis
        if not longest_ms:
            self._store(entries)
            return
        for entry in entries.each() if isinstance(entries, EntryTable) else (entries,):
            if (problem := check_delay(entry.data, longest_ms)) is None:
                self._store(entry)
            else:
                self.connection.send(replies.send_error(self.producer_id, entry.sequence_id, problem))

    def _store(self, entries: NewEntry | EntryTable) -> None:
        size = entries.size_bytes
        self.messages_in += entries.messages
        self.bytes_in += size
        self._unanswered += len(entries)
        self.connection.publish_started(size)
        self.topic.append(entries, partial(self._done, entries))

    @property
    def traffic_in(self) -> Traffic:
        """Messages that it has sent."""
        return Traffic(self.messages_in, self.bytes_in)

    async def wait_answered(self) -> None:
        """Wait until every SEND has its receipt or its error."""
        while self._unanswered:
            self._all_answered.clear()
            await self._all_answered.wait()

    def _done(self, entries: NewEntry | EntryTable, result: Position | AfterglowError) -> None:
        self.connection.publish_ended(entries.size_bytes)
        count = len(entries)
        self._unanswered -= count
        if not self._unanswered:
            self._all_answered.set()
        if isinstance(result, Position):
            self.topic.entries_added += count
            if self.closed:
                pass
            elif isinstance(entries, EntryTable):
                self.connection.send_bytes(entries.receipts(result.ledger_id, result.entry_id))
            else:
                self.connection.send_receipt(
                    (
                        self.producer_id,
                        entries.sequence_id,
                        entries.highest_sequence_id,
                        result.ledger_id,
                        result.entry_id,
                    )
                )
            return
        if isinstance(result, TopicTerminated):
            # CLOSE_PRODUCER goes first, as in Pulsar: the client reconnects and learns at once that the topic is
            # terminated. After the error alone, Go's client does not reconnect, and its messages time out.
            self.topic.disconnect_producers()
            refused = Refused(wire.TopicTerminatedError, str(result))
        elif self.closed:
            return
        else:
            refused = replies.refusal(result)
        for sequence_id in entries.sequence_ids:
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


def check_delay(payload: bytes | bytearray | memoryview, longest_ms: int) -> Refused | None:
    """Check the delivery time of a message, which corrupt metadata does not have; returns the error, or None."""
    try:
        metadata = decode_entry(payload, check=False).metadata
    except CorruptEntry:
        return None
    if metadata.HasField("deliver_at_time") and metadata.deliver_at_time - metadata.publish_time > longest_ms:
        return Refused(wire.NotAllowedError, f"Exceeds max allowed delivery delay of {longest_ms} milliseconds")
    return None
