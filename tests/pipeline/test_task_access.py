"""What tasks are told to reach a server by, and what is refused because they could not."""

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


def reach(tier: str = "s3://bucket", **settings: Any) -> TaskAccess:
    made = TaskAccess(BrokerConfig(**({"offload_tasks_read_files": False} | settings)), location_of_url(tier))
    made.set_broker_urls(*URLS)
    return made


def test_tasks_of_a_local_master_read_files_and_need_no_buffer() -> None:
    found = reach(offload_tasks_read_files=True)
    assert found() is None
    assert found.buffer is None


def test_tasks_that_may_run_anywhere_get_the_address_and_a_buffer() -> None:
    for found in (reach(spark_master="spark://127.0.0.1:7077", offload_tasks_read_files=True), reach()):
        assert found() == PulsarAddress(URLS[0])
        assert found.buffer is not None
    assert reach(offload_buffer_max_bytes=0).buffer is None


@pytest.mark.parametrize("parameters", ["token:secret", "secret"])
def test_the_token_of_the_brokers_own_client_goes_along_and_is_not_shown(parameters: str) -> None:
    found = reach(broker_client_authentication_parameters=parameters)()
    assert found == PulsarAddress(URLS[0], token="secret")
    assert "secret" not in repr(found)


def test_a_token_in_a_file_is_read_anew_for_every_task(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    file.write_text("first\n")
    found = reach(broker_client_authentication_parameters=file.as_uri())
    assert found() == PulsarAddress(URLS[0], token="first")
    file.write_text("second\n")
    assert found() == PulsarAddress(URLS[0], token="second")
    file.unlink()
    with pytest.raises(ConfigError, match=r"brokerClientAuthenticationParameters: .*a token cannot be read"):
        found()
    with pytest.raises(ConfigError, match="cannot be read"):
        reach(broker_client_authentication_parameters=file.as_uri())


def test_authorities_travel_as_text(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("Some words before\n-----BEGIN CERTIFICATE-----\nx\n")
    settings: dict[str, Any] = {
        "broker_service_port": None,
        "broker_service_port_tls": 0,
        "tls_certificate_file_path": "c",
    }
    found = reach(
        **settings,
        tls_key_file_path="k",
        broker_client_trust_certs_file_path=str(file),
        tls_hostname_verification_enabled=False,
    )
    found.set_broker_urls("", URLS[1])
    assert found() == PulsarAddress(URLS[1], trust_certs="-----BEGIN CERTIFICATE-----\nx\n", verify_hostname=False)
    file.write_text("nothing")
    with pytest.raises(ConfigError, match=r"ca\.pem contains no PEM certificate"):
        reach(broker_client_trust_certs_file_path=str(file))
    with pytest.raises(ConfigError, match="brokerClientTrustCertsFilePath=missing cannot be read"):
        reach(broker_client_trust_certs_file_path="missing")


def test_tls_is_used_where_it_is_asked_for() -> None:
    settings: dict[str, Any] = {
        "broker_service_port_tls": 0,
        "tls_certificate_file_path": "c",
        "tls_key_file_path": "k",
    }
    assert reach(**settings)() == PulsarAddress(URLS[0])
    assert reach(**settings, broker_client_tls_enabled=True)() == PulsarAddress(URLS[1])
    with pytest.raises(ConfigError, match=r"brokerClientTlsEnabled=true needs .* set brokerServicePortTls"):
        reach(broker_client_tls_enabled=True)


def test_without_a_port_there_is_nothing_to_reach() -> None:
    with pytest.raises(ConfigError, match="need a port of the broker; set brokerServicePort or brokerServicePortTls"):
        reach(broker_service_port=None)


def test_tasks_that_would_not_be_let_in_are_refused_at_the_start() -> None:
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
def test_a_role_that_authorization_may_keep_out_is_warned_about(
    caplog: pytest.LogCaptureFixture, given: str | None, warning: str | None
) -> None:
    secret = bytes(range(32))
    token = "x" if given is None else jwt.encode({"sub": given}, secret, "HS256")
    reach(
        authentication_enabled=True,
        authentication_providers=(AuthenticationProvider.TOKEN,),
        token_secret_key=base64.b64encode(secret).decode(),
        authorization_enabled=True,
        super_user_roles=("root",),
        broker_client_authentication_parameters=f"token:{token}",
    )
    assert warning in caplog.text if warning else not caplog.records
    assert token not in caplog.text or given is None


def test_only_tokens_are_understood() -> None:
    with pytest.raises(ConfigError, match=r"brokerClientAuthenticationPlugin=a\.B is not supported"):
        reach(broker_client_authentication_plugin="a.B", broker_client_authentication_parameters="x:y")
    assert reach(
        broker_client_authentication_plugin="org.apache.pulsar.client.impl.auth.AuthenticationToken",
        broker_client_authentication_parameters="token:x",
    )() == PulsarAddress(URLS[0], token="x")


@pytest.mark.parametrize(
    "settings", [{}, {"bind_address": "0.0.0.0", "advertised_address": "localhost"}, {"bind_address": "::1"}]
)
def test_a_port_that_only_this_machine_reaches_is_refused_for_a_master_on_another(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"sparkMaster=spark://192\.0\.2\.1:7077 .* cannot reach the broker at "):
        reach(spark_master="spark://192.0.2.1:7077", **settings)


def test_a_port_that_others_reach_is_fine_for_any_master(caplog: pytest.LogCaptureFixture) -> None:
    for master in ("spark://192.0.2.1:7077", "yarn", "k8s://https://192.0.2.1"):
        reach(spark_master=master, bind_address="0.0.0.0", advertised_address="192.0.2.2")
    assert caplog.messages == []


def test_a_master_on_this_machine_may_have_its_workers_here(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("127.0.0.1", "localhost", socket.gethostbyname(socket.gethostname())):
        reach(spark_master=f"spark://{host}:7077")
    assert caplog.messages == []


def test_where_it_is_not_known_where_tasks_run_there_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    reach(spark_master="yarn")
    assert "cannot reach the broker at bindAddress=127.0.0.1" in caplog.text
    assert "this works only if all tasks run on this machine" in caplog.text


def test_a_tier_in_a_directory_must_be_shared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        reach(tmp_path.as_uri())
        assert caplog.messages == []
        reach(tmp_path.as_uri(), spark_master="spark://127.0.0.1:7077")
    assert "must be the same directory on every machine where sparkMaster=spark://127.0.0.1:7077" in caplog.text


def test_properties_of_spark_are_given_by_their_own_names() -> None:
    config = parse_conf("spark.driver.host=h\nspark.executor.memory=2g\n")
    assert spark_properties(config) == {"spark.driver.host": "h", "spark.executor.memory": "2g"}
    assert "2g" not in repr(config)
    with pytest.raises(ConfigError, match=r"spark\.master is given as --master"):
        spark_properties(parse_conf("spark.master=yarn\n"))
