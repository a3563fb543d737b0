"""Targets of a call on a topic: a topic, one partition, or all partitions of a partitioned topic."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.admin.errors import not_allowed, not_found, precondition_failed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from afterglow.admin.call import Call
    from afterglow.broker.service import BrokerService
    from afterglow.broker.subscription import Subscription
    from afterglow.broker.topic import Topic
    from afterglow.metadata.names import TopicName


@dataclass(frozen=True, slots=True)
class Target:
    """The topics of one name."""

    name: TopicName
    partitions: int
    """0 for a topic that is not partitioned, or a partition."""
    topics: tuple[TopicName, ...]
    """The topic itself, or all of its partitions that exist; never none of a topic that is not partitioned."""

    @property
    def partitioned(self) -> bool:
        """Whether the name is that of a partitioned topic."""
        return self.partitions > 0


async def partitions_of(service: BrokerService, name: TopicName) -> int:
    """How many partitions a topic has; 0 where it is none, or a partition itself."""
    return 0 if name.partition_index is not None else await service.blocking(service.catalog.partitions, name)


async def exists(service: BrokerService, name: TopicName) -> bool:
    """Whether a topic is stored; a partitioned one is only by its partitions."""
    return await service.blocking(service.store.exists, name.managed_ledger_name)


async def find(service: BrokerService, name: TopicName) -> Target:
    """The topics that exist under a name.

    Raises:
        AdminError: There is no such topic.
    """
    count = await partitions_of(service, name)
    if count:
        return Target(name, count, await service.blocking(_existing, service, name, count))
    if not await exists(service, name):
        raise not_found(f"topic {name} does not exist")
    return Target(name, 0, (name,))


async def each(service: BrokerService, target: Target) -> AsyncIterator[Topic]:
    """The topics of a name, opened; between two of them the event loop serves other calls."""
    for name in target.topics:
        yield await service.topic(name, create=False)
        await asyncio.sleep(0)


async def open_one(service: BrokerService, name: TopicName) -> Topic:
    """A topic that exists, opened; nothing is created.

    Raises:
        AdminError: There is no such topic, or it is partitioned.
    """
    if await partitions_of(service, name):
        raise not_found(f"{name} is partitioned: ask for one of its partitions, as {name.partition(0)}")
    if not await exists(service, name):
        raise not_found(f"topic {name} does not exist")
    return await service.topic(name, create=False)


async def open_whole(service: BrokerService, name: TopicName, what: str) -> Topic:
    """The same for what cannot be done to all partitions at once.

    Args:
        service: The broker.
        name: The topic.
        what: What is to be done, for the message: the topic cannot be ...

    Raises:
        AdminError: There is no such topic, or it is partitioned.
    """
    if await partitions_of(service, name):
        raise not_allowed(f"{name} is partitioned and cannot be {what} as a whole: name one of its partitions")
    return await open_one(service, name)


async def check_unused(service: BrokerService, name: TopicName) -> None:
    """Check that a topic is not in use: neither producers nor consumers are connected, or it does not exist.

    Raises:
        AdminError: It is in use.
    """
    if not await exists(service, name):
        return
    topic = await service.topic(name, create=False)
    if topic.producers:
        raise precondition_failed(f"topic {name} has producers connected: close them, or delete it by force")
    if any(subscription.consumers for subscription in topic.subscriptions.values()):
        raise precondition_failed(f"topic {name} has consumers connected: close them, or delete it by force")


def subscription_of(topic: Topic, name: str) -> Subscription:
    """A subscription that exists.

    Raises:
        AdminError: There is none of that name.
    """
    found = topic.subscriptions.get(name)
    if found is None:
        raise not_found(f"{topic.name} has no subscription {name!r}")
    return found


async def subscriptions(call: Call) -> list[Subscription]:
    """The subscription in the path, on the topic or on each partition that exists.

    Raises:
        AdminError: One has no such subscription; then none is touched.
    """
    target = await find(call.service, call.topic)
    name = call.segment("subscription")
    return [subscription_of(topic, name) async for topic in each(call.service, target)]


def settle(subscription: Subscription) -> None:
    """Release messages of consumers that were acknowledged by another call, and resume dispatch."""
    for consumer in subscription.consumers:
        for position in [held for held in consumer.pending if subscription.cursor.is_acked(held)]:
            consumer.release(position)
    subscription.wake()


def _existing(service: BrokerService, name: TopicName, count: int) -> tuple[TopicName, ...]:
    partitions = (name.partition(index) for index in range(count))
    return tuple(topic for topic in partitions if service.store.exists(topic.managed_ledger_name))
