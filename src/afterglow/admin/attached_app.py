"""Application of the admin API of a process that is attached to a cluster.

It has the routes of offload, verification, metrics and console. Every other route of a broker answers 405: topics,
subscriptions, messages, schemas and permissions are the cluster's, and so is the API that changes them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from afterglow.admin import (
    attached_routes,
    cluster_routes,
    console,
    listing_routes,
    offload_routes,
    verify_routes,
)
from afterglow.admin.access import Access, AccessControl
from afterglow.admin.app import ALL_RESOURCES, ProcessState, make_app, process_resources, serve_app
from afterglow.admin.attached_routes import AttachedCall, AttachedResources
from afterglow.admin.errors import not_allowed
from afterglow.attach.metrics import AttachMetrics

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from starlette.applications import Starlette

    from afterglow.admin.resource import ResourceTable
    from afterglow.attach.service import AttachedService
    from afterglow.pipeline.server_handle import ServerHandle

SERVED: Final = (
    cluster_routes.PROBES,
    listing_routes.TENANTS,
    listing_routes.NAMESPACES,
    listing_routes.TOPICS,
    listing_routes.NON_PERSISTENT,
    attached_routes.TOPICS,
    offload_routes.TOPICS,
    offload_routes.NAMESPACES,
    offload_routes.EVERYTHING,
    verify_routes.RESOURCES,
    console.RESOURCES,
    console.ROOT,
    cluster_routes.PROCESS,
)
"""Resources, in the order in which paths are matched."""


def _refused() -> AttachedResources:
    """Resources that refuse what only a broker serves."""
    found = AttachedResources("")

    async def refuse(call: AttachedCall) -> NoReturn:
        link = call.service.link
        raise not_allowed(
            f"{call.method} {call.path} is not served by afterglow attach: use the admin API of cluster {link.name}, "
            f"{link.admin_url}"
        )

    for path in dict.fromkeys(resource.path for resources in ALL_RESOURCES for resource in resources):
        for method in ("GET", "PUT", "POST", "DELETE"):
            found.on(method, path, Access.KNOWN)(refuse)
    return found


_REFUSED: Final = _refused()


async def start_attached_admin(
    server: ServerHandle[AttachedService], tls: ssl.SSLContext | None
) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve the admin API of an attached process; see :func:`afterglow.admin.app.serve_app`."""
    state = ProcessState.of(server, AttachMetrics(server))
    return await serve_app(attached_app(server, state), server.service.config, tls, state)


def attached_app(server: ServerHandle[AttachedService], state: ProcessState) -> Starlette:
    """The admin API of an attached process, to be served in an event loop of its own."""
    link = server.service.link
    attached_to = {"cluster": link.name, "adminUrl": link.admin_url, "subscription": link.subscription}
    control, make = AccessControl(server.service), partial(AttachedCall, server)
    # The last table has the paths of all others, and gets the methods that these do not have.
    tables: tuple[ResourceTable[AttachedCall], ...] = (
        *process_resources(server, state, attached_to),
        *SERVED,
        _REFUSED,
    )
    return make_app(route for resources in tables for route in resources.routes(control, make))
