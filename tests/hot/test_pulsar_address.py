from __future__ import annotations

import pickle

import pytest

from afterglow.errors import ConfigError
from afterglow.hot.pulsar.address import Endpoint, PulsarAddress, parse_service_url


@pytest.mark.parametrize(
    ("url", "endpoints"),
    [
        ("pulsar://a", [Endpoint("a", 6650, tls=False)]),
        ("pulsar://a:7/", [Endpoint("a", 7, tls=False)]),
        ("pulsar+ssl://a,b:8", [Endpoint("a", 6651, tls=True), Endpoint("b", 8, tls=True)]),
        ("pulsar://[::1]:9,127.0.0.1", [Endpoint("::1", 9, tls=False), Endpoint("127.0.0.1", 6650, tls=False)]),
    ],
)
def test_every_host_of_a_service_url_is_found(url: str, endpoints: list[Endpoint]) -> None:
    assert list(PulsarAddress(url).endpoints) == endpoints
    for endpoint in endpoints:
        assert parse_service_url(str(endpoint)) == (endpoint,)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:6650",
        "http://a:8080",
        "pulsar://",
        "pulsar:///",
        "pulsar://a:x",
        "pulsar://a,,b",
        "pulsar://a:99999",
        "pulsar://a/path",
        "pulsar://u@a",
        "pulsar://:6650",
    ],
)
def test_what_is_no_service_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="service URL"):
        PulsarAddress(url)


def test_an_address_travels_and_hides_its_token() -> None:
    address = PulsarAddress("pulsar://a", "secret", "-----BEGIN", verify_hostname=False, listener_name="inside")
    assert pickle.loads(pickle.dumps(address)) == address
    assert "secret" not in repr(address) + str(address)
