"""This broker: whether it is well, and how it is configured."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import PlainTextResponse

from afterglow.admin import values
from afterglow.admin.access import Access
from afterglow.admin.broker_stats import by_bundle
from afterglow.admin.clusters import check_cluster
from afterglow.admin.errors import AdminError, bad_request, not_found, precondition_failed
from afterglow.admin.resource import Resources
from afterglow.broker.replies import PULSAR_VERSION

if TYPE_CHECKING:
    from starlette.responses import Response

    from afterglow.admin.call import Call

RESOURCES = Resources("/admin/v2/brokers")
PROBES = Resources("")

_HEALTH_S: Final = 10.0
"""A broker whose metadata takes longer is not well, whether or not the answer comes."""


@RESOURCES.on("GET", "", Access.READ_SERVER)
async def list_brokers(call: Call) -> list[str]:
    """The brokers of this cluster."""
    return [call.broker_id]


@RESOURCES.on("GET", "/health", Access.READ_SERVER)
async def health(call: Call) -> Response:
    """``ok`` if threads run and metadata can be read."""
    version = call.parameter("topicVersion")
    if version not in {None, "V1", "V2"}:
        raise bad_request(f"topicVersion must be V1 or V2, not {values.shown(version)}")
    broker = call.parameter("brokerId")
    if broker not in {None, call.broker_id}:
        raise not_found(f"there is no broker {broker}; this is {call.broker_id}")
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


@RESOURCES.on("GET", "/leaderBroker", Access.READ_SERVER)
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


@RESOURCES.on("POST", "/configuration/{name}/{value}", Access.SUPER_USER)
@RESOURCES.on("DELETE", "/configuration/{name}", Access.SUPER_USER)
async def change_configuration(call: Call) -> None:
    """Say that settings are read once, at the start."""
    name = call.segment("name")
    raise precondition_failed(f"{name} cannot be changed while the broker runs: set it in broker.conf and start again")


@RESOURCES.on("GET", "/internal-configuration", Access.SUPER_USER)
async def internal_configuration(call: Call) -> dict[str, str]:
    """Where metadata is, for tools that would read it themselves."""
    url = call.service.config.metadata_store_url or "sqlite:"
    return {
        "zookeeperServers": url,
        "configurationStoreServers": url,
        "metadataStoreUrl": url,
        "configurationMetadataStoreUrl": url,
        "ledgersRootPath": "/ledgers",
        "bookkeeperMetadataServiceUri": "",
    }


@RESOURCES.on("GET", "/backlog-quota-check", Access.SUPER_USER)
async def check_backlog_quotas(_call: Call) -> None:
    """There are no backlog quotas to check."""


@RESOURCES.on("POST", "/shutdown", Access.SUPER_USER)
async def shutdown(call: Call) -> None:
    """End the process as a signal would, once this is answered."""
    call.flag("forcedTerminateTopic", default=True)
    if not call.service.on_shutdown:
        raise precondition_failed("this broker is part of another program, which must end it")
    asyncio.get_running_loop().call_soon(call.service.on_shutdown)


@RESOURCES.on("GET", "/{cluster}/{broker}/ownedNamespaces", Access.READ_SERVER)
async def owned_namespaces(call: Call) -> dict[str, Any]:
    """The bundles that a broker serves: all that have open topics."""
    check_cluster(call)
    if call.segment("broker") != call.broker_id:
        raise not_found(f"there is no broker {call.segment('broker')}; this is {call.broker_id}")
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    return {f"{name}/{bundle}": status for name, bundle, _ in await by_bundle(call)}


@RESOURCES.on("GET", "/{cluster}", Access.READ_SERVER)
async def list_brokers_of(call: Call) -> list[str]:
    """The brokers of a cluster."""
    check_cluster(call)
    return [call.broker_id]


@PROBES.on("GET", "/status.html", Access.ANYONE)
async def status(_call: Call) -> Response:
    """``OK`` for load balancers, which hold no credentials."""
    return PlainTextResponse("OK")
