"""Properties that people give topics and subscriptions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from afterglow.admin import targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, not_allowed, precondition_failed
from afterglow.admin.resource import Resources
from afterglow.ledger.durable_cursor import DurableCursor
from afterglow.ledger.properties import INDEX, TOPIC_EPOCH, check_given, set_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.admin.call import Call
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

_OWN_PREFIX = "afterglow."
_SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""By which Pulsar makes a topic the shadow of another."""


def given(body: object) -> dict[str, str]:
    """Properties as a caller gave them.

    Raises:
        AdminError: They are no object of strings, or one of them is not the caller's to set.
        ValueTooLarge: They are too large to keep.
    """
    properties = values.text_map(body, "properties")
    check_given(properties)
    for key in properties:
        check(key)
    return properties


def check(key: str) -> None:
    """Check that a property is one that callers may set.

    Raises:
        AdminError: It is not.
    """
    if key == _SHADOW_SOURCE:
        raise not_allowed("shadow topics are not served: a topic cannot show what another holds")
    if _is_own(key):
        raise precondition_failed(f"the property {values.shown(key)} is the broker's own: choose another")


def put(properties: Mapping[str, str | None], info: ManagedLedgerInfo) -> None:
    """Set properties of a topic, or remove those whose value is None.

    Raises:
        ValueTooLarge: With those that it has, they are too large to keep.
    """
    for key, value in properties.items():
        set_text(info, key, value)
    if any(value is not None for value in properties.values()):
        check_given(_of_people(info))


@RESOURCES.on("GET", "/properties", Access.LOOKUP)
async def get_of_topic(call: Call) -> dict[str, str]:
    """The properties of a topic; a partitioned one has its own, beside those of its partitions."""
    service, name = call.service, call.topic
    if await targets.partitions_of(service, name):
        return await service.blocking(service.catalog.partitioned_properties, name)
    topic = await targets.open_one(service, name)
    return _of_people(topic.ledger.info)


@RESOURCES.on("PUT", "/properties", Access.TENANT)
async def update_of_topic(call: Call) -> None:
    """Set properties of a topic; others stay."""
    await _change(call, dict(given(await call.body())))


@RESOURCES.on("DELETE", "/properties", Access.TENANT)
async def remove_of_topic(call: Call) -> None:
    """Remove a property of a topic."""
    key = call.parameter("key")
    if key is None:
        raise bad_request("give the property to remove, as ?key=NAME")
    check(key)
    await _change(call, {key: None})


async def _change(call: Call, properties: dict[str, str | None]) -> None:
    service, name = call.service, call.topic
    if await targets.partitions_of(service, name):
        await service.blocking(service.catalog.update_partitioned_properties, name, properties)
        return
    topic = await targets.open_one(service, name)
    await service.blocking(topic.ledger.update, partial(put, properties))


@RESOURCES.on("GET", "/subscription/{subscription}/properties", Access.PEEK)
async def get_of_subscription(call: Call) -> dict[str, str]:
    """The properties of a subscription, over all partitions."""
    found: dict[str, str] = {}
    for subscription in await targets.subscriptions(call):
        found |= subscription.cursor.properties
    return found


@RESOURCES.on("PUT", "/subscription/{subscription}/properties", Access.CHANGE_SUBSCRIPTION)
async def replace_of_subscription(call: Call) -> None:
    """Replace the properties of a subscription, on all partitions."""
    properties = values.text_map(await call.body(), "properties")
    check_given(properties)
    cursors = [subscription.cursor for subscription in await targets.subscriptions(call)]
    durable = [cursor for cursor in cursors if isinstance(cursor, DurableCursor)]
    if len(durable) < len(cursors):
        raise not_allowed(f"{call.segment('subscription')!r} is of a reader, and goes with it: it keeps no properties")
    for cursor in durable:
        await call.service.blocking(cursor.set_properties, properties)


def _of_people(info: ManagedLedgerInfo) -> dict[str, str]:
    return {pair.key: pair.value for pair in info.properties if not _is_own(pair.key)}


def _is_own(key: str) -> bool:
    return key in {INDEX, TOPIC_EPOCH} or key.startswith(_OWN_PREFIX)
