"""What Pulsar does for topics and this broker does not: answered as by a Pulsar where it is not set.

Setting it is refused with the reason. Unsetting what cannot be set changes nothing, and says so as Pulsar does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import policies, targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, not_allowed
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


@RESOURCES.on("GET", "/permissions", Access.KNOWN)
async def get_permissions(call: Call) -> dict[str, list[str]]:
    """Nobody has any of a topic's own."""
    await targets.find(call.service, call.topic)
    return {}


@RESOURCES.on("POST", "/permissions/{role}", Access.TENANT)
@RESOURCES.on("DELETE", "/permissions/{role}", Access.TENANT)
async def change_permissions(_call: Call) -> None:
    """Say that there are none."""
    raise not_allowed(
        "roles have no permissions on single topics: superUserRoles and a tenant's adminRoles say who may administer"
    )


@RESOURCES.on("GET", "/compaction", Access.KNOWN)
async def compaction_status(call: Call) -> dict[str, str]:
    """Topics are never compacted."""
    await targets.find(call.service, call.topic)
    return {"status": "NOT_RUN", "lastError": ""}


@RESOURCES.on("PUT", "/compaction", Access.TENANT)
async def compact(call: Call) -> None:
    """Say that topics are not compacted."""
    await targets.find(call.service, call.topic)
    raise not_allowed(f"{call.topic} cannot be compacted: this broker keeps every message until retention drops it")


@RESOURCES.on("GET", "/replication", Access.KNOWN)
async def get_replication(call: Call) -> list[str] | None:
    """No clusters of a topic's own; with ``applied`` those of its namespace."""
    applied = call.flag("applied")
    await targets.find(call.service, call.topic)
    if not applied:
        return None
    service = call.service
    stored = await service.blocking(service.catalog.policies, call.namespace)
    found: list[str] = policies.shown(stored, service.config.cluster_name)["replication_clusters"]
    return found


@RESOURCES.on("POST", "/replication", Access.TENANT)
async def set_replication(call: Call) -> None:
    """Take the only cluster that there is, which changes nothing."""
    clusters = values.texts(await call.body(), "the clusters")
    await targets.find(call.service, call.topic)
    own = call.service.config.cluster_name
    if clusters != [own]:
        raise not_allowed(f"{call.topic} cannot be replicated: this broker has no other cluster than {own!r}")


@RESOURCES.on("GET", "/shadowTopics", Access.KNOWN)
async def get_shadow_topics(call: Call) -> list[str]:
    """There are none, which is an empty list: pulsar-admin fails on the nothing that Pulsar itself answers."""
    await targets.find(call.service, call.topic)
    return []


@RESOURCES.on("PUT", "/shadowTopics", Access.TENANT)
async def set_shadow_topics(call: Call) -> None:
    """Say that there are none."""
    await targets.find(call.service, call.topic)
    raise not_allowed(f"{call.topic} cannot have shadow topics: this broker does not replicate")


@RESOURCES.on("DELETE", "/replication", Access.TENANT)
@RESOURCES.on("DELETE", "/shadowTopics", Access.TENANT)
async def remove(call: Call) -> None:
    """Nothing is set."""
    await targets.find(call.service, call.topic)


@RESOURCES.on("GET", "/subscription/{subscription}/replicatedSubscriptionStatus", Access.KNOWN)
async def get_replicated(call: Call) -> dict[str, Any]:
    """No subscription is replicated, on any partition."""
    return {str(subscription.topic.name): False for subscription in await targets.subscriptions(call)}


@RESOURCES.on("POST", "/subscription/{subscription}/replicatedSubscriptionStatus", Access.TENANT)
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
