"""Clusters: there is one, and this broker is all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin.access import Access
from afterglow.admin.errors import not_found
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = Resources("/admin/v2/clusters")


@RESOURCES.on("GET", "", Access.KNOWN)
async def list_clusters(call: Call) -> list[str]:
    """The names of all clusters."""
    return [call.service.config.cluster_name]


@RESOURCES.on("GET", "/{cluster}", Access.KNOWN)
async def get_cluster(call: Call) -> dict[str, Any]:
    """Where a cluster answers."""
    check_cluster(call)
    urls = {
        "serviceUrlTls" if call.secure else "serviceUrl": call.web_url,
        "brokerServiceUrl": call.service.service_url,
        "brokerServiceUrlTls": call.service.service_url_tls,
    }
    return {
        **{name: url for name, url in urls.items() if url},
        "brokerClientTlsEnabled": False,
        "tlsAllowInsecureConnection": False,
        "brokerClientTlsEnabledWithKeyStore": False,
        "migrated": False,
    }


def check_cluster(call: Call) -> None:
    """Check that the cluster in the path is this one.

    Raises:
        AdminError: It is not.
    """
    name, known = call.segment("cluster"), call.service.config.cluster_name
    if name != known:
        raise not_found(f"cluster {name} does not exist; this is {known}")
