"""Routes of clusters and brokers: this broker is its own cluster; other clusters are records for tools."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import PlainTextResponse, Response

from afterglow.admin import values
from afterglow.admin.access import Access
from afterglow.admin.errors import AdminError, bad_request, conflict, not_found, precondition_failed
from afterglow.admin.resource import Resources, SharedResources
from afterglow.broker.replies import PULSAR_VERSION
from afterglow.policy.offload_json import MASK

if TYPE_CHECKING:
    from afterglow.admin.call import BrokerCall, Call

    Json = dict[str, Any]

CLUSTERS = Resources("/admin/v2/clusters")
BROKERS = Resources("/admin/v2/brokers")
PROCESS = SharedResources("/admin/v2/brokers")
PROBES = SharedResources("")

_HEALTH_S: Final = 10.0
"""Time limit of the metadata store's answer; a broker whose store is slower is not healthy."""

_URLS: Final = {
    "serviceUrl": ("http://",),
    "serviceUrlTls": ("https://",),
    "brokerServiceUrl": ("pulsar://",),
    "brokerServiceUrlTls": ("pulsar+ssl://",),
    "proxyServiceUrl": ("pulsar://", "pulsar+ssl://"),
}
_FLAGS: Final = ("brokerClientTlsEnabled", "tlsAllowInsecureConnection", "brokerClientTlsEnabledWithKeyStore")
_SECRETS: Final = (
    "authenticationParameters",
    "brokerClientTlsTrustStorePassword",
    "brokerClientTlsKeyStorePassword",
    "brokerClientSslFactoryPluginParams",
)
"""Masked in answers. Parameters of a plugin may contain a password."""
_TEXTS: Final = (
    "authenticationPlugin",
    "proxyProtocol",
    "brokerClientTlsTrustStoreType",
    "brokerClientTlsTrustStore",
    "brokerClientTlsKeyStoreType",
    "brokerClientTlsKeyStore",
    "brokerClientTrustCertsFilePath",
    "brokerClientKeyFilePath",
    "brokerClientCertificateFilePath",
    "brokerClientSslFactoryPlugin",
    "listenerName",
    *_SECRETS,
)
_DEFAULTS: Final = {
    **dict.fromkeys(_FLAGS, False),
    "brokerClientTlsTrustStoreType": "JKS",
    "brokerClientTlsKeyStoreType": "JKS",
    "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
}
"""Values that Pulsar shows for unset fields."""
_UNSERVED: Final = ("peerClusterNames", "migrated", "migratedClusterUrl")
"""Clients send these too; accepted if empty."""


# --- clusters ---


@CLUSTERS.on("GET", "", Access.KNOWN)
async def list_clusters(call: BrokerCall) -> list[str]:
    """Names of all clusters."""
    return await call.blocking(call.catalog.clusters.names)


@CLUSTERS.on("GET", "/{cluster}", Access.READ_SERVER)
async def get_cluster(call: BrokerCall) -> Json:
    """Addresses of a cluster."""
    name = call.segment("cluster")
    shown = {**_DEFAULTS, **await call.blocking(call.catalog.clusters.get, name)}
    if name == call.service.config.cluster_name:
        urls = {
            "serviceUrlTls" if call.secure else "serviceUrl": call.web_url,
            "brokerServiceUrl": call.service.service_url,
            "brokerServiceUrlTls": call.service.service_url_tls,
        }
        shown |= {key: url for key, url in urls.items() if url}
    return {key: MASK if key in _SECRETS and value else value for key, value in shown.items()}


@CLUSTERS.on("PUT", "/{cluster}", Access.SUPER_USER)
async def create_cluster(call: BrokerCall) -> Response:
    """Add the record of another cluster."""
    name, data = call.segment("cluster"), _data(await call.body())
    if name == call.service.config.cluster_name:
        raise conflict(f"cluster {name} exists already: it is this cluster")
    await call.blocking(call.catalog.clusters.create, name, _unmasked(data, {}))
    return Response(status_code=200)


@CLUSTERS.on("POST", "/{cluster}", Access.SUPER_USER)
async def update_cluster(call: BrokerCall) -> Response:
    """Replace the record of another cluster; a masked secret keeps its value."""
    name, data = call.segment("cluster"), _data(await call.body())
    if name == call.service.config.cluster_name:
        raise precondition_failed(
            f"{name} is this cluster, whose addresses are settings: set advertisedAddress and the ports instead"
        )
    await call.blocking(call.catalog.clusters.update, name, partial(_unmasked, data))
    return Response(status_code=200)


@CLUSTERS.on("DELETE", "/{cluster}", Access.SUPER_USER)
async def delete_cluster(call: BrokerCall) -> None:
    """Delete the record of a cluster that no tenant refers to."""
    name = call.segment("cluster")
    if name == call.service.config.cluster_name:
        raise precondition_failed(f"{name} is this cluster and cannot be deleted")
    tenants = await call.blocking(_tenants_of, call, name)
    if tenants:
        raise precondition_failed(
            f"cluster {name} is among the allowedClusters of {', '.join(tenants)}: remove it there first"
        )
    await call.blocking(call.catalog.clusters.delete, name)


def _tenants_of(call: BrokerCall, cluster: str) -> list[str]:
    catalog = call.catalog
    return [name for name in catalog.tenants() if cluster in catalog.tenant(name).get("allowedClusters", [])]


def _data(body: object) -> Json:
    if body is None:
        raise bad_request('the body is empty; expected addresses such as {"serviceUrl":"http://…",…}')
    given = values.fields(body, "a cluster", (*_URLS, *_TEXTS, *_FLAGS, *_UNSERVED))
    for name in _UNSERVED:
        if given.pop(name, None):
            raise bad_request(f"{name} is not supported: leave it unset")
    for name, value in given.items():
        if name in _FLAGS:
            values.boolean(value, name)
            continue
        schemes = _URLS.get(name, ("",))
        if values.text(value, name) and not value.startswith(schemes):
            raise bad_request(f"{name} must be of the form {schemes[0]}HOST:PORT, not {values.shown(value)}")
    return given


def _unmasked(data: Json, old: Json) -> Json:
    """Replace masks by the stored secrets."""
    masked = [key for key in _SECRETS if data.get(key) == MASK]
    for key in masked:
        if key not in old:
            raise precondition_failed(f"{key} is a mask, and no secret is stored: send the secret")
    return {**data, **{key: old[key] for key in masked}}


# --- brokers ---


@BROKERS.on("GET", "", Access.READ_SERVER)
async def list_brokers(call: BrokerCall) -> list[str]:
    """The brokers of this cluster."""
    return [call.broker_id]


@PROCESS.on("GET", "/health", Access.READ_SERVER)
async def health(call: Call) -> Response:
    """``ok`` if the event loop and threads run and metadata can be read."""
    version = call.parameter("topicVersion")
    if version not in {None, "V1", "V2"}:
        raise bad_request(f"topicVersion must be V1 or V2, not {values.shown(version)}")
    broker = call.parameter("brokerId")
    if broker not in {None, call.broker_id}:
        raise not_found(f"unknown broker {broker}: the only broker is {call.broker_id}")
    try:
        async with asyncio.timeout(_HEALTH_S):
            await call.blocking(call.catalog.tenants)
    except TimeoutError as error:
        raise AdminError(
            HTTPStatus.SERVICE_UNAVAILABLE, f"the metadata store did not answer within {_HEALTH_S:.0f} s"
        ) from error
    return PlainTextResponse("ok")


@PROCESS.on("GET", "/ready", Access.KNOWN)
async def ready(_call: Call) -> Response:
    """``ok``: the binary port is opened before the HTTP port."""
    return PlainTextResponse("ok")


@PROCESS.on("GET", "/version", Access.KNOWN)
async def version(_call: Call) -> Response:
    """The Pulsar release whose protocol and API are served."""
    return PlainTextResponse(PULSAR_VERSION)


@BROKERS.on("GET", "/leaderBroker", Access.READ_SERVER)
async def leader(call: BrokerCall) -> dict[str, str]:
    """This broker: it is the only one."""
    return {"brokerId": call.broker_id, "serviceUrl": call.web_url}


@BROKERS.on("GET", "/configuration", Access.SUPER_USER)
async def dynamic_names(_call: BrokerCall) -> list[str]:
    """Names of dynamic settings: there are none."""
    return []


@BROKERS.on("GET", "/configuration/values", Access.SUPER_USER)
async def dynamic_values(_call: BrokerCall) -> dict[str, str]:
    """Values of dynamic settings: there are none."""
    return {}


@PROCESS.on("GET", "/configuration/runtime", Access.SUPER_USER)
async def runtime_values(call: Call) -> Json:
    """Every setting in the form of ``broker.conf``; secrets are masked."""
    return {row.key: row.show(value) for row, value, _ in call.service.config.rows()}


@BROKERS.on("POST", "/configuration/{name}/{value}", Access.SUPER_USER)
@BROKERS.on("DELETE", "/configuration/{name}", Access.SUPER_USER)
async def change_configuration(call: BrokerCall) -> None:
    """Refuse the change: settings are read once, at the start."""
    name = call.segment("name")
    raise precondition_failed(f"{name} cannot be changed while the broker runs: set it in broker.conf and restart")


@PROCESS.on("POST", "/shutdown", Access.SUPER_USER)
async def shutdown(call: Call) -> None:
    """End the process like SIGTERM, once the call is answered."""
    call.flag("forcedTerminateTopic", default=True)
    if not call.server.on_shutdown:
        raise precondition_failed("this process is embedded in another program: stop that program")
    asyncio.get_running_loop().call_soon(call.server.on_shutdown)


@BROKERS.on("GET", "/{cluster}", Access.READ_SERVER)
async def list_brokers_of(call: BrokerCall) -> list[str]:
    """The brokers of a cluster."""
    name, own = call.segment("cluster"), call.service.config.cluster_name
    if name != own:
        raise not_found(f"unknown cluster {name}: the brokers of {own} are known")
    return [call.broker_id]


@PROBES.on("GET", "/status.html", Access.ANYONE)
async def status(_call: Call) -> Response:
    """``OK``, for load balancers, which hold no credentials."""
    return PlainTextResponse("OK")
