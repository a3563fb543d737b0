"""Tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import force, values
from afterglow.admin.access import Access
from afterglow.admin.errors import conflict, precondition_failed
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = Resources("/admin/v2/tenants")


@RESOURCES.on("GET", "", Access.READ_SERVER)
async def list_tenants(call: Call) -> list[str]:
    """The names of all tenants."""
    return sorted(await call.service.blocking(call.service.catalog.tenants))


@RESOURCES.on("GET", "/{tenant}", Access.READ_TENANT)
async def get_tenant(call: Call) -> dict[str, Any]:
    """A tenant's settings."""
    return await call.service.blocking(call.service.catalog.tenant, call.segment("tenant"))


@RESOURCES.on("PUT", "/{tenant}", Access.SUPER_USER)
async def create_tenant(call: Call) -> None:
    """Create a tenant."""
    info = await _tenant_info(call)
    await call.service.blocking(call.service.catalog.create_tenant, call.segment("tenant"), info)


@RESOURCES.on("POST", "/{tenant}", Access.SUPER_USER)
async def update_tenant(call: Call) -> None:
    """Replace a tenant's settings. This cluster stays allowed while the tenant has namespaces here."""
    tenant, info = call.segment("tenant"), await _tenant_info(call)
    used = await call.service.blocking(call.service.catalog.namespaces, tenant)
    own = call.service.config.cluster_name
    if used and own not in info["allowedClusters"]:
        raise conflict(f"tenant {tenant} has namespaces in {own}, which must stay among its allowedClusters")
    await call.service.blocking(call.service.catalog.update_tenant, tenant, lambda old: {**old, **info})


@RESOURCES.on("DELETE", "/{tenant}", Access.SUPER_USER)
async def delete_tenant(call: Call) -> None:
    """Delete a tenant that has no namespaces; by force, where that is allowed, with all it has."""
    tenant = call.segment("tenant")
    if call.flag("force"):
        force.check_tenants(call)
        for namespace in await call.service.blocking(call.service.catalog.namespaces, tenant):
            await force.delete_namespace(call.service, namespace)
    await call.service.blocking(call.service.catalog.delete_tenant, tenant)


async def _tenant_info(call: Call) -> dict[str, Any]:
    body = await call.body()
    if body is None:
        raise precondition_failed('the body must name the tenant\'s settings: {"adminRoles":[],"allowedClusters":[…]}')
    given = values.fields(body, "a tenant", ("adminRoles", "allowedClusters"))
    clusters = values.texts(given.get("allowedClusters", []), "allowedClusters")
    known = await call.service.blocking(call.service.catalog.clusters.names)
    unknown = [name for name in clusters if name not in known]
    if unknown or not clusters:
        raise precondition_failed(
            f"allowedClusters must name clusters that exist, of {values.shown(known)}, not {values.shown(clusters)}"
        )
    roles = values.texts(given.get("adminRoles", []), "adminRoles")
    for role in roles:
        if role != role.strip() or not role:
            raise precondition_failed(f"the role {values.shown(role)} in adminRoles is empty or has space at its ends")
    return {"adminRoles": roles, "allowedClusters": clusters}
