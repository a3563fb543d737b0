"""Topics: creating, listing, deleting, ending, letting go."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from afterglow.admin import message_ids, properties, targets
from afterglow.admin.access import Access
from afterglow.admin.errors import conflict, not_allowed, precondition_failed
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call
    from afterglow.broker.topic import Topic
    from afterglow.metadata.names import TopicName

RESOURCES = Resources("/admin/v2/persistent")


@RESOURCES.on("GET", "/{tenant}/{namespace}", Access.LIST_TOPICS)
async def list_topics(call: Call) -> list[str]:
    """The topics of a namespace, each partition by itself."""
    await call.service.blocking(call.service.catalog.policies, call.namespace)
    found = await call.service.blocking(call.service.catalog.topics, call.namespace)
    return sorted(str(topic) for topic in found)


@RESOURCES.on("PUT", "/{tenant}/{namespace}/{topic}", Access.TENANT)
async def create_topic(call: Call) -> None:
    """Create a topic that is not partitioned, or a partition that is missing."""
    service, name = call.service, call.topic
    given = properties.given(await call.body())
    await service.blocking(service.catalog.policies, name.namespace)
    if await targets.partitions_of(service, name) or await targets.exists(service, name):
        raise conflict(f"topic {name} exists already")
    if name.partition_index is not None:
        count = await targets.partitions_of(service, name.base)
        if 0 < count <= name.partition_index:
            raise precondition_failed(f"{name.base} has {count} partitions: raise their number to have {name}")
    await service.blocking(service.policies.check_room, name.namespace, 1)
    ledger = await service.creation.make(name)
    if given:
        await service.blocking(ledger.update, partial(properties.put, given))


@RESOURCES.on("DELETE", "/{tenant}/{namespace}/{topic}", Access.TENANT)
async def delete_topic(call: Call) -> None:
    """Delete a topic and everything in it."""
    name, force = call.topic, call.flag("force")
    await _refuse_partitioned(call, name, "deleted as a topic: delete it with its partitions")
    await targets.find(call.service, name)
    if not force:
        await targets.check_unused(call.service, name)
    await call.service.delete_topic(name, force=force)


@RESOURCES.on("PUT", "/{tenant}/{namespace}/{topic}/unload", Access.TENANT)
async def unload_topic(call: Call) -> None:
    """Close a topic; clients come back and open it again."""
    target = await targets.find(call.service, call.topic)
    for name in target.topics:
        await call.service.unload(name)


@RESOURCES.on("POST", "/{tenant}/{namespace}/{topic}/terminate", Access.TENANT)
async def terminate_topic(call: Call) -> dict[str, int]:
    """End a topic for good; consumers still get what is in it."""
    return await _terminate(await targets.open_whole(call.service, call.topic, "terminated"))


@RESOURCES.on("POST", "/{tenant}/{namespace}/{topic}/terminate/partitions", Access.TENANT)
async def terminate_partitions(call: Call) -> dict[int, dict[str, int]]:
    """End all partitions of a topic for good, also those that nobody has used: their messages would go on."""
    service, name = call.service, call.topic
    count = await targets.partitions_of(service, name)
    if not count:
        await targets.find(service, name)
        raise not_allowed(f"{name} is not partitioned: terminate it as a topic")
    partitions = [await service.topic(name.partition(index), create=True) for index in range(count)]
    return {topic.partition: await _terminate(topic) for topic in partitions}


@RESOURCES.on("POST", "/{tenant}/{namespace}/{topic}/trim", Access.TENANT)
async def trim_topic(call: Call) -> None:
    """Let go of ledgers that are consumed and that retention no longer holds, now."""
    target = await targets.find(call.service, call.topic)
    async for topic in targets.each(call.service, target):
        await call.service.blocking(topic.ledger.trim)


@RESOURCES.on("DELETE", "/{tenant}/{namespace}/{topic}/truncate", Access.TENANT)
async def truncate_topic(call: Call) -> None:
    """Acknowledge all messages for all subscriptions and let go of them."""
    target = await targets.find(call.service, call.topic)
    async for topic in targets.each(call.service, target):
        await call.service.blocking(topic.ledger.truncate)
        for subscription in topic.subscriptions.values():
            targets.settle(subscription)


@RESOURCES.on("GET", "/{tenant}/{namespace}/{topic}/lastMessageId", Access.PEEK)
async def last_message_id(call: Call) -> dict[str, int]:
    """The last message of a topic."""
    topic = await targets.open_one(call.service, call.topic)
    position, batch_index = await topic.last_message()
    return message_ids.encode(position, topic.partition, batch_index)


async def _terminate(topic: Topic) -> dict[str, int]:
    last = await topic.service.blocking(topic.ledger.terminate)
    topic.disconnect_producers()
    return message_ids.encode(last, topic.partition)


async def _refuse_partitioned(call: Call, name: TopicName, what: str) -> None:
    if await targets.partitions_of(call.service, name):
        raise conflict(f"{name} is a partitioned topic and is not {what}")
