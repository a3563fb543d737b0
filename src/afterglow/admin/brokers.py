"""This broker: whether it is well, and how it is configured."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import PlainTextResponse

from afterglow.admin.access import Access
from afterglow.admin.clusters import check_cluster
from afterglow.admin.errors import AdminError
from afterglow.admin.resource import Resources
from afterglow.broker.replies import PULSAR_VERSION

if TYPE_CHECKING:
    from starlette.responses import Response

    from afterglow.admin.call import Call

RESOURCES = Resources("/admin/v2/brokers")
PROBES = Resources("")

_HEALTH_S: Final = 10.0
"""A broker whose metadata takes longer is not well, whether or not the answer comes."""


@RESOURCES.on("GET", "", Access.KNOWN)
async def list_brokers(call: Call) -> list[str]:
    """The brokers of this cluster."""
    return [call.broker_id]


@RESOURCES.on("GET", "/health", Access.KNOWN)
async def health(call: Call) -> Response:
    """``ok`` if threads run and metadata can be read."""
    try:
        async with asyncio.timeout(_HEALTH_S):
            await call.service.blocking(call.service.catalog.tenants)
    except TimeoutError as error:
        raise AdminError(
            HTTPStatus.SERVICE_UNAVAILABLE, f"the metadata store did not answer within {_HEALTH_S:.0f} s"
        ) from error
    return PlainTextResponse("ok")


@RESOURCES.on("GET", "/ready", Access.KNOWN)
async def ready(_call: Call) -> Response:
    """``ok`` once this answers: the binary port is opened first."""
    return PlainTextResponse("ok")


@RESOURCES.on("GET", "/version", Access.KNOWN)
async def version(_call: Call) -> Response:
    """The release of Pulsar whose protocol and API are served, which is what tools ask for."""
    return PlainTextResponse(PULSAR_VERSION)


@RESOURCES.on("GET", "/leaderBroker", Access.KNOWN)
async def leader(call: Call) -> dict[str, str]:
    """The broker that decides for all: this one."""
    return {"brokerId": call.broker_id, "serviceUrl": call.web_url}


@RESOURCES.on("GET", "/configuration", Access.SUPER_USER)
async def dynamic_names(_call: Call) -> list[str]:
    """Names of the settings that can be changed while the broker runs: none."""
    return []


@RESOURCES.on("GET", "/configuration/values", Access.SUPER_USER)
async def dynamic_values(_call: Call) -> dict[str, str]:
    """Settings that were changed while the broker runs: none."""
    return {}


@RESOURCES.on("GET", "/configuration/runtime", Access.SUPER_USER)
async def runtime_values(call: Call) -> dict[str, Any]:
    """Every setting as ``broker.conf`` would have it, secrets masked."""
    return {row.key: row.show(value) for row, value, _ in call.service.config.rows()}


@RESOURCES.on("GET", "/{cluster}", Access.KNOWN)
async def list_brokers_of(call: Call) -> list[str]:
    """The brokers of a cluster."""
    check_cluster(call)
    return [call.broker_id]


@PROBES.on("GET", "/status.html", Access.ANYONE)
async def status(_call: Call) -> Response:
    """``OK`` for load balancers, which hold no credentials."""
    return PlainTextResponse("OK")
