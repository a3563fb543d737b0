from __future__ import annotations

import re
from itertools import cycle
from typing import TYPE_CHECKING

import pytest

from afterglow.admin import not_served
from afterglow.admin.app import ALL_RESOURCES

if TYPE_CHECKING:
    from tests.admin.conftest import Admin

TOPIC = "persistent/public/default/t"
NAMES = {"tenant": "public", "namespace": "default", "topic": "t", "subscription": "s", "cluster": "standalone"}


def test_every_call_of_the_table_is_refused_with_one_sentence(admin: Admin) -> None:
    admin.do("PUT", TOPIC)
    admin.do("PUT", f"{TOPIC}/subscription/s")
    before, changes = admin.state(), cycle(("PUT", "POST", "DELETE"))
    for resource in not_served.RESOURCES:
        path = re.sub(r"{(\w+)(:path)?}", lambda part: NAMES.get(part[1], "x"), resource.path)
        assert set(resource.actions) == {"GET", "PUT", "POST", "DELETE"}
        for method in ("GET", next(changes)):
            assert f"{path} is not served: " in admin.refused(405, method, path, {"limit": 5})
    assert admin.state() == before


def test_no_call_is_both_served_and_in_the_table() -> None:
    served = {
        (re.sub(r"{\w+}", "{}", resource.path), method)
        for resources in ALL_RESOURCES
        if resources is not not_served.RESOURCES
        for resource in resources
        for method in resource.actions
    }
    refused = {
        (re.sub(r"{\w+}", "{}", resource.path), method)
        for resource in not_served.RESOURCES
        for method in resource.actions
    }
    assert not served & refused


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("namespaces/public/default/backlogQuotaMap", "not enforced"),
        ("namespaces/public/default/persistence/bookieAffinity", "single broker"),
        (f"{TOPIC}/dispatchRate", "rates are not limited"),
        (f"{TOPIC}/compaction", "not compacted"),
        ("clusters/standalone/failureDomains/d", "single broker"),
        ("clusters/standalone/peers", "single broker"),
        ("broker-stats/load-report", "/metrics"),
        ("non-persistent/public/default/t/partitions", "persistent://"),
    ],
)
def test_the_reason_is_that_of_the_call(admin: Admin, path: str, words: str) -> None:
    assert words in admin.refused(405, "GET", path)


def test_names_equal_to_paths_of_the_table_are_served(admin: Admin) -> None:
    admin.do("PUT", "namespaces/public/antiAffinity")
    assert admin.get("namespaces/public/antiAffinity/topics") == []
    admin.do("PUT", "persistent/public/default/compaction")
    assert admin.get("persistent/public/default/compaction/subscriptions") == []


def test_a_subscription_cannot_be_replicated(admin: Admin) -> None:
    assert "replicated" in admin.refused(405, "PUT", f"{TOPIC}/subscription/new?replicated=true")


def test_a_namespace_is_not_created_with_unenforced_policies(admin: Admin) -> None:
    before = admin.state()
    for body in (
        {"deduplicationEnabled": True},
        {"topicDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 5}}},
        {"encryption_required": True},
        {"bundles": {"boundaries": ["0x0", "0xffffffff"]}},
        {"bundles": {"boundaries": ["0x00000000", "0x90000000", "0x80000000", "0xffffffff"]}},
    ):
        admin.refused(412, "PUT", "namespaces/public/new", body)
    assert admin.state() == before
    admin.do("PUT", "namespaces/public/new", {"max_producers_per_topic": 5, "properties": {"a": "b"}})
    assert admin.get("namespaces/public/new/maxProducersPerTopic") == 5
    assert admin.get("namespaces/public/new/properties") == {"a": "b"}
