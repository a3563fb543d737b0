from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.admin.conftest import Admin

NAMESPACE = "persistent/public/default"
TOPIC = f"{NAMESPACE}/t"


def test_what_is_not_done_looks_as_if_nobody_had_set_it(admin: Admin) -> None:
    admin.do("PUT", TOPIC)
    admin.do("PUT", f"{TOPIC}/subscription/s")
    assert admin.get(f"{TOPIC}/permissions") == {}
    assert admin.get(f"{TOPIC}/compaction") == {"status": "NOT_RUN", "lastError": ""}
    status = admin.get(f"{TOPIC}/subscription/s/replicatedSubscriptionStatus")
    assert status == {"persistent://public/default/t": False}
    assert admin.get(f"{TOPIC}/shadowTopics") == []
    admin.do("DELETE", f"{TOPIC}/shadowTopics")
    admin.do("POST", f"{TOPIC}/subscription/s/replicatedSubscriptionStatus", body=False)
    for path in ("permissions", "compaction", "shadowTopics"):
        admin.refused(404, "GET", f"{NAMESPACE}/nothing/{path}")


def test_setting_what_is_not_done_is_refused_with_the_reason(admin: Admin) -> None:
    admin.do("PUT", TOPIC)
    admin.do("PUT", f"{TOPIC}/subscription/s")
    before = admin.state()
    assert "authorizationEnabled=true" in admin.refused(412, "POST", f"{TOPIC}/permissions/someone", ["produce"])
    assert "compacted" in admin.refused(405, "PUT", f"{TOPIC}/compaction")
    assert "shadow" in admin.refused(405, "PUT", f"{TOPIC}/shadowTopics", ["persistent://public/default/u"])
    replicated = f"{TOPIC}/subscription/s/replicatedSubscriptionStatus"
    assert "replicated" in admin.refused(405, "POST", replicated, body=True)
    admin.refused(400, "POST", replicated)
    assert "replicated" in admin.refused(405, "PUT", f"{TOPIC}/subscription/new?replicated=true")
    assert admin.state() == before


def test_a_topic_falls_into_a_bundle_of_its_namespace(admin: Admin) -> None:
    answer = admin.call("GET", "/lookup/v2/topic/persistent/public/default/t/bundle")
    # The CRC-32 of the name, as Pulsar hashes it, is 0x823cd929.
    assert (answer.status, answer.body) == (200, b"0x80000000_0xc0000000")
    admin.refused(404, "GET", "/lookup/v2/topic/persistent/public/nowhere/t/bundle")
