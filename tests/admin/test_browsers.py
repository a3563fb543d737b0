from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.admin.test_access import SECURE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin


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
def test_a_page_of_another_origin_may_look_and_change_nothing(
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
def test_a_page_whose_name_was_led_here_gets_no_answer(start: Callable[..., Admin], host: str) -> None:
    admin = start(advertised_address="here.example")
    for method, path in (("PUT", "persistent/public/default/t"), ("GET", "tenants"), ("GET", "/console")):
        refused = admin.call(method, path, None, {"Host": host, "Origin": f"http://{host}"})
        assert refused.status == 403
        assert "advertisedAddress" in refused.reason


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "here.example:8080", ""])
def test_names_of_this_machine_are_taken(start: Callable[..., Admin], host: str) -> None:
    admin = start(advertised_address="here.example")
    assert admin.call("GET", "tenants", None, {"Host": host}).status == 200


def test_a_broker_that_asks_for_proof_may_have_any_name(start: Callable[..., Admin]) -> None:
    admin = start(**SECURE)
    assert admin.call("GET", "/status.html", None, {"Host": "proxy.example"}).status == 200
    assert admin.call("GET", "tenants", None, {"Host": "proxy.example"}).status == 401
