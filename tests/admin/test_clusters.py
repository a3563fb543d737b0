from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.admin.conftest import Admin

MARS = {"serviceUrl": "http://mars:8080", "brokerServiceUrl": "pulsar://mars:6650"}


def ok(admin: Admin, method: str, path: str, body: object = None) -> None:
    """A call that Pulsar answers with 200 and nothing."""
    answer = admin.call(method, path, body)
    assert (answer.status, answer.body) == (200, b""), answer


def test_another_cluster_is_known_as_long_as_its_record_is_there(admin: Admin) -> None:
    ok(admin, "PUT", "clusters/mars", {**MARS, "authenticationParameters": "token:secret"})
    assert admin.get("clusters") == ["mars", "standalone"]
    shown = admin.get("clusters/mars")
    assert shown["serviceUrl"] == "http://mars:8080"
    assert shown["brokerClientTlsEnabled"] is False
    assert shown["authenticationParameters"] == "********"
    admin.refused(409, "PUT", "clusters/mars", MARS)
    ok(admin, "POST", "clusters/mars", {"serviceUrl": "http://mars:1", "authenticationParameters": "********"})
    assert admin.service.catalog.clusters.get("mars") == {
        "serviceUrl": "http://mars:1",
        "authenticationParameters": "token:secret",
    }
    admin.do("POST", "clusters/mars/failureDomains/d", {"brokers": []})
    admin.do("DELETE", "clusters/mars")
    assert admin.get("clusters") == ["standalone"]
    for method in ("GET", "DELETE"):
        admin.refused(404, method, "clusters/mars")
    admin.refused(404, "POST", "clusters/mars", MARS)


def test_parameters_of_a_plugin_are_shown_masked(admin: Admin) -> None:
    given = {**MARS, "brokerClientSslFactoryPluginParams": '{"password":"swordfish"}'}
    ok(admin, "PUT", "clusters/mars", given)
    shown = admin.get("clusters/mars")
    assert shown["brokerClientSslFactoryPluginParams"] == "********"
    ok(admin, "POST", "clusters/mars", shown)
    kept = admin.service.catalog.clusters.get("mars")
    assert kept["brokerClientSslFactoryPluginParams"] == given["brokerClientSslFactoryPluginParams"]


def test_a_mask_is_no_secret(admin: Admin) -> None:
    before, masked = admin.state(), {**MARS, "authenticationParameters": "********"}
    assert "give the secret" in admin.refused(412, "PUT", "clusters/mars", masked)
    assert admin.state() == before
    ok(admin, "PUT", "clusters/mars", MARS)
    admin.refused(412, "POST", "clusters/mars", masked)
    assert "authenticationParameters" not in admin.service.catalog.clusters.get("mars")


@pytest.mark.parametrize(
    ("status", "method", "path", "body"),
    [
        (400, "PUT", "clusters/mars", None),
        (400, "PUT", "clusters/mars", {"serviceUrl": "ftp://mars"}),
        (400, "PUT", "clusters/mars", {"url": "http://mars"}),
        (400, "PUT", "clusters/mars", {"brokerClientTlsEnabled": "yes"}),
        (400, "PUT", "clusters/mars", {"migrated": True}),
        (412, "PUT", "clusters/mars", {"peerClusterNames": ["venus"]}),
        (412, "PUT", "clusters/a%20b", MARS),
        (409, "PUT", "clusters/standalone", MARS),
        (412, "POST", "clusters/standalone", MARS),
        (412, "DELETE", "clusters/standalone", None),
        (412, "POST", "clusters/standalone/peers", ["standalone"]),
        (412, "POST", "clusters/standalone/peers", ["venus"]),
        (404, "POST", "clusters/mars/peers", ["standalone"]),
        (404, "POST", "clusters/mars/failureDomains/d", {"brokers": ["a"]}),
        (404, "GET", "clusters/standalone/failureDomains/d", None),
        (404, "GET", "clusters/standalone/namespaceIsolationPolicies", None),
        (412, "POST", "clusters/standalone/namespaceIsolationPolicies/p", {}),
    ],
)
def test_what_cannot_be_is_refused(admin: Admin, status: int, method: str, path: str, body: object) -> None:
    before = admin.state()
    admin.refused(status, method, path, body)
    assert admin.state() == before


def test_a_cluster_has_peers(admin: Admin) -> None:
    ok(admin, "PUT", "clusters/mars", MARS)
    admin.do("GET", "clusters/standalone/peers")
    admin.do("POST", "clusters/standalone/peers", ["mars"])
    assert admin.get("clusters/standalone/peers") == ["mars"]
    cluster = admin.get("clusters/standalone")
    assert cluster["peerClusterNames"] == ["mars"]
    assert cluster["brokerServiceUrl"] == admin.service.service_url


def test_a_broker_is_in_one_failure_domain(admin: Admin) -> None:
    path = "clusters/standalone/failureDomains"
    assert admin.get(path) == {}
    admin.do("POST", f"{path}/d", {"brokers": ["a:8080"]})
    admin.do("POST", f"{path}/d", {"brokers": ["a:8080", "b:8080"]})
    assert "failure domain d" in admin.refused(409, "POST", f"{path}/e", {"brokers": ["b:8080"]})
    assert admin.get(path) == {"d": {"brokers": ["a:8080", "b:8080"]}}
    assert admin.get(f"{path}/d") == {"brokers": ["a:8080", "b:8080"]}
    ok(admin, "DELETE", f"{path}/d")
    admin.refused(404, "DELETE", f"{path}/d")
    assert admin.get("clusters") == ["standalone"]


def test_tenants_may_use_clusters_that_are_known(admin: Admin) -> None:
    admin.refused(412, "PUT", "tenants/acme", {"allowedClusters": ["mars"]})
    ok(admin, "PUT", "clusters/mars", MARS)
    admin.do("PUT", "tenants/acme", {"allowedClusters": ["mars"]})
    assert "acme" in admin.refused(412, "DELETE", "clusters/mars")
    assert "allowedClusters" in admin.refused(403, "PUT", "namespaces/acme/n")
    admin.do("POST", "tenants/acme", {"allowedClusters": ["mars", "standalone"]})
    admin.do("PUT", "namespaces/acme/n")
    admin.refused(409, "POST", "tenants/acme", {"allowedClusters": ["mars"]})
    admin.refused(412, "POST", "tenants/acme", {"allowedClusters": []})
    admin.refused(412, "POST", "tenants/acme", {"allowedClusters": ["standalone"], "adminRoles": [" dev"]})
