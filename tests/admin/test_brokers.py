from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from afterglow.admin import bundles, policies
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from tests.admin.conftest import Admin


def broker(admin: Admin) -> str:
    return f"127.0.0.1:{admin.port}"


def test_one_broker_serves_everything(admin: Admin) -> None:
    admin.do("PUT", "persistent/public/default/t")
    admin.get("persistent/public/default/t/stats")
    assert admin.get("brokers/standalone") == admin.get("brokers") == [broker(admin)]
    owned = admin.get(f"brokers/standalone/{broker(admin)}/ownedNamespaces")
    (bundle,) = owned
    assert bundle.startswith("public/default/0x")
    assert owned[bundle] == {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    admin.refused(404, "GET", "brokers/standalone/elsewhere:1/ownedNamespaces")
    admin.refused(404, "GET", f"brokers/mars/{broker(admin)}/ownedNamespaces")


def test_no_setting_changes_while_the_broker_runs(admin: Admin) -> None:
    assert "maxMessageSize" in admin.refused(412, "POST", "brokers/configuration/maxMessageSize/5")
    admin.refused(412, "DELETE", "brokers/configuration/maxMessageSize")
    assert admin.get("brokers/internal-configuration")["metadataStoreUrl"].startswith("sqlite:")
    admin.do("GET", "brokers/backlog-quota-check")


def test_health_is_told_for_this_broker(admin: Admin) -> None:
    for query in ("", "?topicVersion=V2", f"?brokerId={broker(admin)}"):
        assert admin.call("GET", f"brokers/health{query}").body == b"ok"
    admin.refused(400, "GET", "brokers/health?topicVersion=V3")
    admin.refused(404, "GET", "brokers/health?brokerId=elsewhere:1")


def test_a_broker_is_shut_down_by_whoever_runs_it(admin: Admin) -> None:
    assert "another program" in admin.refused(412, "POST", "brokers/shutdown")
    asked = threading.Event()
    admin.service.on_shutdown = asked.set
    admin.do("POST", "brokers/shutdown?maxConcurrentUnloadPerSec=1&forcedTerminateTopic=true")
    assert asked.wait(10)


def test_the_load_is_told_by_bundle(admin: Admin) -> None:
    admin.do("PUT", "persistent/public/default/t")
    admin.get("persistent/public/default/t/stats")
    for path in ("broker-stats/topics", "broker-stats/destinations"):
        ((bundle, kinds),) = admin.get(path)["public/default"].items()
        assert list(kinds["persistent"]) == ["persistent://public/default/t"]
    report = admin.get("broker-stats/load-report")
    assert report["bundles"] == [f"public/default/{bundle}"]
    assert report["numTopics"] == 1
    assert report["pulsarServiceUrl"] == admin.service.service_url
    assert admin.get("broker-stats/metrics") == admin.get("broker-stats/mbeans") == []


def test_a_namespace_that_goes_meanwhile_is_left_out_of_the_load(admin: Admin) -> None:
    admin.do("PUT", "namespaces/public/short")
    for namespace in ("default", "short"):
        admin.do("PUT", f"persistent/public/{namespace}/t")
        admin.get(f"persistent/public/{namespace}/t/stats")
    path = "/admin/policies/public/short"
    stored = admin.metadata.get(path)
    assert stored is not None
    admin.metadata.delete(path, stored.version)
    assert list(admin.get("broker-stats/topics")) == ["public/default"]
    assert admin.get("broker-stats/load-report")["numTopics"] == 1


@pytest.mark.parametrize("count", [1, 3, 64])
def test_every_topic_is_in_one_bundle(count: int) -> None:
    known = bundles.all_of({policies.BUNDLES: policies.bundles(count)})
    for number in range(200):
        topic = TopicName.parse(f"t-{number}")
        assert [bundle for bundle in known if bundle.holds(topic)] == [bundles.holder(known, topic)]
