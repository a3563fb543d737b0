"""Subscriptions: creating, deleting, moving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.admin import message_ids, places, targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import conflict, precondition_failed
from afterglow.admin.resource import Resources
from afterglow.admin.unserved import check_replicated
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.metadata.encoding import encode_name

if TYPE_CHECKING:
    from afterglow.admin.call import Call
    from afterglow.admin.message_ids import Place
    from afterglow.broker.service import BrokerService
    from afterglow.broker.subscription import Subscription
    from afterglow.broker.topic import Topic
    from afterglow.metadata.names import TopicName

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

_EXCLUSIVE = wire.CommandSubscribe.Exclusive
"""The type of a subscription until its first consumer brings another."""


@RESOURCES.on("GET", "/subscriptions", Access.PEEK)
async def list_subscriptions(call: Call) -> list[str]:
    """The names of a topic's subscriptions, over all partitions."""
    target = await targets.find(call.service, call.topic)
    found: set[str] = set()
    async for topic in targets.each(call.service, target):
        found.update(topic.subscriptions)
    return sorted(found)


@RESOURCES.on("PUT", "/subscription/{subscription}", Access.CHANGE_SUBSCRIPTION)
async def create_subscription(call: Call) -> None:
    """Create a subscription, on all partitions; the topic is created with it where clients may create topics.

    Where some partitions have it already, the others get it: the last try may have been cut short.
    """
    service, subscription = call.service, call.segment("subscription")
    encode_name(subscription)
    check_replicated(replicated=call.flag("replicated"))
    place = message_ids.decode(await call.body())
    topics = await _topics_to_subscribe(service, call.topic)
    opened = [await service.topic(name, create=True) for name in topics]
    for topic in opened:
        topic.check_subscriptions(subscription)
    made = 0
    for topic in opened:
        made += await _create(topic, subscription, place)
    if not made:
        raise conflict(f"{call.topic} has a subscription {subscription!r} already")


@RESOURCES.on("DELETE", "/subscription/{subscription}", Access.CHANGE_SUBSCRIPTION)
async def delete_subscription(call: Call) -> None:
    """Delete a subscription, on all partitions; with ``force`` also one whose consumers are connected."""
    force = call.flag("force")
    found = await targets.subscriptions(call)
    if not force:
        for subscription in found:
            _check_no_consumers(subscription)
    for subscription in found:
        subscription.disconnect_consumers()
        await subscription.topic.unsubscribe(subscription)


@RESOURCES.on("POST", "/subscription/{subscription}/resetcursor/{timestamp}", Access.CHANGE_SUBSCRIPTION)
async def reset_to_time(call: Call) -> None:
    """Make the first message at or after a moment the next that is sent, on all partitions."""
    time_ms = call.whole_number("timestamp")
    for subscription in await targets.subscriptions(call):
        position = await call.search(subscription.topic.ledger.find_by_time, time_ms)
        _reset(subscription, position)


@RESOURCES.on("POST", "/subscription/{subscription}/resetcursor", Access.CHANGE_SUBSCRIPTION)
async def reset_to_message(call: Call) -> None:
    """Make a message the next that is sent."""
    place = message_ids.decode(await call.body())
    subscription = await _one_subscription(call, "reset to a message")
    position, ack_set = await places.begin_at(subscription.topic, place)
    _reset(subscription, position, ack_set)


@RESOURCES.on("POST", "/subscription/{subscription}/skip_all", Access.CHANGE_SUBSCRIPTION)
async def skip_all(call: Call) -> None:
    """Acknowledge everything, on all partitions."""
    for subscription in await targets.subscriptions(call):
        subscription.cursor.clear_backlog()
        targets.settle(subscription)


@RESOURCES.on("POST", "/subscription/{subscription}/skip/{count}", Access.CHANGE_SUBSCRIPTION)
async def skip(call: Call) -> None:
    """Acknowledge the next entries that are not acknowledged yet."""
    count = call.whole_number("count", high=values.INT_MAX)
    subscription = await _one_subscription(call, "skipped on")
    left = count
    for span in subscription.cursor.unacked():
        if left <= 0:
            break
        last = min(span.last, span.first + left - 1)
        left -= last - span.first + 1
        subscription.cursor.ack_through(Position(span.ledger_id, last))
    targets.settle(subscription)


async def _topics_to_subscribe(service: BrokerService, name: TopicName) -> list[TopicName]:
    await service.blocking(service.catalog.policies, name.namespace)
    count = await service.partitions(name, create=True)
    if count:
        return [name.partition(index) for index in range(count)]
    policies = await service.blocking(service.policies.of_namespace, name.namespace)
    if not policies.auto_topic_creation and not await targets.exists(service, name):
        raise precondition_failed(f"topic {name} does not exist and allowAutoTopicCreation is false: create it first")
    return [name]


async def _create(topic: Topic, name: str, place: Place) -> bool:
    """Create a subscription where it belongs; False where it is there already."""
    if name in topic.subscriptions:
        return False
    position, _ = await places.begin_at(topic, place)
    await topic.create_subscription(name, _EXCLUSIVE, position, place.properties)
    return True


async def _one_subscription(call: Call, what: str) -> Subscription:
    topic = await targets.open_whole(call.service, call.topic, what)
    return targets.subscription_of(topic, call.segment("subscription"))


def _check_no_consumers(subscription: Subscription) -> None:
    if subscription.consumers:
        raise precondition_failed(f"{subscription} has consumers connected: close them, or delete it by force")


def _reset(subscription: Subscription, position: Position, ack_set: tuple[int, ...] | None = None) -> None:
    """Consumers subscribe again, which also returns the permits of what they had queued."""
    subscription.disconnect_consumers()
    subscription.reset(position, ack_set)
