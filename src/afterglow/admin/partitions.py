"""Partitioned topics: how many partitions they have."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from afterglow.admin import properties, targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import AdminError, bad_request, conflict, not_found, precondition_failed
from afterglow.admin.resource import Resources
from afterglow.broker.policies import most_partitions
from afterglow.broker.requests import TRANSACTION_COORDINATOR
from afterglow.errors import NotThere

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.admin.call import Call
    from afterglow.broker.service import BrokerService
    from afterglow.metadata.names import TopicName

RESOURCES = Resources("/admin/v2/persistent")


@RESOURCES.on("GET", "/{tenant}/{namespace}/partitioned", Access.LIST_TOPICS)
async def list_partitioned(call: Call) -> list[str]:
    """The partitioned topics of a namespace."""
    await call.service.blocking(call.service.catalog.policies, call.namespace)
    found = await call.service.blocking(call.service.catalog.partitioned_topics, call.namespace)
    return sorted(str(topic) for topic in found)


@RESOURCES.on("GET", "/{tenant}/{namespace}/{topic}/partitions", Access.LOOKUP)
async def get_partitions(call: Call) -> dict[str, Any]:
    """How many partitions a topic has; 0 if it is not partitioned, or would not be when a client makes it."""
    name = call.topic
    if name.base == TRANSACTION_COORDINATOR:
        return metadata(0)
    creating = call.flag("checkAllowAutoCreation")
    policies = await call.service.blocking(call.service.policies.of_namespace, name.namespace)
    count = await call.service.partitions(name, create=creating)
    if not count and not (creating and policies.auto_topic_creation):
        await targets.find(call.service, name)
    if not count:
        return metadata(0)
    return metadata(count, await call.service.blocking(call.service.catalog.partitioned_properties, name))


@RESOURCES.on("PUT", "/{tenant}/{namespace}/{topic}/partitions", Access.TENANT)
async def create_partitioned(call: Call) -> None:
    """Create a partitioned topic, and its partitions.

    1. Record how many partitions it has. *Crash: partitions come into being when a client first names them.*
    2. Create them, so that they are listed. *Crash: as after 1.*
    """
    service, name = call.service, call.topic
    if name.partition_index is not None:
        raise precondition_failed(f"{name} is the name of a partition: a partitioned topic has another")
    count, given = _given(await call.body())
    most = most_partitions(service.config)
    if not 0 < count <= most:
        raise AdminError(HTTPStatus.NOT_ACCEPTABLE, f"{name} may have from 1 to {most} partitions, not {count}")
    await service.blocking(service.catalog.policies, name.namespace)
    if await targets.partitions_of(service, name) or await targets.exists(service, name):
        raise conflict(f"topic {name} exists already")
    await service.creation.make_partitioned(name, count, given)
    await _create_partitions(service, name, range(count))


@RESOURCES.on("POST", "/{tenant}/{namespace}/{topic}/partitions", Access.TENANT)
async def update_partitions(call: Call) -> None:
    """Raise the number of partitions; the steps are those of creation. It is never lowered: messages would be lost."""
    service, name = call.service, call.topic
    count, given = _given(await call.body())
    if given:
        raise bad_request("properties are not changed with the number of partitions: give the number alone")
    before = await targets.partitions_of(service, name)
    if not before:
        raise conflict(f"{name} is not a partitioned topic")
    most = most_partitions(service.config)
    if not before <= count <= max(most, before):
        raise AdminError(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{name} has {before} partitions and may have up to {most}, not {count}"
        )
    await service.blocking(service.policies.check_room, name.namespace, count - before)
    await service.blocking(service.catalog.update_partitions, name, count)
    await _create_partitions(service, name, range(before, count))


@RESOURCES.on("POST", "/{tenant}/{namespace}/{topic}/createMissedPartitions", Access.TENANT)
async def create_missed(call: Call) -> None:
    """Create the partitions of a topic that are not there."""
    service, name = call.service, call.topic
    count = await targets.partitions_of(service, name)
    if not count:
        raise not_found(f"there is no partitioned topic {name}")
    await _create_partitions(service, name, range(count))


@RESOURCES.on("DELETE", "/{tenant}/{namespace}/{topic}/partitions", Access.TENANT)
async def delete_partitioned(call: Call) -> None:
    """Delete a partitioned topic with all partitions.

    1. Refuse if any partition is in use, before anything is changed.
    2. Delete the partitions. *Crash: the topic is there, with fewer messages; the caller has no answer and asks again.*
    3. Forget that the topic is partitioned, then its schemas and policies. *Crash before these are gone: a new topic of
       the name finds them.*
    """
    service, name = call.service, call.topic
    force = call.flag("force")
    count = await targets.partitions_of(service, name)
    if not count:
        if await targets.exists(service, name):
            raise conflict(f"{name} is not a partitioned topic: delete it as a topic")
        raise not_found(f"topic {name} does not exist")
    if not force:
        for index in range(count):
            await targets.check_unused(service, name.partition(index))
    for index in range(count):
        try:
            await service.delete_topic(name.partition(index), force=force)
        except NotThere:
            continue  # never used, or deleted by itself
    await service.blocking(service.catalog.delete_partitioned, name)
    await service.forget_topic(name)


def metadata(count: int, given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A partitioned topic's metadata, with the properties that it was given."""
    return {"partitions": count, "deleted": False, **({"properties": dict(given)} if given else {})}


def _given(body: object) -> tuple[int, dict[str, str]]:
    """A number, or an object that has it, as clients send it together with properties; and these."""
    given: dict[str, str] = {}
    if isinstance(body, dict):
        fields = values.fields(body, "a partitioned topic", ("partitions", "properties", "deleted"))
        given = properties.given(fields.get("properties"))
        body = fields.get("partitions")
    name = "the number of partitions"
    if isinstance(body, str):  # Pulsar's JSON reader takes a number in quotes, as Go's tools send it
        return values.whole_number(body.strip(), name, -values.INT_MAX, values.INT_MAX), given
    return values.integer(body, name, -values.INT_MAX), given


async def _create_partitions(service: BrokerService, name: TopicName, indexes: range) -> None:
    for index in indexes:
        await service.creation.make(name.partition(index))
