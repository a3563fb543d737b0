"""The application: all routes over one broker, and starting it on the ports that the settings name."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from afterglow.admin import (
    cluster_routes,
    console,
    console_routes,
    message_routes,
    metrics_routes,
    namespace_routes,
    not_served,
    offload_policy_routes,
    offload_routes,
    permission_routes,
    policy_routes,
    schema_routes,
    stats_routes,
    subscription_routes,
    topic_routes,
    verify_routes,
)
from afterglow.admin.access import Access, Gate
from afterglow.admin.call import Call
from afterglow.admin.http_server import HttpLimits, serve_http
from afterglow.admin.resource import failure, json_response
from afterglow.broker.service import url_host
from afterglow.pipeline.metrics.collector import MetricsCollector
from afterglow.pipeline.metrics.overview import Overview

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from afterglow.pipeline.server_handle import ServerHandle

ALL_RESOURCES = (
    cluster_routes.CLUSTERS,
    cluster_routes.PROBES,
    namespace_routes.TENANTS,
    namespace_routes.NAMESPACES,
    permission_routes.NAMESPACES,
    permission_routes.TOPICS,
    topic_routes.PERSISTENT,
    topic_routes.NON_PERSISTENT,
    topic_routes.LOOKUP,
    stats_routes.RESOURCES,
    console_routes.TOPIC_LOG,
    offload_routes.TOPICS,
    offload_routes.NAMESPACES,
    offload_routes.EVERYTHING,
    policy_routes.NAMESPACES,
    policy_routes.TOPICS,
    offload_policy_routes.NAMESPACES,
    offload_policy_routes.TOPICS,
    subscription_routes.RESOURCES,
    message_routes.RESOURCES,
    schema_routes.RESOURCES,
    verify_routes.RESOURCES,
    console.RESOURCES,
    not_served.RESOURCES,  # after others: some of its paths match names that they take
    cluster_routes.BROKERS,  # after the table, of which a path looks like the name of a cluster
)
"""Everything that is served, in the order in which paths are matched."""

_SEARCHES: Final = 4
"""Calls that search a tier at a time: the other threads that wait for one are for consumers."""


async def start_admin(server: ServerHandle, tls: ssl.SSLContext | None) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve the admin API, plain, over TLS, or both.

    Args:
        server: The server.
        tls: The context of TLS connections, where a port wants it.

    Returns:
        The address of the first port that is open, and a callable that stops all of them.

    Raises:
        ConfigError: A port cannot be opened.
    """
    config = server.service.config
    app = admin_app(server)
    host = url_host(config.advertised_address or config.bind_address)
    limits = HttpLimits.of(config)
    urls: list[str] = []
    async with AsyncExitStack() as stack:
        for port, scheme, context in (
            (config.web_service_port, "http", None),
            (config.web_service_port_tls, "https", tls),
        ):
            if port is not None:
                running = await serve_http(app, config.bind_address, port, limits, context)
                stack.push_async_callback(running.stop)
                urls.append(f"{scheme}://{host}:{running.port}")
        return (urls[0] if urls else "", stack.pop_all().aclose)
    raise AssertionError("unreachable: the block returns or raises")


def admin_app(server: ServerHandle) -> Starlette:
    """The admin API of a server, to be served in the broker's own event loop."""
    service = server.service
    gate = Gate(service, service.authenticator)
    make = partial(Call, server, asyncio.Semaphore(_SEARCHES))
    scraping = Access.KNOWN if service.config.authenticate_metrics_endpoint else Access.ANYONE
    app = Starlette(
        routes=[
            *console_routes.overview_resources(Overview(server)).routes(gate, make),
            *metrics_routes.resources(MetricsCollector(server), scraping).routes(gate, make),
            *(route for resources in ALL_RESOURCES for route in resources.routes(gate, make)),
        ],
        middleware=[Middleware(_EncodedPaths)],
        exception_handlers={HTTPException: _unknown, Exception: _fault},
    )
    # A redirect would be built from the Host header, which anyone may have written.
    app.router.redirect_slashes = False
    return app


class _EncodedPaths:
    """Passes the path to the routes as it was sent.

    The server decodes the path as a whole, after which an encoded slash inside a name looks like one between names.
    Here paths are split first, and each part is decoded once by the handler that takes it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes | None = scope.get("raw_path")
            path = quote(scope["path"]) if raw is None else raw.decode("latin-1")
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


async def _unknown(request: Request, error: Exception) -> Response:
    """Answer a path that is not served, or a method that is not served there."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        reason = f"{request.method} does nothing at {path}"
    elif path.startswith("/admin/") and not path.startswith("/admin/v2/"):
        reason = f"{path} is of the API for names with a cluster, which are not served: use /admin/v2/"
    else:
        reason = f"nothing is served at {path}; names have the form TENANT/NAMESPACE/TOPIC, each part encoded once"
    headers = dict(error.headers) if error.headers else None
    return json_response({"reason": reason}, error.status_code, headers)


async def _fault(request: Request, error: Exception) -> Response:
    return failure(error, f"{request.method} {request.url.path}")
