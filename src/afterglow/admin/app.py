"""Application of the admin API of a broker: all its routes, served on the ports of the settings."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from afterglow.admin import (
    browse_routes,
    cluster_routes,
    console,
    console_routes,
    listing_routes,
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
from afterglow.admin.access import Access, AccessControl
from afterglow.admin.call import BrokerCall, ReadLimits
from afterglow.admin.http_server import HttpLimits, serve_http
from afterglow.admin.resource import failure, json_response
from afterglow.broker.service import url_host
from afterglow.pipeline.metrics.broker import BrokerMetrics
from afterglow.pipeline.metrics.collector import own_figures
from afterglow.pipeline.metrics.history import INTERVAL_S, RateHistory
from afterglow.pipeline.metrics.overview import Overview
from afterglow.pipeline.upkeep import cancel_task, run_periodically

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from afterglow.admin.resource import ResourceTable, SharedResources
    from afterglow.broker.service import BrokerService
    from afterglow.config import BrokerConfig
    from afterglow.pipeline.metrics.collector import MetricsCollector
    from afterglow.pipeline.server_handle import ServerHandle, TopicService

ALL_RESOURCES = (
    cluster_routes.CLUSTERS,
    cluster_routes.PROBES,
    listing_routes.TENANTS,
    listing_routes.NAMESPACES,
    namespace_routes.TENANTS,
    namespace_routes.NAMESPACES,
    permission_routes.NAMESPACES,
    permission_routes.TOPICS,
    listing_routes.TOPICS,
    listing_routes.NON_PERSISTENT,
    topic_routes.PERSISTENT,
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
    browse_routes.RESOURCES,
    schema_routes.RESOURCES,
    verify_routes.RESOURCES,
    console.RESOURCES,
    console.ROOT,
    not_served.RESOURCES,  # after the others: its patterns also match names in their paths
    cluster_routes.PROCESS,  # after the table: /brokers/{cluster} would match some of its paths
    cluster_routes.BROKERS,
)
"""All resources, in the order in which paths are matched."""


async def start_admin(
    server: ServerHandle[BrokerService], tls: ssl.SSLContext | None
) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve the admin API of a broker; see :func:`serve_app`."""
    state = ProcessState.of_broker(server)
    return await serve_app(admin_app(server, state), server.service.config, tls, state)


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The metrics of a process, and what the console shows of it."""

    metrics: MetricsCollector
    overview: Overview
    history: RateHistory
    memory: Callable[[], Mapping[str, int]]
    started_ms: int

    @classmethod
    def of(
        cls,
        server: ServerHandle[TopicService],
        metrics: MetricsCollector,
        memory: Callable[[], Mapping[str, int]] = dict,
    ) -> Self:
        """The state of a server with these metrics; ``memory`` as for :func:`console_routes.overview_resources`."""
        overview = Overview(server, partial(own_figures, metrics))
        return cls(metrics, overview, RateHistory(overview), memory, server.service.store.clock.now_ms())

    @classmethod
    def of_broker(cls, server: ServerHandle[BrokerService]) -> Self:
        """The state of a broker."""
        return cls.of(server, BrokerMetrics(server), partial(console_routes.broker_memory, server.service))


async def serve_app(
    app: Starlette, config: BrokerConfig, tls: ssl.SSLContext | None, state: ProcessState
) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve an application on the plain port, the TLS port, or both, and sample its history.

    Args:
        app: The application.
        config: Has the ports and limits.
        tls: The context of the TLS port; None: there is no such port.
        state: The state of the process.

    Returns:
        The URL of the first port, and a callable that stops all ports.

    Raises:
        ConfigError: A port cannot be opened.
    """
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
        if urls:
            sampling = run_periodically(INTERVAL_S, "the history of rates", state.history.sample)
            stack.push_async_callback(cancel_task, asyncio.create_task(sampling))
        return (urls[0] if urls else "", stack.pop_all().aclose)
    raise AssertionError("unreachable: the block returns or raises")


def admin_app(server: ServerHandle[BrokerService], state: ProcessState) -> Starlette:
    """The admin API of a server, to be served in the broker's own event loop."""
    control = AccessControl(server.service)
    make = partial(BrokerCall, server, ReadLimits())
    tables: tuple[ResourceTable[BrokerCall], ...] = (*process_resources(server, state), *ALL_RESOURCES)
    return make_app(route for resources in tables for route in resources.routes(control, make))


def process_resources(
    server: ServerHandle[TopicService], state: ProcessState, attached_to: dict[str, str] | None = None
) -> tuple[SharedResources, ...]:
    """Resources with a state of their own: overview, history and metrics of a process.

    Args:
        server: The server.
        state: Its state.
        attached_to: The cluster that the process is attached to, for the console; None: it is a broker.
    """
    scraping = Access.KNOWN if server.service.config.authenticate_metrics_endpoint else Access.ANYONE
    return (
        console_routes.overview_resources(state.overview, state.memory, state.started_ms, attached_to),
        *console_routes.history_resources(state.history),
        metrics_routes.resources(state.metrics, scraping),
    )


def make_app(routes: Iterable[Route]) -> Starlette:
    """The application of routes, to be served in the event loop of their server."""
    app = Starlette(
        routes=list(routes),
        middleware=[Middleware(_EncodedPaths)],
        exception_handlers={HTTPException: _on_unknown_path, Exception: _on_error},
    )
    # A redirect would be built from the Host header, which the client controls.
    app.router.redirect_slashes = False
    return app


class _EncodedPaths:
    """Middleware that passes the path to the routes as it was sent.

    The HTTP server decodes the whole path, so that an encoded slash inside a name becomes a separator. Here paths are
    split first, and the handler decodes each segment once.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes | None = scope.get("raw_path")
            path = quote(scope["path"]) if raw is None else raw.decode("latin-1")
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


async def _on_unknown_path(request: Request, error: Exception) -> Response:
    """Answer a path, or a method of a path, that does not exist."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        reason = f"{request.method} is not supported at {path}"
    elif path.startswith("/admin/") and not path.startswith("/admin/v2/"):
        reason = f"{path} belongs to the v1 API, whose names include a cluster: use /admin/v2/"
    else:
        reason = f"no such path: {path}; names have the form TENANT/NAMESPACE/TOPIC, each part encoded once"
    headers = dict(error.headers) if error.headers else None
    return json_response({"reason": reason}, error.status_code, headers)


async def _on_error(request: Request, error: Exception) -> Response:
    return failure(error, f"{request.method} {request.url.path}")
