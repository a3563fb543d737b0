"""Routes of topics and partitioned topics: create, look up, unload, terminate, trim, delete; properties."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import message_ids, targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import (
    AdminError,
    bad_request,
    conflict,
    not_allowed,
    not_found,
    precondition_failed,
)
from afterglow.admin.resource import Resources
from afterglow.broker.requests import TRANSACTION_COORDINATOR, check_listener
from afterglow.broker.topic_creation import max_partitions
from afterglow.catalog.json_nodes import check_properties_size
from afterglow.errors import NotFound
from afterglow.ledger.properties import INDEX, TOPIC_EPOCH, set_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.admin.call import BrokerCall
    from afterglow.broker.service import BrokerService
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.metadata.names import TopicName

PERSISTENT = Resources("/admin/v2/persistent/{tenant}/{namespace}")
LOOKUP = Resources("/lookup/v2/topic/persistent/{tenant}/{namespace}")

_RESERVED_PREFIX: Final = "afterglow."
_SHADOW_SOURCE: Final = "PULSAR.SHADOW_SOURCE"
"""Property that makes a topic the shadow of another in Pulsar."""


# --- lists and lookup ---


@LOOKUP.on("GET", "/{topic}", Access.LOOKUP)
async def lookup(call: BrokerCall) -> dict[str, str]:
    """Addresses of this broker, for clients with an HTTP service URL. The topic need not exist."""
    service = call.service
    await call.namespace_policies()
    check_listener(call.parameter("listenerName") or call.header("X-Pulsar-ListenerName") or "")
    return {
        "brokerUrl": service.service_url,
        # Both names, and empty rather than absent: the C++ client and those built on it crash otherwise.
        "brokerUrlTls": service.service_url_tls,
        "brokerUrlSsl": service.service_url_tls,
        "httpUrlTls" if call.secure else "httpUrl": call.web_url,
        "nativeUrl": service.service_url,
    }


# --- topics ---


@PERSISTENT.on("PUT", "/{topic}", Access.TENANT)
async def create_topic(call: BrokerCall) -> None:
    """Create a topic that is not partitioned, or a missing partition."""
    service, name = call.service, call.topic
    properties = _given_properties(await call.body())
    await call.namespace_policies()
    if await targets.partitions_of(service, name) or await targets.exists(service, name):
        raise conflict(f"topic {name} exists already")
    if name.partition_index is not None:
        count = await targets.partitions_of(service, name.base)
        if 0 < count <= name.partition_index:
            raise precondition_failed(f"{name.base} has {count} partitions: add partitions to create {name}")
    await service.blocking(service.topic_creator.check_topic_limit, name.namespace, 1)
    ledger = await service.topic_creator.create(name)
    if properties:
        await service.blocking(ledger.update, partial(_put_properties, properties))


@PERSISTENT.on("DELETE", "/{topic}", Access.TENANT)
async def delete_topic(call: BrokerCall) -> None:
    """Delete a topic with its data."""
    name, force = call.topic, call.flag("force")
    if await targets.partitions_of(call.service, name):
        raise conflict(f"{name} is partitioned: delete it as a partitioned topic")
    await targets.find(call.service, name)
    if not force:
        await targets.check_unused(call.service, name)
    await call.service.delete_topic(name, force=force)


@PERSISTENT.on("PUT", "/{topic}/unload", Access.TENANT)
async def unload_topic(call: BrokerCall) -> None:
    """Close a topic; clients that reconnect open it again."""
    target = await targets.find(call.service, call.topic)
    for name in target.topics:
        await call.service.unload(name)


@PERSISTENT.on("POST", "/{topic}/terminate", Access.TENANT)
async def terminate_topic(call: BrokerCall) -> dict[str, int]:
    """Terminate a topic: no producer can publish to it again. Consumers still receive its messages."""
    topic = await targets.open_for(call.service, call.topic, "terminated")
    last = await call.blocking(topic.ledger.terminate)
    topic.disconnect_producers()
    return message_ids.encode(last, topic.partition)


@PERSISTENT.on("POST", "/{topic}/trim", Access.TENANT)
async def trim_topic(call: BrokerCall) -> None:
    """Trim ledgers now that are consumed and past retention."""
    target = await targets.find(call.service, call.topic)
    async for topic in targets.each(call.service, target):
        await call.blocking(topic.ledger.trim)


@PERSISTENT.on("DELETE", "/{topic}/truncate", Access.TENANT)
async def truncate_topic(call: BrokerCall) -> None:
    """Acknowledge all messages for all subscriptions, and delete them."""
    target = await targets.find(call.service, call.topic)
    async for topic in targets.each(call.service, target):
        await call.blocking(topic.ledger.trimmer.truncate)
        for subscription in topic.subscriptions.values():
            targets.release_acknowledged(subscription)


@PERSISTENT.on("GET", "/{topic}/lastMessageId", Access.PEEK)
async def last_message_id(call: BrokerCall) -> dict[str, int]:
    """Id of the last message of a topic."""
    topic = await targets.open_one(call.service, call.topic)
    position, batch_index = await topic.last_message()
    return message_ids.encode(position, topic.partition, batch_index)


# --- partitions ---


@PERSISTENT.on("GET", "/{topic}/partitions", Access.LOOKUP)
async def get_partitions(call: BrokerCall) -> dict[str, Any]:
    """Number of partitions; 0 if the topic is not partitioned, or would not be once a client creates it."""
    name = call.topic
    if name.base == TRANSACTION_COORDINATOR:
        return partitioned_metadata(0)
    creating = call.flag("checkAllowAutoCreation")
    policy, _ = await call.blocking(call.service.policies.of_namespace, name.namespace)
    count = await call.service.topic_creator.partitions(name, create=creating)
    if not count and not (creating and policy.allow_auto_topic_creation):
        await targets.find(call.service, name)
    if not count:
        return partitioned_metadata(0)
    return partitioned_metadata(count, await call.blocking(call.catalog.partitioned_properties, name))


@PERSISTENT.on("PUT", "/{topic}/partitions", Access.TENANT)
async def create_partitioned(call: BrokerCall) -> None:
    """Create a partitioned topic, and its partitions.

    1. Record the number of partitions. *Crash: the first client that uses a partition creates it.*
    2. Create the partitions, so that they are listed. *Crash: as after 1.*
    """
    service, name = call.service, call.topic
    if name.partition_index is not None:
        raise precondition_failed(f"{name} is the name of a partition: choose another name")
    count, properties = _given_partitions(await call.body())
    limit = max_partitions(service.config)
    if not 0 < count <= limit:
        raise AdminError(HTTPStatus.NOT_ACCEPTABLE, f"{name} may have from 1 to {limit} partitions, not {count}")
    await call.namespace_policies()
    if await targets.partitions_of(service, name) or await targets.exists(service, name):
        raise conflict(f"topic {name} exists already")
    await service.topic_creator.create_partitioned(name, count, properties)
    await _create_partitions(service, name, range(count))


@PERSISTENT.on("POST", "/{topic}/partitions", Access.TENANT)
async def update_partitions(call: BrokerCall) -> None:
    """Add partitions, in the steps of creation. The number is never lowered: messages would be lost."""
    service, name = call.service, call.topic
    count, properties = _given_partitions(await call.body())
    if properties:
        raise bad_request("properties cannot be changed with the number of partitions: send the number alone")
    before = await targets.partitions_of(service, name)
    if not before:
        raise conflict(f"{name} is not a partitioned topic")
    limit = max_partitions(service.config)
    if not before <= count <= max(limit, before):
        raise AdminError(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{name} has {before} partitions and may have up to {limit}, not {count}"
        )
    await service.blocking(service.topic_creator.check_topic_limit, name.namespace, count - before)
    await service.blocking(service.catalog.update_partitions, name, count)
    await _create_partitions(service, name, range(before, count))


@PERSISTENT.on("DELETE", "/{topic}/partitions", Access.TENANT)
async def delete_partitioned(call: BrokerCall) -> None:
    """Delete a partitioned topic with all partitions.

    1. Refuse if any partition is in use, before anything is changed.
    2. Delete the partitions. *Crash: the topic exists, with fewer messages; the caller gets no answer and retries.*
    3. Delete the record of the partitioned topic, then its schemas and policies. *Crash before these are deleted: a new
       topic of that name has them.*
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
        except NotFound:
            continue  # never used, or deleted on its own
    await service.blocking(service.catalog.delete_partitioned, name)
    await service.delete_topic_metadata(name)


def partitioned_metadata(count: int, properties: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Metadata of a partitioned topic, with its properties."""
    return {"partitions": count, "deleted": False, **({"properties": dict(properties)} if properties else {})}


def _given_partitions(body: object) -> tuple[int, dict[str, str]]:
    """Number of partitions and properties from a body: the number alone, or an object of both."""
    properties: dict[str, str] = {}
    if isinstance(body, dict):
        fields = values.fields(body, "a partitioned topic", ("partitions", "properties", "deleted"))
        properties = _given_properties(fields.get("properties"))
        body = fields.get("partitions")
    name = "the number of partitions"
    if isinstance(body, str):  # Pulsar's JSON reader accepts a number in quotes, as tools in Go send it
        return values.parse_integer(body.strip(), name, -values.INT_MAX, values.INT_MAX), properties
    return values.integer(body, name, -values.INT_MAX), properties


async def _create_partitions(service: BrokerService, name: TopicName, indexes: range) -> None:
    for index in indexes:
        await service.topic_creator.create(name.partition(index))


# --- properties ---


@PERSISTENT.on("GET", "/{topic}/properties", Access.LOOKUP)
async def get_properties(call: BrokerCall) -> dict[str, str]:
    """Properties of a topic; a partitioned topic has its own, apart from those of its partitions."""
    service, name = call.service, call.topic
    if await targets.partitions_of(service, name):
        return await service.blocking(service.catalog.partitioned_properties, name)
    topic = await targets.open_one(service, name)
    return _user_properties(topic.ledger.info)


@PERSISTENT.on("PUT", "/{topic}/properties", Access.TENANT)
async def set_properties(call: BrokerCall) -> None:
    """Set properties of a topic; its other properties stay."""
    await _change_properties(call, dict(_given_properties(await call.body())))


@PERSISTENT.on("DELETE", "/{topic}/properties", Access.TENANT)
async def remove_property(call: BrokerCall) -> None:
    """Remove a property of a topic."""
    key = call.parameter("key")
    if key is None:
        raise bad_request("the parameter key is missing: name the property to remove, as ?key=NAME")
    _check_key(key)
    await _change_properties(call, {key: None})


async def _change_properties(call: BrokerCall, properties: dict[str, str | None]) -> None:
    service, name = call.service, call.topic
    if await targets.partitions_of(service, name):
        await service.blocking(service.catalog.update_partitioned_properties, name, properties)
        return
    topic = await targets.open_one(service, name)
    await service.blocking(topic.ledger.update, partial(_put_properties, properties))


def _given_properties(body: object) -> dict[str, str]:
    properties = values.text_map(body, "properties")
    check_properties_size(properties)
    for key in properties:
        _check_key(key)
    return properties


def _check_key(key: str) -> None:
    if key == _SHADOW_SOURCE:
        raise not_allowed("shadow topics are not supported")
    if _is_reserved(key):
        raise precondition_failed(f"the property {values.shown(key)} is reserved for the broker: choose another")


def _put_properties(properties: Mapping[str, str | None], info: ManagedLedgerInfo) -> None:
    """Set properties in a ledger list, or remove those whose value is None."""
    for key, value in properties.items():
        set_text(info, key, value)
    if any(value is not None for value in properties.values()):
        check_properties_size(_user_properties(info))


def _user_properties(info: ManagedLedgerInfo) -> dict[str, str]:
    return {pair.key: pair.value for pair in info.properties if not _is_reserved(pair.key)}


def _is_reserved(key: str) -> bool:
    return key in {INDEX, TOPIC_EPOCH} or key.startswith(_RESERVED_PREFIX)
