"""How entries go from a topic to the consumers of a subscription.

One task per subscription reads ahead of nobody: it reads when a consumer is ready, as much as that consumer may have,
and sleeps otherwise. Whatever moves the place to read from (a seek, a redelivery, the last consumer leaving) raises the
generation, and what a read brings that began before is thrown away.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
from typing import TYPE_CHECKING, Final, Protocol

from afterglow.broker.delayed import DelayedMessages
from afterglow.broker.outgoing import prepare
from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.broker.consumers import Consumer
    from afterglow.broker.subscription import Subscription
    from afterglow.format.position import Position

log = logging.getLogger(__name__)

READ_ENTRIES: Final = 100
"""Entries per read, as in Pulsar: enough to fill a write, few enough that a seek need not wait."""
READ_BYTES: Final = 4 << 20
"""Bytes per read. A shared task's memory is bounded by this and the connection's write buffer."""
RETRY_S: Final = 1.0
"""After a failed read."""


class Dispatcher(Protocol):
    """Sends a subscription's entries."""

    async def step(self) -> bool:
        """Send something if anything can be sent; False if there is nothing to do until woken."""
        ...

    def rewind(self, position: Position) -> None:
        """Read from ``position`` on next."""
        ...

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        """Send again what was sent to ``consumer``: these positions, or everything (None)."""
        ...

    def left(self, consumer: Consumer) -> None:
        """A consumer has left; what it had goes to others."""
        ...

    def close(self) -> None:
        """Give up what would wake the task again."""
        ...


class DispatchTask:
    """Runs a dispatcher whenever it is woken."""

    def __init__(self, subscription: Subscription, dispatcher: Dispatcher) -> None:
        self._subscription = subscription
        self._dispatcher = dispatcher
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """Something may have become possible."""
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
                while await self._dispatcher.step():  # noqa: ASYNC110 - waits for nothing: others have their turn
                    await asyncio.sleep(0)
            except AfterglowError as error:
                log.warning("%s: cannot read on: %s", self._subscription, error)
                asyncio.get_running_loop().call_later(RETRY_S, self.wake)
            except Exception:
                log.exception("%s: dispatch failed", self._subscription)
                asyncio.get_running_loop().call_later(RETRY_S, self.wake)


class SingleActiveDispatcher:
    """All entries go to the one active consumer, in order: for Exclusive and Failover subscriptions.

    Delivery times are ignored, as by Pulsar: holding a message back would break the order.
    """

    def __init__(self, subscription: Subscription, position: Position) -> None:
        self._subscription = subscription
        self._position = position
        self._generation = 0

    @property
    def position(self) -> Position:
        """Where the next read begins."""
        return self._position

    async def step(self) -> bool:
        """Send one read's worth of entries to the active consumer."""
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
            subscription.reached_end()
            return False
        if consumer.raw:
            topic.service.raw_reads.count(reading)
        if consumer.offloads:
            topic.service.offload_reads.count(reading)
        subscription.leave_out(reading.skipped)
        expose = subscription.exposes_to(consumer)
        now_ms = subscription.now_ms()
        for entry in reading.entries:
            self._position = entry.position.next()
            if subscription.cursor.is_acked(entry.position):
                continue
            outgoing = prepare(entry, expose_broker_metadata=expose)
            if outgoing.marker and not consumer.raw:
                subscription.acknowledge_marker(entry.position)
            else:
                consumer.send(outgoing, now_ms, ack_set=subscription.cursor.ack_set(entry.position))
        self._position = reading.end
        return True

    def rewind(self, position: Position) -> None:
        """Read from ``position`` on next."""
        self._position = position
        self._generation += 1

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:  # noqa: ARG002
        """Go back to the first entry that is not acknowledged: order matters more than sparing a few."""
        self.rewind(self._subscription.cursor.mark_delete.next())

    def left(self, consumer: Consumer) -> None:
        """The next consumer starts with what is not acknowledged."""
        self.redeliver(consumer, None)

    def close(self) -> None:
        """Nothing here wakes the task."""


class SharedDispatcher:
    """Each entry goes to one of the consumers that are ready, in turn; what they give back goes to others first."""

    def __init__(self, subscription: Subscription, position: Position) -> None:
        self._subscription = subscription
        self._position = position
        self._generation = 0
        self._again: list[Position] = []
        """To be sent again, ascending."""
        self._redeliveries: dict[Position, int] = {}
        self._turn = 0
        self.delayed = DelayedMessages(
            subscription.now_ms,
            subscription.wake,
            subscription.topic.service.config.max_delayed_messages_per_subscription,
        )

    @property
    def position(self) -> Position:
        """Where the next read of new entries begins."""
        return self._position

    async def step(self) -> bool:
        """Send one read's worth of entries to the consumers that are ready."""
        subscription = self._subscription
        permits = sum(consumer.permits for consumer in subscription.consumers if self._wants(consumer))
        if not permits:
            return False
        generation = self._generation
        if self.delayed:
            self._take_due()
        resent = bool(self._again)
        if self.delayed.is_full and not resent:
            return False
        if resent:
            start, count = self._next_run(min(permits, READ_ENTRIES))
            reading = await subscription.topic.read_with_gaps(start, count, READ_BYTES)
            taken = {entry.position for entry in reading.entries}
            if generation == self._generation:
                # What was trimmed or damaged meanwhile will not come; the rest of the run is tried again.
                end = reading.end or start.next()
                self._again = [place for place in self._again if place >= end or place in taken]
        else:
            reading = await subscription.topic.read_with_gaps(self._position, min(permits, READ_ENTRIES), READ_BYTES)
        if generation != self._generation:
            return True
        subscription.leave_out(reading.skipped)
        if reading.end is None:
            if resent:
                return True
            subscription.reached_end()
            return False
        now_ms = subscription.now_ms()
        for entry in reading.entries:
            position = entry.position
            again = self._is_again(position)
            if not again and position < self._position:
                continue  # of a run of redeliveries, but not among them
            if subscription.cursor.is_acked(position):
                self._forget(position, again=again)
                continue
            outgoing = prepare(entry, expose_broker_metadata=subscription.exposes_to_all)
            if outgoing.marker:
                subscription.acknowledge_marker(position)
                self._forget(position, again=again)
                continue
            if outgoing.deliver_at_ms > now_ms and subscription.topic.policy.delayed_delivery_enabled:
                self.delayed.add(position, outgoing.deliver_at_ms)
                self._forget(position, again=again)
                continue
            consumer = self._choose()
            if consumer is None:
                return True
            consumer.hold(position, outgoing.messages)
            redeliveries = self._redeliveries.get(position, 0)
            consumer.send(outgoing, now_ms, redeliveries, subscription.cursor.ack_set(position))
            self._forget(position, again=again)
        if not resent:
            self._position = reading.end
        return True

    def acknowledged(self, position: Position) -> None:
        """An entry needs no more deliveries."""
        self._redeliveries.pop(position, None)

    def rewind(self, position: Position) -> None:
        """Read from ``position`` on next, and forget what was to be sent again."""
        self._position = position
        self._again.clear()
        self._redeliveries.clear()
        self.delayed.clear()
        self._generation += 1
        for consumer in self._subscription.consumers:
            consumer.pending.clear()
            consumer.unacknowledged = 0

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        """Take entries back from a consumer to send them again, to anyone."""
        wanted = list(consumer.pending) if positions is None else positions
        for position in wanted:
            if consumer.release(position):
                self._redeliveries[position] = self._redeliveries.get(position, 0) + 1
                bisect.insort(self._again, position)

    def left(self, consumer: Consumer) -> None:
        """What a consumer had goes to others; the last one leaves everything to the next to come."""
        self.redeliver(consumer, None)

    def close(self) -> None:
        """No delayed message wakes the task any more."""
        self.delayed.clear()

    def _take_due(self) -> None:
        """Send messages next whose delivery time has come."""
        self.delayed.discard_through(self._subscription.cursor.mark_delete)
        if len(self._again) < READ_ENTRIES:
            for position in self.delayed.pop_due(READ_ENTRIES):
                bisect.insort(self._again, position)

    def _wants(self, consumer: Consumer) -> bool:
        limit = self._subscription.max_unacknowledged
        return consumer.ready and (not limit or consumer.unacknowledged < limit)

    def _choose(self) -> Consumer | None:
        """The next consumer in turn among those of the best priority that are ready."""
        ready = [consumer for consumer in self._subscription.consumers if self._wants(consumer)]
        if not ready:
            return None
        best = min(consumer.priority for consumer in ready)
        ready = [consumer for consumer in ready if consumer.priority == best]
        self._turn += 1
        return ready[self._turn % len(ready)]

    def _next_run(self, most: int) -> tuple[Position, int]:
        """The first entries to send again that stand one behind the other."""
        start = self._again[0]
        count = 1
        while count < min(most, len(self._again)) and self._again[count] == self._again[count - 1].next():
            count += 1
        return start, count

    def _is_again(self, position: Position) -> bool:
        at = bisect.bisect_left(self._again, position)
        return at < len(self._again) and self._again[at] == position

    def _forget(self, position: Position, *, again: bool) -> None:
        """Note that an entry was dealt with."""
        if again:
            del self._again[bisect.bisect_left(self._again, position)]
        else:
            self._position = position.next()
