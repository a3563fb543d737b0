"""Lookup over HTTP, for clients whose service URL is an HTTP one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from afterglow.admin import bundles
from afterglow.admin.access import Access
from afterglow.admin.resource import Resources
from afterglow.broker.requests import check_listener

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = Resources("/lookup/v2/topic/persistent")


@RESOURCES.on("GET", "/{tenant}/{namespace}/{topic}", Access.LOOKUP)
async def lookup(call: Call) -> dict[str, str]:
    """Where a topic is served: here. It need not exist."""
    service, name = call.service, call.topic
    await service.blocking(service.catalog.policies, name.namespace)
    check_listener(call.parameter("listenerName") or call.header("X-Pulsar-ListenerName") or "")
    return {
        "brokerUrl": service.service_url,
        # Under either name, and empty rather than absent: the C++ client and those built on it crash without.
        "brokerUrlTls": service.service_url_tls,
        "brokerUrlSsl": service.service_url_tls,
        "httpUrlTls" if call.secure else "httpUrl": call.web_url,
        "nativeUrl": service.service_url,
    }


@RESOURCES.on("GET", "/{tenant}/{namespace}/{topic}/bundle", Access.LIST_TOPICS)
async def bundle_range(call: Call) -> Response:
    """The bundle of its namespace that a topic falls into, by the hash of its name. It need not exist."""
    service, name = call.service, call.topic
    stored = await service.blocking(service.catalog.policies, name.namespace)
    # As bare as Pulsar gives it.
    return Response(bundles.holder(bundles.all_of(stored), name).name, media_type="application/json")
