"""Authorization in the admin API: the right that each call needs, and permissions that are granted and revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jwt
import pytest
from tests.admin.test_access import SECRET, SECURE, as_role

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin

NAMESPACE = "acme/orders"
TOPIC = f"persistent/{NAMESPACE}/t"
SCHEMA = f"schemas/{NAMESPACE}/t"
ROLES = ("root", "admin", "writer", "reader", "topic-writer", "topic-reader", "stranger")
"""A superuser, the tenant's admin, two roles with a grant on the namespace, two with one on the topic, one without."""

EVERYBODY = set(ROLES)
SUPER_USERS = {"root"}
ADMINS = {"root", "admin"}
IN_NAMESPACE = {*ADMINS, "writer", "reader"}
ON_TOPIC = EVERYBODY - {"stranger"}
CONSUMERS = {*ADMINS, "reader", "topic-reader"}
PRODUCERS = {*ADMINS, "writer", "topic-writer"}


@pytest.fixture
def admin(start: Callable[..., Admin]) -> Admin:
    """A broker with authorization, a topic with a subscription, and the grants of the roles."""
    found = start(**SECURE, authorization_enabled=True, super_user_roles=("root",))
    for method, path, body in (
        ("PUT", "tenants/acme", {"adminRoles": ["admin"], "allowedClusters": ["standalone"]}),
        ("PUT", "tenants/globex", {"adminRoles": ["rival"], "allowedClusters": ["standalone"]}),
        ("PUT", f"namespaces/{NAMESPACE}", None),
        ("PUT", TOPIC, None),
        ("PUT", f"{TOPIC}/subscription/s", None),
        ("POST", f"namespaces/{NAMESPACE}/permissions/writer", ["produce"]),
        ("POST", f"namespaces/{NAMESPACE}/permissions/reader", ["consume"]),
        ("POST", f"{TOPIC}/permissions/topic-writer", ["produce"]),
        ("POST", f"{TOPIC}/permissions/topic-reader", ["consume"]),
    ):
        answer = as_role(found, "root", method, path, body)
        assert answer.status == 204, (path, answer.body)
    return found


CALLS: tuple[tuple[str, str, set[str]], ...] = (
    ("GET", "clusters", EVERYBODY),
    ("GET", "brokers/version", EVERYBODY),
    ("GET", "clusters/standalone", SUPER_USERS),
    ("GET", "tenants", SUPER_USERS),
    ("GET", "brokers/health", SUPER_USERS),
    ("GET", "brokers/standalone", SUPER_USERS),
    ("GET", "brokers/configuration/runtime", SUPER_USERS),
    ("GET", "afterglow/topics", SUPER_USERS),
    ("GET", "tenants/acme", ADMINS),
    ("GET", "namespaces/acme", ADMINS),
    ("GET", f"namespaces/{NAMESPACE}", ADMINS),
    ("GET", f"namespaces/{NAMESPACE}/retention", ADMINS),
    ("GET", f"namespaces/{NAMESPACE}/properties", ADMINS),
    ("GET", f"namespaces/{NAMESPACE}/permissions", ADMINS),
    ("GET", f"namespaces/{NAMESPACE}/permissions/subscription", ADMINS),
    ("GET", f"namespaces/{NAMESPACE}/offloadPolicies", ADMINS),
    ("GET", f"namespaces/{NAMESPACE}/publishRate", EVERYBODY),  # not served
    ("GET", f"{TOPIC}/permissions", ADMINS),
    ("GET", f"{TOPIC}/retention", ADMINS),
    ("GET", f"{TOPIC}/offloadPolicies", ADMINS),
    ("PUT", f"{TOPIC}/unload", ADMINS),
    ("PUT", f"{TOPIC}/properties", ADMINS),
    ("DELETE", f"{SCHEMA}/schema", ADMINS),
    ("GET", f"namespaces/{NAMESPACE}/topics", IN_NAMESPACE),
    ("GET", f"persistent/{NAMESPACE}", IN_NAMESPACE),
    ("GET", f"persistent/{NAMESPACE}/partitioned", IN_NAMESPACE),
    ("GET", f"non-persistent/{NAMESPACE}", IN_NAMESPACE),
    ("GET", f"{TOPIC}/stats", ON_TOPIC),
    ("GET", f"{TOPIC}/internalStats", ON_TOPIC),
    ("GET", f"{TOPIC}/internal-info", ON_TOPIC),
    ("GET", f"{TOPIC}/partitions", ON_TOPIC),
    ("GET", f"{TOPIC}/properties", ON_TOPIC),
    ("GET", f"{TOPIC}/log", ON_TOPIC),
    ("GET", f"/lookup/v2/topic/{TOPIC}", ON_TOPIC),
    ("GET", f"{SCHEMA}/schemas", ON_TOPIC),
    ("GET", f"{TOPIC}/subscriptions", CONSUMERS),
    ("GET", f"{TOPIC}/lastMessageId", CONSUMERS),
    ("GET", f"{TOPIC}/examinemessage", CONSUMERS),
    ("GET", f"{TOPIC}/subscription/s/position/1", CONSUMERS),
    ("GET", f"{TOPIC}/subscription/s/properties", CONSUMERS),
    ("POST", f"{TOPIC}/subscription/s/skip_all", CONSUMERS),
    ("POST", f"{TOPIC}/subscription/s/resetcursor/0", CONSUMERS),
    ("POST", f"{TOPIC}/all_subscription/expireMessages/10", CONSUMERS),
    ("PUT", f"{TOPIC}/subscription/new", CONSUMERS),
    ("DELETE", f"{TOPIC}/subscription/new", CONSUMERS),
    ("POST", f"{SCHEMA}/schema", PRODUCERS),
)


def test_each_call_passes_the_roles_that_pulsar_lets_pass(admin: Admin) -> None:
    for method, path, allowed in CALLS:
        statuses = {role: as_role(admin, role, method, path).status for role in (*ROLES, "rival")}
        passed = {role for role, status in statuses.items() if status != 403}
        expected = allowed | {"rival"} if allowed == EVERYBODY else allowed
        assert passed == expected, (method, path, statuses)
        assert not {401, 500} & set(statuses.values()), (method, path, statuses)


def test_changes_need_an_admin_also_of_roles_that_may_produce_and_consume(admin: Admin) -> None:
    assert (
        as_role(admin, "admin", "POST", f"namespaces/{NAMESPACE}/permissions/both", ["produce", "consume"]).status
        == 204
    )
    before = admin.state()
    for method, path, body in (
        ("PUT", "tenants/new", {"adminRoles": ["both"], "allowedClusters": ["standalone"]}),
        ("PUT", "namespaces/acme/new", None),
        ("DELETE", f"namespaces/{NAMESPACE}", None),
        ("POST", f"namespaces/{NAMESPACE}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
        ("POST", f"namespaces/{NAMESPACE}/permissions/both", ["produce", "consume", "functions"]),
        ("DELETE", f"namespaces/{NAMESPACE}/permissions/reader", None),
        ("POST", f"namespaces/{NAMESPACE}/permissions/subscription/s", ["both"]),
        ("DELETE", f"namespaces/{NAMESPACE}/permissions/s/reader", None),
        ("PUT", f"persistent/{NAMESPACE}/new", None),
        ("DELETE", TOPIC, None),
        ("POST", f"{TOPIC}/terminate", None),
        ("POST", f"{TOPIC}/permissions/both", ["consume"]),
        ("DELETE", f"{TOPIC}/permissions/topic-reader", None),
        ("PUT", f"{TOPIC}/offload", None),
    ):
        answer = as_role(admin, "both", method, path, body)
        assert answer.status == 403, (method, path)
        assert "'both'" in answer.reason
    assert admin.state() == before


def test_grants_and_revocations_apply_from_the_next_call_on(admin: Admin) -> None:
    stats, permissions = f"{TOPIC}/stats", f"namespaces/{NAMESPACE}/permissions"
    assert as_role(admin, "dev", "GET", stats).status == 403
    assert as_role(admin, "admin", "POST", f"{permissions}/dev", ["consume", "produce"]).status == 204
    assert as_role(admin, "dev", "GET", stats).status == 200
    assert as_role(admin, "admin", "GET", permissions).json["dev"] == ["consume", "produce"]
    assert as_role(admin, "admin", "POST", f"{permissions}/dev", ["functions"]).status == 204
    assert as_role(admin, "dev", "GET", stats).status == 403
    assert as_role(admin, "admin", "DELETE", f"{permissions}/dev").status == 204
    assert "dev" not in as_role(admin, "admin", "GET", permissions).json


def test_permissions_on_a_topic_are_shown_with_those_on_its_namespace_and_revoked_alone(admin: Admin) -> None:
    assert as_role(admin, "admin", "POST", f"{TOPIC}/permissions/writer", ["consume"]).status == 204
    found = as_role(admin, "admin", "GET", f"{TOPIC}/permissions").json
    assert found == {
        "writer": ["produce", "consume"],
        "reader": ["consume"],
        "topic-writer": ["produce"],
        "topic-reader": ["consume"],
    }
    assert as_role(admin, "admin", "DELETE", f"{TOPIC}/permissions/writer").status == 204
    assert as_role(admin, "admin", "GET", f"{TOPIC}/permissions").json["writer"] == ["produce"]
    assert as_role(admin, "admin", "POST", f"persistent/{NAMESPACE}/missing/permissions/dev", ["consume"]).status == 404


def test_a_grant_on_a_partitioned_topic_counts_for_its_partitions(admin: Admin) -> None:
    parted = f"persistent/{NAMESPACE}/parted"
    assert as_role(admin, "admin", "PUT", f"{parted}/partitions", 2).status == 204
    stats = f"{parted}-partition-1/stats"
    assert as_role(admin, "dev", "GET", stats).status == 403
    assert as_role(admin, "admin", "POST", f"{parted}/permissions/dev", ["consume"]).status == 204
    assert as_role(admin, "admin", "POST", f"{parted}-partition-1/permissions/dev", ["consume"]).status == 204
    assert as_role(admin, "dev", "GET", stats).status == 200
    assert as_role(admin, "admin", "DELETE", f"{parted}/permissions/dev").status == 204
    assert as_role(admin, "dev", "GET", stats).status == 403


def test_a_topic_of_the_same_name_does_not_inherit_the_grants_of_a_deleted_one(admin: Admin) -> None:
    assert as_role(admin, "admin", "DELETE", f"{TOPIC}?force=true").status == 204
    assert as_role(admin, "admin", "PUT", TOPIC).status == 204
    assert as_role(admin, "topic-reader", "GET", f"{TOPIC}/stats").status == 403
    assert as_role(admin, "reader", "GET", f"{TOPIC}/stats").status == 200


def test_a_subscription_that_names_roles_is_changed_by_these_only(admin: Admin) -> None:
    skip, roles = f"{TOPIC}/subscription/s/skip_all", f"namespaces/{NAMESPACE}/permissions/subscription"
    assert as_role(admin, "admin", "POST", f"{roles}/s", ["topic-reader"]).status == 204
    assert as_role(admin, "admin", "GET", roles).json == {"s": ["topic-reader"]}
    assert as_role(admin, "reader", "POST", skip).status == 403
    assert as_role(admin, "topic-reader", "POST", skip).status == 204
    revoke = f"namespaces/{NAMESPACE}/permissions/s/topic-reader"
    assert as_role(admin, "admin", "DELETE", revoke).status == 204
    assert as_role(admin, "reader", "POST", skip).status == 204
    assert as_role(admin, "admin", "DELETE", revoke).status == 404


@pytest.mark.parametrize("body", [None, "produce", ["fly"], [1], {"produce": True}])
def test_a_grant_without_a_list_of_actions_changes_nothing(admin: Admin, body: object) -> None:
    before = admin.state()
    for path in (f"namespaces/{NAMESPACE}/permissions/dev", f"{TOPIC}/permissions/dev"):
        assert as_role(admin, "root", "POST", path, body).status == 400
    assert admin.state() == before


def test_a_role_cannot_act_for_another(admin: Admin) -> None:
    token = as_header("root")
    assert admin.call("GET", "tenants", None, {**token, "X-Original-Principal": "stranger"}).status == 403
    assert admin.call("GET", "tenants", None, {**token, "X-Original-Principal": "root"}).status == 200


def test_without_superusers_only_tenant_admins_administer(start: Callable[..., Admin]) -> None:
    admin = start(**SECURE, authorization_enabled=True)
    assert as_role(admin, "anyone", "PUT", "tenants/acme", {}).status == 403
    assert as_role(admin, "anyone", "POST", "brokers/shutdown").status == 403


def as_header(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {jwt.encode({'sub': role}, SECRET, 'HS256')}"}
