"""Who may use a namespace, and which clusters have it: everybody who is known, and this cluster alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import policies, values
from afterglow.admin.access import Access
from afterglow.admin.errors import forbidden, precondition_failed
from afterglow.admin.policy_levels import namespace_policies
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

NAMESPACES = Resources("/admin/v2/namespaces")
OLD_NAMESPACES = Resources("/admin/namespaces")
"""Of the older API, which stock tools still use for one call."""

_NAMESPACE = "/{tenant}/{namespace}"


# --- clusters ---


@NAMESPACES.on("GET", f"{_NAMESPACE}/replication", Access.KNOWN)
async def get_replication(call: Call) -> list[str]:
    """The clusters that have copies of the topics."""
    await namespace_policies(call)
    return [call.service.config.cluster_name]


@NAMESPACES.on("POST", f"{_NAMESPACE}/replication", Access.TENANT)
async def set_replication(call: Call) -> None:
    """Take no other cluster than this one."""
    await namespace_policies(call)
    _check_clusters(call, await call.body(), empty=False)


@NAMESPACES.on("GET", f"{_NAMESPACE}/allowedClusters", Access.KNOWN)
async def get_allowed(call: Call) -> list[str]:
    """The clusters that may have copies, where they are fewer than the tenant's."""
    found: list[str] = (await namespace_policies(call)).get(policies.ALLOWED_CLUSTERS) or []
    return found


@NAMESPACES.on("POST", f"{_NAMESPACE}/allowedClusters", Access.TENANT)
async def set_allowed(call: Call) -> None:
    """Allow this cluster, or say nothing."""
    clusters = _check_clusters(call, await call.body(), empty=True)
    await call.service.update_policies(call.namespace, lambda old: {**old, policies.ALLOWED_CLUSTERS: clusters})


@OLD_NAMESPACES.on("GET", "/{cluster}/antiAffinity/{group}", Access.KNOWN)
@NAMESPACES.on("GET", "/{cluster}/antiAffinity/{group}", Access.KNOWN)
async def list_anti_affinity(_call: Call) -> list[str]:
    """The namespaces of a group that is spread over brokers: there are none."""
    return []


# --- permissions ---


@NAMESPACES.on("GET", f"{_NAMESPACE}/permissions", Access.KNOWN)
@NAMESPACES.on("GET", f"{_NAMESPACE}/permissions/subscription", Access.KNOWN)
async def get_permissions(call: Call) -> dict[str, Any]:
    """What was granted: nothing."""
    await namespace_policies(call)
    return {}


@NAMESPACES.on("POST", "/grantPermissionsOnTopics", Access.SUPER_USER)
@NAMESPACES.on("POST", "/revokePermissionsOnTopics", Access.SUPER_USER)
@NAMESPACES.on("POST", f"{_NAMESPACE}/permissions/{{role}}", Access.TENANT)
@NAMESPACES.on("DELETE", f"{_NAMESPACE}/permissions/{{role}}", Access.TENANT)
@NAMESPACES.on("POST", f"{_NAMESPACE}/permissions/subscription/{{subscription}}", Access.TENANT)
@NAMESPACES.on("DELETE", f"{_NAMESPACE}/permissions/{{subscription}}/{{role}}", Access.TENANT)
async def change_permissions(_call: Call) -> None:
    """Say that permissions are not enforced, before anyone relies on them."""
    raise precondition_failed(
        "permissions are not enforced by this broker: whoever may connect may use every topic; run one broker per "
        "circle of trust"
    )


def _check_clusters(call: Call, body: object, *, empty: bool) -> list[str]:
    given = values.texts(body, "the list of clusters")
    own = [call.service.config.cluster_name]
    if given == own or (empty and not given):
        return given
    raise forbidden(f"topics are not replicated: the clusters must be {values.shown(own)}")
