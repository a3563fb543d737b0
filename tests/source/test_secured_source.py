"""A cluster that asks for tokens and listens with TLS only, read by its admin API."""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING

import jwt
import pytest
from tests.support.certificates import write_certificate
from tests.support.homes import ServerHome
from tests.support.ledgers import message
from tests.support.serving import serving

import afterglow
from afterglow.config import BrokerConfig
from afterglow.errors import AccessDenied, ConfigError, MetadataUnavailable
from afterglow.read.split_reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serving import Served

SECRET = b"a key of thirty-two bytes, at least"
TOPIC = "persistent://public/default/t"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Served]:
    """A topic with a ledger in the tier and one that is hot."""
    home: Path = tmp_path_factory.mktemp("home")
    with ServerHome(home) as server:
        first, _ = server.write(TOPIC, [message(b"cold")], [message(b"hot")])
        server.offload(TOPIC, first)
    conf = home / "broker.conf"
    conf.write_text(
        "authenticationEnabled=true\nauthenticationProviders=token\nsuperUserRoles=admin\n"
        f"tokenSecretKey=data:;base64,{base64.b64encode(SECRET).decode()}\n"
        "brokerServicePort=\nwebServicePort=\nbrokerServicePortTls=0\nwebServicePortTls=0\n"
        f"tlsCertificateFilePath={certificate[0]}\ntlsKeyFilePath={certificate[1]}\n"
    )
    with serving(home, "--conf", str(conf), plain=False) as served:
        yield served


def token(role: str = "admin") -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


def test_token_and_authorities_open_the_admin_api_and_the_brokers(
    secured: Served, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with afterglow.connect(secured.admin_url, token=token(), ca_file=str(certificate[0])) as source:
        table = source.topic(TOPIC).scan(columns=["value", "tier"]).read_all()
        splits = list(source.topic(TOPIC).splits())
    assert table.to_pylist() == [{"value": b"cold", "tier": "tiered"}, {"value": b"hot", "tier": "hot"}]
    travelling = pickle.dumps(splits)
    assert token().encode() not in travelling
    # The process that reads a split has secrets of its own.
    monkeypatch.setenv("AFTERGLOW_TOKEN", f"token:{token()}")
    monkeypatch.setenv("AFTERGLOW_CA_FILE", str(certificate[0]))
    reader = SplitReader(BrokerConfig())
    found = [batch.to_pylist() for split in pickle.loads(travelling) for batch in reader.batches(split, ["value"])]
    reader.close()
    assert found == [[{"value": b"cold"}], [{"value": b"hot"}]]
    with afterglow.connect(secured.admin_url) as source:
        assert source.topics() == (TOPIC,)


def test_missing_credentials_are_reported_with_their_setting(secured: Served, certificate: tuple[Path, Path]) -> None:
    trusted = str(certificate[0])
    with (
        afterglow.connect(secured.admin_url, token=token()) as source,
        pytest.raises(MetadataUnavailable, match=r"is not trusted: .*AFTERGLOW_CA_FILE"),
    ):
        source.topics()
    with (
        afterglow.connect(secured.admin_url, ca_file=trusted) as source,
        pytest.raises(AccessDenied, match=r"401: .*AFTERGLOW_TOKEN"),
    ):
        source.topics()
    with pytest.raises(ConfigError, match="absent"):
        afterglow.connect(secured.admin_url, token="file:///absent", ca_file=trusted)
    with pytest.raises(ConfigError, match="absent"):
        afterglow.connect(secured.admin_url, token=token(), ca_file="/absent")
