"""Routes that list tenants, namespaces and topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request
from afterglow.admin.resource import SharedResources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

TENANTS = SharedResources("/admin/v2/tenants")
NAMESPACES = SharedResources("/admin/v2/namespaces/{tenant}")
TOPICS = SharedResources("/admin/v2/persistent/{tenant}/{namespace}")
NON_PERSISTENT = SharedResources("/admin/v2/non-persistent/{tenant}/{namespace}")


@TENANTS.on("GET", "", Access.READ_SERVER)
async def list_tenants(call: Call) -> list[str]:
    """Names of all tenants."""
    return sorted(await call.blocking(call.catalog.tenants))


@NAMESPACES.on("GET", "", Access.READ_TENANT)
async def list_namespaces(call: Call) -> list[str]:
    """Namespaces of a tenant."""
    return sorted(map(str, await call.blocking(call.catalog.namespaces, call.segment("tenant"))))


@NAMESPACES.on("GET", "/{namespace}/topics", Access.LIST_TOPICS)
async def list_topics_of_mode(call: Call) -> list[str]:
    """Topics of a namespace; each partition is a topic."""
    mode = call.parameter("mode") or "PERSISTENT"
    if mode not in {"PERSISTENT", "NON_PERSISTENT", "ALL"}:
        raise bad_request(f"mode must be PERSISTENT, NON_PERSISTENT or ALL, not {mode!r}")
    call.flag("includeSystemTopic")  # there are none
    await call.namespace_policies()
    return [] if mode == "NON_PERSISTENT" else await _names(call)


@TOPICS.on("GET", "", Access.LIST_TOPICS)
async def list_topics(call: Call) -> list[str]:
    """Topics of a namespace; each partition is a topic."""
    await call.namespace_policies()
    return await _names(call)


@TOPICS.on("GET", "/partitioned", Access.LIST_TOPICS)
async def list_partitioned(call: Call) -> list[str]:
    """Partitioned topics of a namespace."""
    await call.namespace_policies()
    return sorted(map(str, await call.blocking(call.catalog.partitioned_topics, call.namespace)))


@NON_PERSISTENT.on("GET", "", Access.LIST_TOPICS)
@NON_PERSISTENT.on("GET", "/partitioned", Access.LIST_TOPICS)
async def list_non_persistent(call: Call) -> list[str]:
    """An empty list: pulsar-admin lists topics of both domains."""
    await call.namespace_policies()
    return []


async def _names(call: Call) -> list[str]:
    return sorted(map(str, await call.blocking(call.catalog.topics, call.namespace)))
