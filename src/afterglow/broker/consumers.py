"""A consumer that a client has opened: its permits, and how messages reach it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from afterglow.broker.traffic import Traffic, TrafficMeter
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import encode_head

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from afterglow.broker.connection import Connection
    from afterglow.broker.outgoing import Outgoing
    from afterglow.broker.subscription import Subscription
    from afterglow.format.position import Position


@dataclass(slots=True)
class ConsumerTimes:
    """When something last happened, in epoch milliseconds; 0: not yet."""

    first_flow_ms: int = 0
    """First asked for messages."""
    last_flow_ms: int = 0
    first_sent_ms: int = 0
    """First sent to."""
    last_sent_ms: int = 0
    last_acked_ms: int = 0

    def flowed(self, now_ms: int) -> None:
        """It has asked for messages."""
        self.first_flow_ms = self.first_flow_ms or now_ms
        self.last_flow_ms = now_ms

    def sent(self, now_ms: int) -> None:
        """It was sent messages."""
        self.first_sent_ms = self.first_sent_ms or now_ms
        self.last_sent_ms = now_ms

    def or_later(self, other: ConsumerTimes) -> ConsumerTimes:
        """Of each the later one."""
        return ConsumerTimes(
            max(self.first_flow_ms, other.first_flow_ms),
            max(self.last_flow_ms, other.last_flow_ms),
            max(self.first_sent_ms, other.first_sent_ms),
            max(self.last_sent_ms, other.last_sent_ms),
            max(self.last_acked_ms, other.last_acked_ms),
        )


@dataclass(slots=True, eq=False)
class Consumer:
    """A consumer. All of it belongs to the event loop's thread."""

    consumer_id: int
    """Chosen by the client, unique on its connection."""
    name: str
    priority: int
    """Smaller ones are served first."""
    epoch: int | None
    """Of the client's view: messages of an older one are dropped by the client."""
    connection: Connection
    subscription: Subscription
    raw: bool = False
    """Whether it gets every entry as it is stored: with the broker's metadata, and markers too."""
    own: bool = False
    """Whether it is a reader of the server itself, as of a job that offloads: limits for clients are not for it."""
    offloads: bool = False
    """Whether it is an offload task's: what it is sent is counted by where it was found."""
    any_schema: bool = False
    """Whether it takes messages of any schema."""
    since_ms: int = 0
    """When it was opened, in epoch milliseconds."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """What the client told of it."""
    permits: int = 0
    """Messages, not entries; a batch may take it below zero."""
    pending: dict[Position, int] = field(default_factory=dict)
    """Sent to this consumer and not acknowledged, with the number of messages; kept in shared subscriptions only."""
    messages_out: int = 0
    entries_out: int = 0
    bytes_out: int = 0
    unacknowledged: int = 0
    """Messages in ``pending``."""
    meter: TrafficMeter = field(default_factory=TrafficMeter)
    times: ConsumerTimes = field(default_factory=ConsumerTimes)
    _command: wire.BaseCommand = field(default_factory=lambda: wire.BaseCommand(type=wire.BaseCommand.MESSAGE))

    @property
    def went(self) -> Traffic:
        """What it was sent."""
        return Traffic(self.messages_out, self.bytes_out)

    @property
    def ready(self) -> bool:
        """Whether it wants messages and can take them."""
        return self.permits > 0 and self.connection.can_write and not self.connection.closing

    def send(self, entry: Outgoing, now_ms: int, redeliveries: int = 0, ack_set: Sequence[int] | None = None) -> None:
        """Send one entry; the permits of its messages are gone, less those acknowledged already."""
        message = self._command.message
        message.Clear()
        message.consumer_id = self.consumer_id
        # Ids of entries that exist are never negative: no sign to convert.
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
        self.times.sent(now_ms)

    def hold(self, position: Position, messages: int) -> None:
        """Remember that an entry is with this consumer."""
        self.pending[position] = messages
        self.unacknowledged += messages

    def release(self, position: Position) -> bool:
        """Forget an entry that is acknowledged or goes to another; True if it was with this consumer."""
        messages = self.pending.pop(position, None)
        if messages is None:
            return False
        self.unacknowledged -= messages
        return True
