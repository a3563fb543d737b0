from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.admin.conftest import Admin

TENANT = {"adminRoles": ["ops"], "allowedClusters": ["standalone"]}


def test_there_is_one_cluster(admin: Admin) -> None:
    assert admin.get("clusters") == ["standalone"]
    cluster = admin.get("clusters/standalone")
    assert cluster["brokerServiceUrl"] == admin.service.service_url
    assert cluster["serviceUrl"] == f"http://127.0.0.1:{admin.port}"
    assert "mars" in admin.refused(404, "GET", "clusters/mars")


def test_a_tenant_is_created_changed_and_deleted(admin: Admin) -> None:
    admin.do("PUT", "tenants/acme", TENANT)
    assert admin.get("tenants") == ["acme", "public"]
    assert admin.get("tenants/acme") == TENANT
    admin.do("POST", "tenants/acme", {**TENANT, "adminRoles": ["dev", "dev"]})
    assert admin.get("tenants/acme")["adminRoles"] == ["dev"]
    admin.refused(409, "PUT", "tenants/acme", TENANT)
    admin.do("DELETE", "tenants/acme")
    for method in ("GET", "DELETE"):
        admin.refused(404, method, "tenants/acme")
    admin.refused(404, "POST", "tenants/acme", TENANT)


def test_a_tenant_is_refused(admin: Admin) -> None:
    before = admin.state()
    assert "allowedClusters" in admin.refused(412, "PUT", "tenants/acme")
    assert "standalone" in admin.refused(412, "PUT", "tenants/acme", {"allowedClusters": ["mars"]})
    assert "adminRole" in admin.refused(400, "PUT", "tenants/acme", {**TENANT, "adminRole": []})
    assert "adminRoles" in admin.refused(400, "PUT", "tenants/acme", {**TENANT, "adminRoles": [1]})
    assert "a b" in admin.refused(412, "PUT", "tenants/a%20b", TENANT)
    admin.refused(412, "PUT", "tenants/..", TENANT)
    admin.refused(409, "DELETE", "tenants/public")
    admin.refused(405, "DELETE", "tenants/public?force=true")
    assert admin.state() == before


def test_a_namespace_is_created_shown_and_deleted(admin: Admin) -> None:
    admin.do("PUT", "tenants/acme", TENANT)
    admin.do("PUT", "namespaces/acme/orders")
    assert admin.get("namespaces/acme") == ["acme/orders"]
    assert admin.get("namespaces/acme/orders/topics") == []
    admin.refused(409, "PUT", "namespaces/acme/orders")
    admin.do("PUT", "namespaces/acme/orders/unload")
    admin.do("DELETE", "namespaces/acme/orders")
    for method in ("GET", "DELETE"):
        admin.refused(404, method, "namespaces/acme/orders")
    for path in ("topics", "retention"):
        admin.refused(404, "GET", f"namespaces/acme/orders/{path}")
    admin.refused(404, "GET", "namespaces/nobody")
    admin.refused(404, "PUT", "namespaces/nobody/orders")


def test_policies_are_shown_with_their_defaults_and_without_nulls(admin: Admin) -> None:
    policies = admin.get("namespaces/public/default")
    assert policies["replication_clusters"] == ["standalone"]
    assert policies["bundles"]["numBundles"] == len(policies["bundles"]["boundaries"]) - 1 == 4
    assert policies["auth_policies"] == {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}}
    assert policies["offload_threshold"] == -1
    assert "retention_policies" not in policies
    assert None not in policies.values()


def test_a_namespace_is_created_with_what_the_stock_client_sends(admin: Admin) -> None:
    body = {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": ["standalone"],
        "bundles": {"numBundles": 8},
        "backlog_quota_map": {},
        "message_ttl_in_seconds": 5,
        "schema_compatibility_strategy": "UNDEFINED",
        "deleted": False,
        "clusterThatCanDeleteNamespace": "standalone",
        "of_a_newer_release": None,
        "another_of_a_newer_release": False,
    }
    admin.do("PUT", "namespaces/public/new", body)
    policies = admin.get("namespaces/public/new")
    assert policies["bundles"]["boundaries"][1] == "0x20000000"
    assert policies["bundles"]["numBundles"] == 8
    assert admin.get("namespaces/public/new/messageTTL") == 5
    assert "clusterThatCanDeleteNamespace" not in policies


def test_a_namespace_is_created_with_permissions_that_are_shown_and_not_enforced(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """As the set-ups of the Go and the Python client's own tests do."""
    body = {
        "auth_policies": {
            "namespace_auth": {"anonymous": ["produce", "consume"]},
            "destination_auth": {"persistent://public/new/t": {"anonymous": ["functions"], "dev": ["produce"]}},
            "subscription_auth_roles": {"s": ["dev"]},
        },
        "replication_clusters": ["standalone"],
    }
    with caplog.at_level(logging.WARNING):
        admin.do("PUT", "namespaces/public/new", body)
    (warning,) = (record.getMessage() for record in caplog.records if "auth_policies" in record.getMessage())
    assert "not enforced" in warning
    assert "public/new" in warning
    assert admin.get("namespaces/public/new")["auth_policies"] == body["auth_policies"]
    assert admin.get("namespaces/public/new/permissions") == {"anonymous": ["produce", "consume"]}
    assert admin.get("namespaces/public/new/permissions/subscription") == {"s": ["dev"]}
    admin.do("PUT", "persistent/public/new/t")
    found = admin.get("persistent/public/new/t/permissions")
    assert found == {"anonymous": ["produce", "consume", "functions"], "dev": ["produce"]}
    admin.do("PUT", "persistent/public/new/u")
    assert admin.get("persistent/public/new/u/permissions") == {"anonymous": ["produce", "consume"]}
    admin.do("POST", "namespaces/public/new/messageTTL", 5)
    assert admin.get("namespaces/public/new/permissions") == {"anonymous": ["produce", "consume"]}
    assert "not enforced" in admin.refused(412, "POST", "namespaces/public/new/permissions/dev", ["produce"])


def test_invalid_policies_create_no_namespace(admin: Admin) -> None:
    before = admin.state()
    for status, body in (
        (400, {"retention": 5}),
        (400, ["not", "an", "object"]),
        (400, {"message_ttl_in_seconds": "5"}),
        (412, {"message_ttl_in_seconds": -5}),
        (400, {"auth_policies": {"namespace_auth": {"dev": ["own"]}}}),
        (400, {"auth_policies": {"namespace_auth": ["dev"]}}),
        (400, {"auth_policies": {"destination_auth": {"t": ["dev"]}}}),
        (400, {"auth_policies": {"topics": {}}}),
        (403, {"replication_clusters": ["mars"]}),
        (400, {"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}}),
        (412, {"bundles": {"numBundles": 1_000_000}}),
    ):
        admin.refused(status, "PUT", "namespaces/public/new", body)
    assert admin.state() == before


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}),
        (
            "persistence",
            {
                "bookkeeperEnsemble": 3,
                "bookkeeperWriteQuorum": 2,
                "bookkeeperAckQuorum": 1,
                "managedLedgerMaxMarkDeleteRate": 0.5,
            },
        ),
        ("messageTTL", 3600),
    ],
)
def test_a_policy_is_set_shown_and_removed(admin: Admin, path: str, value: object) -> None:
    path = f"namespaces/public/default/{path}"
    admin.do("GET", path)
    admin.do("POST", path, value)
    assert admin.get(path) == value
    admin.do("DELETE", path)
    admin.do("GET", path)
    admin.refused(404, "POST", path.replace("default", "nowhere"), value)


@pytest.mark.parametrize(
    ("status", "path", "value"),
    [
        (412, "retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}),
        (400, "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}),
        (400, "retention", {"retentionTimeInMinutes": "1d", "retentionSizeInMB": 1}),
        (400, "retention", {"retentionTime": 1}),
        (400, "retention", None),
        (400, "persistence", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2}),
        (412, "persistence", {"bookkeeperEnsemble": 0}),
        (412, "persistence", {"managedLedgerMaxMarkDeleteRate": 10**400}),
        (412, "persistence", {"managedLedgerMaxMarkDeleteRate": 1e300}),
        (412, "persistence", {"managedLedgerMaxMarkDeleteRate": -2}),
        (400, "persistence", {"managedLedgerMaxMarkDeleteRate": "5"}),
        (412, "messageTTL", -1),
        (412, "messageTTL", 2**31),
        (400, "messageTTL", True),
        (400, "messageTTL", "5"),
        (400, "messageTTL", None),
    ],
)
def test_an_invalid_policy_is_refused(admin: Admin, status: int, path: str, value: object) -> None:
    before = admin.state()
    admin.refused(status, "POST", f"namespaces/public/default/{path}", value)
    assert admin.state() == before
