from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.admin.conftest import Admin

MARS = {"serviceUrl": "http://mars:8080", "brokerServiceUrl": "pulsar://mars:6650"}


def ok(admin: Admin, method: str, path: str, body: object = None) -> None:
    """A call that Pulsar answers with 200 and nothing."""
    answer = admin.call(method, path, body)
    assert (answer.status, answer.body) == (200, b""), answer


def test_another_cluster_exists_while_it_has_a_record(admin: Admin) -> None:
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


def test_a_mask_without_a_stored_secret_is_refused(admin: Admin) -> None:
    before, masked = admin.state(), {**MARS, "authenticationParameters": "********"}
    assert "send the secret" in admin.refused(412, "PUT", "clusters/mars", masked)
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
        (400, "PUT", "clusters/mars", {"peerClusterNames": ["venus"]}),
        (412, "PUT", "clusters/a%20b", MARS),
        (409, "PUT", "clusters/standalone", MARS),
        (412, "POST", "clusters/standalone", MARS),
        (412, "DELETE", "clusters/standalone", None),
    ],
)
def test_invalid_values_are_refused(admin: Admin, status: int, method: str, path: str, body: object) -> None:
    before = admin.state()
    admin.refused(status, method, path, body)
    assert admin.state() == before


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


# --- brokers ---


def broker(admin: Admin) -> str:
    return f"127.0.0.1:{admin.port}"


def test_one_broker_serves_everything(admin: Admin) -> None:
    assert admin.get("brokers/standalone") == admin.get("brokers") == [broker(admin)]
    assert admin.get("brokers/leaderBroker")["brokerId"] == broker(admin)
    admin.refused(404, "GET", "brokers/mars")


def test_no_setting_changes_while_the_broker_runs(admin: Admin) -> None:
    assert "maxMessageSize" in admin.refused(412, "POST", "brokers/configuration/maxMessageSize/5")
    admin.refused(412, "DELETE", "brokers/configuration/maxMessageSize")


def test_health_is_answered_for_this_broker(admin: Admin) -> None:
    for query in ("", "?topicVersion=V2", f"?brokerId={broker(admin)}"):
        assert admin.call("GET", f"brokers/health{query}").body == b"ok"
    admin.refused(400, "GET", "brokers/health?topicVersion=V3")
    admin.refused(404, "GET", "brokers/health?brokerId=elsewhere:1")


def test_a_broker_is_shut_down_by_its_process(admin: Admin) -> None:
    assert "another program" in admin.refused(412, "POST", "brokers/shutdown")
    asked = threading.Event()
    admin.server.on_shutdown = asked.set
    admin.do("POST", "brokers/shutdown?maxConcurrentUnloadPerSec=1&forcedTerminateTopic=true")
    assert asked.wait(10)
