"""Routes of subscriptions: create, delete, reset, skip, expire, analyze the backlog; their properties."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import message_ids, targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import conflict, not_allowed, precondition_failed
from afterglow.admin.resource import Resources
from afterglow.broker.consumer import prepare_entry
from afterglow.catalog.json_nodes import check_properties_size
from afterglow.format.position import EARLIEST, LedgerRange, Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.ledger.durable_cursor import DurableCursor
from afterglow.metadata.names import encode_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.admin.call import BrokerCall
    from afterglow.broker.service import BrokerService
    from afterglow.broker.subscription import Subscription
    from afterglow.broker.topic import Topic
    from afterglow.ledger.reader import StoredEntry
    from afterglow.metadata.names import TopicName

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

_EXCLUSIVE: Final = wire.CommandSubscribe.Exclusive
"""The type of a subscription until its first consumer subscribes."""
_READ_ENTRIES: Final = 100
"""Entries of one read: about 1 ms, after which the event loop serves other calls."""
_READ_BYTES: Final = 4 << 20


# --- subscriptions ---


@RESOURCES.on("GET", "/subscriptions", Access.PEEK)
async def list_subscriptions(call: BrokerCall) -> list[str]:
    """Names of a topic's subscriptions, of all partitions."""
    target = await targets.find(call.service, call.topic)
    found: set[str] = set()
    async for topic in targets.each(call.service, target):
        found.update(topic.subscriptions)
    return sorted(found)


@RESOURCES.on("PUT", "/subscription/{subscription}", Access.CHANGE_SUBSCRIPTION)
async def create_subscription(call: BrokerCall) -> None:
    """Create a subscription, on all partitions; the topic is created with it if clients may create topics.

    Partitions that have the subscription already are skipped: an earlier attempt may have been interrupted.
    """
    service, subscription = call.service, call.segment("subscription")
    encode_name(subscription)
    if call.flag("replicated"):
        raise not_allowed("subscriptions cannot be replicated: replication is not supported")
    message = message_ids.decode(await call.body())
    topics = await _topics_to_subscribe(service, call.topic)
    opened = [await service.topic(name, create=True) for name in topics]
    for topic in opened:
        topic.check_subscription_limit(subscription)
    is_created = False
    for topic in opened:
        if subscription not in topic.subscriptions:
            position, _ = await message_ids.start_position(topic, message)
            await topic.create_subscription(subscription, _EXCLUSIVE, position, message.properties)
            is_created = True
    if not is_created:
        raise conflict(f"{call.topic} has a subscription {subscription!r} already")


@RESOURCES.on("DELETE", "/subscription/{subscription}", Access.CHANGE_SUBSCRIPTION)
async def delete_subscription(call: BrokerCall) -> None:
    """Delete a subscription, on all partitions; with ``force`` also if consumers are connected."""
    force = call.flag("force")
    found = await targets.subscriptions(call)
    if not force:
        for subscription in found:
            if subscription.consumers:
                raise precondition_failed(f"{subscription} has consumers connected: close them, or delete it by force")
    for subscription in found:
        subscription.disconnect_consumers()
        await subscription.topic.unsubscribe(subscription)


@RESOURCES.on("POST", "/subscription/{subscription}/resetcursor/{timestamp}", Access.CHANGE_SUBSCRIPTION)
async def reset_to_time(call: BrokerCall) -> None:
    """Reset a subscription to the first message at or after a time, on all partitions."""
    time_ms = call.integer_segment("timestamp")
    for subscription in await targets.subscriptions(call):
        position = await call.search(subscription.topic.ledger.reader.find_by_time, time_ms)
        _reset(subscription, position)


@RESOURCES.on("POST", "/subscription/{subscription}/resetcursor", Access.CHANGE_SUBSCRIPTION)
async def reset_to_message(call: BrokerCall) -> None:
    """Reset a subscription to a message."""
    message = message_ids.decode(await call.body())
    subscription = await _one_subscription(call, "reset to a message")
    position, ack_set = await message_ids.start_position(subscription.topic, message)
    _reset(subscription, position, ack_set)


@RESOURCES.on("POST", "/subscription/{subscription}/skip_all", Access.CHANGE_SUBSCRIPTION)
async def skip_all(call: BrokerCall) -> None:
    """Acknowledge the whole backlog, on all partitions."""
    for subscription in await targets.subscriptions(call):
        subscription.cursor.clear_backlog()
        targets.release_acknowledged(subscription)


@RESOURCES.on("POST", "/subscription/{subscription}/skip/{count}", Access.CHANGE_SUBSCRIPTION)
async def skip(call: BrokerCall) -> None:
    """Acknowledge the first entries of the backlog."""
    count = call.integer_segment("count", high=values.INT_MAX)
    subscription = await _one_subscription(call, "skipped on")
    left = count
    for span in subscription.cursor.unacked():
        if left <= 0:
            break
        last = min(span.last, span.first + left - 1)
        left -= last - span.first + 1
        subscription.cursor.ack_through(Position(span.ledger_id, last))
    targets.release_acknowledged(subscription)


async def _topics_to_subscribe(service: BrokerService, name: TopicName) -> list[TopicName]:
    await service.blocking(service.catalog.policies, name.namespace)
    count = await service.topic_creator.partitions(name, create=True)
    if count:
        return [name.partition(index) for index in range(count)]
    policy, _ = await service.blocking(service.policies.of_namespace, name.namespace)
    if not policy.allow_auto_topic_creation and not await targets.exists(service, name):
        raise precondition_failed(f"topic {name} does not exist and allowAutoTopicCreation is false: create it first")
    return [name]


async def _one_subscription(call: BrokerCall, operation: str) -> Subscription:
    topic = await targets.open_for(call.service, call.topic, operation)
    return targets.subscription_of(topic, call.segment("subscription"))


def _reset(subscription: Subscription, position: Position, ack_set: tuple[int, ...] | None = None) -> None:
    # Consumers reconnect, which also returns the permits of the messages in their queues.
    subscription.disconnect_consumers()
    subscription.reset(position, ack_set)


# --- backlog ---


@RESOURCES.on("POST", "/subscription/{subscription}/expireMessages/{seconds}", Access.CHANGE_SUBSCRIPTION)
async def expire(call: BrokerCall) -> None:
    """Acknowledge messages older than an age in seconds, on all partitions."""
    await _expire(call, await targets.subscriptions(call), f"subscription {call.segment('subscription')!r}")


@RESOURCES.on("POST", "/all_subscription/expireMessages/{seconds}", Access.CHANGE_SUBSCRIPTION)
async def expire_for_all(call: BrokerCall) -> None:
    """Acknowledge messages older than an age in seconds, for all subscriptions, on all partitions."""
    target = await targets.find(call.service, call.topic)
    found = [each async for topic in targets.each(call.service, target) for each in topic.subscriptions.values()]
    await _expire(call, found, "any subscription")


@RESOURCES.on("POST", "/subscription/{subscription}/analyzeBacklog", Access.PEEK)
async def analyze(call: BrokerCall) -> dict[str, Any]:
    """Count the unacknowledged entries and messages by reading them, within the limits of the settings.

    There are no entry filters, so that all are accepted.
    """
    body = await call.body()
    begin = EARLIEST if body is None else message_ids.decode(body).position
    found = await _count(await _one_subscription(call, "analyzed"), begin)
    shown: dict[str, Any] = {
        "entries": found.entries,
        "messages": found.messages,
        "filterAcceptedEntries": found.entries,
        "filterAcceptedMessages": found.messages,
        "filterRejectedEntries": 0,
        "filterRejectedMessages": 0,
        "filterRescheduledEntries": 0,
        "filterRescheduledMessages": 0,
        "aborted": found.aborted,
    }
    if found.first is not None:
        shown |= {"firstMessageId": str(found.first), "lastMessageId": str(found.last)}
    return shown


@dataclass(slots=True)
class _BacklogCount:
    entries: int = 0
    messages: int = 0
    first: Position | None = None
    last: Position | None = None
    aborted: bool = False

    def add(self, entries: Sequence[StoredEntry]) -> None:
        for entry in entries:
            self.first = self.first or entry.position
            self.last = entry.position
            self.messages += prepare_entry(entry, expose_broker_metadata=True).messages
        self.entries += len(entries)


async def _count(subscription: Subscription, begin: Position) -> _BacklogCount:
    topic, config = subscription.topic, subscription.topic.service.config
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.subscription_backlog_scan_max_time_ms / 1000
    counted = _BacklogCount()
    for span in _from(begin, subscription.cursor.unacked()):
        position, end = Position(span.ledger_id, span.first), Position(span.ledger_id, span.last + 1)
        while position < end:
            budget = config.subscription_backlog_scan_max_entries - counted.entries
            if budget <= 0 or loop.time() > deadline:
                counted.aborted = True
                return counted
            max_entries = min(budget, _READ_ENTRIES, end.entry_id - position.entry_id)
            reading = await topic.read_with_gaps(position, max_entries, _READ_BYTES)
            counted.add([entry for entry in reading.entries if entry.position < end])
            position = reading.end or end  # entries that were trimmed meanwhile have left the backlog
            await asyncio.sleep(0)
    return counted


def _from(begin: Position, spans: Sequence[LedgerRange]) -> Iterator[LedgerRange]:
    for span in spans:
        first = max(span.first, begin.entry_id) if span.ledger_id == begin.ledger_id else span.first
        if span.ledger_id >= begin.ledger_id and first <= span.last:
            yield LedgerRange(span.ledger_id, first, span.last)


async def _expire(call: BrokerCall, subscriptions: Sequence[Subscription], whose: str) -> None:
    # An age of 0 means "never" for the message TTL, so that it is ambiguous here.
    seconds = call.integer_segment("seconds", 1, values.INT_MAX)
    behind = [subscription for subscription in subscriptions if subscription.cursor.backlog]
    if not behind:
        raise conflict(f"no messages to expire: {whose} of {call.topic} has no backlog")
    oldest_kept = call.service.store.clock.now_ms() - 1000 * seconds
    ends: dict[Topic, Position | None] = {}
    for topic in {subscription.topic for subscription in behind}:
        ends[topic] = await call.search(topic.ledger.reader.last_before, oldest_kept)
    for subscription in behind:
        end = ends[subscription.topic]
        if end is not None:
            subscription.cursor.ack_through(end)
            targets.release_acknowledged(subscription)


# --- properties ---


@RESOURCES.on("GET", "/subscription/{subscription}/properties", Access.PEEK)
async def get_properties(call: BrokerCall) -> dict[str, str]:
    """Properties of a subscription, of all partitions."""
    found: dict[str, str] = {}
    for subscription in await targets.subscriptions(call):
        found |= subscription.cursor.properties
    return found


@RESOURCES.on("PUT", "/subscription/{subscription}/properties", Access.CHANGE_SUBSCRIPTION)
async def replace_properties(call: BrokerCall) -> None:
    """Replace the properties of a subscription, on all partitions."""
    properties = values.text_map(await call.body(), "properties")
    check_properties_size(properties)
    cursors = [subscription.cursor for subscription in await targets.subscriptions(call)]
    durable = [cursor for cursor in cursors if isinstance(cursor, DurableCursor)]
    if len(durable) < len(cursors):
        raise not_allowed(f"{call.segment('subscription')!r} is the subscription of a reader and has no properties")
    for cursor in durable:
        await call.blocking(cursor.set_properties, properties)
