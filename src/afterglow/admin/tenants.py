"""Tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import values
from afterglow.admin.access import Access
from afterglow.admin.errors import not_allowed, precondition_failed
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = Resources("/admin/v2/tenants")


@RESOURCES.on("GET", "", Access.KNOWN)
async def list_tenants(call: Call) -> list[str]:
    """The names of all tenants."""
    return sorted(await call.service.blocking(call.service.catalog.tenants))


@RESOURCES.on("GET", "/{tenant}", Access.KNOWN)
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
    """Replace a tenant's settings."""
    info = await _tenant_info(call)
    await call.service.blocking(call.service.catalog.update_tenant, call.segment("tenant"), lambda old: {**old, **info})


@RESOURCES.on("DELETE", "/{tenant}", Access.SUPER_USER)
async def delete_tenant(call: Call) -> None:
    """Delete a tenant that has no namespaces."""
    if call.flag("force"):
        raise not_allowed("tenants are not deleted by force: delete the tenant's namespaces first")
    await call.service.blocking(call.service.catalog.delete_tenant, call.segment("tenant"))


async def _tenant_info(call: Call) -> dict[str, Any]:
    body = await call.body()
    if body is None:
        raise precondition_failed('the body must name the tenant\'s settings: {"adminRoles":[],"allowedClusters":[…]}')
    given = values.fields(body, "a tenant", ("adminRoles", "allowedClusters"))
    clusters = values.texts(given.get("allowedClusters", []), "allowedClusters")
    known = call.service.config.cluster_name
    if clusters != [known]:
        raise precondition_failed(f"allowedClusters must be {values.shown([known])}, not {values.shown(clusters)}")
    return {"adminRoles": values.texts(given.get("adminRoles", []), "adminRoles"), "allowedClusters": clusters}
