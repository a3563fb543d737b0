"""Lookup over HTTP, for clients whose service URL is an HTTP one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.admin.access import Access
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = Resources("/lookup/v2/topic/persistent")


@RESOURCES.on("GET", "/{tenant}/{namespace}/{topic}", Access.KNOWN)
async def lookup(call: Call) -> dict[str, str]:
    """Where a topic is served: here. It need not exist."""
    service, name = call.service, call.topic
    await service.blocking(service.catalog.policies, name.namespace)
    return {
        "brokerUrl": service.service_url,
        # Under either name, and empty rather than absent: the C++ client and those built on it crash without.
        "brokerUrlTls": service.service_url_tls,
        "brokerUrlSsl": service.service_url_tls,
        "httpUrlTls" if call.secure else "httpUrl": call.web_url,
        "nativeUrl": service.service_url,
    }
