from __future__ import annotations

import base64
import logging
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


def test_an_error_message_does_not_contain_the_token(start: Callable[..., Admin]) -> None:
    forged = jwt.encode({"sub": "root"}, b"another-key" * 8, "HS256")
    answer = start(**SECURE).call("GET", "tenants", headers={"Authorization": f"Bearer {forged}"})
    assert answer.status == 401
    assert forged.rpartition(".")[2] not in answer.reason


def test_probes_need_no_token(start: Callable[..., Admin]) -> None:
    assert start(**SECURE).call("GET", "/status.html").status == 200


def test_without_superuser_roles_every_authenticated_role_may_change(start: Callable[..., Admin]) -> None:
    admin = start(**SECURE)
    assert as_role(admin, "someone", "PUT", "tenants/acme", TENANT).status == 204


def test_changes_need_a_superuser_or_a_tenant_admin(start: Callable[..., Admin]) -> None:
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


def test_a_changing_call_and_a_changed_policy_are_logged_with_the_role(
    start: Callable[..., Admin], caplog: pytest.LogCaptureFixture
) -> None:
    admin = start(**SECURE)
    path = "namespaces/public/default/maxProducersPerTopic"
    with caplog.at_level(logging.INFO):
        assert as_role(admin, "alice", "POST", path, 5).status == 204
        assert as_role(admin, "alice", "GET", path).status == 200
    found = {
        record.__dict__["msg"].text: record.__dict__["fields"]
        for record in caplog.records
        if "fields" in record.__dict__
    }
    assert found["admin call"] == {"role": "alice", "method": "POST", "path": f"/admin/v2/{path}"}
    assert found["policy changed"]["role"] == "alice"
    assert found["policy changed"]["new"] == {"max_producers_per_topic": 5}


def test_without_authentication_every_call_is_allowed(start: Callable[..., Admin]) -> None:
    start(super_user_roles=("root",)).do("PUT", "tenants/acme", TENANT)


@pytest.mark.parametrize("tenant", ["..", "%FF", "a%2Fb"])
def test_an_unknown_tenant_has_no_admins(start: Callable[..., Admin], tenant: str) -> None:
    admin = start(**SECURE, super_user_roles=("root",))
    assert as_role(admin, "someone", "PUT", f"namespaces/{tenant}/orders").status in {403, 412}


def test_verification_needs_a_superuser(start: Callable[..., Admin]) -> None:
    admin = start(offload=True, **SECURE, super_user_roles=("root",))
    path = "afterglow/verify"
    assert as_role(admin, None, "POST", path).status == 401
    assert as_role(admin, "someone", "POST", path).status == 403
    assert as_role(admin, "someone", "POST", path, {"sweep": True, "delete": True}).status == 403
    assert as_role(admin, "root", "POST", path).status == 200


# --- pages of others in a browser ---


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://[broken"},
    ],
)
def test_a_page_of_another_origin_may_read_and_change_nothing(
    start: Callable[..., Admin], headers: dict[str, str]
) -> None:
    admin = start()
    before = admin.state()
    refused = admin.call("PUT", "persistent/public/default/t", None, headers)
    assert refused.status == 403
    assert "/console" in refused.reason
    assert admin.state() == before
    assert admin.call("GET", "tenants", None, headers).status == 200


def test_the_consoles_own_page_may_change_something(start: Callable[..., Admin]) -> None:
    admin = start()
    own = {"Origin": f"http://127.0.0.1:{admin.port}"}
    assert admin.call("PUT", "persistent/public/default/t", None, own).status == 204
    assert (
        admin.call("PUT", "persistent/public/default/u", None, {**own, "Sec-Fetch-Site": "same-origin"}).status == 204
    )


@pytest.mark.parametrize("host", ["elsewhere.example", "elsewhere.example:8080", "localhost.example", "[broken", "a b"])
def test_dns_rebinding_is_refused(start: Callable[..., Admin], host: str) -> None:
    admin = start(advertised_address="here.example")
    for method, path in (("PUT", "persistent/public/default/t"), ("GET", "tenants"), ("GET", "/console")):
        refused = admin.call(method, path, None, {"Host": host, "Origin": f"http://{host}"})
        assert refused.status == 403
        assert "advertisedAddress" in refused.reason


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "here.example:8080", ""])
def test_names_of_this_machine_are_accepted(start: Callable[..., Admin], host: str) -> None:
    admin = start(advertised_address="here.example")
    assert admin.call("GET", "tenants", None, {"Host": host}).status == 200


def test_a_broker_with_authentication_accepts_any_host(start: Callable[..., Admin]) -> None:
    admin = start(**SECURE)
    assert admin.call("GET", "/status.html", None, {"Host": "proxy.example"}).status == 200
    assert admin.call("GET", "tenants", None, {"Host": "proxy.example"}).status == 401
