"""Dispatch of entries from a topic to the consumers of a subscription.

One task per subscription reads without prefetch: it reads when a consumer is ready, as much as the permits allow, and
sleeps otherwise. Every change of the read position (a seek, a redelivery, the removal of the last consumer) increments
the generation, and the result of a read that started in an earlier generation is discarded.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
from typing import TYPE_CHECKING, Final, TypeAlias

from afterglow.broker.consumer import prepare_entry
from afterglow.broker.delayed import DelayedMessages
from afterglow.errors import AfterglowError
from afterglow.format.entry import may_be_delayed
from afterglow.format.position import Position
from afterglow.ledger.reader import LedgerEntries, StoredEntry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.broker.consumer import Consumer
    from afterglow.broker.subscription import Subscription

log = logging.getLogger(__name__)

READ_ENTRIES: Final = 1000
"""Entries per read for one active consumer: as many as clients ask for by default."""
SHARED_READ_ENTRIES: Final = 100
"""Entries per read for consumers that share a subscription, as in Pulsar, while each entry is handled on its own."""
READ_BYTES: Final = 4 << 20
"""Bytes per read. The memory of a dispatch task is limited by this and the connection's write buffer."""
RETRY_S: Final = 1.0
"""Delay after a failed read."""


Dispatcher: TypeAlias = "SharedDispatcher | SingleActiveDispatcher"


class DispatchTask:
    """Runs a dispatcher each time it is woken."""

    def __init__(self, subscription: Subscription, dispatcher: Dispatcher) -> None:
        self._subscription = subscription
        self._dispatcher = dispatcher
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """Run the dispatcher again: permits, entries or a consumer may have been added."""
        self._wake.set()

    def replace(self, dispatcher: Dispatcher) -> None:
        """Run another dispatcher from now on."""
        self._dispatcher = dispatcher

    async def stop(self) -> None:
        """End the task."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while await self._dispatcher.step():  # noqa: ASYNC110 - yields to other tasks, polls nothing
                    await asyncio.sleep(0)
            except AfterglowError as error:
                log.warning("%s: cannot read, will retry: %s", self._subscription, error)
                asyncio.get_running_loop().call_later(RETRY_S, self.wake)
            except Exception:
                log.exception("%s: dispatch failed", self._subscription)
                asyncio.get_running_loop().call_later(RETRY_S, self.wake)


class SingleActiveDispatcher:
    """Sends all entries to the active consumer, in order: for Exclusive and Failover subscriptions.

    Delivery times are ignored, as in Pulsar: delaying a message would break the order.
    """

    def __init__(self, subscription: Subscription, position: Position) -> None:
        self._subscription = subscription
        self._position = position
        self._generation = 0

    async def step(self) -> bool:
        """Read and send entries once; False if nothing can be sent until woken."""
        subscription = self._subscription
        consumer = subscription.receiver
        if consumer is None or not consumer.ready:
            return False
        generation = self._generation
        topic = subscription.topic
        reading = await topic.read_with_gaps(self._position, min(consumer.permits, READ_ENTRIES), READ_BYTES)
        if generation != self._generation or consumer is not subscription.receiver:
            return True
        if reading.end is None:
            subscription.notify_end()
            return False
        if consumer.raw:
            topic.service.raw_reads.count(reading)
        if consumer.offloads:
            topic.service.offload_reads.count(reading)
        subscription.skip_unreadable(reading.skipped)
        expose = subscription.exposes_to(consumer)
        for found in reading.found:
            self._send(consumer, found, expose=expose)
        self._position = reading.end
        return True

    def _send(self, consumer: Consumer, found: LedgerEntries, *, expose: bool) -> None:
        """Send entries: many at once where nothing is acknowledged, else one by one."""
        subscription = self._subscription
        cursor = subscription.cursor
        now_ms = subscription.now_ms()
        last = found.first + len(found.entries) - 1
        if not consumer.raw and not cursor.is_any_acked(found.ledger_id, found.first, last):
            encoded = consumer.encode(found, expose_broker_metadata=expose)
            consumer.send_encoded(encoded, now_ms)
            found = LedgerEntries(found.ledger_id, found.first + encoded.entries, found.entries[encoded.entries :])
        for entry_id, data in enumerate(found.entries, found.first):
            entry = StoredEntry(Position(found.ledger_id, entry_id), data)
            if cursor.is_acked(entry.position):
                continue
            outgoing = prepare_entry(entry, expose_broker_metadata=expose)
            if outgoing.marker and not consumer.raw:
                subscription.acknowledge_marker(entry.position)
            else:
                consumer.send(outgoing, now_ms, ack_set=cursor.ack_set(entry.position))

    def rewind(self, position: Position) -> None:
        """Continue at ``position``."""
        self._position = position
        self._generation += 1

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:  # noqa: ARG002
        """Return to the first unacknowledged entry: keeping the order matters more than avoiding duplicates."""
        self.rewind(self._subscription.cursor.mark_delete.next())

    def on_consumer_removed(self, consumer: Consumer) -> None:
        """Return to the first unacknowledged entry, for the next consumer."""
        self.redeliver(consumer, None)

    def close(self) -> None:
        """Do nothing: there are no timers to stop."""


class SharedDispatcher:
    """Sends each entry to one of the ready consumers, round-robin; redeliveries come before new entries."""

    def __init__(self, subscription: Subscription, position: Position) -> None:
        self._subscription = subscription
        self._position = position
        self._generation = 0
        self._to_redeliver: list[Position] = []
        """Positions to be sent again, ascending."""
        self._redeliveries: dict[Position, int] = {}
        self._turn = 0
        self._read_entries = SHARED_READ_ENTRIES
        self.delayed = DelayedMessages(
            subscription.now_ms,
            subscription.wake,
            subscription.topic.service.config.max_delayed_messages_per_subscription,
        )

    async def step(self) -> bool:
        """Read and send entries once; False if nothing can be sent until woken."""
        subscription = self._subscription
        permits = sum(consumer.permits for consumer in subscription.consumers if self._can_receive(consumer))
        if not permits:
            return False
        generation = self._generation
        if self.delayed:
            self._take_due()
        is_redelivery = bool(self._to_redeliver)
        if self.delayed.is_full and not is_redelivery:
            return False
        if is_redelivery:
            start, count = self._next_redeliveries(min(permits, SHARED_READ_ENTRIES))
            reading = await subscription.topic.read_with_gaps(start, count, READ_BYTES)
            found = {entry.position for entry in reading.entries}
            if generation == self._generation:
                # Entries that the read passed without result were trimmed or are corrupt: they are dropped.
                end = reading.end or start.next()
                self._to_redeliver = [each for each in self._to_redeliver if each >= end or each in found]
        else:
            reading = await subscription.topic.read_with_gaps(
                self._position, min(permits, self._read_entries), READ_BYTES
            )
        if generation != self._generation:
            return True
        subscription.skip_unreadable(reading.skipped)
        if reading.end is None:
            if is_redelivery:
                return True
            subscription.notify_end()
            return False
        now_ms = subscription.now_ms()
        if not is_redelivery and all(self._send_all(found, now_ms) for found in reading.found):
            self._position = reading.end
            self._read_entries = READ_ENTRIES
            return True
        self._read_entries = SHARED_READ_ENTRIES
        for entry in reading.entries:
            position = entry.position
            queued = self._is_queued(position)
            if not queued and position < self._position:
                continue  # read along with redeliveries but not one of them, or sent with others
            if subscription.cursor.is_acked(position):
                self._advance(position, queued=queued)
                continue
            outgoing = prepare_entry(entry, expose_broker_metadata=subscription.exposes_to_all)
            if outgoing.marker:
                subscription.acknowledge_marker(position)
                self._advance(position, queued=queued)
                continue
            if outgoing.deliver_at_ms > now_ms and subscription.topic.policy.delayed_delivery_enabled:
                self.delayed.add(position, outgoing.deliver_at_ms)
                self._advance(position, queued=queued)
                continue
            consumer = self._next_consumer()
            if consumer is None:
                return True
            consumer.hold(position, outgoing.messages)
            redeliveries = self._redeliveries.get(position, 0)
            consumer.send(outgoing, now_ms, redeliveries, subscription.cursor.ack_set(position))
            self._advance(position, queued=queued)
        if not is_redelivery:
            self._position = reading.end
        return True

    def _send_all(self, found: LedgerEntries, now_ms: int) -> bool:
        """Send new entries at once, if one consumer takes them all; returns whether it did.

        They must be single messages that are not acknowledged, delayed, damaged or markers.
        """
        subscription = self._subscription
        if len(subscription.consumers) != 1:
            return False
        (consumer,) = subscription.consumers
        count, limit = len(found.entries), subscription.max_unacknowledged
        if not consumer.ready or count > consumer.permits or (limit and consumer.unacknowledged + count > limit):
            return False
        last = found.first + count - 1
        if subscription.cursor.is_any_acked(found.ledger_id, found.first, last):
            return False
        if any(map(may_be_delayed, found.entries)):
            return False
        encoded = consumer.encode(found, expose_broker_metadata=subscription.exposes_to_all)
        if encoded.messages != count or encoded.entries != count:
            return False
        consumer.hold_all(found)
        consumer.send_encoded(encoded, now_ms)
        self._position = found.end
        return True

    def on_acknowledged(self, position: Position) -> None:
        """Drop the redelivery count of an acknowledged entry."""
        self._redeliveries.pop(position, None)

    def rewind(self, position: Position) -> None:
        """Continue at ``position``, and drop pending redeliveries."""
        self._position = position
        self._to_redeliver.clear()
        self._redeliveries.clear()
        self.delayed.clear()
        self._generation += 1
        for consumer in self._subscription.consumers:
            consumer.pending.clear()
            consumer.unacknowledged = 0

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        """Queue pending entries of a consumer for redelivery to any consumer: these positions, or all (None)."""
        wanted = list(consumer.pending) if positions is None else positions
        for position in wanted:
            if consumer.release(position):
                self._redeliveries[position] = self._redeliveries.get(position, 0) + 1
                bisect.insort(self._to_redeliver, position)

    def on_consumer_removed(self, consumer: Consumer) -> None:
        """Queue all pending entries of a consumer for redelivery."""
        self.redeliver(consumer, None)

    def close(self) -> None:
        """Stop the timer of delayed messages."""
        self.delayed.clear()

    def _take_due(self) -> None:
        """Queue messages whose delivery time has come."""
        self.delayed.discard_through(self._subscription.cursor.mark_delete)
        if len(self._to_redeliver) < SHARED_READ_ENTRIES:
            for position in self.delayed.pop_due(SHARED_READ_ENTRIES):
                bisect.insort(self._to_redeliver, position)

    def _can_receive(self, consumer: Consumer) -> bool:
        limit = self._subscription.max_unacknowledged
        return consumer.ready and (not limit or consumer.unacknowledged < limit)

    def _next_consumer(self) -> Consumer | None:
        """The next ready consumer of the best priority, round-robin."""
        ready = [consumer for consumer in self._subscription.consumers if self._can_receive(consumer)]
        if not ready:
            return None
        best = min(consumer.priority for consumer in ready)
        ready = [consumer for consumer in ready if consumer.priority == best]
        self._turn += 1
        return ready[self._turn % len(ready)]

    def _next_redeliveries(self, limit: int) -> tuple[Position, int]:
        """Start and length of the first range of adjacent redeliveries."""
        queue = self._to_redeliver
        count = 1
        while count < min(limit, len(queue)) and queue[count] == queue[count - 1].next():
            count += 1
        return queue[0], count

    def _is_queued(self, position: Position) -> bool:
        at = bisect.bisect_left(self._to_redeliver, position)
        return at < len(self._to_redeliver) and self._to_redeliver[at] == position

    def _advance(self, position: Position, *, queued: bool) -> None:
        """Remove an entry from the redeliveries, or move the read position past it."""
        if queued:
            del self._to_redeliver[bisect.bisect_left(self._to_redeliver, position)]
        else:
            self._position = position.next()
