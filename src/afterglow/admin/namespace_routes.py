"""Routes of tenants and namespaces: create, delete, unload; properties of namespaces."""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from afterglow.admin import namespace_policies, values
from afterglow.admin.access import Access
from afterglow.admin.errors import AdminError, bad_request, conflict, not_allowed, precondition_failed
from afterglow.admin.namespace_policies import PROPERTIES
from afterglow.admin.resource import Resources
from afterglow.broker.authorization import AUTH
from afterglow.broker.service import log_warnings
from afterglow.errors import NotFound

if TYPE_CHECKING:
    from afterglow.admin.call import BrokerCall
    from afterglow.broker.service import BrokerService
    from afterglow.metadata.names import NamespaceName

    Json = dict[str, Any]

TENANTS = Resources("/admin/v2/tenants")
NAMESPACES = Resources("/admin/v2/namespaces")


# --- tenants ---


@TENANTS.on("GET", "/{tenant}", Access.READ_TENANT)
async def get_tenant(call: BrokerCall) -> Json:
    """Settings of a tenant."""
    return await call.blocking(call.catalog.tenant, call.segment("tenant"))


@TENANTS.on("PUT", "/{tenant}", Access.SUPER_USER)
async def create_tenant(call: BrokerCall) -> None:
    """Create a tenant."""
    info = await _tenant_info(call)
    await call.blocking(call.catalog.create_tenant, call.segment("tenant"), info)


@TENANTS.on("POST", "/{tenant}", Access.SUPER_USER)
async def update_tenant(call: BrokerCall) -> None:
    """Replace the settings of a tenant. A tenant with namespaces must keep this cluster in its ``allowedClusters``."""
    tenant, info = call.segment("tenant"), await _tenant_info(call)
    used = await call.blocking(call.catalog.namespaces, tenant)
    own = call.service.config.cluster_name
    if used and own not in info["allowedClusters"]:
        raise conflict(f"tenant {tenant} has namespaces in {own}, which must stay among its allowedClusters")
    await call.blocking(call.catalog.update_tenant, tenant, lambda old: {**old, **info})


@TENANTS.on("DELETE", "/{tenant}", Access.SUPER_USER)
async def delete_tenant(call: BrokerCall) -> None:
    """Delete a tenant without namespaces; with ``force``, if the settings allow it, with its namespaces."""
    tenant = call.segment("tenant")
    if call.flag("force"):
        if not call.service.config.force_delete_tenant_allowed:
            raise not_allowed(
                "forced deletion of tenants is disabled: set forceDeleteTenantAllowed, or delete the namespaces first"
            )
        for namespace in await call.blocking(call.catalog.namespaces, tenant):
            await _delete_with_topics(call.service, namespace)
    await call.blocking(call.catalog.delete_tenant, tenant)


async def _tenant_info(call: BrokerCall) -> Json:
    body = await call.body()
    if body is None:
        raise precondition_failed('the body is empty; expected {"adminRoles":[],"allowedClusters":[…]}')
    given = values.fields(body, "a tenant", ("adminRoles", "allowedClusters"))
    clusters = values.texts(given.get("allowedClusters", []), "allowedClusters")
    known = await call.blocking(call.catalog.clusters.names)
    unknown = [name for name in clusters if name not in known]
    if unknown or not clusters:
        raise precondition_failed(
            f"allowedClusters must name existing clusters, of {values.shown(known)}, not {values.shown(clusters)}"
        )
    roles = values.texts(given.get("adminRoles", []), "adminRoles")
    for role in roles:
        if role != role.strip() or not role:
            raise precondition_failed(f"adminRoles: {values.shown(role)} is empty, or starts or ends with a space")
    return {"adminRoles": roles, "allowedClusters": clusters}


# --- namespaces ---


@NAMESPACES.on("GET", "/{tenant}/{namespace}", Access.READ_TENANT)
async def get_policies(call: BrokerCall) -> Json:
    """Policies of a namespace."""
    return namespace_policies.shown(await call.namespace_policies(), call.service.config.cluster_name)


@NAMESPACES.on("PUT", "/{tenant}/{namespace}", Access.TENANT)
async def create_namespace(call: BrokerCall) -> None:
    """Create a namespace, with policies if the body has any."""
    config = call.service.config
    given = namespace_policies.created(await call.body(), config)
    warnings = call.check_new_policies(given)
    tenant = await call.blocking(call.catalog.tenant, call.namespace.tenant)
    if config.cluster_name not in tenant.get("allowedClusters", []):
        raise AdminError(
            HTTPStatus.FORBIDDEN,
            f"tenant {call.namespace.tenant} may not use {config.cluster_name}: it is not among its allowedClusters",
        )
    await call.blocking(call.catalog.create_namespace, call.namespace, given)
    call.service.policies_changed(call.namespace)
    if AUTH in given and not config.authorization_enabled:
        warnings = (*warnings, namespace_policies.AUTH_WARNING)
    log_warnings(f"namespace {call.namespace}", warnings)


@NAMESPACES.on("DELETE", "/{tenant}/{namespace}", Access.TENANT)
async def delete_namespace(call: BrokerCall) -> None:
    """Delete a namespace without topics; with ``force``, if the settings allow it, with its topics."""
    if call.flag("force"):
        if not call.service.config.force_delete_namespace_allowed:
            raise not_allowed(
                "forced deletion of namespaces is disabled: set forceDeleteNamespaceAllowed, or delete the topics first"
            )
        await call.namespace_policies()
        await _delete_with_topics(call.service, call.namespace)
        return
    await call.blocking(call.catalog.delete_namespace, call.namespace)
    call.service.policies_changed(call.namespace)


async def _delete_with_topics(service: BrokerService, namespace: NamespaceName) -> None:
    """Delete a namespace with all its topics.

    1. Mark it as deleted, so that no client that reconnects creates a topic. *Crash: the namespace exists, marked, with
       all topics; the caller gets no answer and retries, as after each step below.*
    2. Delete the topics. *Crash: some are left.*
    3. Delete schemas and policies of partitioned topics, then their records. *Crash: some are left.*
    4. Delete the namespace.

    Raises:
        NotFound: The namespace does not exist.
        NotEmpty: Another call is still deleting one of its topics.
    """
    await service.topic_creator.stop(namespace)
    for name in await service.blocking(service.catalog.topics, namespace):
        with suppress(NotFound):
            await service.delete_topic(name, force=True)
    for name in await service.blocking(service.catalog.partitioned_topics, namespace):
        await service.delete_topic_metadata(name)
        with suppress(NotFound):
            await service.blocking(service.catalog.delete_partitioned, name)
    await service.blocking(service.catalog.delete_namespace, namespace)
    service.policies_changed(namespace)


@NAMESPACES.on("PUT", "/{tenant}/{namespace}/unload", Access.TENANT)
async def unload(call: BrokerCall) -> None:
    """Close every open topic; clients that reconnect open theirs again."""
    other = call.parameter("destinationBroker")
    if other is not None and other.partition("://")[2] != call.broker_id != other:
        raise precondition_failed(f"unknown broker {other!r}: the only broker is {call.broker_id}")
    await call.namespace_policies()
    for name in [name for name in call.service.open_topics if name.namespace == call.namespace]:
        await call.service.unload(name)


# --- properties of namespaces ---


@NAMESPACES.on("GET", "/{tenant}/{namespace}/properties", Access.READ_TENANT)
async def get_properties(call: BrokerCall) -> dict[str, str]:
    """Properties of a namespace."""
    return (await call.namespace_policies()).get(PROPERTIES) or {}


@NAMESPACES.on("PUT", "/{tenant}/{namespace}/properties", Access.TENANT)
async def set_properties(call: BrokerCall) -> None:
    """Set properties of a namespace; its other properties stay."""
    body = await call.body()
    if body is None:
        raise bad_request('the body is empty; expected an object of strings such as {"owner":"billing"}')
    given = values.text_map(body, PROPERTIES)
    await call.update_policies(
        call.namespace,
        lambda old: {**old, PROPERTIES: {**(old.get(PROPERTIES) or {}), **given}},
    )


@NAMESPACES.on("DELETE", "/{tenant}/{namespace}/properties", Access.TENANT)
async def remove_properties(call: BrokerCall) -> None:
    """Remove all properties of a namespace."""
    await call.update_policies(call.namespace, lambda old: values.with_field(old, PROPERTIES, None))
