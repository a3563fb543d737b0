"""What Pulsar does for topics and this broker does not: answered as by a Pulsar where it is not set.

Setting it is refused with the reason. Unsetting what cannot be set changes nothing, and says so as Pulsar does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, not_allowed
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


@RESOURCES.on("GET", "/compaction", Access.READ_TENANT)
async def compaction_status(call: Call) -> dict[str, str]:
    """Topics are never compacted."""
    await targets.find(call.service, call.topic)
    return {"status": "NOT_RUN", "lastError": ""}


@RESOURCES.on("PUT", "/compaction", Access.TENANT)
async def compact(call: Call) -> None:
    """Say that topics are not compacted."""
    await targets.find(call.service, call.topic)
    raise not_allowed(f"{call.topic} cannot be compacted: this broker keeps every message until retention drops it")


@RESOURCES.on("GET", "/shadowTopics", Access.READ_TENANT)
async def get_shadow_topics(call: Call) -> list[str]:
    """There are none, which is an empty list: pulsar-admin fails on the nothing that Pulsar itself answers."""
    await targets.find(call.service, call.topic)
    return []


@RESOURCES.on("PUT", "/shadowTopics", Access.TENANT)
async def set_shadow_topics(call: Call) -> None:
    """Say that there are none."""
    await targets.find(call.service, call.topic)
    raise not_allowed(f"{call.topic} cannot have shadow topics: this broker does not replicate")


@RESOURCES.on("DELETE", "/shadowTopics", Access.TENANT)
async def remove(call: Call) -> None:
    """Nothing is set."""
    await targets.find(call.service, call.topic)


@RESOURCES.on("GET", "/subscription/{subscription}/replicatedSubscriptionStatus", Access.PEEK)
async def get_replicated(call: Call) -> dict[str, Any]:
    """No subscription is replicated, on any partition."""
    return {str(subscription.topic.name): False for subscription in await targets.subscriptions(call)}


@RESOURCES.on("POST", "/subscription/{subscription}/replicatedSubscriptionStatus", Access.CHANGE_SUBSCRIPTION)
async def set_replicated(call: Call) -> None:
    """Have a subscription stay as it is: not replicated."""
    body = await call.body()
    if body is None:
        raise bad_request("give true or false")
    await targets.subscriptions(call)
    check_replicated(replicated=values.boolean(body, "the status"))


def check_replicated(*, replicated: bool) -> None:
    """Check that a subscription is not to be replicated.

    Raises:
        AdminError: It is.
    """
    if replicated:
        raise not_allowed("subscriptions cannot be replicated: this broker has no other cluster to replicate to")
