"""Addresses and credentials of offload tasks, and settings that are refused because tasks could not connect."""

from __future__ import annotations

import base64
import logging
import socket
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from afterglow.config import AuthenticationProvider, BrokerConfig, parse_conf
from afterglow.errors import ConfigError
from afterglow.hot.pulsar import PulsarAddress
from afterglow.pipeline.task_access import TaskAccess
from afterglow.spark.session import spark_properties
from afterglow.tier.locations import location_of_url

if TYPE_CHECKING:
    from pathlib import Path

BUCKET = location_of_url("s3://bucket")
URLS = ("pulsar://h:6650", "pulsar+ssl://h:6651")


def task_access(tier: str = "s3://bucket", **settings: Any) -> TaskAccess:
    made = TaskAccess(BrokerConfig(**({"offload_tasks_read_files": False} | settings)), location_of_url(tier))
    made.set_broker_urls(*URLS)
    return made


def test_tasks_of_a_local_master_read_files_and_need_no_buffer() -> None:
    found = task_access(offload_tasks_read_files=True)
    assert found() is None
    assert found.buffer is None


def test_tasks_of_other_masters_get_the_address_and_a_buffer() -> None:
    for found in (task_access(spark_master="spark://127.0.0.1:7077", offload_tasks_read_files=True), task_access()):
        assert found() == PulsarAddress(URLS[0])
        assert found.buffer is not None
    assert task_access(offload_buffer_max_bytes=0).buffer is None


@pytest.mark.parametrize("parameters", ["token:secret", "secret"])
def test_the_token_of_the_brokers_client_is_passed_to_tasks_and_not_shown(parameters: str) -> None:
    found = task_access(broker_client_authentication_parameters=parameters)()
    assert found == PulsarAddress(URLS[0], token="secret")
    assert "secret" not in repr(found)


def test_a_token_file_is_read_again_for_every_task(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    file.write_text("first\n")
    found = task_access(broker_client_authentication_parameters=file.as_uri())
    assert found() == PulsarAddress(URLS[0], token="first")
    file.write_text("second\n")
    assert found() == PulsarAddress(URLS[0], token="second")
    file.unlink()
    with pytest.raises(ConfigError, match=r"brokerClientAuthenticationParameters: .*a token cannot be read"):
        found()
    with pytest.raises(ConfigError, match="cannot be read"):
        task_access(broker_client_authentication_parameters=file.as_uri())


def test_trusted_authorities_are_passed_as_text(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("Some words before\n-----BEGIN CERTIFICATE-----\nx\n")
    settings: dict[str, Any] = {
        "broker_service_port": None,
        "broker_service_port_tls": 0,
        "tls_certificate_file_path": "c",
    }
    found = task_access(
        **settings,
        tls_key_file_path="k",
        broker_client_trust_certs_file_path=str(file),
        tls_hostname_verification_enabled=False,
    )
    found.set_broker_urls("", URLS[1])
    assert found() == PulsarAddress(URLS[1], trust_certs="-----BEGIN CERTIFICATE-----\nx\n", verify_hostname=False)
    file.write_text("nothing")
    with pytest.raises(ConfigError, match=r"ca\.pem contains no PEM certificate"):
        task_access(broker_client_trust_certs_file_path=str(file))
    with pytest.raises(ConfigError, match="brokerClientTrustCertsFilePath=missing cannot be read"):
        task_access(broker_client_trust_certs_file_path="missing")


def test_tls_is_used_if_enabled_for_clients() -> None:
    settings: dict[str, Any] = {
        "broker_service_port_tls": 0,
        "tls_certificate_file_path": "c",
        "tls_key_file_path": "k",
    }
    assert task_access(**settings)() == PulsarAddress(URLS[0])
    assert task_access(**settings, broker_client_tls_enabled=True)() == PulsarAddress(URLS[1])
    with pytest.raises(ConfigError, match=r"brokerClientTlsEnabled=true needs .* set brokerServicePortTls"):
        task_access(broker_client_tls_enabled=True)


def test_tasks_over_the_protocol_need_a_port() -> None:
    with pytest.raises(ConfigError, match="need a port of the broker; set brokerServicePort or brokerServicePortTls"):
        task_access(broker_service_port=None)


def test_missing_credentials_of_tasks_are_refused_at_start() -> None:
    secured = "authenticationEnabled=true\nauthenticationProviders=token\ntokenSecretKey=data:;base64,AAAA\n"
    for master in ("sparkMaster=spark://127.0.0.1:7077\n", "offloadTasksReadFiles=false\n"):
        with pytest.raises(ConfigError, match="set brokerClientAuthenticationParameters to token:"):
            TaskAccess(parse_conf(secured + master), BUCKET)
    TaskAccess(parse_conf(secured), BUCKET)
    TaskAccess(parse_conf(f"{secured}{master}anonymousUserRole=nobody\n"), BUCKET)
    TaskAccess(parse_conf(f"{secured}{master}brokerClientAuthenticationParameters=token:x\n"), BUCKET)


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ("root", None),
        ("offloader", "as the role 'offloader', which is not among superUserRoles: grant it consume"),
        (None, "offload tasks cannot read topics: brokerClientAuthenticationParameters"),
    ],
)
def test_a_role_that_authorization_may_refuse_is_a_warning(
    caplog: pytest.LogCaptureFixture, given: str | None, warning: str | None
) -> None:
    secret = bytes(range(32))
    token = "x" if given is None else jwt.encode({"sub": given}, secret, "HS256")
    task_access(
        authentication_enabled=True,
        authentication_providers=(AuthenticationProvider.TOKEN,),
        token_secret_key=base64.b64encode(secret).decode(),
        authorization_enabled=True,
        super_user_roles=("root",),
        broker_client_authentication_parameters=f"token:{token}",
    )
    assert warning in caplog.text if warning else not caplog.records
    assert token not in caplog.text or given is None


def test_only_token_authentication_is_supported() -> None:
    with pytest.raises(ConfigError, match=r"brokerClientAuthenticationPlugin=a\.B is not supported"):
        task_access(broker_client_authentication_plugin="a.B", broker_client_authentication_parameters="x:y")
    assert task_access(
        broker_client_authentication_plugin="org.apache.pulsar.client.impl.auth.AuthenticationToken",
        broker_client_authentication_parameters="token:x",
    )() == PulsarAddress(URLS[0], token="x")


@pytest.mark.parametrize(
    "settings", [{}, {"bind_address": "0.0.0.0", "advertised_address": "localhost"}, {"bind_address": "::1"}]
)
def test_a_loopback_port_is_refused_for_a_master_on_another_machine(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"sparkMaster=spark://192\.0\.2\.1:7077 .* cannot reach the broker at "):
        task_access(spark_master="spark://192.0.2.1:7077", **settings)


def test_a_reachable_port_is_accepted_for_any_master(caplog: pytest.LogCaptureFixture) -> None:
    for master in ("spark://192.0.2.1:7077", "yarn", "k8s://https://192.0.2.1"):
        task_access(spark_master=master, bind_address="0.0.0.0", advertised_address="192.0.2.2")
    assert caplog.messages == []


def test_a_loopback_port_is_accepted_for_a_master_on_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("127.0.0.1", "localhost", socket.gethostbyname(socket.gethostname())):
        task_access(spark_master=f"spark://{host}:7077")
    assert caplog.messages == []


def test_a_loopback_port_is_a_warning_if_the_machines_of_tasks_are_unknown(caplog: pytest.LogCaptureFixture) -> None:
    task_access(spark_master="yarn")
    assert "cannot reach the broker at bindAddress=127.0.0.1" in caplog.text
    assert "this works only if all tasks run on this machine" in caplog.text


def test_a_tier_in_a_directory_must_be_shared_with_other_machines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        task_access(tmp_path.as_uri())
        assert caplog.messages == []
        task_access(tmp_path.as_uri(), spark_master="spark://127.0.0.1:7077")
    assert "must be the same directory on every machine where sparkMaster=spark://127.0.0.1:7077" in caplog.text


def test_properties_of_spark_have_their_own_names() -> None:
    config = parse_conf("spark.driver.host=h\nspark.executor.memory=2g\n")
    assert spark_properties(config) == {"spark.driver.host": "h", "spark.executor.memory": "2g"}
    assert "2g" not in repr(config)
    with pytest.raises(ConfigError, match=r"spark\.master must be given as --master"):
        spark_properties(parse_conf("spark.master=yarn\n"))
