from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from afterglow.admin import unenforced

if TYPE_CHECKING:
    from tests.admin.conftest import Admin

    from afterglow.admin.resource import Resources

TOPIC = "persistent/public/default/t"
NAMESPACE = "namespaces/public/default"

SHOWN = {
    f"{NAMESPACE}/backlogQuotaMap": {},
    f"{NAMESPACE}/subscriptionAuthMode": "None",
    f"{NAMESPACE}/encryptionRequired": False,
    f"{NAMESPACE}/dispatcherPauseOnAckStatePersistent": False,
    f"{TOPIC}/backlogQuotaMap": {},
    f"{TOPIC}/dispatcherPauseOnAckStatePersistent": False,
}
"""What is shown of policies that nobody has set; all others have no content."""


@pytest.mark.parametrize("resources", [unenforced.NAMESPACES, unenforced.TOPICS], ids=["of a namespace", "of a topic"])
def test_all_read_as_if_nobody_had_set_them_and_none_can_be_set(admin: Admin, resources: Resources) -> None:
    admin.do("PUT", TOPIC)
    before = admin.state()
    base = {"tenant": "public", "namespace": "default", "topic": "t", "subscription": "s", "value": "5"}
    for resource in resources:
        path = resource.path.format(**base).removeprefix("/admin/v2/")
        for method in resource.actions:
            if method == "GET":
                answer = admin.call("GET", path)
                assert (answer.json if answer.body else None) == SHOWN.get(path), path
                assert answer.status == (200 if path in SHOWN else 204)
            elif method == "DELETE":
                admin.do("DELETE", path)
            else:
                assert "is not enforced by this broker" in admin.refused(412, method, path, {"limit": 5})
        nowhere = path.replace("public/default", "public/nowhere")
        assert admin.call(next(iter(resource.actions)), nowhere).status == 404
    assert admin.state() == before


def test_a_value_that_says_what_holds_anyway_is_taken(admin: Admin) -> None:
    admin.do("POST", f"{NAMESPACE}/encryptionRequired", body=False)
    admin.do("POST", f"{NAMESPACE}/subscriptionAuthMode", "None")
    admin.do("POST", f"{NAMESPACE}/deduplicationSnapshotInterval", None)


def test_a_name_that_is_no_json_is_refused_by_the_name_of_the_policy(admin: Admin) -> None:
    answer = admin.send("POST", f"/admin/v2/{NAMESPACE}/antiAffinity", b"group")
    assert answer.status == 412
    assert "anti-affinity" in answer.reason


def test_what_holds_is_shown_to_those_who_ask(admin: Admin) -> None:
    admin.do("PUT", TOPIC)
    assert admin.get(f"{TOPIC}/deduplicationEnabled?applied=true") is False
    assert admin.get(f"{TOPIC}/compactionThreshold?applied=true") == 0
    assert admin.get(f"{TOPIC}/dispatchRate?applied=true")["dispatchThrottlingRateInMsg"] == 0
    assert admin.get(f"{TOPIC}/inactiveTopicPolicies?applied=true")["deleteWhileInactive"] is False
    assert admin.get(f"{TOPIC}/backlogQuotaMap?applied=true")["destination_storage"]["limitSize"] == -1


def test_a_namespace_is_not_created_with_what_would_not_be_obeyed(admin: Admin) -> None:
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
