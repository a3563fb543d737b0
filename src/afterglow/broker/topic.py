"""A topic as the broker serves it: its log, its producers and its subscriptions."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.broker import replies
from afterglow.broker.in_order import InOrder
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

    from afterglow.broker.producers import Producer
    from afterglow.broker.service import BrokerService
    from afterglow.broker.subscription import SubTypeValue
    from afterglow.config import BrokerConfig
    from afterglow.errors import AfterglowError
    from afterglow.format.position import Position
    from afterglow.ledger.cursor import Cursor
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.ledger.reader import ReadResult, StoredEntry
    from afterglow.metadata.names import TopicName

log = logging.getLogger(__name__)

TIER_READS: Final = 4
"""Concurrent reads of one topic that may wait for a tier, so that a slow tier never takes all threads of the pool."""


class Topic:
    """One topic. All of it belongs to the event loop's thread."""

    def __init__(self, service: BrokerService, name: TopicName, ledger: ManagedLedger, policy: BrokerConfig) -> None:
        self.service = service
        self.name = name
        self.ledger = ledger
        self.partition = -1 if name.partition_index is None else name.partition_index
        self.producers: dict[str, Producer] = {}
        self.access = ProducerAccess(self)
        self.subscriptions: dict[str, Subscription] = {}
        self.past_in = Traffic()
        self.past_out = Traffic()
        self.entries_added = 0
        """Entries of producers since the topic was opened."""
        self.meter_in = TrafficMeter()
        self.meter_out = TrafficMeter()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._receipts = InOrder(self._loop)
        self._waking = False
        self._named = 0
        self._closed = False
        self._tier_reads = asyncio.Semaphore(TIER_READS)
        ledger.on_append(self._appended)
        for cursor in ledger.cursors.durable.values():
            self.subscriptions[cursor.name] = Subscription(
                self, cursor.name, cursor, wire.CommandSubscribe.Exclusive, durable=True
            )
        self.apply_policy(policy)

    @property
    def terminated(self) -> bool:
        """Whether it takes no more messages, for good."""
        return self.ledger.terminated is not None

    @property
    def in_use(self) -> bool:
        """Whether clients are connected to it."""
        consuming = any(found.consumers for found in self.subscriptions.values())
        return consuming or bool(self.producers) or self.access.is_held

    @property
    def is_idle(self) -> bool:
        """Whether it has no messages and no client that would mind which schema it gets first."""
        consumers = (consumer for found in self.subscriptions.values() for consumer in found.consumers)
        minded = any(not consumer.any_schema and not consumer.own for consumer in consumers)
        return not self.producers and not minded and not self.ledger.layout.total_entries

    # --- what has passed ---

    @property
    def came(self) -> Traffic:
        """What producers have sent, also those that are gone."""
        return total([self.past_in, *(producer.came for producer in self.producers.values())])

    @property
    def went(self) -> Traffic:
        """What consumers were sent, also by subscriptions that are gone."""
        return total([self.past_out, *(subscription.out for subscription in self.subscriptions.values())])

    def sample(self) -> None:
        """Remember all counts as of now, for their rates."""
        self.meter_in.sample(self.came)
        self.meter_out.sample(self.went)
        for producer in self.producers.values():
            producer.meter.sample(producer.came)
        for subscription in self.subscriptions.values():
            subscription.meter.sample(subscription.out)
            for consumer in subscription.consumers:
                consumer.meter.sample(consumer.went)

    # --- producing ---

    async def add_producer(self, producer: Producer, on_queued: Callable[[], None]) -> int | None:
        """Add a producer under its name; returns the topic's epoch, None where it has none.

        Args:
            producer: Who asks. One with the access mode WaitForExclusive waits here for its turn.
            on_queued: Called once where it has to wait.

        Raises:
            Refused: The name is taken, the access mode does not go with other producers, there are enough, or the topic
                takes no more.
            MetadataError: The topic's epoch could not be kept.
        """
        other = self.producers.get(producer.name)
        if other is not None and other.connection is not producer.connection and producer.epoch > other.epoch:
            # The same client again, after a connection that the broker has not missed yet.
            self.disconnect_producer(other)
        most = self.policy.max_producers_per_topic
        if most and len(self.producers) >= most:
            raise Refused(wire.ProducerBusy, f"{self.name} has {most} producers (maxProducersPerTopic), its most")
        epoch = await self.access.acquire(producer, on_queued)
        try:
            self._check_taking(producer)
        except Refused:
            self.access.release(producer)
            raise
        self.producers[producer.name] = producer
        return epoch

    def _check_taking(self, producer: Producer) -> None:
        """Check that the topic takes a producer that its access mode lets in."""
        if (refused := self._refusal()) is not None:
            raise refused
        if producer.name in self.producers:
            raise Refused(
                wire.ProducerBusy, f"Producer with name {producer.name!r} is already connected to {self.name}"
            )

    def _refusal(self) -> Refused | None:
        """Why the topic takes no more producers; None where it does."""
        if self.terminated:
            return Refused(wire.TopicTerminatedError, f"{self.name} was terminated and takes no more messages")
        if self._closed:
            return Refused(wire.ServiceNotReady, f"{self.name} is being closed; open the producer again")
        return None

    def remove_producer(self, producer: Producer) -> None:
        """Take a producer out."""
        producer.closed = True
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
            self.past_in.add(producer.messages_in, producer.bytes_in)
            self.access.release(producer)

    def disconnect_producer(self, producer: Producer) -> None:
        """Close a producer from the broker's side."""
        self.remove_producer(producer)
        session = producer.connection.session
        session.producers.pop(producer.producer_id, None)
        session.closed_producers.add(producer.producer_id)
        producer.connection.send(replies.close_producer(producer.producer_id))

    def disconnect_producers(self) -> None:
        """Close all producers from the broker's side; those that wait for the topic get it, where it goes on."""
        if (refused := self._refusal()) is not None:
            self.access.refuse_waiting(refused)
        for producer in list(self.producers.values()):
            self.disconnect_producer(producer)

    def next_producer_name(self) -> str:
        """A name that no producer of this topic has."""
        while True:
            name = f"{self.service.config.cluster_name}-{self.service.instance}-{self._named}"
            self._named += 1
            if name not in self.producers:
                return name

    def append(self, data: bytes, messages: int, done: Callable[[Position | AfterglowError], None]) -> None:
        """Store an entry; ``done`` is called in the loop's thread, in the order of the appends."""
        self.ledger.append((data,), messages, partial(self._appended_one, done))

    def _appended_one(
        self, done: Callable[[Position | AfterglowError], None], result: Position | AfterglowError
    ) -> None:
        # The hot log delivers in the loop's thread, a group at a time; around a roll-over other threads deliver too.
        self._receipts.run(partial(done, result))

    # --- reading ---

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """Entries from ``position`` on; see :meth:`read_with_gaps`.

        Raises:
            AfterglowError: They cannot be read.
        """
        return (await self.read_with_gaps(position, max_entries, max_bytes)).entries

    async def read_with_gaps(self, position: Position, max_entries: int, max_bytes: int) -> ReadResult:
        """Entries from ``position`` on, and what was left out; those in memory at once, others from a thread.

        Args:
            position: Where to begin.
            max_entries: Most entries wanted.
            max_bytes: Bound for all entries but the first.

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
        """The subscription that is furthest behind, and when its first open entry was written, in epoch milliseconds.

        By broker time where the entry has one, which is read from its envelope alone. None where nothing is open.

        Raises:
            AfterglowError: The entry cannot be read.
        """
        behind = [cursor for cursor in self.ledger.cursors.durable.values() if cursor.backlog]
        if not behind:
            return None
        slowest = min(behind, key=lambda cursor: cursor.mark_delete)
        since_ms = await self.open_since(slowest)
        return None if since_ms is None else (slowest.name, since_ms)

    async def open_since(self, cursor: Cursor) -> int | None:
        """When the first entry that a cursor has not acknowledged was written; None where nothing is open.

        Raises:
            AfterglowError: The entry cannot be read.
        """
        entries = await self.read(cursor.mark_delete.next(), 1, 1) if cursor.backlog else []
        if not entries:
            return None
        try:
            return entry_time(entries[0].data).time_ms
        except CorruptEntry:  # whatever a producer sends is stored: what is no message has no time
            return None

    async def last_message(self) -> tuple[Position, int]:
        """Position of the last entry and the batch index of its last message, -1 if it is no batch, or no message."""
        last = self.ledger.layout.last
        entries = await self.read(last, 1, 1) if last != EARLIEST and last.entry_id >= 0 else []
        if not entries:
            return EARLIEST, -1
        try:
            metadata = decode_entry(entries[0].data, check=False).metadata
        except CorruptEntry:
            return last, -1
        return last, metadata.num_messages_in_batch - 1 if metadata.HasField("num_messages_in_batch") else -1

    def _appended(self) -> None:
        """More can be read. Called from any thread; many calls make one wake-up.

        Who subscribes later reads from the start on its own.
        """
        if self._waking or not self.subscriptions:
            return
        self._waking = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._wake)
        else:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._waking = False
        for subscription in self.subscriptions.values():
            if subscription.consumers:
                subscription.wake()

    # --- policies ---

    def apply_policy(self, policy: BrokerConfig) -> None:
        """Put another effective policy into force. Clients that are connected stay, also past a limit."""
        self.policy = policy
        self.ledger.retention = Retention.from_config(policy)
        self.ledger.cursors.limit_rate(policy.managed_ledger_default_mark_delete_rate_limit)
        self._wake()  # a higher limit may let messages go out

    async def expire_messages(self) -> None:
        """Acknowledge, for every subscription, what is older than the time to live; by broker time where there is one.

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
        """A durable subscription, made at the topic's end or its beginning where it is new.

        Raises:
            Refused: It does not exist and may not be created, there are enough, or a reader has the name.
        """
        found = self.subscriptions.get(name)
        if found is not None:
            if not found.durable:
                raise Refused(wire.NotAllowedError, f"{self.name}: a reader has the name {name!r}; choose another")
            return found
        if not create:
            raise Refused(wire.SubscriptionNotFound, f"{self.name} has no subscription {name!r}")
        self.check_subscriptions(name)
        return await self.create_subscription(name, kind, EARLIEST if earliest else LATEST)

    async def create_subscription(
        self, name: str, kind: SubTypeValue, start: Position, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """A durable subscription that begins at ``start`` where it is new; whether there may be one more is not asked.

        Raises:
            MetadataError: The store failed; the subscription may be there after a restart.
        """
        cursor = await self.service.blocking(self.ledger.cursors.create, name, start, properties)
        found = self.subscriptions.get(name)
        if found is None:
            found = Subscription(self, name, cursor, kind, durable=True)
            self.subscriptions[name] = found
        return found

    def check_subscriptions(self, name: str) -> None:
        """Check that the topic may have a durable subscription of that name.

        Raises:
            Refused: There are enough others.
        """
        most = self.policy.max_subscriptions_per_topic
        if not most:
            return
        known = {found.name for found in self.subscriptions.values() if found.durable}
        if len(known) >= most and name not in known:
            raise Refused(
                wire.NotAllowedError, f"{self.name} has {most} subscriptions (maxSubscriptionsPerTopic): delete one"
            )

    def check_type(self, kind: SubTypeValue) -> None:
        """Check that consumers may bring a type of subscriptions.

        Raises:
            Refused: They may not.
        """
        if wire.CommandSubscribe.SubType.Name(kind) not in self.policy.subscription_types_enabled:
            enabled = ", ".join(sorted(self.policy.subscription_types_enabled))
            raise Refused(wire.NotAllowedError, f"{self.name} takes only subscriptions of the types {enabled}")

    def check_room(self, subscription: str) -> None:
        """Check that a subscription, new or not, may have one consumer more; the server's own do not count.

        Raises:
            Refused: It may not.
        """
        most = self.policy.max_consumers_per_subscription
        known = self.subscriptions.get(subscription)
        if most and known is not None and len(known.consumers) >= most:
            raise Refused(wire.ConsumerBusy, f"{known} has {most} consumers (maxConsumersPerSubscription), its most")
        most = self.policy.max_consumers_per_topic
        clients = sum(not consumer.own for found in self.subscriptions.values() for consumer in found.consumers)
        if most and clients >= most:
            raise Refused(wire.ConsumerBusy, f"{self.name} has {most} consumers (maxConsumersPerTopic), its most")

    def read_from(self, name: str, start: Position) -> Subscription:
        """A subscription that only lives as long as its reader; one that a seek has moved is where it was moved to.

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
        self._forget(subscription)
        await subscription.close()
        if subscription.durable:
            await self.service.blocking(self.ledger.cursors.delete, subscription.name)

    def consumer_left(self, subscription: Subscription) -> None:
        """A reader's subscription goes with its last consumer."""
        if not subscription.durable and not subscription.consumers:
            self._forget(subscription)
            self.service.background(subscription.close())

    def _forget(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            out = subscription.out
            self.past_out.add(out.messages, out.size_bytes)

    async def close(self) -> None:
        """Disconnect everyone and close the log."""
        self._closed = True
        self.disconnect_producers()
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_consumers()
            await subscription.close()
        self.subscriptions.clear()
        await self.service.blocking(self.ledger.close)
