"""``allowedTiers`` in the admin API: where tenant admins and superusers may send the data of topics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.admin.test_access import SECURE, as_role

from afterglow.admin.app import ALL_RESOURCES
from afterglow.tier.locations import location_of_policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.admin.conftest import Admin

NAMESPACE = "namespaces/acme/orders"
TOPIC = "persistent/acme/orders/t"
LEVELS = {
    f"{NAMESPACE}/offloadPolicies": f"{NAMESPACE}/removeOffloadPolicies",
    f"{TOPIC}/offloadPolicies": f"{TOPIC}/offloadPolicies",
}
"""Where policies are set, and what removes them."""
TENANT = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}


def begin(start: Callable[..., Admin], **settings: Any) -> Admin:
    """A broker that offloads, with a superuser ``root`` and a tenant's admin ``boss``."""
    settings = {"authorization_enabled": True, "super_user_roles": ("root",), **settings}
    admin = start(offload=True, default_retention_size_in_mb=-1, default_retention_time_in_minutes=-1, **settings)
    for method, path, body in (("PUT", "tenants/acme", TENANT), ("PUT", NAMESPACE, None), ("PUT", TOPIC, None)):
        assert as_role(admin, "root", method, path, body).status == 204
    return admin


@pytest.fixture
def admin(start: Callable[..., Admin]) -> Admin:
    return begin(start, **SECURE)


def elsewhere(path: Path) -> dict[str, Any]:
    return {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": (path / "elsewhere").as_uri()}


def tier_of(admin: Admin, topic: str = "acme/orders/persistent/t") -> str:
    return location_of_policy(admin.offloading.policies.of(topic), admin.offloading.own).url


@pytest.mark.parametrize("level", LEVELS)
def test_a_tenant_admin_may_only_name_the_servers_own_tier(admin: Admin, tmp_path: Path, level: str) -> None:
    before = admin.state()
    for fields in (
        elsewhere(tmp_path),
        {"managedLedgerOffloadDriver": "S3", "managedLedgerOffloadBucket": "theirs"},
        {"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "theirs"},
        {"managedLedgerOffloadServiceEndpoint": "http://theirs", "managedLedgerOffloadBucket": "b"},
    ):
        answer = as_role(admin, "boss", "POST", level, fields)
        assert answer.status == 403, fields
        for words in ("acme/orders", "allowedTiers", "superuser"):
            assert words in answer.reason
    assert admin.state() == before
    own = {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": admin.offloading.tier.as_uri()}
    for fields in (own, {"managedLedgerOffloadThresholdInBytes": 5}):
        assert as_role(admin, "boss", "POST", level, fields).status == 204, fields


@pytest.mark.parametrize("level", LEVELS)
def test_a_superuser_names_any_and_it_stays_when_others_change_the_rest(
    admin: Admin, tmp_path: Path, level: str
) -> None:
    chosen = elsewhere(tmp_path)
    assert as_role(admin, "root", "POST", level, chosen).status == 204
    assert as_role(admin, "boss", "POST", level, {**chosen, "managedLedgerOffloadThresholdInBytes": 9}).status == 204
    assert as_role(admin, "boss", "PUT", f"{NAMESPACE}/offloadThreshold", 7).status == 204
    assert tier_of(admin) == chosen["fileSystemURI"]
    assert as_role(admin, "boss", "DELETE", LEVELS[level]).status == 204
    assert as_role(admin, "boss", "POST", level, chosen).status == 403


def test_a_topic_may_return_to_the_tier_of_its_namespace(admin: Admin, tmp_path: Path) -> None:
    chosen, special = elsewhere(tmp_path), elsewhere(tmp_path / "special")
    namespace, topic = LEVELS
    assert as_role(admin, "root", "POST", namespace, chosen).status == 204
    assert as_role(admin, "root", "POST", topic, special).status == 204
    assert as_role(admin, "boss", "DELETE", LEVELS[topic]).status == 204
    assert tier_of(admin) == chosen["fileSystemURI"]


def test_a_namespace_does_not_complete_the_location_of_a_topic(start: Callable[..., Admin]) -> None:
    admin = begin(start, **SECURE, allowed_tiers=("s3://b", "s3://other"))
    namespace, topic = LEVELS
    allowed = {"managedLedgerOffloadBucket": "b", "managedLedgerOffloadDriver": "S3"}
    assert as_role(admin, "root", "POST", namespace, allowed).status == 204
    only_there = {"managedLedgerOffloadServiceEndpoint": "http://archive"}
    assert as_role(admin, "root", "POST", topic, only_there).status == 204
    assert as_role(admin, "boss", "POST", namespace, {**allowed, "managedLedgerOffloadMaxThreads": 3}).status == 204
    answer = as_role(admin, "boss", "POST", namespace, {**allowed, "managedLedgerOffloadBucket": "other"})
    assert answer.status == 403
    assert "topic persistent://acme/orders/t" in answer.reason
    assert "s3://other at http://archive" in answer.reason


def test_an_entry_of_allowed_tiers_allows_locations_below_it(start: Callable[..., Admin], tmp_path: Path) -> None:
    admin = begin(start, **SECURE, allowed_tiers=(tmp_path.as_uri(), "s3://archive/acme"))
    for level in LEVELS:
        assert as_role(admin, "boss", "POST", level, elsewhere(tmp_path)).status == 204
        bucket = {"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "archive/acme/2026"}
        assert as_role(admin, "boss", "POST", level, bucket).status == 204
        bucket["s3ManagedLedgerOffloadBucket"] = "archive/acmeX"
        assert as_role(admin, "boss", "POST", level, bucket).status == 403


def test_a_namespace_is_not_created_with_a_tier_that_is_not_allowed(admin: Admin, tmp_path: Path) -> None:
    policies = {"offload_policies": elsewhere(tmp_path)}
    before = admin.state()
    assert as_role(admin, "boss", "PUT", "namespaces/acme/new", policies).status == 403
    assert admin.state() == before
    assert as_role(admin, "root", "PUT", "namespaces/acme/new", policies).status == 204


@pytest.mark.parametrize(
    ("settings", "role", "status"),
    [
        ({}, None, 204),
        (SECURE, "anyone", 204),
        ({**SECURE, "super_user_roles": ("root",)}, "boss", 403),
        ({**SECURE, "super_user_roles": ("root",)}, "root", 204),
    ],
    ids=["no authentication", "no superusers", "admin of a tenant", "superuser"],
)
def test_without_authorization_a_superuser_may_name_any_tier(
    start: Callable[..., Admin], tmp_path: Path, settings: dict[str, Any], role: str | None, status: int
) -> None:
    admin = begin(start, **{"super_user_roles": (), "authorization_enabled": False, **settings})
    for level in LEVELS:
        assert as_role(admin, role, "POST", level, elsewhere(tmp_path)).status == status


def test_no_call_lets_a_tenant_admin_name_another_tier(admin: Admin, tmp_path: Path) -> None:
    fields = elsewhere(tmp_path)
    parts = {"tenant": "acme", "namespace": "orders", "topic": "t"}
    bodies = (fields, {"offload_policies": fields, "offloadPolicies": fields}, fields["fileSystemURI"], [fields])
    called = 0
    for resources in ALL_RESOURCES:
        for resource in resources:
            path = re.sub(r"{(\w+)}", lambda part: parts.get(part[1], "new"), resource.path)
            for method in resource.actions.keys() & {"PUT", "POST"}:
                for body in bodies:
                    for query in ("", "?isGlobal=true"):
                        answer = as_role(admin, "boss", method, path + query, body)
                        assert answer.status != 500, (method, path, answer.body)
                        called += 1
    assert called > 500
    own = admin.offloading.tier.as_uri()
    for namespace in admin.service.catalog.namespaces("acme"):
        for topic in ("t", "new"):
            assert tier_of(admin, f"{namespace}/persistent/{topic}") == own
    assert not (tmp_path / "elsewhere").exists()
