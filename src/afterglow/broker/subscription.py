"""A subscription: a cursor, its consumers, and a dispatcher between them.

The active consumer of a Failover subscription is one of those with the best priority level. Partitions are assigned to
these in the order of their names; a topic without partitions goes to the consumer that follows the topic's name on a
hash ring, so that the topics of an application spread over its consumers.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias

from afterglow.broker import replies
from afterglow.broker.consumer import ConsumerTimes
from afterglow.broker.dispatcher import DispatchTask, SharedDispatcher, SingleActiveDispatcher
from afterglow.broker.log_throttle import LogThrottle
from afterglow.broker.ordered_calls import OrderedCalls
from afterglow.broker.replies import to_position
from afterglow.broker.traffic import Traffic, TrafficMeter, total
from afterglow.errors import CorruptEntry
from afterglow.format.entry import decode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused
from afterglow.ledger.durable_cursor import DurableCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from afterglow.broker.consumer import Consumer
    from afterglow.broker.topic import Topic
    from afterglow.errors import AfterglowError
    from afterglow.format.position import LedgerRange, Position
    from afterglow.ledger.cursor import Cursor

log = logging.getLogger(__name__)

RING_POINTS: Final = 100
"""Points of one consumer on the hash ring."""

_MASK: Final = 0xFFFFFFFF


def choose_active(
    consumers: Sequence[Consumer], topic: str, partition: int, *, consistent_hashing: bool = False
) -> Consumer:
    """Return the active consumer of a Failover subscription.

    Args:
        consumers: All connected consumers, at least one.
        topic: The topic's full name.
        partition: The index of the partition, -1 if the topic is not partitioned.
        consistent_hashing: Whether partitions are assigned by the hash ring too.
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
        # After the last point the ring starts again.
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


READER_GRACE_S: Final = 60.0
"""Lifetime of a reader's subscription after a seek. Clients reconnect at once, or seconds after a lost connection."""

SubType = wire.CommandSubscribe
SubTypeValue: TypeAlias = "wire.CommandSubscribe.SubType.ValueType"


class Subscription:
    """One subscription of a topic. Belongs to the event loop's thread."""

    def __init__(self, topic: Topic, name: str, cursor: Cursor, kind: SubTypeValue, *, durable: bool) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.kind = kind
        self.durable = durable
        self.consumers: list[Consumer] = []
        self._past_traffic_out = Traffic()
        self.meter = TrafficMeter()
        self._past_times = ConsumerTimes()
        self.last_advanced_ms = 0
        """When an acknowledgement last moved the mark-delete position, in epoch milliseconds; 0: never."""
        self.now_ms = topic.service.store.clock.now_ms
        self._end_notified: set[Consumer] = set()
        self._unreadable = LogThrottle(lambda: self.now_ms() / 1000)
        self._persisted = OrderedCalls(asyncio.get_running_loop())
        self._active: Consumer | None = None
        self._takeover: asyncio.TimerHandle | None = None
        """Starts dispatch to the active consumer of a Failover subscription, some time after it was chosen."""
        self._dispatcher = self._new_dispatcher(cursor.read_position)
        self._task = DispatchTask(self, self._dispatcher)

    def __str__(self) -> str:
        return f"subscription {self.name} of {self.topic.name}"

    @property
    def max_unacknowledged(self) -> int:
        """Limit of unacknowledged messages of each consumer of a shared subscription; 0: no limit."""
        return self.topic.policy.max_unacked_messages_per_consumer

    @property
    def active(self) -> Consumer | None:
        """The only consumer that messages go to; None without consumers, and for shared subscriptions."""
        return self._active

    @property
    def receiver(self) -> Consumer | None:
        """The active consumer; None during the delay in which its predecessor may still acknowledge."""
        return self._active if self._takeover is None else None

    @property
    def delayed(self) -> int:
        """Number of messages that wait for their delivery time."""
        return len(self._dispatcher.delayed) if isinstance(self._dispatcher, SharedDispatcher) else 0

    @property
    def traffic_out(self) -> Traffic:
        """Messages to consumers, including closed ones."""
        return total([self._past_traffic_out, *(consumer.traffic_out for consumer in self.consumers)])

    @property
    def times(self) -> ConsumerTimes:
        """The latest times of all its consumers, including closed ones."""
        found = self._past_times
        for consumer in self.consumers:
            found = found.latest(consumer.times)
        return found

    @property
    def exposes_to_all(self) -> bool:
        """Whether every consumer receives the broker's metadata."""
        return all(self.exposes_to(consumer) for consumer in self.consumers)

    def exposes_to(self, consumer: Consumer) -> bool:
        """Whether a consumer receives the broker's metadata (PIP-70): as a raw reader, or by the broker's settings."""
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
            Refused: The subscription has another type, is exclusive and in use, or has reached a limit of consumers.
        """
        if not consumer.internal:
            self.topic.check_consumer_limits(self.name)
        if self.consumers and kind != self.kind:
            raise Refused(wire.ConsumerBusy, f"{self} has the type {SubType.SubType.Name(self.kind)}")
        if self.consumers and kind == SubType.Exclusive:
            raise Refused(wire.ConsumerBusy, f"Exclusive consumer is already connected to {self}")
        if kind != self.kind:
            self._change_kind(kind)
        self.consumers.append(consumer)
        if not self._choose_active() and kind == SubType.Failover:
            self._notify_active(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; its unacknowledged messages go to others."""
        if consumer not in self.consumers:
            return
        self._detach(consumer)
        self._choose_active()
        self._end_notified.discard(consumer)
        self.wake()
        self.topic.on_consumer_removed(self)

    def disconnect_consumers(self) -> None:
        """Make every client subscribe again."""
        for consumer in list(self.consumers):
            consumer.connection.send(replies.close_consumer(consumer.consumer_id))
            consumer.connection.session.consumers.pop(consumer.consumer_id, None)
            self._detach(consumer)
        self._choose_active()
        self._end_notified.clear()

    def _detach(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._past_traffic_out.add(consumer.messages_out, consumer.bytes_out)
        self._past_times = self._past_times.latest(consumer.times)
        if self._active is None or consumer is self._active:
            self._dispatcher.on_consumer_removed(consumer)

    def _change_kind(self, kind: SubTypeValue) -> None:
        self._dispatcher.close()
        self.kind = kind
        self._dispatcher = self._new_dispatcher(self.cursor.mark_delete.next())
        self._task.replace(self._dispatcher)

    def _new_dispatcher(self, start: Position) -> SharedDispatcher | SingleActiveDispatcher:
        return SharedDispatcher(self, start) if self.kind == SubType.Shared else SingleActiveDispatcher(self, start)

    def _choose_active(self) -> bool:
        """Choose the active consumer, if the type has one; True if it has changed."""
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
            # Messages that the previous consumer acknowledges in this time need not be sent twice.
            delay_s = self.topic.service.config.active_consumer_failover_delay_time_millis / 1000
            self._takeover = asyncio.get_running_loop().call_later(delay_s, self._take_over)
        return True

    def _take_over(self) -> None:
        """Start dispatch to the active consumer, at the first unacknowledged entry."""
        self._takeover = None
        self._dispatcher.rewind(self.cursor.mark_delete.next())
        for consumer in self.consumers:
            self._notify_active(consumer)
        self.wake()

    def _notify_active(self, consumer: Consumer) -> None:
        """Notify a consumer whether it is the active one; clients before protocol 12 do not know the command."""
        peer = consumer.connection.peer
        if peer is not None and peer.protocol_version >= 12:
            command = wire.BaseCommand(type=wire.BaseCommand.ACTIVE_CONSUMER_CHANGE)
            command.active_consumer_change.consumer_id = consumer.consumer_id
            command.active_consumer_change.is_active = consumer is self._active
            consumer.connection.send(command)

    # --- commands of consumers ---

    def wake(self) -> None:
        """Check whether messages can be sent now."""
        self._task.wake()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add permits of a consumer."""
        consumer.permits += permits
        consumer.times.on_flow(self.now_ms())
        self.wake()

    def acknowledge(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        """Acknowledge messages, individually or cumulatively.

        Raises:
            Refused: Messages of a shared subscription cannot be acknowledged cumulatively.
        """
        if ack.HasField("validation_error"):
            self._report_unreadable(consumer, ack)
        before = self.cursor.mark_delete
        self._acknowledge(consumer, ack)
        consumer.times.last_acked_ms = self.now_ms()
        if self.cursor.mark_delete != before:
            self.last_advanced_ms = consumer.times.last_acked_ms
            self.notify_end()

    def _acknowledge(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        if ack.ack_type == wire.CommandAck.Cumulative:
            if self.kind == SubType.Shared:
                raise Refused(wire.NotAllowedError, "shared subscriptions do not support cumulative acknowledgements")
            for message_id in ack.message_id:
                self.cursor.ack_through(to_position(message_id), tuple(message_id.ack_set) or None)
            return
        acks = [(to_position(message_id), tuple(message_id.ack_set) or None) for message_id in ack.message_id]
        self.cursor.ack(acks)
        if isinstance(self._dispatcher, SharedDispatcher):
            for position, words in acks:
                if words is None or self.cursor.is_acked(position):
                    self._release(consumer, position)
            if self.max_unacknowledged:
                self.wake()

    def persist(self, done: Callable[[AfterglowError | None], None]) -> None:
        """Make acknowledgements durable; ``done`` is called in the loop's thread."""
        if isinstance(self.cursor, DurableCursor):
            self.cursor.flush(lambda error: self._persisted.run(partial(done, error)))
        else:
            done(None)

    def _report_unreadable(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        """Log a message that a consumer could not read, at most once per minute for each producer.

        The acknowledgement does not name the producer. It is read from the entry while that is still in memory, which
        it usually is, since the client has just received it.
        """
        position = to_position(ack.message_id[0]) if ack.message_id else None
        producer = "" if position is None else self._producer_of(position)
        if (dropped := self._unreadable.admit(producer)) is not None:
            log.warning(
                "%s: consumer %s could not read %s of producer %s: %s%s",
                self,
                consumer.name,
                position,
                producer or "(unknown)",
                wire.CommandAck.ValidationError.Name(ack.validation_error),
                dropped,
            )

    def _producer_of(self, position: Position) -> str:
        """Name of a message's producer; empty if the entry is not in memory, or corrupt."""
        held = self.topic.ledger.reader.read_memory(position, 1, 1)
        if held is None or not held.entries or held.entries[0].position != position:
            return ""
        try:
            return decode_entry(held.entries[0].data, check=False).metadata.producer_name
        except CorruptEntry:
            return ""

    def _release(self, consumer: Consumer, position: Position) -> None:
        assert isinstance(self._dispatcher, SharedDispatcher)
        if not consumer.release(position):
            for other in self.consumers:
                if other.release(position):
                    break
        self._dispatcher.on_acknowledged(position)

    def acknowledge_marker(self, position: Position) -> None:
        """Acknowledge a marker, which no client receives."""
        self.cursor.ack([(position, None)])

    def skip_unreadable(self, spans: Iterable[LedgerRange]) -> None:
        """Acknowledge entries that no copy can serve, since no client ever will."""
        for span in spans:
            log.warning(
                "%s: entries %s:%s to %s cannot be read; skipped and acknowledged",
                self,
                span.ledger_id,
                span.first,
                span.last,
            )
            self.cursor.ack_ranges([span])

    def redeliver(self, consumer: Consumer, request: wire.CommandRedeliverUnacknowledgedMessages) -> None:
        """Send messages again. In a Failover subscription only the active consumer has any."""
        if self.kind == SubType.Failover and consumer is not self._active:
            return
        positions = [to_position(message_id) for message_id in request.message_ids] or None
        if request.HasField("consumer_epoch"):
            consumer.epoch = request.consumer_epoch
        self._dispatcher.redeliver(consumer, positions)
        self.wake()

    def reset(self, position: Position, ack_set: tuple[int, ...] | None = None) -> None:
        """Make the entry at ``position``, or the next one that exists, the next to be sent.

        A reader's subscription is removed if the reader does not reconnect within ``READER_GRACE_S``.
        """
        self._dispatcher.rewind(self.cursor.reset(position, ack_set))
        if not self.durable:
            asyncio.get_running_loop().call_later(READER_GRACE_S, self.topic.on_consumer_removed, self)

    def notify_end(self) -> None:
        """Notify each consumer of a terminated topic once that nothing is left to read.

        A durable subscription waits until all is acknowledged: a client that knows of the end may drop pending
        acknowledgements. A reader's acknowledgements are not stored, so it is not waited for.
        """
        if not self.topic.terminated or (self.durable and self.cursor.backlog):
            return
        for consumer in self.consumers:
            if consumer not in self._end_notified:
                self._end_notified.add(consumer)
                command = wire.BaseCommand(type=wire.BaseCommand.REACHED_END_OF_TOPIC)
                command.reachedEndOfTopic.consumer_id = consumer.consumer_id
                consumer.connection.send(command)

    async def close(self) -> None:
        """Stop dispatch; the cursor remains."""
        if self._takeover is not None:
            self._takeover.cancel()
        self._dispatcher.close()
        await self._task.stop()
