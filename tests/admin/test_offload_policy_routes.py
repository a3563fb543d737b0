from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.format.entry import encode_entry
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin

    from afterglow.metadata.names import NamespaceName

NAMESPACE = "namespaces/public/default"
TOPIC = "persistent/public/default/t"
LEVELS = {NAMESPACE: f"{NAMESPACE}/removeOffloadPolicies", TOPIC: f"{TOPIC}/offloadPolicies"}
"""Where policies are set, and what removes them."""

FIELDS = {
    "managedLedgerOffloadDriver": "aws-s3",
    "s3ManagedLedgerOffloadBucket": "b",
    "s3ManagedLedgerOffloadRegion": "eu-west-1",
    "managedLedgerOffloadThresholdInBytes": 10,
    "managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST",
    "managedLedgerExtraConfigurations": {"a": "1"},
    "streamingOffloadEnabled": True,
    "maxSizePerOffloadSegmentMbytes": 64,
}
SECRET = "s3ManagedLedgerOffloadCredentialSecret"


@pytest.fixture
def admin(start: Callable[..., Admin]) -> Admin:
    """A broker with a topic; it keeps everything, so that thresholds fit."""
    admin = start(default_retention_size_in_mb=-1, default_retention_time_in_minutes=-1)
    admin.do("PUT", TOPIC)
    return admin


def held(admin: Admin, topic: str = TOPIC) -> dict[str, tuple[Any, str]]:
    return {row["name"]: (row["value"], row["origin"]) for row in admin.get(f"{topic}/policy")}


@pytest.mark.parametrize("level", LEVELS)
def test_policies_are_set_shown_replaced_and_removed(admin: Admin, level: str) -> None:
    before = admin.state()
    path = f"{level}/offloadPolicies"
    assert admin.call("GET", path).status == 204
    admin.do("POST", path, FIELDS)
    assert admin.get(path) == FIELDS
    admin.do("POST", path, {"managedLedgerOffloadThresholdInSeconds": 5, "managedLedgerOffloadDriver": None})
    assert admin.get(path) == {"managedLedgerOffloadThresholdInSeconds": 5}
    admin.do("DELETE", LEVELS[level])
    assert admin.call("GET", path).status == 204
    after = admin.state()
    assert {path: value for path, value in after.items() if value} == {p: v for p, v in before.items() if v}


def test_a_namespaces_policies_are_not_removed_where_they_are_set(admin: Admin) -> None:
    assert admin.call("DELETE", f"{NAMESPACE}/offloadPolicies").status == 405


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (412, None, "the body must hold offload policies"),
        (400, 5, "offload policies must be an object"),
        (400, [], "offload policies must be an object"),
        (412, {"managedLedgerOffloadDriver": "tape"}, "The driver is not supported, support value: "),
        (412, {"managedLedgerOffloadDriver": "S3"}, "The bucket must be specified for namespace offload"),
        (412, {"managedLedgerOffloadedReadPriority": "nearest"}, "managedLedgerOffloadedReadPriority"),
        (412, {"managedLedgerOffloadTreshold": 1}, "did you mean"),
        (412, {"managedLedgerOffloadMaxThreads": 0}, "of at least 1"),
        (412, {"managedLedgerOffloadThresholdInBytes": {}}, "is not a size"),
        (412, {"streamingOffloadBlockSizeInBytes": 9 << 20}, "streamingOffloadPartSizeInBytes"),
        (412, {SECRET: "********"}, "send the value"),
    ],
)
def test_invalid_policies_are_refused_and_change_nothing(
    admin: Admin, level: str, status: int, body: object, complaint: str
) -> None:
    admin.do("POST", f"{level}/offloadPolicies", {"managedLedgerOffloadMaxThreads": 3})
    before = admin.state()
    assert complaint in admin.refused(status, "POST", f"{level}/offloadPolicies", body)
    assert admin.state() == before


def test_a_topic_may_complete_what_its_namespace_sets(admin: Admin) -> None:
    admin.do("POST", f"{NAMESPACE}/offloadPolicies", {"managedLedgerOffloadBucket": "b"})
    admin.do("POST", f"{TOPIC}/offloadPolicies", {"managedLedgerOffloadDriver": "S3"})
    assert held(admin)["managedLedgerOffloadBucket"] == ("b", "namespace")
    assert held(admin)["managedLedgerOffloadDriver"] == ("S3", "topic")


@pytest.mark.parametrize("level", LEVELS)
def test_secrets_are_shown_masked_and_the_mask_sent_back_keeps_them(admin: Admin, level: str) -> None:
    path = f"{level}/offloadPolicies"
    admin.do("POST", path, {SECRET: "swordfish"})
    assert admin.get(path) == {SECRET: "********"}
    admin.do("POST", path, {**admin.get(path), "managedLedgerOffloadMaxThreads": 3})
    assert any(b"swordfish" in value for value in admin.state().values())
    for shown in (path, f"{path}?applied=true", NAMESPACE, f"{TOPIC}/policy"):
        assert b"swordfish" not in admin.call("GET", shown).body


def test_applied_policies_are_those_of_all_levels(start: Callable[..., Admin]) -> None:
    admin = start(managed_ledger_offload_max_threads=7)
    admin.do("PUT", TOPIC)
    admin.do("POST", f"{NAMESPACE}/offloadPolicies", {"managedLedgerOffloadPrefetchRounds": 5})
    admin.do("POST", f"{TOPIC}/offloadPolicies", {"managedLedgerOffloadReadThreads": 6})
    expected = {
        "managedLedgerOffloadMaxThreads": 7,
        "managedLedgerOffloadPrefetchRounds": 5,
        "managedLedgerOffloadReadThreads": 6,
        "managedLedgerOffloadedReadPriority": "TIERED_STORAGE_FIRST",
    }
    applied = admin.get(f"{TOPIC}/offloadPolicies?applied=true&isGlobal=false&authoritative=false")
    assert expected.items() <= applied.items()
    assert None not in applied.values()
    assert admin.get(f"{NAMESPACE}/offloadPolicies?applied=true")["managedLedgerOffloadReadThreads"] == 2


def test_every_value_is_shown_with_its_level(start: Callable[..., Admin]) -> None:
    admin = start(
        managed_ledger_offload_max_threads=7,
        origins={"managedLedgerOffloadMaxThreads": _origin()},
    )
    admin.do("PUT", TOPIC)
    admin.do("PUT", f"{NAMESPACE}/offloadThreshold", 5)
    admin.do("PUT", f"{TOPIC}/dataReadPriority", "bookkeeper-first")
    found = held(admin)
    assert found["managedLedgerOffloadMaxThreads"] == (7, "broker")
    assert found["managedLedgerOffloadThresholdInBytes"] == (5, "namespace")
    assert found["managedLedgerOffloadedReadPriority"] == ("BOOKKEEPER_FIRST", "topic")
    assert found["managedLedgerOffloadReadThreads"] == (2, "default")


def _origin() -> object:
    from afterglow.config import Origin, OriginKind

    return Origin(OriginKind.FILE, "broker.conf:1")


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("offloadThreshold", "managedLedgerOffloadThresholdInBytes"),
        ("offloadThresholdInSeconds", "managedLedgerOffloadThresholdInSeconds"),
    ],
)
def test_a_threshold_is_a_bare_number_beside_the_other_policies(admin: Admin, path: str, key: str) -> None:
    assert admin.get(f"{NAMESPACE}/{path}") == -1
    admin.do("POST", f"{NAMESPACE}/offloadPolicies", {"managedLedgerOffloadMaxThreads": 3})
    admin.do("PUT", f"{NAMESPACE}/{path}", 100)
    assert admin.get(f"{NAMESPACE}/{path}") == 100
    assert admin.get(f"{NAMESPACE}/offloadPolicies") == {"managedLedgerOffloadMaxThreads": 3, key: 100}
    admin.do("PUT", f"{NAMESPACE}/{path}", -1)
    assert admin.get(f"{NAMESPACE}/{path}") == -1
    before = admin.state()
    refused: tuple[object, ...] = (None, -2, 1.5, True, {}, 2**63)
    for body in refused:
        admin.refused(412, "PUT", f"{NAMESPACE}/{path}", body)
    assert admin.state() == before
    assert admin.call("DELETE", f"{NAMESPACE}/{path}").status == 405


def test_the_deletion_lag_is_set_shown_and_cleared(admin: Admin) -> None:
    path = f"{NAMESPACE}/offloadDeletionLagMs"
    assert admin.call("GET", path).status == 204
    admin.do("PUT", path, 3_600_000)
    assert admin.get(path) == 3_600_000
    assert held(admin)["managedLedgerOffloadDeletionLagInMillis"] == (3_600_000, "namespace")
    admin.do("DELETE", path)
    assert admin.call("GET", path).status == 204
    assert held(admin)["managedLedgerOffloadDeletionLagInMillis"] == (4 * 3_600_000, "default")
    admin.do("PUT", path, 5)
    admin.do("PUT", path)
    assert admin.call("GET", path).status == 204
    admin.refused(412, "PUT", path, -5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("word", "constant"),
    [
        ("bookkeeper-first", "BOOKKEEPER_FIRST"),
        ("BOOKKEEPER_FIRST", "BOOKKEEPER_FIRST"),
        ("tiered-first", "TIERED_STORAGE_FIRST"),
        ("tiered-storage-first", "TIERED_STORAGE_FIRST"),
    ],
)
def test_the_read_priority_is_one_field_with_the_offload_policies(
    admin: Admin, level: str, word: str, constant: str
) -> None:
    path = f"{level}/dataReadPriority"
    assert admin.call("GET", path).status == 204
    assert admin.get(f"{path}?applied=true") == "TIERED_STORAGE_FIRST"
    admin.do("PUT", path, word)
    assert admin.get(path) == constant
    assert admin.get(f"{level}/offloadPolicies") == {"managedLedgerOffloadedReadPriority": constant}
    admin.do("DELETE", path)
    assert admin.call("GET", path).status == 204
    assert admin.call("GET", f"{level}/offloadPolicies").status == 204
    admin.do("POST", f"{level}/offloadPolicies", {"managedLedgerOffloadedReadPriority": word})
    assert admin.get(path) == constant
    assert "bookkeeper-first" in admin.refused(412, "PUT", path, "nearest")
    assert admin.get(path) == constant


def test_legacy_offload_fields_are_shown_and_removed_with_offload_policies(admin: Admin) -> None:
    path = "namespaces/public/old"
    legacy = {"offload_threshold": 7, "offload_threshold_in_seconds": 8, "offload_deletion_lag_ms": 9}
    admin.do("PUT", path, legacy)
    assert admin.get(f"{path}/offloadThreshold") == 7
    assert admin.get(f"{path}/offloadThresholdInSeconds") == 8
    assert admin.get(f"{path}/offloadDeletionLagMs") == 9
    admin.do("DELETE", f"{path}/offloadDeletionLagMs")
    assert admin.call("GET", f"{path}/offloadDeletionLagMs").status == 204
    admin.do("DELETE", f"{path}/removeOffloadPolicies")
    assert admin.get(f"{path}/offloadThreshold") == -1
    assert admin.get(path)["offload_threshold"] == -1


def test_a_namespace_is_created_with_valid_offload_policies(admin: Admin) -> None:
    path = "namespaces/public/made"
    before = admin.state()
    for fields in ({"managedLedgerOffloadDriver": "S3"}, {"nonsense": 1}, {"managedLedgerOffloadMaxThreads": 0}, 5):
        assert admin.call("PUT", path, {"offload_policies": fields}).status in {400, 412}
    admin.refused(412, "PUT", path, {"offload_threshold": -2})
    assert admin.state() == before
    admin.do("PUT", path, {"offload_policies": {"offloadSizeInMB": 1}})
    assert admin.get(path)["offload_policies"] == {"managedLedgerOffloadThresholdInBytes": 1 << 20}


def test_a_threshold_that_retention_never_lets_a_ledger_reach_is_refused(admin: Admin) -> None:
    admin.do("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1})
    before = admin.state()
    for path, value in (("offloadThreshold", 1 << 20), ("offloadThresholdInSeconds", 60)):
        assert "retention" in admin.refused(412, "PUT", f"{NAMESPACE}/{path}", value)
        key = f"managedLedger{path[0].upper()}{path[1:]}" + ("InBytes" if path == "offloadThreshold" else "")
        for level in LEVELS:
            assert "retention" in admin.refused(412, "POST", f"{level}/offloadPolicies", {key: value})
    assert admin.state() == before
    admin.do("PUT", f"{NAMESPACE}/offloadThreshold", (1 << 20) - 1)
    admin.do("PUT", f"{NAMESPACE}/offloadThresholdInSeconds", 59)


def test_a_threshold_without_retention_is_taken_with_a_warning(
    start: Callable[..., Admin], caplog: pytest.LogCaptureFixture
) -> None:
    admin = start()
    with caplog.at_level(logging.WARNING):
        admin.do("PUT", f"{NAMESPACE}/offloadThreshold", 5)
    assert "managedLedgerOffloadThresholdInBytes=5" in caplog.text
    assert "public/default" in caplog.text


def retention(megabytes: int, minutes: int = -1) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def test_a_retention_that_a_threshold_does_not_fit_below_is_refused_at_every_level(admin: Admin) -> None:
    admin.do("POST", f"{NAMESPACE}/retention", retention(10, 60))
    admin.do("PUT", f"{NAMESPACE}/offloadThreshold", 5 << 20)
    admin.do("PUT", f"{NAMESPACE}/offloadThresholdInSeconds", 600)
    before = admin.state()
    for level, origin in ((NAMESPACE, "namespace policies"), (TOPIC, "topic policies")):
        reason = admin.refused(412, "POST", f"{level}/retention", retention(5, 60))
        assert "managedLedgerOffloadThresholdInBytes=5242880 (namespace policies)" in reason
        assert f"retentionSizeInMB=5 ({origin})" in reason
        reason = admin.refused(412, "POST", f"{level}/retention", retention(10, 10))
        assert "managedLedgerOffloadThresholdInSeconds=600 (namespace policies)" in reason
        assert f"retentionTimeInMinutes=10 ({origin})" in reason
    admin.refused(412, "POST", f"{TOPIC}/retention?isGlobal=true", retention(5, 60))
    assert admin.state() == before
    for level in LEVELS:
        admin.do("POST", f"{level}/retention", retention(6, 11))


def test_a_removal_is_checked_like_a_change(start: Callable[..., Admin]) -> None:
    admin = start(default_retention_size_in_mb=5, default_retention_time_in_minutes=-1)
    admin.do("PUT", TOPIC)
    admin.do("POST", f"{NAMESPACE}/retention", retention(50))
    admin.do("PUT", f"{NAMESPACE}/offloadThreshold", 20 << 20)
    assert "defaultRetentionSizeInMB=5" in admin.refused(412, "DELETE", f"{NAMESPACE}/retention")
    admin.do("POST", f"{TOPIC}/retention", retention(5_000))
    admin.do("POST", f"{TOPIC}/offloadPolicies", {"managedLedgerOffloadThresholdInBytes": 1 << 30})
    reason = admin.refused(412, "DELETE", f"{TOPIC}/retention")
    assert "managedLedgerOffloadThresholdInBytes=1073741824 (topic policies)" in reason
    assert "retentionSizeInMB=50 (namespace policies)" in reason
    admin.do("DELETE", f"{TOPIC}/policies")
    admin.do("POST", f"{TOPIC}/offloadPolicies", {"managedLedgerOffloadThresholdInBytes": 0})
    admin.do("POST", f"{TOPIC}/retention", retention(10))
    reason = admin.refused(412, "DELETE", f"{TOPIC}/offloadPolicies")
    assert "managedLedgerOffloadThresholdInBytes=20971520 (namespace policies)" in reason
    admin.do("DELETE", f"{NAMESPACE}/removeOffloadPolicies")
    admin.do("DELETE", f"{TOPIC}/offloadPolicies")
    admin.do("DELETE", f"{NAMESPACE}/retention")


def test_a_change_of_a_namespace_is_refused_if_a_topic_would_become_invalid(admin: Admin) -> None:
    admin.do("POST", f"{TOPIC}/offloadPolicies", {"managedLedgerOffloadThresholdInBytes": 5 << 20})
    before = admin.state()
    reason = admin.refused(412, "POST", f"{NAMESPACE}/retention", retention(5))
    assert reason.startswith("persistent://public/default/t sets policies of its own: ")
    assert admin.state() == before


def test_a_retention_and_a_threshold_that_come_together_do_not_pass_each_other(admin: Admin) -> None:
    """A change of the topic that has read its namespace's policies waits for one of the namespace, and the reverse."""
    with admin.held("/public/default") as hold, ThreadPoolExecutor(2) as pool:
        first = pool.submit(admin.call, "POST", f"{NAMESPACE}/retention", retention(5))
        hold.reached()
        threshold = {"managedLedgerOffloadThresholdInBytes": 5 << 20}
        second = pool.submit(admin.call, "POST", f"{TOPIC}/offloadPolicies", threshold)
        done, _ = wait([second], 0.2)
        assert not done
        hold.end()
        assert first.result().status == 204
        assert second.result().status == 412


@pytest.mark.parametrize("driver", ["azureblob", "google-cloud-storage"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_driver_that_is_not_supported_is_refused_with_those_that_are(admin: Admin, level: str, driver: str) -> None:
    body = {"managedLedgerOffloadDriver": driver, "managedLedgerOffloadBucket": "b"}
    before = admin.state()
    reason = admin.refused(412, "POST", f"{level}/offloadPolicies", body)
    assert reason.startswith("The driver is not supported, support value: S3, aliyun-oss, aws-s3, filesystem; ")
    assert admin.refused(412, "PUT", "namespaces/public/made", {"offload_policies": body}) == reason.replace(
        "topic policies", "namespace policies"
    )
    assert admin.state() == before


@pytest.mark.parametrize("driver", ["azureblob", "google-cloud-storage"])
def test_a_stored_driver_that_is_not_supported_stays_readable(start: Callable[..., Admin], driver: str) -> None:
    """As an earlier release, or a Pulsar, has stored it."""
    admin = start(offload=True, default_retention_size_in_mb=-1, default_retention_time_in_minutes=-1)
    admin.do("PUT", TOPIC)
    body = {"managedLedgerOffloadDriver": driver, "managedLedgerOffloadBucket": "b", "streamingOffloadEnabled": True}
    name = TopicName.parse("public/default/t")
    admin.service.catalog.update_topic_policies(name, lambda _old: {"offloadPolicies": body})
    admin.service.policies_changed(name.namespace)
    admin.write(encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"hello"))
    admin.write_ledgers(2)
    admin.offloading.begin()
    assert admin.get("persistent/public/default") == [str(name)]
    assert admin.get(f"{TOPIC}/stats")["storageSize"] > 0
    assert admin.get(f"{TOPIC}/offloadPolicies") == body
    assert held(admin)["managedLedgerOffloadDriver"] == (driver, "topic")
    assert driver in json.dumps(admin.get(f"{TOPIC}/explain"))
    first = admin.get(f"{TOPIC}/internalStats")["ledgers"][0]["ledgerId"]
    assert admin.call("GET", f"{TOPIC}/ledger/{first}/entry/0").body == b"hello"
    admin.do("POST", f"{TOPIC}/offloadPolicies", {**body, "streamingOffloadEnabled": False})
    admin.do("DELETE", f"{TOPIC}/offloadPolicies")
    assert held(admin)["managedLedgerOffloadDriver"] == (None, "default")


def test_partitions_have_the_policies_of_their_topic(admin: Admin) -> None:
    base = "persistent/public/default/p"
    admin.do("PUT", f"{base}/partitions", 2)
    admin.do("POST", f"{base}/offloadPolicies", {"managedLedgerOffloadMaxThreads": 3})
    assert admin.get(f"{base}-partition-1/offloadPolicies") == {"managedLedgerOffloadMaxThreads": 3}
    assert held(admin, f"{base}-partition-0")["managedLedgerOffloadMaxThreads"] == (3, "topic")
    before = admin.state()
    for method in ("POST", "DELETE"):
        reason = admin.refused(
            412, method, f"{base}-partition-1/offloadPolicies", {"managedLedgerOffloadMaxThreads": 4}
        )
        assert "public/default/p" in reason
    assert admin.state() == before


@pytest.mark.parametrize("partitioned", [False, True])
def test_policies_are_deleted_with_the_topic(admin: Admin, *, partitioned: bool) -> None:
    path = "persistent/public/default/gone"
    made = (f"{path}/partitions", 2) if partitioned else (path, None)
    admin.do("PUT", *made)
    admin.do("POST", f"{path}/offloadPolicies", {"managedLedgerOffloadMaxThreads": 3})
    if partitioned:
        admin.do("DELETE", f"{path}-partition-0?force=true")
        assert admin.get(f"{path}/offloadPolicies") == {"managedLedgerOffloadMaxThreads": 3}
    admin.do("DELETE", made[0])
    assert not [stored for stored, value in admin.state().items() if value and "topic-policies" in stored]
    admin.do("PUT", *made)
    assert admin.call("GET", f"{path}/offloadPolicies").status == 204


def test_policies_of_missing_objects_are_answered_with_404(admin: Admin) -> None:
    for path in ("namespaces/public/none", "persistent/public/default/none", "persistent/public/none/t"):
        for part in ("offloadPolicies", "dataReadPriority"):
            admin.refused(404, "GET", f"{path}/{part}")
        admin.refused(404, "POST", f"{path}/offloadPolicies", {})
        admin.refused(404, "PUT", f"{path}/dataReadPriority", "bookkeeper-first")
    admin.refused(404, "GET", "persistent/public/default/none/policy")
    admin.refused(404, "PUT", "namespaces/public/none/offloadThreshold", 5)


def test_every_change_of_policies_is_notified_of(admin: Admin) -> None:
    notified: list[NamespaceName | None] = []
    admin.service.policies.on_change(notified.append)
    for method, path, body in (
        ("POST", f"{NAMESPACE}/offloadPolicies", {"managedLedgerOffloadMaxThreads": 3}),
        ("PUT", f"{NAMESPACE}/offloadThreshold", 5),
        ("DELETE", f"{NAMESPACE}/removeOffloadPolicies", None),
        ("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
        ("PUT", f"{TOPIC}/dataReadPriority", "bookkeeper-first"),
        ("DELETE", f"{TOPIC}/offloadPolicies", None),
        ("DELETE", TOPIC, None),
        ("DELETE", NAMESPACE, None),
        ("PUT", NAMESPACE, None),
    ):
        notified.clear()
        admin.do(method, path, body)
        assert [str(namespace) for namespace in notified] == ["public/default"], (method, path)
    notified.clear()
    admin.refused(412, "PUT", f"{NAMESPACE}/offloadThreshold", -9)
    assert notified == []
