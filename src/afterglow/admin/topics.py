"""Topics: creating, listing, deleting, ending, letting go."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from afterglow.admin import message_ids, targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import conflict, not_allowed, precondition_failed
from afterglow.admin.resource import Resources
from afterglow.ledger.properties import INDEX, set_text

if TYPE_CHECKING:
    from afterglow.admin.call import Call
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.metadata.names import TopicName

RESOURCES = Resources("/admin/v2/persistent")


@RESOURCES.on("GET", "/{tenant}/{namespace}", Access.KNOWN)
async def list_topics(call: Call) -> list[str]:
    """The topics of a namespace, each partition by itself."""
    await call.service.blocking(call.service.catalog.policies, call.namespace)
    found = await call.service.blocking(call.service.catalog.topics, call.namespace)
    return sorted(str(topic) for topic in found)


@RESOURCES.on("PUT", "/{tenant}/{namespace}/{topic}", Access.TENANT)
async def create_topic(call: Call) -> None:
    """Create a topic that is not partitioned, or a partition that is missing."""
    service, name = call.service, call.topic
    properties = _properties(await call.body())
    await service.blocking(service.catalog.policies, name.namespace)
    if await targets.partitions_of(service, name) or await targets.exists(service, name):
        raise conflict(f"topic {name} exists already")
    if name.partition_index is not None:
        count = await targets.partitions_of(service, name.base)
        if 0 < count <= name.partition_index:
            raise precondition_failed(f"{name.base} has {count} partitions: raise their number to have {name}")
    ledger = await service.blocking(service.store.open, name.managed_ledger_name)
    if properties:
        await service.blocking(ledger.update, partial(_set_properties, properties))


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
    if await targets.partitions_of(call.service, call.topic):
        raise not_allowed(f"{call.topic} is partitioned: terminate each of its partitions")
    topic = await targets.open_one(call.service, call.topic)
    last = await call.service.blocking(topic.ledger.terminate)
    for producer in list(topic.producers.values()):
        topic.disconnect_producer(producer)
    return message_ids.encode(last, topic.partition)


@RESOURCES.on("DELETE", "/{tenant}/{namespace}/{topic}/truncate", Access.TENANT)
async def truncate_topic(call: Call) -> None:
    """Acknowledge all messages for all subscriptions and let go of them."""
    target = await targets.find(call.service, call.topic)
    async for topic in targets.each(call.service, target):
        await call.service.blocking(topic.ledger.truncate)
        for subscription in topic.subscriptions.values():
            targets.settle(subscription)


@RESOURCES.on("GET", "/{tenant}/{namespace}/{topic}/lastMessageId", Access.KNOWN)
async def last_message_id(call: Call) -> dict[str, int]:
    """The last message of a topic."""
    topic = await targets.open_one(call.service, call.topic)
    position, batch_index = await topic.last_message()
    return message_ids.encode(position, topic.partition, batch_index)


async def _refuse_partitioned(call: Call, name: TopicName, what: str) -> None:
    if await targets.partitions_of(call.service, name):
        raise conflict(f"{name} is a partitioned topic and is not {what}")


def _properties(body: Any) -> dict[str, str]:
    properties = values.text_map(body, "properties")
    for key in properties:
        if key == INDEX or key.startswith("afterglow."):
            raise precondition_failed(f"the property {values.shown(key)} is the broker's own: choose another")
    return properties


def _set_properties(properties: dict[str, str], info: ManagedLedgerInfo) -> None:
    for key, value in properties.items():
        set_text(info, key, value)
