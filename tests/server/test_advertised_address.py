"""The advertised address of ports that listen on every address of the machine."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.certificates import write_certificate

from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError
from afterglow.server import advertised_address as advertised
from afterglow.server.advertised_address import with_advertised_address

if TYPE_CHECKING:
    from pathlib import Path

WILDCARD = "0.0.0.0"
OWN = "10.1.2.3"


@pytest.fixture
def _own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertised, "_own_address", lambda _: OWN)


def secured(
    directory: Path, advertised_address: str | None = None, bind: str = WILDCARD, **names: list[str]
) -> BrokerConfig:
    certificate, key = write_certificate(directory, **names)
    return BrokerConfig(
        bind_address=bind,
        advertised_address=advertised_address,
        broker_service_port=None,
        web_service_port=None,
        broker_service_port_tls=6651,
        web_service_port_tls=8443,
        tls_certificate_file_path=str(certificate),
        tls_key_file_path=str(key),
    )


@pytest.mark.usefixtures("_own_address")
def test_a_wildcard_advertises_the_address_of_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "afterglow.server.advertised_address")
    assert with_advertised_address(BrokerConfig(bind_address=WILDCARD)).advertised_address == OWN
    assert caplog.messages == [f"advertisedAddress is not set: lookups return {OWN}"]


@pytest.mark.parametrize("wildcard", [WILDCARD, "::"])
def test_the_detected_address_belongs_to_this_machine(wildcard: str) -> None:
    found = advertised._own_address(wildcard)
    assert found not in {WILDCARD, "::", ""}
    assert (":" in found) == (wildcard == "::")
    family = advertised._WILDCARDS[wildcard][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((found, 0))


@pytest.mark.parametrize("config", [BrokerConfig(), BrokerConfig(bind_address=WILDCARD, advertised_address="broker")])
def test_a_configured_address_is_kept(config: BrokerConfig) -> None:
    assert with_advertised_address(config) is config


@pytest.mark.usefixtures("_own_address")
def test_an_address_that_the_certificate_does_not_name_is_refused_with_the_setting(tmp_path: Path) -> None:
    config = secured(tmp_path, hosts=["broker.example.com"], addresses=[])
    with pytest.raises(ConfigError, match=rf"{OWN}, .* is not in .* set advertisedAddress .*: broker\.example\.com"):
        with_advertised_address(config)


@pytest.mark.usefixtures("_own_address")
def test_an_address_that_the_certificate_names_is_advertised(tmp_path: Path) -> None:
    assert with_advertised_address(secured(tmp_path, addresses=[OWN])).advertised_address == OWN


@pytest.mark.parametrize(
    ("name", "lines"), [("broker.example.com", 0), ("BROKER.example.com", 0), ("a.wild.org", 0), ("a.b.wild.org", 1)]
)
def test_a_configured_name_missing_in_the_certificate_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, lines: int
) -> None:
    config = secured(tmp_path, name, hosts=["broker.example.com", "*.wild.org"], addresses=[])
    assert with_advertised_address(config) is config
    assert sum("clients that verify host names will not connect" in line for line in caplog.messages) == lines


def test_a_missing_certificate_is_reported_when_the_port_is_opened(tmp_path: Path) -> None:
    config = secured(tmp_path, "broker")
    shutil.rmtree(tmp_path)
    assert with_advertised_address(config) is config


STAGE = r"""
set -e
ip link set lo up
ip addr add 10.1.2.3/32 dev lo
ip route add default dev lo src 10.1.2.3
exec "$0" "$@"
"""
"""A separate network namespace with an address besides loopback: nothing is opened to other machines."""

PROGRAM = r"""
import json, pathlib, sys, urllib.request
import pulsar
from tests.support.serving import serving

with serving(pathlib.Path(sys.argv[1]), "--listen", "0.0.0.0", "--insecure") as served:
    port = served.service_url.rpartition(":")[2]
    client = pulsar.Client(f"pulsar://127.0.0.1:{port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("orders", "mine")
    client.create_producer("orders").send(b"x")
    received = consumer.receive(20_000).data().decode()
    client.close()
    lookup = "/lookup/v2/topic/persistent/public/default/orders"
    with urllib.request.urlopen(served.admin_url + lookup) as answer:
        found = json.loads(answer.read())["brokerUrl"]
    print(json.dumps([served.service_url, served.admin_url, found, received]))
"""


def test_a_stock_client_connects_to_the_address_that_a_wildcard_broker_advertises(tmp_path: Path) -> None:
    pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
    inside = ["unshare", "--map-root-user", "--net", "/bin/bash", "-c", STAGE]
    if not all(map(shutil.which, ("unshare", "ip"))) or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("this machine gives no network namespaces to users")
    command = [*inside, sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    service_url, admin_url, found, received = json.loads(done.stdout.splitlines()[-1])
    assert service_url.startswith(f"pulsar://{OWN}:")
    assert admin_url.startswith(f"http://{OWN}:")
    assert (found, received) == (service_url, "x")
