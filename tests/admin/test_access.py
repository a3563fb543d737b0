from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from afterglow.config import AuthenticationProvider

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin, Answer

SECRET = bytes(range(64))
SECURE: dict[str, Any] = {
    "authentication_enabled": True,
    "authentication_providers": (AuthenticationProvider.TOKEN,),
    "token_secret_key": base64.b64encode(SECRET).decode(),
}
TENANT = {"adminRoles": ["acme-admin"], "allowedClusters": ["standalone"]}


def as_role(admin: Admin, role: str | None, method: str, path: str, body: object = None) -> Answer:
    headers = {} if role is None else {"Authorization": f"Bearer {jwt.encode({'sub': role}, SECRET, 'HS256')}"}
    return admin.call(method, path, body, headers)


def test_a_call_needs_a_token(start: Callable[..., Admin]) -> None:
    admin = start(**SECURE)
    for path in ("clusters", "tenants", "brokers/health", "persistent/public/default/t/stats"):
        answer = admin.call("GET", path)
        assert answer.status == 401
        assert "token" in answer.reason
        assert answer.headers["www-authenticate"] == "Bearer"
    assert admin.call("GET", "tenants", headers={"Authorization": "Basic abc"}).status == 401
    assert admin.call("GET", "tenants", headers={"Authorization": "Bearer a.b.c"}).status == 401
    assert as_role(admin, "someone", "GET", "tenants").status == 200


def test_a_refusal_tells_nothing_of_the_token(start: Callable[..., Admin]) -> None:
    forged = jwt.encode({"sub": "root"}, b"another-key" * 8, "HS256")
    answer = start(**SECURE).call("GET", "tenants", headers={"Authorization": f"Bearer {forged}"})
    assert answer.status == 401
    assert forged.rpartition(".")[2] not in answer.reason


def test_probes_need_none(start: Callable[..., Admin]) -> None:
    assert start(**SECURE).call("GET", "/status.html").status == 200


def test_whoever_is_known_may_set_up_where_no_super_user_is_named(start: Callable[..., Admin]) -> None:
    admin = start(**SECURE)
    assert as_role(admin, "someone", "PUT", "tenants/acme", TENANT).status == 204


def test_setting_up_needs_a_super_user_or_the_tenants_own(start: Callable[..., Admin]) -> None:
    admin = start(**SECURE, super_user_roles=("root",))
    before = admin.state()
    answer = as_role(admin, "someone", "PUT", "tenants/acme", TENANT)
    assert answer.status == 403
    assert "superUserRoles" in answer.reason
    assert as_role(admin, "someone", "PUT", "namespaces/acme/orders").status == 403
    assert as_role(admin, "someone", "GET", "brokers/configuration/runtime").status == 403
    assert admin.state() == before
    assert as_role(admin, "root", "PUT", "tenants/acme", TENANT).status == 204
    assert as_role(admin, "root", "GET", "brokers/configuration/runtime").status == 200
    for method, path in (
        ("PUT", "namespaces/acme/orders"),
        ("PUT", "persistent/acme/orders/t"),
        ("PUT", "persistent/acme/orders/t/subscription/s"),
        ("POST", "persistent/acme/orders/t/subscription/s/skip_all"),
        ("DELETE", "persistent/acme/orders/t/subscription/s"),
        ("DELETE", "persistent/acme/orders/t"),
    ):
        assert as_role(admin, "someone", method, path).status == 403, path
        assert as_role(admin, "acme-admin", method, path).status == 204, path
    assert as_role(admin, "acme-admin", "PUT", "namespaces/public/orders").status == 403
    assert as_role(admin, "acme-admin", "DELETE", "tenants/acme").status == 403
    assert as_role(admin, "someone", "GET", "namespaces/acme").status == 200


def test_where_nobody_is_asked_everybody_may(start: Callable[..., Admin]) -> None:
    start(super_user_roles=("root",)).do("PUT", "tenants/acme", TENANT)


@pytest.mark.parametrize("tenant", ["..", "%FF", "a%2Fb"])
def test_a_tenant_that_is_none_lets_nobody_pass(start: Callable[..., Admin], tenant: str) -> None:
    admin = start(**SECURE, super_user_roles=("root",))
    assert as_role(admin, "someone", "PUT", f"namespaces/{tenant}/orders").status in {403, 412}


def test_a_check_of_what_all_tenants_have_is_begun_and_ended_by_a_super_user(start: Callable[..., Admin]) -> None:
    admin = start(offload=True, **SECURE, super_user_roles=("root",))
    checks = "afterglow/checks"
    assert as_role(admin, "someone", "POST", checks, {"sweep": True, "delete": True}).status == 403
    assert as_role(admin, "someone", "GET", checks).json == []
    begun = as_role(admin, "root", "POST", checks)
    assert begun.status == 202
    job = f"{checks}/{begun.json['id']}"
    assert as_role(admin, "someone", "DELETE", job).status == 403
    assert as_role(admin, "root", "DELETE", job).status == 204
    assert as_role(admin, "someone", "GET", job).status == 200
    assert as_role(admin, None, "GET", f"{job}/findings").status == 401
