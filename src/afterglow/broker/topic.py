"""An open topic: its managed ledger, producers and subscriptions."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.broker import replies
from afterglow.broker.ordered_calls import OrderedCalls
from afterglow.broker.producer_access import ProducerAccess
from afterglow.broker.subscription import Subscription
from afterglow.broker.traffic import Traffic, TrafficMeter, total
from afterglow.errors import CorruptEntry
from afterglow.format.entry import decode_entry
from afterglow.format.position import EARLIEST, LATEST
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused
from afterglow.ledger.retention import Retention
from afterglow.ledger.time_search import entry_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.broker.producer import Producer
    from afterglow.broker.service import BrokerService
    from afterglow.broker.subscription import SubTypeValue
    from afterglow.config import BrokerConfig
    from afterglow.errors import AfterglowError
    from afterglow.format.new_entries import NewEntries
    from afterglow.format.position import Position
    from afterglow.ledger.cursor import Cursor
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.ledger.reader import ReadResult, StoredEntry
    from afterglow.metadata.names import TopicName

log = logging.getLogger(__name__)

TIER_READS: Final = 4
"""Concurrent reads of one topic that may wait for a tier, so that a slow tier never takes all threads of the pool."""


class Topic:
    """One open topic. Belongs to the event loop's thread."""

    def __init__(self, service: BrokerService, name: TopicName, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        self.service = service
        self.name = name
        self.ledger = ledger
        self.partition = -1 if name.partition_index is None else name.partition_index
        self.producers: dict[str, Producer] = {}
        self.access = ProducerAccess(self)
        self.subscriptions: dict[str, Subscription] = {}
        self.past_traffic_in = Traffic()
        self.past_traffic_out = Traffic()
        self.entries_added = 0
        """Entries that producers have added since the topic was opened."""
        self.meter_in = TrafficMeter()
        self.meter_out = TrafficMeter()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._receipts = OrderedCalls(self._loop)
        self._is_wake_scheduled = False
        self._names_generated = 0
        self._closed = False
        self._tier_reads = asyncio.Semaphore(TIER_READS)
        ledger.on_append(self._on_append)
        for cursor in ledger.cursors.durable.values():
            self.subscriptions[cursor.name] = Subscription(
                self, cursor.name, cursor, wire.CommandSubscribe.Exclusive, durable=True
            )
        self.apply_policy(policy)

    @property
    def terminated(self) -> bool:
        """Whether it accepts no more messages, for good."""
        return self.ledger.terminated is not None

    @property
    def in_use(self) -> bool:
        """Whether clients are connected to it."""
        consuming = any(found.consumers for found in self.subscriptions.values())
        return consuming or bool(self.producers) or self.access.is_held

    @property
    def is_idle(self) -> bool:
        """Whether it has no messages, and no client whose schema a first schema could contradict."""
        consumers = (consumer for found in self.subscriptions.values() for consumer in found.consumers)
        has_schema_user = any(not consumer.any_schema and not consumer.internal for consumer in consumers)
        return not self.producers and not has_schema_user and not self.ledger.layout.total_entries

    # --- traffic ---

    @property
    def traffic_in(self) -> Traffic:
        """Messages from producers, including closed ones."""
        return total([self.past_traffic_in, *(producer.traffic_in for producer in self.producers.values())])

    @property
    def traffic_out(self) -> Traffic:
        """Messages to consumers, including those of deleted subscriptions."""
        return total(
            [self.past_traffic_out, *(subscription.traffic_out for subscription in self.subscriptions.values())]
        )

    def sample(self) -> None:
        """Sample all counts, for their rates."""
        self.meter_in.sample(self.traffic_in)
        self.meter_out.sample(self.traffic_out)
        for producer in self.producers.values():
            producer.meter.sample(producer.traffic_in)
        for subscription in self.subscriptions.values():
            subscription.meter.sample(subscription.traffic_out)
            for consumer in subscription.consumers:
                consumer.meter.sample(consumer.traffic_out)

    # --- producing ---

    async def add_producer(self, producer: Producer, on_queued: Callable[[], None]) -> int | None:
        """Add a producer under its name; returns the topic's epoch, None if it has none.

        Args:
            producer: The producer. With the access mode WaitForExclusive, this call waits for access.
            on_queued: Called once if the producer has to wait.

        Raises:
            Refused: The name is in use, the access mode conflicts with other producers, the limit is reached, or the
                topic accepts no more producers.
            MetadataError: The topic's epoch could not be stored.
        """
        other = self.producers.get(producer.name)
        if other is not None and other.connection is not producer.connection and producer.epoch > other.epoch:
            # The same client has reconnected, and the broker has not noticed the loss of its old connection yet.
            self.disconnect_producer(other)
        limit = self.policy.max_producers_per_topic
        if limit and len(self.producers) >= limit:
            raise Refused(wire.ProducerBusy, f"{self.name} has {limit} producers (maxProducersPerTopic)")
        epoch = await self.access.acquire(producer, on_queued)
        refused = self._refusal()
        if refused is None and producer.name in self.producers:
            refused = Refused(
                wire.ProducerBusy, f"Producer with name {producer.name!r} is already connected to {self.name}"
            )
        if refused is not None:
            self.access.release(producer)
            raise refused
        self.producers[producer.name] = producer
        return epoch

    def _refusal(self) -> Refused | None:
        """The reason why the topic accepts no more producers; None if it accepts them."""
        if self.terminated:
            return Refused(wire.TopicTerminatedError, f"{self.name} is terminated and accepts no more messages")
        if self._closed:
            return Refused(wire.ServiceNotReady, f"{self.name} is being closed; open the producer again")
        return None

    def remove_producer(self, producer: Producer) -> None:
        """Remove a producer that its client has closed or lost."""
        producer.closed = True
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
            self.past_traffic_in.add(producer.messages_in, producer.bytes_in)
            self.access.release(producer)

    def disconnect_producer(self, producer: Producer) -> None:
        """Close a producer from the broker's side."""
        self.remove_producer(producer)
        session = producer.connection.session
        session.producers.pop(producer.producer_id, None)
        session.closed_producers.add(producer.producer_id)
        producer.connection.send(replies.close_producer(producer.producer_id))

    def disconnect_producers(self) -> None:
        """Close all producers from the broker's side; those that wait get access, unless the topic is at its end."""
        if (refused := self._refusal()) is not None:
            self.access.refuse_waiting(refused)
        for producer in list(self.producers.values()):
            self.disconnect_producer(producer)

    def next_producer_name(self) -> str:
        """Generate a name that no producer of this topic has."""
        while True:
            name = f"{self.service.config.cluster_name}-{self.service.instance}-{self._names_generated}"
            self._names_generated += 1
            if name not in self.producers:
                return name

    def append(self, entries: NewEntries, done: Callable[[Position | AfterglowError], None]) -> None:
        """Store entries; ``done`` gets the position of the first, in the loop's thread, in the order of the appends."""
        # The hot log completes appends in the loop's thread, in groups; around a roll-over other threads do so too.
        self.ledger.append_all(entries, lambda result: self._receipts.run(partial(done, result)))

    # --- reading ---

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """Entries at and after ``position``; see :meth:`read_with_gaps`.

        Raises:
            AfterglowError: They cannot be read.
        """
        return (await self.read_with_gaps(position, max_entries, max_bytes)).entries

    async def read_with_gaps(self, position: Position, max_entries: int, max_bytes: int) -> ReadResult:
        """Read entries at and after ``position``: from memory at once, else in a thread.

        Args:
            position: The first position.
            max_entries: Maximum number of entries.
            max_bytes: Maximum size of all entries but the first.

        Raises:
            AfterglowError: They cannot be read.
        """
        if (held := self.ledger.reader.read_memory(position, max_entries, max_bytes)) is not None:
            return held
        if not self.ledger.reader.is_in_tier(position):
            return await self.service.blocking(self.ledger.reader.read_with_gaps, position, max_entries, max_bytes)
        async with self._tier_reads:
            return await self.service.run_in_tier_pool(
                self.ledger.reader.read_with_gaps, position, max_entries, max_bytes
            )

    async def oldest_backlog(self) -> tuple[str, int] | None:
        """The slowest subscription, and when its first unacknowledged entry was written, in epoch milliseconds.

        None without a backlog.

        Raises:
            AfterglowError: The entry cannot be read.
        """
        behind = [cursor for cursor in self.ledger.cursors.durable.values() if cursor.backlog]
        if not behind:
            return None
        slowest = min(behind, key=lambda cursor: cursor.mark_delete)
        since_ms = await self.first_unacked_ms(slowest)
        return None if since_ms is None else (slowest.name, since_ms)

    async def first_unacked_ms(self, cursor: Cursor) -> int | None:
        """When the first unacknowledged entry of a cursor was written, by broker time if it has one.

        None without a backlog, and for an entry that is not a valid message.

        Raises:
            AfterglowError: The entry cannot be read.
        """
        entries = await self.read(cursor.mark_delete.next(), 1, 1) if cursor.backlog else []
        if not entries:
            return None
        try:
            return entry_time(entries[0].data).time_ms
        except CorruptEntry:  # entries are stored as producers send them, valid or not
            return None

    async def last_message(self) -> tuple[Position, int]:
        """Position of the last entry and the batch index of its last message, -1 if it is not a valid batch."""
        last = self.ledger.layout.last
        entries = await self.read(last, 1, 1) if last != EARLIEST and last.entry_id >= 0 else []
        if not entries:
            return EARLIEST, -1
        try:
            metadata = decode_entry(entries[0].data, check=False).metadata
        except CorruptEntry:
            return last, -1
        return last, metadata.num_messages_in_batch - 1 if metadata.HasField("num_messages_in_batch") else -1

    def _on_append(self) -> None:
        """Wake the subscriptions, once for many calls. Called from any thread.

        A subscription that is created later reads without being woken.
        """
        if self._is_wake_scheduled or not self.subscriptions:
            return
        self._is_wake_scheduled = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._wake)
        else:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_wake_scheduled = False
        for subscription in self.subscriptions.values():
            if subscription.consumers:
                subscription.wake()

    # --- policies ---

    def apply_policy(self, policy: BrokerConfig) -> None:
        """Apply a new effective policy. Connected clients stay, even beyond a new limit."""
        self.policy = policy
        self.ledger.retention = Retention.from_config(policy)
        self.ledger.cursors.limit_rate(policy.managed_ledger_default_mark_delete_rate_limit)
        self._wake()  # a higher limit may allow dispatch

    async def expire_messages(self) -> None:
        """Acknowledge messages older than the time to live for every subscription, by broker time if they have one.

        Raises:
            AfterglowError: The topic cannot be read.
        """
        ttl_ms = 1000 * self.policy.ttl_duration_default_in_seconds
        if not ttl_ms or not any(cursor.backlog for cursor in self.ledger.cursors.durable.values()):
            return
        oldest_kept = self.service.store.clock.now_ms() - ttl_ms
        expired = await self.service.run_in_tier_pool(self.ledger.reader.last_before, oldest_kept)
        if expired is None:
            return
        for cursor in self.ledger.cursors.durable.values():
            if cursor.mark_delete < expired:
                cursor.ack_through(expired)

    # --- subscribing ---

    async def subscribe(self, name: str, kind: SubTypeValue, *, earliest: bool, create: bool = True) -> Subscription:
        """Return a durable subscription; create a missing one at the end or the beginning of the topic.

        Raises:
            Refused: It does not exist and may not be created, the limit is reached, or a reader has the name.
        """
        found = self.subscriptions.get(name)
        if found is not None:
            if not found.durable:
                raise Refused(wire.NotAllowedError, f"{self.name}: a reader has the name {name!r}; choose another name")
            return found
        if not create:
            raise Refused(wire.SubscriptionNotFound, f"subscription {name!r} of {self.name} does not exist")
        self.check_subscription_limit(name)
        return await self.create_subscription(name, kind, EARLIEST if earliest else LATEST)

    async def create_subscription(
        self, name: str, kind: SubTypeValue, start: Position, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """Return a durable subscription; create a missing one at ``start``, regardless of the limit.

        Raises:
            MetadataError: The store failed; the subscription may exist after a restart.
        """
        cursor = await self.service.blocking(self.ledger.cursors.create, name, start, properties)
        found = self.subscriptions.get(name)
        if found is None:
            found = Subscription(self, name, cursor, kind, durable=True)
            self.subscriptions[name] = found
        return found

    def check_subscription_limit(self, name: str) -> None:
        """Check that the topic may have a durable subscription of that name.

        Raises:
            Refused: The limit is reached.
        """
        limit = self.policy.max_subscriptions_per_topic
        if not limit:
            return
        durable = {found.name for found in self.subscriptions.values() if found.durable}
        if len(durable) >= limit and name not in durable:
            raise Refused(
                wire.NotAllowedError, f"{self.name} has {limit} subscriptions (maxSubscriptionsPerTopic); delete one"
            )

    def check_type(self, kind: SubTypeValue) -> None:
        """Check that a subscription type is enabled.

        Raises:
            Refused: It is not.
        """
        if wire.CommandSubscribe.SubType.Name(kind) not in self.policy.subscription_types_enabled:
            enabled = ", ".join(sorted(self.policy.subscription_types_enabled))
            raise Refused(wire.NotAllowedError, f"{self.name} accepts only subscriptions of the types {enabled}")

    def check_consumer_limits(self, subscription: str) -> None:
        """Check that a subscription may have another consumer; the server's own readers are not counted.

        Raises:
            Refused: A limit is reached.
        """
        limit = self.policy.max_consumers_per_subscription
        found = self.subscriptions.get(subscription)
        if limit and found is not None and len(found.consumers) >= limit:
            raise Refused(wire.ConsumerBusy, f"{found} has {limit} consumers (maxConsumersPerSubscription)")
        limit = self.policy.max_consumers_per_topic
        clients = sum(not consumer.internal for each in self.subscriptions.values() for consumer in each.consumers)
        if limit and clients >= limit:
            raise Refused(wire.ConsumerBusy, f"{self.name} has {limit} consumers (maxConsumersPerTopic)")

    def open_reader(self, name: str, start: Position) -> Subscription:
        """Return a subscription that ends with its reader; one that a seek has moved keeps its position.

        Raises:
            Refused: A durable subscription has the name.
        """
        found = self.subscriptions.get(name)
        if found is not None and found.durable:
            raise Refused(wire.NotAllowedError, f"{self.name}: a durable subscription has the name {name!r}")
        if found is not None and not found.consumers:
            return found
        cursor = self.ledger.cursors.create_reader(name, start)
        subscription = Subscription(self, name, cursor, wire.CommandSubscribe.Exclusive, durable=False)
        self.subscriptions[name] = subscription
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Delete a subscription and its cursor."""
        self._remove(subscription)
        await subscription.close()
        if subscription.durable:
            await self.service.blocking(self.ledger.cursors.delete, subscription.name)

    def on_consumer_removed(self, subscription: Subscription) -> None:
        """Remove a reader's subscription with its last consumer."""
        if not subscription.durable and not subscription.consumers:
            self._remove(subscription)
            self.service.background(subscription.close())

    def _remove(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            past = subscription.traffic_out
            self.past_traffic_out.add(past.messages, past.size_bytes)

    async def close(self) -> None:
        """Disconnect all clients and close the managed ledger."""
        self._closed = True
        self.disconnect_producers()
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_consumers()
            await subscription.close()
        self.subscriptions.clear()
        await self.service.blocking(self.ledger.close)
