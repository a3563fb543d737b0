from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import jwt
import pytest
from tests.support.certificates import write_certificate
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Cli
    from tests.support.serving import Served

SECRET = b"a key of thirty-two bytes, at least"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Served]:
    """A server that asks for tokens, and listens with TLS only."""
    directory = tmp_path_factory.mktemp("secured")
    conf = directory / "broker.conf"
    conf.write_text(
        "authenticationEnabled=true\n"
        "authenticationProviders=token\n"
        "superUserRoles=admin\n"
        f"tokenSecretKey=data:;base64,{base64.b64encode(SECRET).decode()}\n"
        "brokerServicePort=\n"
        "webServicePort=\n"
        "brokerServicePortTls=0\n"
        "webServicePortTls=0\n"
        f"tlsCertificateFilePath={certificate[0]}\n"
        f"tlsKeyFilePath={certificate[1]}\n"
    )
    with serving(directory / "home", "--conf", str(conf), plain=False) as served:
        yield served


@pytest.fixture
def cli(secured: Served, cli_at: Callable[[str], Cli]) -> Cli:
    return cli_at(secured.admin_url)


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


def test_messages_go_both_ways_with_a_token_over_tls(cli: Cli, certificate: tuple[Path, Path]) -> None:
    options = ("--token", token("admin"), "--ca-file", str(certificate[0]))
    cli.do(*options, "topics", "create", "t")
    cli.do(*options, "topics", "produce", "t", "-m", "hello")
    assert cli.do(*options, "topics", "consume", "t").endswith("\thello\n")


def test_an_untrusted_server_is_one_line_with_the_remedy(cli: Cli) -> None:
    assert "--ca-file" in cli.refused(1, "topics", "list", "--token", token("admin"))


def test_certificates_that_cannot_be_read_exit_2(cli: Cli, tmp_path: Path) -> None:
    assert "absent.pem" in cli.refused(2, "topics", "list", "--ca-file", str(tmp_path / "absent.pem"))


def test_no_token_and_the_wrong_role_are_refused_with_the_servers_reason(
    cli: Cli, certificate: tuple[Path, Path]
) -> None:
    trust = ("--ca-file", str(certificate[0]))
    assert "token" in cli.refused(1, "topics", "list", *trust)
    assert "guest" in cli.refused(1, "topics", "create", "x", *trust, "--token", token("guest"))
