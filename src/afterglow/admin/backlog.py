"""What subscriptions have not consumed: letting it expire, and how much it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import ledger_stats, message_ids, places, targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, conflict, precondition_failed
from afterglow.admin.resource import Resources
from afterglow.broker.outgoing import prepare
from afterglow.format.position import EARLIEST, Position
from afterglow.ledger.layout import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.admin.call import Call
    from afterglow.broker.subscription import Subscription
    from afterglow.broker.topic import Topic
    from afterglow.ledger.reader import StoredEntry

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

_READ_ENTRIES: Final = 100
"""Entries between which others have their turn: about a millisecond."""
_READ_BYTES: Final = 4 << 20


@RESOURCES.on("POST", "/subscription/{subscription}/expireMessages/{seconds}", Access.CHANGE_SUBSCRIPTION)
async def expire(call: Call) -> None:
    """Acknowledge what is older than some seconds, on all partitions."""
    name = call.segment("subscription")
    target = await targets.find(call.service, call.topic)
    found = [targets.subscription_of(topic, name) async for topic in targets.each(call.service, target)]
    await _expire(call, found, f"subscription {name!r}")


@RESOURCES.on("POST", "/all_subscription/expireMessages/{seconds}", Access.CHANGE_SUBSCRIPTION)
async def expire_for_all(call: Call) -> None:
    """Acknowledge what is older than some seconds, for all subscriptions, on all partitions."""
    target = await targets.find(call.service, call.topic)
    found = [each async for topic in targets.each(call.service, target) for each in topic.subscriptions.values()]
    await _expire(call, found, "any subscription")


@RESOURCES.on("POST", "/subscription/{subscription}/expireMessages", Access.CHANGE_SUBSCRIPTION)
async def expire_to_message(call: Call) -> None:
    """Acknowledge everything up to a message."""
    body = await call.body()
    if body is None:
        raise bad_request('give the message up to which all expire: {"ledgerId":…,"entryId":…}')
    place = message_ids.decode(body)
    topic = await targets.open_whole(call.service, call.topic, "expired up to a message")
    _check_partition(body, topic)
    subscription = targets.subscription_of(topic, call.segment("subscription"))
    position, ack_set = await places.end_at(topic, place)
    if position > topic.ledger.last_confirmed:
        raise conflict(f"messages of {topic.name} cannot expire up to {position}: it ends at {_end(topic)}")
    subscription.cursor.ack_through(position, ack_set)
    targets.settle(subscription)


@RESOURCES.on("PUT", "/backlogSize", Access.PEEK)
async def backlog_size(call: Call) -> int:
    """Bytes from a message on: those of its ledger by the average size of an entry there."""
    body = await call.body()
    if body is None:
        raise bad_request('give the message from which on to count: {"ledgerId":…,"entryId":…}')
    position = message_ids.decode(body).position
    topic = await targets.open_whole(call.service, call.topic, "measured")
    return ledger_stats.bytes_behind(topic.ledger, position)


@RESOURCES.on("POST", "/subscription/{subscription}/analyzeBacklog", Access.PEEK)
async def analyze(call: Call) -> dict[str, Any]:
    """Count entries and messages that are not acknowledged, by reading them: as many, and as long, as settings allow.

    No filters apply here, so that all are accepted.
    """
    body = await call.body()
    begin = EARLIEST if body is None else message_ids.decode(body).position
    topic = await targets.open_whole(call.service, call.topic, "analyzed")
    subscription = targets.subscription_of(topic, call.segment("subscription"))
    found = await _count(subscription, begin)
    shown: dict[str, Any] = {
        "entries": found.entries,
        "messages": found.messages,
        "filterAcceptedEntries": found.entries,
        "filterAcceptedMessages": found.messages,
        "filterRejectedEntries": 0,
        "filterRejectedMessages": 0,
        "filterRescheduledEntries": 0,
        "filterRescheduledMessages": 0,
        "aborted": found.cut_short,
    }
    if found.first is not None:
        shown |= {"firstMessageId": str(found.first), "lastMessageId": str(found.last)}
    return shown


@dataclass(slots=True)
class _Counted:
    entries: int = 0
    messages: int = 0
    first: Position | None = None
    last: Position | None = None
    cut_short: bool = False

    def add(self, entries: Sequence[StoredEntry]) -> None:
        for entry in entries:
            self.first = self.first or entry.position
            self.last = entry.position
            self.messages += prepare(entry, expose_broker_metadata=True).messages
        self.entries += len(entries)


async def _count(subscription: Subscription, begin: Position) -> _Counted:
    topic, config = subscription.topic, subscription.topic.service.config
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.subscription_backlog_scan_max_time_ms / 1000
    counted = _Counted()
    for span in _from(begin, subscription.cursor.unacked()):
        position, end = Position(span.ledger_id, span.first), Position(span.ledger_id, span.last + 1)
        while position < end:
            room = config.subscription_backlog_scan_max_entries - counted.entries
            if room <= 0 or loop.time() > deadline:
                counted.cut_short = True
                return counted
            most = min(room, _READ_ENTRIES, end.entry_id - position.entry_id)
            reading = await topic.read_over(position, most, _READ_BYTES)
            counted.add([entry for entry in reading.entries if entry.position < end])
            position = reading.end or end  # what was trimmed meanwhile is no backlog any more
            await asyncio.sleep(0)
    return counted


def _from(begin: Position, spans: Sequence[Span]) -> Iterator[Span]:
    for span in spans:
        first = max(span.first, begin.entry_id) if span.ledger_id == begin.ledger_id else span.first
        if span.ledger_id >= begin.ledger_id and first <= span.last:
            yield Span(span.ledger_id, first, span.last)


async def _expire(call: Call, subscriptions: Sequence[Subscription], whose: str) -> None:
    # 0 would let nothing expire, as without a time to live: whoever gives it means something else.
    seconds = call.whole_number("seconds", 1, values.INT_MAX)
    behind = [subscription for subscription in subscriptions if subscription.cursor.backlog]
    if not behind:
        raise conflict(f"nothing can expire: no backlog of {whose} of {call.topic} is left")
    oldest_kept = call.service.store.clock.now_ms() - 1000 * seconds
    ends: dict[Topic, Position | None] = {}
    for topic in {subscription.topic for subscription in behind}:
        ends[topic] = await call.search(topic.ledger.last_before, oldest_kept)
    for subscription in behind:
        end = ends[subscription.topic]
        if end is not None:
            subscription.cursor.ack_through(end)
            targets.settle(subscription)


def _check_partition(body: object, topic: Topic) -> None:
    index = body.get("partitionIndex", topic.partition) if isinstance(body, dict) else topic.partition
    if index != topic.partition:
        raise precondition_failed(
            f"the message is of partition {values.shown(index)}, and {topic.name} is {_partition(topic)}"
        )


def _partition(topic: Topic) -> str:
    return "no partition" if topic.partition < 0 else f"partition {topic.partition}"


def _end(topic: Topic) -> Position:
    return topic.ledger.last_confirmed
