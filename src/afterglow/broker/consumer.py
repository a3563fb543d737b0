"""A consumer that a client has opened, and the entries that it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from afterglow.broker.traffic import Traffic, TrafficMeter
from afterglow.errors import CorruptEntry
from afterglow.format.entry import decode_entry, split_broker_metadata
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import encode_head, encode_messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from afterglow.broker.connection import Connection
    from afterglow.broker.subscription import Subscription
    from afterglow.format.wire import EncodedMessages
    from afterglow.ledger.reader import LedgerEntries, StoredEntry


@dataclass(frozen=True, slots=True)
class OutgoingEntry:
    """A stored entry, ready to be sent to consumers."""

    position: Position
    data: memoryview
    """The bytes that the client receives: without the broker's metadata, unless that is exposed."""
    messages: int
    """Permits that the entry uses: the size of the batch, or 1."""
    marker: bool
    """Whether a broker wrote it for brokers: such an entry is never sent, and counts as acknowledged."""
    deliver_at_ms: int = 0
    """Epoch milliseconds before which a shared subscription does not deliver the entry; 0: at once."""


def prepare_entry(entry: StoredEntry, *, expose_broker_metadata: bool) -> OutgoingEntry:
    """Prepare a stored entry for sending. A corrupt entry is sent as one message, and its client reports it."""
    data = memoryview(entry.data)
    try:
        _, stripped = split_broker_metadata(data)
        metadata = decode_entry(stripped, check=False).metadata
    except CorruptEntry:
        return OutgoingEntry(entry.position, data, 1, marker=False)
    messages = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
    return OutgoingEntry(
        entry.position,
        data if expose_broker_metadata else stripped,
        max(messages, 1),
        metadata.HasField("marker_type"),
        metadata.deliver_at_time,
    )


@dataclass(slots=True)
class ConsumerTimes:
    """Times of the first and last FLOW, message and acknowledgement, in epoch milliseconds; 0: none yet."""

    first_flow_ms: int = 0
    last_flow_ms: int = 0
    first_sent_ms: int = 0
    last_sent_ms: int = 0
    last_acked_ms: int = 0

    def on_flow(self, now_ms: int) -> None:
        """Record a FLOW, by which the consumer asks for messages."""
        self.first_flow_ms = self.first_flow_ms or now_ms
        self.last_flow_ms = now_ms

    def on_sent(self, now_ms: int) -> None:
        """Record messages that were sent to the consumer."""
        self.first_sent_ms = self.first_sent_ms or now_ms
        self.last_sent_ms = now_ms

    def latest(self, other: ConsumerTimes) -> ConsumerTimes:
        """The later time of each pair."""
        return ConsumerTimes(
            max(self.first_flow_ms, other.first_flow_ms),
            max(self.last_flow_ms, other.last_flow_ms),
            max(self.first_sent_ms, other.first_sent_ms),
            max(self.last_sent_ms, other.last_sent_ms),
            max(self.last_acked_ms, other.last_acked_ms),
        )


@dataclass(slots=True, eq=False)
class Consumer:
    """An open consumer. Belongs to the event loop's thread."""

    consumer_id: int
    """Chosen by the client, unique on its connection."""
    name: str
    priority: int
    """Consumers with smaller numbers are served first."""
    epoch: int | None
    """Epoch that the client has set: it drops messages of older ones."""
    connection: Connection
    subscription: Subscription
    raw: bool = False
    """Whether it receives every entry as stored: with the broker's metadata, markers included."""
    internal: bool = False
    """Whether it is a reader of the server itself, such as an offload task: limits for clients do not apply to it."""
    offloads: bool = False
    """Whether it belongs to an offload task, whose reads are counted by origin."""
    any_schema: bool = False
    """Whether it accepts messages of any schema (AUTO_CONSUME)."""
    since_ms: int = 0
    """When it was opened, in epoch milliseconds."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Metadata that the client gave in SUBSCRIBE."""
    permits: int = 0
    """Messages, not entries; a batch may make it negative."""
    pending: dict[Position, int] = field(default_factory=dict)
    """Number of messages by position of entries sent and not acknowledged; of shared subscriptions only."""
    messages_out: int = 0
    entries_out: int = 0
    bytes_out: int = 0
    unacknowledged: int = 0
    """Messages in ``pending``."""
    meter: TrafficMeter = field(default_factory=TrafficMeter)
    times: ConsumerTimes = field(default_factory=ConsumerTimes)
    _command: wire.BaseCommand = field(default_factory=lambda: wire.BaseCommand(type=wire.BaseCommand.MESSAGE))

    @property
    def traffic_out(self) -> Traffic:
        """Messages that were sent to it."""
        return Traffic(self.messages_out, self.bytes_out)

    @property
    def ready(self) -> bool:
        """Whether it has permits and its connection accepts data."""
        return self.permits > 0 and self.connection.can_write and not self.connection.closing

    def send(
        self, entry: OutgoingEntry, now_ms: int, redeliveries: int = 0, ack_set: Sequence[int] | None = None
    ) -> None:
        """Send one entry; uses a permit for each of its messages that is not acknowledged yet."""
        message = self._command.message
        message.Clear()
        message.consumer_id = self.consumer_id
        # Ids of existing entries are never negative, so no sign needs conversion.
        message.message_id.ledgerId = entry.position.ledger_id
        message.message_id.entryId = entry.position.entry_id
        message.message_id.partition = self.subscription.topic.partition
        if redeliveries:
            message.redelivery_count = redeliveries
        messages = entry.messages
        if ack_set is not None:
            message.ack_set.extend(ack_set)
            messages = sum((word & 0xFFFFFFFFFFFFFFFF).bit_count() for word in ack_set)
        if self.epoch is not None:
            message.consumer_epoch = self.epoch
        head = encode_head(self._command.SerializeToString(), len(entry.data))
        self.connection.send_bytes(head, entry.data)
        self.permits -= messages
        self.messages_out += messages
        self.entries_out += 1
        self.bytes_out += len(entry.data)
        self.times.on_sent(now_ms)

    def encode(self, found: LedgerEntries, *, expose_broker_metadata: bool) -> EncodedMessages:
        """Encode entries of which no message is acknowledged, up to a damaged one or a marker."""
        return encode_messages(
            found.entries,
            consumer_id=self.consumer_id,
            ledger_id=found.ledger_id,
            first_id=found.first,
            partition=self.subscription.topic.partition,
            epoch=self.epoch,
            expose_broker_metadata=expose_broker_metadata,
        )

    def send_encoded(self, encoded: EncodedMessages, now_ms: int) -> None:
        """Send the entries that :meth:`encode` has encoded."""
        if encoded.entries:
            self.connection.send_bytes(encoded.frames)
            self.permits -= encoded.messages
            self.messages_out += encoded.messages
            self.entries_out += encoded.entries
            self.bytes_out += encoded.size_bytes
            self.times.on_sent(now_ms)

    def hold(self, position: Position, messages: int) -> None:
        """Record an entry as pending with this consumer."""
        self.pending[position] = messages
        self.unacknowledged += messages

    def hold_all(self, found: LedgerEntries) -> None:
        """Record entries of one message each as pending with this consumer."""
        positions = (Position(found.ledger_id, found.first + number) for number in range(len(found.entries)))
        self.pending.update(dict.fromkeys(positions, 1))
        self.unacknowledged += len(found.entries)

    def release(self, position: Position) -> bool:
        """Remove an entry that was acknowledged or goes to another consumer; True if it was pending here."""
        messages = self.pending.pop(position, None)
        if messages is None:
            return False
        self.unacknowledged -= messages
        return True
