"""A subscription: a cursor, its consumers, and a dispatcher between them.

Only consumers of the best priority level take part. The partitions of a topic are dealt out to them in the order of
their names; a topic without partitions goes to the consumer that follows the topic's name on a hash ring, so that the
topics of an application spread over its consumers.

An acknowledgement names the message alone. Its producer is looked up where the entry is still in memory, which it is
when the client has just been sent it; so a line is logged once per minute for each subscription and producer, and once
per minute for a subscription's messages that are no longer in memory.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias

from afterglow.broker import replies
from afterglow.broker.consumers import ConsumerTimes
from afterglow.broker.dispatch import DispatchTask, SharedDispatcher, SingleActiveDispatcher
from afterglow.broker.in_order import InOrder
from afterglow.broker.replies import signed
from afterglow.broker.traffic import Traffic, TrafficMeter, total
from afterglow.errors import CorruptEntry
from afterglow.format.entry import decode_entry
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused
from afterglow.ledger.durable_cursor import DurableCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from afterglow.broker.consumers import Consumer
    from afterglow.broker.topic import Topic
    from afterglow.errors import AfterglowError
    from afterglow.format.position import LedgerRange
    from afterglow.ledger.cursor import Cursor

log = logging.getLogger(__name__)

RING_POINTS: Final = 100
"""Places of one consumer on the hash ring."""

_MASK: Final = 0xFFFFFFFF


def choose_active(
    consumers: Sequence[Consumer], topic: str, partition: int, *, consistent_hashing: bool = False
) -> Consumer:
    """Return the consumer that gets the messages.

    Args:
        consumers: All that are connected; at least one.
        topic: The topic's full name.
        partition: The index of the partition, -1 if the topic is not partitioned.
        consistent_hashing: Whether partitions are placed by the hash ring too.
    """
    best = min(consumer.priority for consumer in consumers)
    rivals = sorted((found for found in consumers if found.priority == best), key=lambda found: found.name)
    if partition >= 0 and not consistent_hashing:
        return rivals[partition % len(rivals)]
    wanted = murmur3(topic.encode())
    chosen, least = rivals[0], -1
    for consumer in rivals:
        points = _ring_points(consumer.name)
        at = bisect_left(points, wanted)
        # Behind the last point the ring begins again.
        distance = points[at] - wanted if at < len(points) else points[0] - wanted + (1 << 31)
        if least < 0 or distance <= least:
            chosen, least = consumer, distance
    return chosen


@lru_cache(maxsize=4096)
def _ring_points(name: str) -> tuple[int, ...]:
    return tuple(sorted(murmur3(f"{name}{number}".encode()) for number in range(RING_POINTS)))


def murmur3(data: bytes) -> int:
    """Return the MurmurHash3 (x86, 32 bits, seed 0) of the data without its sign bit, as Pulsar uses it."""
    value = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        value ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        value ^= _mixed(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return (value ^ value >> 16) & 0x7FFFFFFF


def _mixed(word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    word = (word << 15 | word >> 17) & _MASK
    return word * 0x1B873593 & _MASK


INTERVAL_MS: Final = 60_000
_MOST_PRODUCERS: Final = 1_000
"""Producers of one subscription whose last lines are remembered; more of them share a line."""


class UnreadableMessages:
    """Logs what consumers of one subscription could not read, at a bounded rate.

    Args:
        subscription: Whose consumers they are.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._logged_ms: dict[str, int] = {}
        self._passed_over: dict[str, int] = {}

    def report(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        """Log an acknowledgement that carries a validation error, unless its producer had a line within a minute."""
        position = _position(ack.message_id[0]) if ack.message_id else None
        producer = "" if position is None else self._producer(position)
        now_ms = self._subscription.now_ms()
        if producer not in self._logged_ms and len(self._logged_ms) >= _MOST_PRODUCERS:
            self._forget(now_ms)
            if len(self._logged_ms) >= _MOST_PRODUCERS:
                producer = ""
        last_ms = self._logged_ms.get(producer)
        if last_ms is not None and now_ms - last_ms < INTERVAL_MS:
            self._passed_over[producer] = self._passed_over.get(producer, 0) + 1
            return
        self._logged_ms[producer] = now_ms
        log.warning(
            "%s: consumer %s could not read %s of producer %s: %s; %d more since the last such line",
            self._subscription,
            consumer.name,
            position,
            producer or "(not known)",
            wire.CommandAck.ValidationError.Name(ack.validation_error),
            self._passed_over.pop(producer, 0),
        )

    def _producer(self, position: Position) -> str:
        """Who sent a message, empty where it is not in memory."""
        held = self._subscription.topic.ledger.reader.read_memory(position, 1, 1)
        if held is None or not held.entries or held.entries[0].position != position:
            return ""
        try:
            return decode_entry(held.entries[0].data, check=False).metadata.producer_name
        except CorruptEntry:
            return ""

    def _forget(self, now_ms: int) -> None:
        kept = {name: at_ms for name, at_ms in self._logged_ms.items() if now_ms - at_ms < INTERVAL_MS}
        self._logged_ms = kept
        self._passed_over = {name: count for name, count in self._passed_over.items() if name in kept}


def _position(message_id: wire.MessageIdData) -> Position:
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


READER_GRACE_S: Final = 60.0
"""Clients come back from a seek at once; those that lost their connection meanwhile, after some seconds."""

SubType = wire.CommandSubscribe
SubTypeValue: TypeAlias = "wire.CommandSubscribe.SubType.ValueType"


def position_of(message_id: wire.MessageIdData) -> Position:
    """The position that a message id names."""
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


class Subscription:
    """One subscription of a topic. All of it belongs to the event loop's thread."""

    def __init__(self, topic: Topic, name: str, cursor: Cursor, kind: SubTypeValue, *, durable: bool) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.kind = kind
        self.durable = durable
        self.consumers: list[Consumer] = []
        self._past_out = Traffic()
        self.meter = TrafficMeter()
        self._past_times = ConsumerTimes()
        self.last_advanced_ms = 0
        """When an acknowledgement last moved the mark-delete position, in epoch milliseconds; 0: not yet."""
        self.now_ms = topic.service.store.clock.now_ms
        self._told_end: set[Consumer] = set()
        self._unreadable = UnreadableMessages(self)
        self._persisted = InOrder(asyncio.get_running_loop())
        self._active: Consumer | None = None
        self._takeover: asyncio.TimerHandle | None = None
        """Lets the active consumer of a Failover subscription have messages, a while after it became that."""
        self._dispatcher = self._new_dispatcher(cursor.read_position)
        self._task = DispatchTask(self, self._dispatcher)

    def __str__(self) -> str:
        return f"subscription {self.name} of {self.topic.name}"

    @property
    def max_unacknowledged(self) -> int:
        """Messages without acknowledgement at which a consumer of a shared subscription gets no more; 0: no limit."""
        return self.topic.policy.max_unacked_messages_per_consumer

    @property
    def active(self) -> Consumer | None:
        """The one consumer that messages go to; None where there is none, or where they go to all."""
        return self._active

    @property
    def receiver(self) -> Consumer | None:
        """The active consumer, once it may have messages: not while it waits for the last one to acknowledge."""
        return self._active if self._takeover is None else None

    @property
    def delayed(self) -> int:
        """Messages that are held back until their delivery time."""
        return len(self._dispatcher.delayed) if isinstance(self._dispatcher, SharedDispatcher) else 0

    @property
    def out(self) -> Traffic:
        """What was sent to consumers, also to those that are gone."""
        return total([self._past_out, *(consumer.went for consumer in self.consumers)])

    @property
    def times(self) -> ConsumerTimes:
        """When something last happened with any of its consumers, also with those that are gone."""
        found = self._past_times
        for consumer in self.consumers:
            found = found.or_later(consumer.times)
        return found

    @property
    def exposes_to_all(self) -> bool:
        """Whether every consumer may see the broker's metadata."""
        return all(self.exposes_to(consumer) for consumer in self.consumers)

    def exposes_to(self, consumer: Consumer) -> bool:
        """Whether a consumer may see the broker's metadata (PIP-70).

        It asked for entries as they are stored; or the broker says so, and its client can.
        """
        peer = consumer.connection.peer
        return consumer.raw or (
            self.topic.service.config.exposing_broker_entry_metadata_to_client_enabled
            and peer is not None
            and peer.protocol_version >= 18
            and peer.supports_broker_metadata
        )

    # --- consumers ---

    def add(self, consumer: Consumer, kind: SubTypeValue) -> None:
        """Add a consumer.

        Raises:
            Refused: The subscription is of another type, exclusive and taken, or there are enough consumers.
        """
        if not consumer.own:
            self.topic.check_room(self.name)
        if self.consumers and kind != self.kind:
            raise Refused(wire.ConsumerBusy, f"{self} is of type {SubType.SubType.Name(self.kind)}")
        if self.consumers and kind == SubType.Exclusive:
            raise Refused(wire.ConsumerBusy, f"Exclusive consumer is already connected to {self}")
        if kind != self.kind:
            self._change_kind(kind)
        self.consumers.append(consumer)
        if not self._choose_active() and kind == SubType.Failover:
            self._notify_active(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer out; what it has not acknowledged goes to others."""
        if consumer not in self.consumers:
            return
        self._take_out(consumer)
        self._choose_active()
        self._told_end.discard(consumer)
        self.wake()
        self.topic.consumer_left(self)

    def disconnect_consumers(self) -> None:
        """Make every client subscribe again."""
        for consumer in list(self.consumers):
            consumer.connection.send(replies.close_consumer(consumer.consumer_id))
            consumer.connection.session.consumers.pop(consumer.consumer_id, None)
            self._take_out(consumer)
        self._choose_active()
        self._told_end.clear()

    def _take_out(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._past_out.add(consumer.messages_out, consumer.bytes_out)
        self._past_times = self._past_times.or_later(consumer.times)
        if self._active is None or consumer is self._active:
            self._dispatcher.left(consumer)

    def _change_kind(self, kind: SubTypeValue) -> None:
        self._dispatcher.close()
        self.kind = kind
        self._dispatcher = self._new_dispatcher(self.cursor.mark_delete.next())
        self._task.replace(self._dispatcher)

    def _new_dispatcher(self, start: Position) -> SharedDispatcher | SingleActiveDispatcher:
        return SharedDispatcher(self, start) if self.kind == SubType.Shared else SingleActiveDispatcher(self, start)

    def _choose_active(self) -> bool:
        """Choose the active consumer where there is one; True if it is another than before."""
        chosen: Consumer | None = None
        if self.kind == SubType.Failover and self.consumers:
            chosen = choose_active(
                self.consumers,
                str(self.topic.name),
                self.topic.partition,
                consistent_hashing=self.topic.service.config.active_consumer_failover_consistent_hashing,
            )
        elif self.kind == SubType.Exclusive and self.consumers:
            chosen = self.consumers[0]
        if chosen is self._active:
            return False
        self._active = chosen
        if chosen is None and self._takeover is not None:
            self._takeover.cancel()
            self._takeover = None
        if self.kind == SubType.Failover and chosen is not None and self._takeover is None:
            # What the last consumer acknowledges in this time need not be sent twice.
            delay_s = self.topic.service.config.active_consumer_failover_delay_time_millis / 1000
            self._takeover = asyncio.get_running_loop().call_later(delay_s, self._take_over)
        return True

    def _take_over(self) -> None:
        """Have the active consumer begin with the first entry that is not acknowledged."""
        self._takeover = None
        self._dispatcher.rewind(self.cursor.mark_delete.next())
        for consumer in self.consumers:
            self._notify_active(consumer)
        self.wake()

    def _notify_active(self, consumer: Consumer) -> None:
        """Tell a consumer of a Failover subscription whether it is the active one; clients before v12 do not ask."""
        peer = consumer.connection.peer
        if peer is not None and peer.protocol_version >= 12:
            command = wire.BaseCommand(type=wire.BaseCommand.ACTIVE_CONSUMER_CHANGE)
            command.active_consumer_change.consumer_id = consumer.consumer_id
            command.active_consumer_change.is_active = consumer is self._active
            consumer.connection.send(command)

    # --- what consumers ask ---

    def wake(self) -> None:
        """Something may have become possible."""
        self._task.wake()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """A consumer takes more messages."""
        consumer.permits += permits
        consumer.times.flowed(self.now_ms())
        self.wake()

    def acknowledge(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        """Acknowledge messages, one by one or all up to one.

        Raises:
            Refused: Messages of a shared subscription cannot be acknowledged cumulatively.
        """
        if ack.HasField("validation_error"):
            self._unreadable.report(consumer, ack)
        before = self.cursor.mark_delete
        self._acknowledge(consumer, ack)
        consumer.times.last_acked_ms = self.now_ms()
        if self.cursor.mark_delete != before:
            self.last_advanced_ms = consumer.times.last_acked_ms
            self.reached_end()

    def _acknowledge(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        if ack.ack_type == wire.CommandAck.Cumulative:
            if self.kind == SubType.Shared:
                raise Refused(wire.NotAllowedError, "a shared subscription takes no cumulative acknowledgements")
            for message_id in ack.message_id:
                self.cursor.ack_through(position_of(message_id), tuple(message_id.ack_set) or None)
            return
        acks = [(position_of(message_id), tuple(message_id.ack_set) or None) for message_id in ack.message_id]
        self.cursor.ack(acks)
        if isinstance(self._dispatcher, SharedDispatcher):
            for position, _ in acks:
                if self.cursor.is_acked(position):
                    self._settled(consumer, position)
            if self.max_unacknowledged:
                self.wake()

    def persist(self, done: Callable[[AfterglowError | None], None]) -> None:
        """Have what was acknowledged made durable; ``done`` is called in the loop's thread."""
        if isinstance(self.cursor, DurableCursor):
            self.cursor.flush(lambda error: self._persisted.run(partial(done, error)))
        else:
            done(None)

    def _settled(self, consumer: Consumer, position: Position) -> None:
        assert isinstance(self._dispatcher, SharedDispatcher)
        if not consumer.release(position):
            for other in self.consumers:
                if other.release(position):
                    break
        self._dispatcher.acknowledged(position)

    def acknowledge_marker(self, position: Position) -> None:
        """An entry that no client sees counts as acknowledged."""
        self.cursor.ack([(position, None)])

    def leave_out(self, spans: Iterable[LedgerRange]) -> None:
        """What no copy can give counts as acknowledged: nobody will ever acknowledge it."""
        for span in spans:
            log.warning(
                "%s: entries %s:%s to %s cannot be read and count as acknowledged",
                self,
                span.ledger_id,
                span.first,
                span.last,
            )
            self.cursor.ack_ranges([span])

    def redeliver(self, consumer: Consumer, request: wire.CommandRedeliverUnacknowledgedMessages) -> None:
        """Send messages again. Of a Failover subscription only the active consumer has any."""
        if self.kind == SubType.Failover and consumer is not self._active:
            return
        positions = [position_of(message_id) for message_id in request.message_ids] or None
        if request.HasField("consumer_epoch"):
            consumer.epoch = request.consumer_epoch
        self._dispatcher.redeliver(consumer, positions)
        self.wake()

    def reset(self, position: Position, ack_set: tuple[int, ...] | None = None) -> None:
        """Make the entry at ``position``, or the next one that exists, the next to be sent.

        A reader's subscription waits for the reader to come back from this, and goes if it does not.
        """
        self._dispatcher.rewind(self.cursor.reset(position, ack_set))
        if not self.durable:
            asyncio.get_running_loop().call_later(READER_GRACE_S, self.topic.consumer_left, self)

    def reached_end(self) -> None:
        """Nothing is left to read: where the topic has ended for good, consumers are told once.

        Not before all is acknowledged: a client that knows of the end may drop what it has still to acknowledge.
        Readers acknowledge nothing that is kept.
        """
        if not self.topic.terminated or (self.durable and self.cursor.backlog):
            return
        for consumer in self.consumers:
            if consumer not in self._told_end:
                self._told_end.add(consumer)
                command = wire.BaseCommand(type=wire.BaseCommand.REACHED_END_OF_TOPIC)
                command.reachedEndOfTopic.consumer_id = consumer.consumer_id
                consumer.connection.send(command)

    async def close(self) -> None:
        """Stop sending. The cursor stays."""
        if self._takeover is not None:
            self._takeover.cancel()
        self._dispatcher.close()
        await self._task.stop()
