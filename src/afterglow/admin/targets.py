"""Targets of a call on a topic: a topic, one partition, or all partitions of a partitioned topic."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.admin.errors import not_allowed, not_found, precondition_failed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from afterglow.admin.call import BrokerCall
    from afterglow.broker.service import BrokerService
    from afterglow.broker.subscription import Subscription
    from afterglow.broker.topic import Topic
    from afterglow.metadata.names import TopicName
    from afterglow.pipeline.server_handle import TopicService


@dataclass(frozen=True, slots=True)
class Target:
    """The topics that one name stands for."""

    name: TopicName
    partitions: int
    """0 for a topic that is not partitioned, and for a partition."""
    topics: tuple[TopicName, ...]
    """The topic itself, or the partitions that exist; not empty unless the topic is partitioned."""

    @property
    def partitioned(self) -> bool:
        """Whether the name is that of a partitioned topic."""
        return self.partitions > 0


async def partitions_of(service: TopicService, name: TopicName) -> int:
    """Number of partitions of a topic; 0 if it is not partitioned, or a partition itself."""
    return 0 if name.partition_index is not None else await service.blocking(service.catalog.partitions, name)


async def exists(service: TopicService, name: TopicName) -> bool:
    """Whether a topic exists; of a partitioned topic only the partitions do."""
    return await service.blocking(service.store.exists, name.managed_ledger_name)


async def find(service: TopicService, name: TopicName) -> Target:
    """The topics that a name stands for.

    Raises:
        AdminError: The topic does not exist.
    """
    count = await partitions_of(service, name)
    if count:
        partitions = [name.partition(index) for index in range(count)]
        return Target(name, count, await service.blocking(_existing, service, partitions))
    if not await exists(service, name):
        raise not_found(f"topic {name} does not exist")
    return Target(name, 0, (name,))


async def each(service: BrokerService, target: Target) -> AsyncIterator[Topic]:
    """Open the topics of a target one by one; the event loop serves other calls in between."""
    for name in target.topics:
        yield await service.topic(name, create=False)
        await asyncio.sleep(0)


async def check_one(service: TopicService, name: TopicName) -> None:
    """Check that a topic exists and is not partitioned.

    Raises:
        AdminError: The topic does not exist, or is partitioned.
    """
    if await partitions_of(service, name):
        raise not_found(f"{name} is partitioned: name one of its partitions, such as {name.partition(0)}")
    if not await exists(service, name):
        raise not_found(f"topic {name} does not exist")


async def open_one(service: BrokerService, name: TopicName) -> Topic:
    """Open a topic; it is not created.

    Raises:
        AdminError: The topic does not exist, or is partitioned.
    """
    await check_one(service, name)
    return await service.topic(name, create=False)


async def open_for(service: BrokerService, name: TopicName, operation: str) -> Topic:
    """Open a topic for an operation that partitioned topics do not support.

    Args:
        service: The broker.
        name: The topic.
        operation: A participle for the message: the topic cannot be ...

    Raises:
        AdminError: The topic does not exist, or is partitioned.
    """
    if await partitions_of(service, name):
        raise not_allowed(f"{name} is partitioned and cannot be {operation} as a whole: name one of its partitions")
    return await open_one(service, name)


async def check_unused(service: BrokerService, name: TopicName) -> None:
    """Check that no producer or consumer is connected to a topic.

    Raises:
        AdminError: One is.
    """
    if not await exists(service, name):
        return
    topic = await service.topic(name, create=False)
    if topic.producers:
        raise precondition_failed(f"topic {name} has producers connected: close them, or delete it by force")
    if any(subscription.consumers for subscription in topic.subscriptions.values()):
        raise precondition_failed(f"topic {name} has consumers connected: close them, or delete it by force")


def subscription_of(topic: Topic, name: str) -> Subscription:
    """A subscription of a topic.

    Raises:
        AdminError: The topic has no subscription of that name.
    """
    found = topic.subscriptions.get(name)
    if found is None:
        raise not_found(f"{topic.name} has no subscription {name!r}")
    return found


async def subscriptions(call: BrokerCall) -> list[Subscription]:
    """The subscription in the path, of the topic or of each partition that exists.

    Raises:
        AdminError: The topic or one of the partitions has no such subscription.
    """
    target = await find(call.service, call.topic)
    name = call.segment("subscription")
    return [subscription_of(topic, name) async for topic in each(call.service, target)]


def release_acknowledged(subscription: Subscription) -> None:
    """Release pending messages of consumers that a call has acknowledged, and resume dispatch."""
    for consumer in subscription.consumers:
        for position in [held for held in consumer.pending if subscription.cursor.is_acked(held)]:
            consumer.release(position)
    subscription.wake()


def _existing(service: TopicService, partitions: Iterable[TopicName]) -> tuple[TopicName, ...]:
    return tuple(topic for topic in partitions if service.store.exists(topic.managed_ledger_name))
