"""The application: all resources on one broker."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from afterglow.admin import (
    backlog,
    broker_stats,
    brokers,
    checks,
    clusters,
    console,
    lookup,
    messages,
    metrics,
    namespace_access,
    namespace_bundles,
    namespace_properties,
    namespaces,
    non_persistent,
    offload,
    offload_policies,
    overview,
    partitions,
    permissions,
    policy_table,
    properties,
    rollback,
    schemas,
    subscriptions,
    tenants,
    topic_clusters,
    topic_log,
    topic_stats,
    topics,
    unenforced,
    unserved,
)
from afterglow.admin.access import Access, Gate
from afterglow.admin.call import Call
from afterglow.admin.resource import failure, json_response
from afterglow.engine.metrics.collector import MetricsCollector
from afterglow.engine.metrics.overview import Overview

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from afterglow.broker.auth import Authenticator
    from afterglow.broker.service import BrokerService
    from afterglow.engine.check_jobs import CheckJobs
    from afterglow.offload.service import OffloadService

ALL_RESOURCES = (
    clusters.RESOURCES,
    tenants.RESOURCES,
    namespaces.RESOURCES,
    namespace_access.NAMESPACES,
    namespace_access.OLD_NAMESPACES,
    permissions.NAMESPACES,
    namespace_bundles.RESOURCES,
    namespace_properties.RESOURCES,
    partitions.RESOURCES,  # before topics: `partitioned` is no topic
    topics.RESOURCES,
    topic_stats.RESOURCES,
    permissions.TOPICS,
    topic_log.RESOURCES,
    offload.RESOURCES,
    rollback.TOPICS,
    rollback.NAMESPACES,
    rollback.EVERYTHING,
    policy_table.NAMESPACES,
    policy_table.TOPICS,
    unenforced.NAMESPACES,
    unenforced.TOPICS,
    offload_policies.NAMESPACES,
    offload_policies.TOPICS,
    subscriptions.RESOURCES,
    messages.RESOURCES,
    backlog.RESOURCES,
    properties.RESOURCES,
    topic_clusters.RESOURCES,
    unserved.RESOURCES,
    non_persistent.RESOURCES,
    schemas.RESOURCES,
    brokers.RESOURCES,
    brokers.PROBES,
    broker_stats.RESOURCES,
    lookup.RESOURCES,
    console.RESOURCES,
)
"""Everything that is served, in the order in which paths are matched."""

_SEARCHES: Final = 4
"""Calls that look through a tier at a time: the other threads that wait for one are for consumers."""


def admin_app(
    service: BrokerService,
    authenticator: Authenticator,
    offload: OffloadService | None = None,
    check_jobs: CheckJobs | None = None,
) -> Starlette:
    """The admin API of a broker, to be served in the broker's own event loop.

    Args:
        service: The broker.
        authenticator: Who is who.
        offload: Who offloads; None: nobody does, and calls that need one are refused.
        check_jobs: Checks of the tiers; None: nobody makes any, likewise.
    """
    gate = Gate(service, authenticator)
    make = partial(Call, service, offload, asyncio.Semaphore(_SEARCHES))
    scraping = Access.KNOWN if service.config.authenticate_metrics_endpoint else Access.ANYONE
    app = Starlette(
        routes=[
            *(route for resources in ALL_RESOURCES for route in resources.routes(gate, make)),
            *overview.resources(Overview(service, offload)).routes(gate, make),
            *checks.resources(check_jobs).routes(gate, make),
            *metrics.resources(MetricsCollector(service, offload, check_jobs), scraping).routes(gate, make),
        ],
        middleware=[Middleware(_EncodedPaths)],
        exception_handlers={HTTPException: _unknown, Exception: _fault},
    )
    # A redirect would be built from the Host header, which anyone may have written.
    app.router.redirect_slashes = False
    return app


class _EncodedPaths:
    """Has routes see the path as it was sent.

    The server decodes the path as a whole, after which an encoded slash inside a name looks like one between names.
    Here paths are split first, and each part is decoded once by whoever takes it.
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
    """No such path, or no such method there."""
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
