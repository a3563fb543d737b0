"""Topics that are not stored: there are none, and tools that list both kinds are told so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.admin.access import Access
from afterglow.admin.errors import not_allowed
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = Resources("/admin/v2/non-persistent")


@RESOURCES.on("GET", "/{tenant}/{namespace}", Access.LIST_TOPICS)
@RESOURCES.on("GET", "/{tenant}/{namespace}/partitioned", Access.LIST_TOPICS)
async def list_topics(call: Call) -> list[str]:
    """No topics, of a namespace that exists."""
    await call.service.blocking(call.service.catalog.policies, call.namespace)
    return []


@RESOURCES.on("PUT", "/{tenant}/{namespace}/{topic}", Access.KNOWN)
@RESOURCES.on("PUT", "/{tenant}/{namespace}/{topic}/partitions", Access.KNOWN)
async def create_topic(_call: Call) -> None:
    """Say that they are not served."""
    raise not_allowed("topics that are not persistent are not served; use persistent://")
