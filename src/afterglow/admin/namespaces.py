"""Namespaces and their policies."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from afterglow.admin import force, policies
from afterglow.admin.access import Access
from afterglow.admin.errors import AdminError, bad_request
from afterglow.admin.resource import Resources
from afterglow.broker.authorization import AUTH
from afterglow.broker.service import log_warnings

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = Resources("/admin/v2/namespaces")


@RESOURCES.on("GET", "/{tenant}", Access.READ_TENANT)
async def list_namespaces(call: Call) -> list[str]:
    """The namespaces of a tenant."""
    found = await call.service.blocking(call.service.catalog.namespaces, call.segment("tenant"))
    return sorted(str(namespace) for namespace in found)


@RESOURCES.on("GET", "/{tenant}/{namespace}", Access.READ_TENANT)
async def get_policies(call: Call) -> dict[str, Any]:
    """All policies."""
    return policies.shown(await _stored(call), call.service.config.cluster_name)


@RESOURCES.on("PUT", "/{tenant}/{namespace}", Access.TENANT)
async def create_namespace(call: Call) -> None:
    """Create a namespace, with policies or without."""
    config = call.service.config
    given = policies.created(await call.body(), config)
    warnings = call.check_new_policies(given)
    tenant = await call.service.blocking(call.service.catalog.tenant, call.namespace.tenant)
    if config.cluster_name not in tenant.get("allowedClusters", []):
        raise AdminError(
            HTTPStatus.FORBIDDEN,
            f"tenant {call.namespace.tenant} may not use {config.cluster_name}: it is not among its allowedClusters",
        )
    await call.service.blocking(call.service.catalog.create_namespace, call.namespace, given)
    call.service.policies_changed(call.namespace)
    if AUTH in given and not config.authorization_enabled:
        warnings = (*warnings, policies.AUTH_WARNING)
    log_warnings(f"namespace {call.namespace}", warnings)


@RESOURCES.on("DELETE", "/{tenant}/{namespace}", Access.TENANT)
async def delete_namespace(call: Call) -> None:
    """Delete a namespace that has no topics; by force, where that is allowed, with its topics."""
    if call.flag("force"):
        force.check_namespaces(call)
        await _stored(call)
        await force.delete_namespace(call.service, call.namespace)
        return
    await call.service.blocking(call.service.catalog.delete_namespace, call.namespace)
    call.service.policies_changed(call.namespace)


@RESOURCES.on("GET", "/{tenant}/{namespace}/topics", Access.LIST_TOPICS)
async def list_topics(call: Call) -> list[str]:
    """The topics of a namespace, each partition by itself."""
    mode = call.parameter("mode") or "PERSISTENT"
    if mode not in {"PERSISTENT", "NON_PERSISTENT", "ALL"}:
        raise bad_request(f"mode must be PERSISTENT, NON_PERSISTENT or ALL, not {mode!r}")
    call.flag("includeSystemTopic")  # there are none
    await _stored(call)
    if mode == "NON_PERSISTENT":
        return []
    found = await call.service.blocking(call.service.catalog.topics, call.namespace)
    return sorted(str(topic) for topic in found)


async def _stored(call: Call) -> dict[str, Any]:
    return await call.service.blocking(call.service.catalog.policies, call.namespace)
