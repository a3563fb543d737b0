"""Clusters: this broker is all of one; of others there are records, for tools that keep them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from starlette.responses import Response

from afterglow.admin import values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, conflict, not_found, precondition_failed
from afterglow.admin.resource import Resources
from afterglow.offload.policy_json import MASK

if TYPE_CHECKING:
    from afterglow.admin.call import Call
    from afterglow.ledger.clusters import ClusterRecords

    Json = dict[str, Any]

RESOURCES = Resources("/admin/v2/clusters")

_PEERS: Final = "peerClusterNames"
_URLS: Final = {
    "serviceUrl": ("http",),
    "serviceUrlTls": ("https",),
    "brokerServiceUrl": ("pulsar",),
    "brokerServiceUrlTls": ("pulsar+ssl",),
    "proxyServiceUrl": ("pulsar", "pulsar+ssl"),
}
_FLAGS: Final = ("brokerClientTlsEnabled", "tlsAllowInsecureConnection", "brokerClientTlsEnabledWithKeyStore")
_SECRETS: Final[tuple[str, ...]] = (
    "authenticationParameters",
    "brokerClientTlsTrustStorePassword",
    "brokerClientTlsKeyStorePassword",
    "brokerClientSslFactoryPluginParams",
)
"""Shown masked. Parameters of a plugin may hold anything, and so a password."""
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
_USUAL: Final = {
    **dict.fromkeys(_FLAGS, False),
    "brokerClientTlsTrustStoreType": "JKS",
    "brokerClientTlsKeyStoreType": "JKS",
    "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
}
"""What Pulsar shows where nothing was said."""
_OF_OTHERS: Final = ("migrated", "migratedClusterUrl")
"""Sent by clients of other releases; taken where they say nothing."""


@RESOURCES.on("GET", "", Access.KNOWN)
async def list_clusters(call: Call) -> list[str]:
    """The names of all clusters."""
    return await call.service.blocking(_records(call).names)


@RESOURCES.on("GET", "/{cluster}", Access.READ_SERVER)
async def get_cluster(call: Call) -> Json:
    """Where a cluster answers."""
    name = call.segment("cluster")
    stored = await call.service.blocking(_records(call).get, name)
    shown = {**_USUAL, **stored}
    if name == call.service.config.cluster_name:
        urls = {
            "serviceUrlTls" if call.secure else "serviceUrl": call.web_url,
            "brokerServiceUrl": call.service.service_url,
            "brokerServiceUrlTls": call.service.service_url_tls,
        }
        shown |= {key: url for key, url in urls.items() if url}
    return {key: MASK if key in _SECRETS and value else value for key, value in shown.items()}


@RESOURCES.on("PUT", "/{cluster}", Access.SUPER_USER)
async def create_cluster(call: Call) -> Response:
    """Make another cluster known."""
    name = call.segment("cluster")
    data = _data(await call.body())
    if name == call.service.config.cluster_name:
        raise conflict(f"cluster {name} exists already: it is this one")
    await _check_peers(call, data.get(_PEERS, []))
    await call.service.blocking(_records(call).create, name, _unmasked(data, {}))
    return Response(status_code=200)


@RESOURCES.on("POST", "/{cluster}", Access.SUPER_USER)
async def update_cluster(call: Call) -> Response:
    """Replace what is known of another cluster; a secret that comes masked stays."""
    name = call.segment("cluster")
    data = _data(await call.body())
    if name == call.service.config.cluster_name:
        raise precondition_failed(
            f"{name} is this cluster, which answers where it listens: set advertisedAddress and the ports instead"
        )
    await _check_peers(call, data.get(_PEERS, []))
    await call.service.blocking(_records(call).update, name, partial(_unmasked, data))
    return Response(status_code=200)


@RESOURCES.on("DELETE", "/{cluster}", Access.SUPER_USER)
async def delete_cluster(call: Call) -> None:
    """Forget another cluster that no tenant may use."""
    name = call.segment("cluster")
    if name == call.service.config.cluster_name:
        raise precondition_failed(f"{name} is this cluster, which is not deleted while it runs")
    users = await call.service.blocking(_tenants_of, call, name)
    if users:
        raise precondition_failed(
            f"cluster {name} is among the allowedClusters of {', '.join(users)}: take it out first"
        )
    await call.service.blocking(_records(call).delete, name)


# --- peers ---


@RESOURCES.on("GET", "/{cluster}/peers", Access.READ_SERVER)
async def get_peers(call: Call) -> list[str] | None:
    """The clusters with which one shares its namespaces; no content where that was not set."""
    found: list[str] | None = (await call.service.blocking(_records(call).get, call.segment("cluster"))).get(_PEERS)
    return found


@RESOURCES.on("POST", "/{cluster}/peers", Access.SUPER_USER)
async def set_peers(call: Call) -> None:
    """Set these clusters."""
    name = call.segment("cluster")
    body = await call.body()
    peers = [] if body is None else values.texts(body, "peers")
    await _check_peers(call, peers)
    await call.service.blocking(_records(call).update, name, lambda old: {**old, _PEERS: peers})


# --- failure domains ---


@RESOURCES.on("GET", "/{cluster}/failureDomains", Access.READ_SERVER)
async def list_domains(call: Call) -> dict[str, Json]:
    """All failure domains of a cluster."""
    return await call.service.blocking(_records(call).domains, await _known(call))


@RESOURCES.on("GET", "/{cluster}/failureDomains/{domain}", Access.READ_SERVER)
async def get_domain(call: Call) -> Json:
    """One failure domain."""
    return await call.service.blocking(_records(call).domain, await _known(call), call.segment("domain"))


@RESOURCES.on("POST", "/{cluster}/failureDomains/{domain}", Access.SUPER_USER)
async def set_domain(call: Call) -> None:
    """Set the brokers of a failure domain; each is in one at most."""
    cluster, name = await _known(call), call.segment("domain")
    given = values.fields(await call.body(), "a failure domain", ("brokers",))
    brokers = values.texts(given.get("brokers", []), "brokers")
    for other, domain in (await call.service.blocking(_records(call).domains, cluster)).items():
        twice = sorted(set(brokers) & set(domain.get("brokers") or []))
        if other != name and twice:
            raise conflict(f"{', '.join(twice)} is in the failure domain {other} already")
    await call.service.blocking(_records(call).put_domain, cluster, name, {"brokers": brokers})


@RESOURCES.on("DELETE", "/{cluster}/failureDomains/{domain}", Access.SUPER_USER)
async def delete_domain(call: Call) -> Response:
    """Forget a failure domain."""
    await call.service.blocking(_records(call).delete_domain, await _known(call), call.segment("domain"))
    return Response(status_code=200)


# --- isolation ---


@RESOURCES.on("GET", "/{cluster}/namespaceIsolationPolicies", Access.READ_SERVER)
@RESOURCES.on("GET", "/{cluster}/namespaceIsolationPolicies/{policy}", Access.READ_SERVER)
@RESOURCES.on("DELETE", "/{cluster}/namespaceIsolationPolicies/{policy}", Access.SUPER_USER)
async def no_isolation(call: Call) -> None:
    """Say that there are none."""
    raise not_found(f"cluster {await _known(call)} has no isolation policies of namespaces")


@RESOURCES.on("POST", "/{cluster}/namespaceIsolationPolicies/{policy}", Access.SUPER_USER)
async def set_isolation(call: Call) -> None:
    """Say that none is enforced."""
    await _known(call)
    raise precondition_failed("isolation policies of namespaces are not enforced: one broker serves everything")


def check_cluster(call: Call) -> None:
    """Check that the cluster in the path is this one.

    Raises:
        AdminError: It is not.
    """
    name, known = call.segment("cluster"), call.service.config.cluster_name
    if name != known:
        raise not_found(f"cluster {name} does not exist; this is {known}")


def _records(call: Call) -> ClusterRecords:
    return call.service.catalog.clusters


async def _known(call: Call) -> str:
    name = call.segment("cluster")
    await call.service.blocking(_records(call).get, name)
    return name


async def _check_peers(call: Call, peers: list[str]) -> None:
    own = call.segment("cluster")
    known = await call.service.blocking(_records(call).names)
    for peer in peers:
        if peer == own:
            raise precondition_failed(f"cluster {own} cannot be a peer of itself")
        if peer not in known:
            raise precondition_failed(f"the peer {peer!r} does not exist: there are {', '.join(known)}")


def _tenants_of(call: Call, cluster: str) -> list[str]:
    catalog = call.service.catalog
    return [name for name in catalog.tenants() if cluster in catalog.tenant(name).get("allowedClusters", [])]


def _data(body: object) -> Json:
    if body is None:
        raise bad_request('the body must hold where the cluster answers, as {"serviceUrl":"http://…",…}')
    given = values.fields(body, "a cluster", (*_URLS, *_TEXTS, *_FLAGS, _PEERS, *_OF_OTHERS))
    for name in _OF_OTHERS:
        if given.pop(name, None):
            raise bad_request(f"{name} is not part of a cluster's record")
    for name, value in given.items():
        if name in _FLAGS:
            values.boolean(value, name)
        elif name == _PEERS:
            values.texts(value, name)
        else:
            values.text(value, name)
            _check_url(name, value)
    return given


def _unmasked(data: Json, old: Json) -> Json:
    """The data with the secrets that were there instead of their masks."""
    masked = [key for key in _SECRETS if data.get(key) == MASK]
    for key in masked:
        if key not in old:
            raise precondition_failed(f"{key} is the mask that stands for a secret, and there is none: give the secret")
    return {**data, **{key: old[key] for key in masked}}


def _check_url(name: str, value: str) -> None:
    schemes = _URLS.get(name)
    if schemes is None or not value:
        return
    for place, part in enumerate(value.split(",")):  # several hosts may stand behind one scheme
        try:
            scheme = urlsplit(part).scheme if "://" in part or place == 0 else schemes[0]
        except ValueError:
            scheme = ""
        if scheme not in schemes:
            raise bad_request(f"{name} must be an address as {schemes[0]}://HOST:PORT, not {values.shown(value)}")
