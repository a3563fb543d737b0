from __future__ import annotations

import asyncio
import datetime as dt
import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from afterglow.broker.tls import server_context
from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)
REFUSED = (ssl.SSLError, ConnectionError)
"""What a client meets that the server refuses: its alert, or the end of the connection."""


@dataclass(frozen=True)
class Authority:
    """Signs certificates for one test."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, name: str = "Test Authority") -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(subject, subject, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(self, common_name: str, key: Any = None, *, expired: bool = False) -> tuple[bytes, bytes]:
        """A certificate for localhost and its key, both as PEM."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = (
            _builder(subject, self.certificate.subject, key, expired=expired)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM), private


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, *, expired: bool = False) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - 10 * DAY)
        .not_valid_after(NOW - DAY if expired else NOW + DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


class Place:
    """A directory with the server's files, and the configuration that names them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.authority = Authority.create()
        self.clock = 0.0
        self.write(*self.authority.issue("first"))

    def write(self, certificate: bytes, key: bytes | None = None) -> None:
        replace(self.path / "cert.pem", certificate)
        if key is not None:
            replace(self.path / "key.pem", key)

    def config(self, **settings: Any) -> BrokerConfig:
        defaults: dict[str, Any] = {
            "broker_service_port_tls": 0,
            "tls_certificate_file_path": str(self.path / "cert.pem"),
            "tls_key_file_path": str(self.path / "key.pem"),
        }
        return BrokerConfig(**{**defaults, **settings})

    def context(self, **settings: Any) -> ssl.SSLContext:
        context = server_context(self.config(**settings), lambda: self.clock)
        assert context is not None
        return context

    def client(self, **files: bytes) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        for name, data in files.items():
            (self.path / f"client-{name}.pem").write_bytes(data)
        if files:
            context.load_cert_chain(self.path / "client-certificate.pem", self.path / "client-key.pem")
        return context


def replace(path: Path, data: bytes) -> None:
    """Write a file as renewal tools do; the new one has another inode, whatever the clock's resolution."""
    staged = path.with_suffix(".new")
    staged.write_bytes(data)
    staged.replace(path)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@dataclass(frozen=True)
class Handshake:
    """What a client saw."""

    server_name: str
    version: str | None
    cipher: str


def handshakes(server: ssl.SSLContext, *clients: ssl.SSLContext, name: str | None = "localhost") -> list[Handshake]:
    """Shake hands over loopback with each client in turn, and exchange a byte, which TLS 1.3 needs to be sure."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await reader.readexactly(1))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def shake(port: int, client: ssl.SSLContext) -> Handshake:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name or "")
        try:
            writer.write(b"x")
            if await reader.read(1) != b"x":
                raise ConnectionResetError
            found = writer.get_extra_info("ssl_object")
            certificate = x509.load_der_x509_certificate(found.getpeercert(binary_form=True))
            common_name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
            return Handshake(str(common_name), found.version(), found.cipher()[0])
        finally:
            writer.transport.abort()

    async def run() -> list[Handshake]:
        async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server) as listening:
            port = listening.sockets[0].getsockname()[1]
            return [await shake(port, client) for client in clients]

    return asyncio.run(run())


# --- what is served --------------------------------------------------------------------------------------------------


def test_without_a_tls_port_there_is_no_context(place: Place) -> None:
    assert server_context(BrokerConfig()) is None
    assert server_context(place.config(broker_service_port_tls=None)) is None
    assert server_context(place.config(broker_service_port_tls=None, web_service_port_tls=0)) is not None


def test_a_client_that_trusts_the_authority_connects(place: Place) -> None:
    (seen,) = handshakes(place.context(), place.client())
    assert seen.server_name == "first"
    assert seen.version == "TLSv1.3"


def test_a_client_that_does_not_trust_the_authority_refuses(place: Place) -> None:
    stranger = ssl.create_default_context(cadata=Authority.create().pem.decode())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshakes(place.context(), stranger)


def test_the_chosen_version_alone_is_offered(place: Place) -> None:
    older = place.client()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    (seen,) = handshakes(place.context(tls_protocols=("TLSv1.2",)), place.client())
    assert seen.version == "TLSv1.2"
    with pytest.raises(REFUSED):
        handshakes(place.context(tls_protocols=("TLSv1.3",)), older)


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1.1", "SSLv3", "tls"])
def test_a_version_that_is_not_safe_or_not_known_is_an_error(place: Place, version: str) -> None:
    with pytest.raises(ConfigError, match="tlsProtocols"):
        place.context(tls_protocols=("TLSv1.2", version))


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_suites_may_be_named_as_java_or_as_openssl_names_them(place: Place, given: str, used: str) -> None:
    place.write(*place.authority.issue("first", rsa.generate_private_key(65537, 2048)))
    client = place.client()
    client.set_ciphers("ALL:@SECLEVEL=0")
    (seen,) = handshakes(place.context(tls_ciphers=(given,)), client)
    assert (seen.version, seen.cipher) == ("TLSv1.2", used)


def test_suites_of_tls_1_3_alone_mean_tls_1_3_alone(place: Place) -> None:
    context = place.context(tls_ciphers=("TLS_AES_256_GCM_SHA384",))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    mixed = place.context(tls_ciphers=("TLS_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256"))
    (seen,) = handshakes(mixed, place.client())
    assert seen.version == "TLSv1.3"
    with pytest.raises(ConfigError, match="tlsCiphers"):
        place.context(tls_ciphers=("TLS_AES_256_GCM_SHA384",), tls_protocols=("TLSv1.2",))


def test_an_unknown_suite_among_known_ones_is_an_error(place: Place) -> None:
    with pytest.raises(ConfigError, match="TLS_RSA_WITH_NOTHING"):
        place.context(tls_ciphers=("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_RSA_WITH_NOTHING"))


# --- clients that must prove themselves ------------------------------------------------------------------------------


def test_a_client_certificate_is_asked_for_where_it_is_required(place: Place) -> None:
    trust = place.path / "trust.pem"
    clients = Authority.create("Clients")
    trust.write_bytes(clients.pem)
    context = place.context(tls_trust_certs_file_path=str(trust), tls_require_trusted_client_cert_on_connect=True)
    certificate, key = clients.issue("alice")
    assert handshakes(context, place.client(certificate=certificate, key=key))
    for bad in (
        place.client(),
        place.client(**dict(zip(("certificate", "key"), Authority.create().issue("mallory"), strict=True))),
        place.client(**dict(zip(("certificate", "key"), clients.issue("alice", expired=True), strict=True))),
    ):
        with pytest.raises(REFUSED):
            handshakes(context, bad)


def test_a_client_certificate_may_be_left_out_where_it_is_not_required_but_must_be_good(place: Place) -> None:
    trust = place.path / "trust.pem"
    trust.write_bytes(place.authority.pem)
    context = place.context(tls_trust_certs_file_path=str(trust))
    assert handshakes(context, place.client())
    certificate, key = Authority.create().issue("mallory")
    with pytest.raises(REFUSED):
        handshakes(context, place.client(certificate=certificate, key=key))


def test_requiring_client_certificates_needs_authorities_to_trust(place: Place) -> None:
    with pytest.raises(ConfigError, match="tlsTrustCertsFilePath"):
        place.context(tls_require_trusted_client_cert_on_connect=True)
    (place.path / "trust.pem").write_text("garbage")
    with pytest.raises(ConfigError, match="tlsTrustCertsFilePath"):
        place.context(tls_trust_certs_file_path=str(place.path / "trust.pem"))


# --- files that are not what they should be --------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "setting"), [("cert.pem", "tlsCertificateFilePath"), ("key.pem", "tlsKeyFilePath")])
def test_a_missing_file_is_named_with_its_setting(place: Place, file: str, setting: str) -> None:
    (place.path / file).unlink()
    with pytest.raises(ConfigError, match=rf"{setting}.*{file}.*No such file"):
        place.context()


@pytest.mark.parametrize(("file", "setting"), [("cert.pem", "tlsCertificateFilePath"), ("key.pem", "tlsKeyFilePath")])
def test_a_directory_and_garbage_are_errors(place: Place, file: str, setting: str) -> None:
    (place.path / file).write_text("garbage")
    with pytest.raises(ConfigError, match=setting):
        place.context()
    (place.path / file).unlink()
    (place.path / file).mkdir()
    with pytest.raises(ConfigError, match=rf"{setting}.*directory"):
        place.context()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_file_that_may_not_be_read_is_an_error(place: Place) -> None:
    (place.path / "key.pem").chmod(0)
    with pytest.raises(ConfigError, match=r"tlsKeyFilePath.*Permission"):
        place.context()


def test_a_key_of_another_certificate_is_an_error(place: Place) -> None:
    place.write(place.authority.issue("other")[0])
    with pytest.raises(ConfigError, match="does not belong"):
        place.context()


def test_an_encrypted_key_is_an_error_and_not_a_question_on_the_terminal(place: Place) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate, _ = place.authority.issue("first", key)
    place.write(certificate, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    with pytest.raises(ConfigError, match="encrypted"):
        place.context()


# --- renewal ---------------------------------------------------------------------------------------------------------


def test_an_expired_certificate_is_refused_by_clients_until_it_is_renewed(place: Place) -> None:
    place.write(*place.authority.issue("old", expired=True))
    context = place.context(tls_cert_refresh_check_duration_sec=0)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshakes(context, place.client())
    place.write(*place.authority.issue("new"))
    assert handshakes(context, place.client())[0].server_name == "new"


def test_renewal_is_looked_for_no_more_often_than_configured(place: Place) -> None:
    context = place.context(tls_cert_refresh_check_duration_sec=300)
    place.write(*place.authority.issue("second"))
    place.clock = 299
    assert handshakes(context, place.client())[0].server_name == "first"
    place.clock = 300
    assert handshakes(context, place.client())[0].server_name == "second"


def test_a_client_that_names_no_server_gets_the_renewed_certificate_too(place: Place) -> None:
    context = place.context(tls_cert_refresh_check_duration_sec=0)
    place.write(*place.authority.issue("second"))
    client = place.client()
    client.check_hostname = False
    (seen,) = handshakes(context, client, name=None)
    assert seen.server_name == "second"


def test_a_renewal_half_done_changes_nothing_until_it_is_whole(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    context = place.context(tls_cert_refresh_check_duration_sec=0)
    certificate, key = place.authority.issue("second")
    place.write(certificate)
    assert [seen.server_name for seen in handshakes(context, place.client(), place.client())] == ["first", "first"]
    assert [record.levelname for record in caplog.records if "cannot reload the TLS certificate" in record.message] == [
        "WARNING"
    ]
    (place.path / "cert.pem").unlink()
    assert handshakes(context, place.client())[0].server_name == "first"
    place.write(certificate, key)
    assert handshakes(context, place.client())[0].server_name == "second"


def test_authorities_that_may_sign_for_clients_are_renewed_too(place: Place) -> None:
    trust = place.path / "trust.pem"
    trust.write_bytes(Authority.create("Old").pem)
    context = place.context(
        tls_trust_certs_file_path=str(trust),
        tls_require_trusted_client_cert_on_connect=True,
        tls_cert_refresh_check_duration_sec=0,
    )
    new = Authority.create("New")
    certificate, key = new.issue("alice")
    client = place.client(certificate=certificate, key=key)
    with pytest.raises(REFUSED):
        handshakes(context, client)
    replace(trust, new.pem)
    assert handshakes(context, client)
