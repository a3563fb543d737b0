"""What is done to all topics of a namespace, or to those of one bundle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from afterglow.admin import bundles, targets
from afterglow.admin.access import Access
from afterglow.admin.errors import precondition_failed
from afterglow.admin.policy_levels import namespace_policies
from afterglow.admin.resource import Resources
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from afterglow.admin.call import Call
    from afterglow.broker.topic import Topic

RESOURCES = Resources("/admin/v2/namespaces/{tenant}/{namespace}")


@RESOURCES.on("GET", "/bundles", Access.LIST_TOPICS)
async def get_bundles(call: Call) -> dict[str, Any]:
    """The bundles of a namespace."""
    return bundles.data(await namespace_policies(call))


@RESOURCES.on("PUT", "/unload", Access.TENANT)
@RESOURCES.on("PUT", "/{bundle}/unload", Access.TENANT)
async def unload(call: Call) -> None:
    """Close every open topic; clients come back and open theirs again."""
    other = call.parameter("destinationBroker")
    if other is not None and other.partition("://")[2] != call.broker_id != other:
        raise precondition_failed(f"there is no broker {other!r}: this one, {call.broker_id}, serves everything")
    chosen = await _chosen(call)
    for name in [name for name in call.service.open_topics if name.namespace == call.namespace]:
        if chosen is None or chosen.holds(name):
            await call.service.unload(name)


@RESOURCES.on("PUT", "/{bundle}/split", Access.TENANT)
async def split(call: Call) -> None:
    """Say that bundles are not split."""
    await _chosen(call)
    raise precondition_failed("bundles are not split: one broker serves all of them")


@RESOURCES.on("GET", "/{bundle}/topicHashPositions", Access.READ_TENANT)
async def get_positions(call: Call) -> dict[str, Any]:
    """Where the topics of a bundle stand in the hash range; of all, or of those that ``topics`` names."""
    chosen = await _chosen(call)
    assert chosen is not None
    wanted = {TopicName.parse(name) for name in call.parameters("topics")}
    found = [name for name in await _topics(call) if not wanted or name in wanted or name.base in wanted]
    return {
        "namespace": str(call.namespace),
        "bundle": chosen.name,
        "topicHashPositions": {str(name): bundles.hash_of(name) for name in found},
    }


@RESOURCES.on("POST", "/clearBacklog", Access.CHANGE_SUBSCRIPTIONS)
@RESOURCES.on("POST", "/clearBacklog/{subscription}", Access.CHANGE_SUBSCRIPTIONS)
@RESOURCES.on("POST", "/{bundle}/clearBacklog", Access.CHANGE_SUBSCRIPTIONS)
@RESOURCES.on("POST", "/{bundle}/clearBacklog/{subscription}", Access.CHANGE_SUBSCRIPTIONS)
async def clear_backlog(call: Call) -> None:
    """Acknowledge everything, for one subscription or for all."""
    only = call.segment("subscription") if call.has("subscription") else None
    async for topic in _opened(call):
        for subscription in list(topic.subscriptions.values()):
            if only in {None, subscription.name}:
                subscription.cursor.clear_backlog()
                targets.settle(subscription)


@RESOURCES.on("POST", "/unsubscribe/{subscription}", Access.CHANGE_SUBSCRIPTIONS)
@RESOURCES.on("POST", "/{bundle}/unsubscribe/{subscription}", Access.CHANGE_SUBSCRIPTIONS)
async def unsubscribe(call: Call) -> None:
    """Delete a subscription of every topic that has it; none is deleted where one has consumers connected."""
    name = call.segment("subscription")
    found = [topic.subscriptions[name] async for topic in _opened(call) if name in topic.subscriptions]
    for subscription in found:
        if subscription.consumers:
            raise precondition_failed(f"{subscription} has consumers connected: close them first")
    for subscription in found:
        await subscription.topic.unsubscribe(subscription)


async def _chosen(call: Call) -> bundles.Bundle | None:
    """The bundle in the path; None for all of them."""
    stored = await namespace_policies(call)
    return bundles.find(stored, call.segment("bundle")) if call.has("bundle") else None


async def _topics(call: Call) -> list[TopicName]:
    chosen = await _chosen(call)
    names = await call.service.blocking(call.service.catalog.topics, call.namespace)
    return sorted((name for name in names if chosen is None or chosen.holds(name)), key=str)


async def _opened(call: Call) -> AsyncIterator[Topic]:
    """The topics, opened; between two of them others have their turn."""
    for name in await _topics(call):
        if await targets.exists(call.service, name):  # else it was deleted meanwhile
            yield await call.service.topic(name, create=False)
        await asyncio.sleep(0)
