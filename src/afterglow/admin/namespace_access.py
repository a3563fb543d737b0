"""Clusters that have a namespace: this one alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.admin import policies, values
from afterglow.admin.access import Access
from afterglow.admin.errors import forbidden
from afterglow.admin.policy_levels import namespace_policies
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

NAMESPACES = Resources("/admin/v2/namespaces")
OLD_NAMESPACES = Resources("/admin/namespaces")
"""Of the older API, which stock tools still use for one call."""

_NAMESPACE = "/{tenant}/{namespace}"


@NAMESPACES.on("GET", f"{_NAMESPACE}/replication", Access.READ_TENANT)
async def get_replication(call: Call) -> list[str]:
    """The clusters that have copies of the topics."""
    await namespace_policies(call)
    return [call.service.config.cluster_name]


@NAMESPACES.on("POST", f"{_NAMESPACE}/replication", Access.TENANT)
async def set_replication(call: Call) -> None:
    """Take no other cluster than this one."""
    await namespace_policies(call)
    _check_clusters(call, await call.body(), empty=False)


@NAMESPACES.on("GET", f"{_NAMESPACE}/allowedClusters", Access.READ_TENANT)
async def get_allowed(call: Call) -> list[str]:
    """The clusters that may have copies, where they are fewer than the tenant's."""
    found: list[str] = (await namespace_policies(call)).get(policies.ALLOWED_CLUSTERS) or []
    return found


@NAMESPACES.on("POST", f"{_NAMESPACE}/allowedClusters", Access.TENANT)
async def set_allowed(call: Call) -> None:
    """Allow this cluster, or say nothing."""
    clusters = _check_clusters(call, await call.body(), empty=True)
    await call.update_policies(call.namespace, lambda old: {**old, policies.ALLOWED_CLUSTERS: clusters})


@OLD_NAMESPACES.on("GET", "/{cluster}/antiAffinity/{group}", Access.KNOWN)
@NAMESPACES.on("GET", "/{cluster}/antiAffinity/{group}", Access.KNOWN)
async def list_anti_affinity(_call: Call) -> list[str]:
    """The namespaces of a group that is spread over brokers: there are none."""
    return []


def _check_clusters(call: Call, body: object, *, empty: bool) -> list[str]:
    given = values.texts(body, "the list of clusters")
    own = [call.service.config.cluster_name]
    if given == own or (empty and not given):
        return given
    raise forbidden(f"topics are not replicated: the clusters must be {values.shown(own)}")
