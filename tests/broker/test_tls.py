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
"""Errors of a client that the server refuses: an alert, or the end of the connection."""


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


class TlsFiles:
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
    """Replace a file as renewal tools do: the new inode shows the change at any resolution of the clock."""
    staged = path.with_suffix(".new")
    staged.write_bytes(data)
    staged.replace(path)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


@dataclass(frozen=True)
class Handshake:
    """Results of a handshake, as the client sees them."""

    server_name: str
    version: str | None
    cipher: str


def handshakes(server: ssl.SSLContext, *clients: ssl.SSLContext, name: str | None = "localhost") -> list[Handshake]:
    """Perform a handshake with each client over loopback, and exchange a byte, since TLS 1.3 may refuse only then."""

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


def test_without_a_tls_port_there_is_no_context(files: TlsFiles) -> None:
    assert server_context(BrokerConfig()) is None
    assert server_context(files.config(broker_service_port_tls=None)) is None
    assert server_context(files.config(broker_service_port_tls=None, web_service_port_tls=0)) is not None


def test_a_client_that_trusts_the_authority_connects(files: TlsFiles) -> None:
    (seen,) = handshakes(files.context(), files.client())
    assert seen.server_name == "first"
    assert seen.version == "TLSv1.3"


def test_a_client_that_does_not_trust_the_authority_refuses(files: TlsFiles) -> None:
    stranger = ssl.create_default_context(cadata=Authority.create().pem.decode())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshakes(files.context(), stranger)


def test_only_the_configured_versions_are_offered(files: TlsFiles) -> None:
    older = files.client()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    (seen,) = handshakes(files.context(tls_protocols=("TLSv1.2",)), files.client())
    assert seen.version == "TLSv1.2"
    with pytest.raises(REFUSED):
        handshakes(files.context(tls_protocols=("TLSv1.3",)), older)


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1.1", "SSLv3", "tls"])
def test_an_unsafe_or_unknown_version_is_an_error(files: TlsFiles, version: str) -> None:
    with pytest.raises(ConfigError, match="tlsProtocols"):
        files.context(tls_protocols=("TLSv1.2", version))


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_cipher_suites_may_have_names_of_java_or_openssl(files: TlsFiles, given: str, used: str) -> None:
    files.write(*files.authority.issue("first", rsa.generate_private_key(65537, 2048)))
    client = files.client()
    client.set_ciphers("ALL:@SECLEVEL=0")
    (seen,) = handshakes(files.context(tls_ciphers=(given,)), client)
    assert (seen.version, seen.cipher) == ("TLSv1.2", used)


def test_cipher_suites_of_tls_1_3_only_mean_tls_1_3_only(files: TlsFiles) -> None:
    context = files.context(tls_ciphers=("TLS_AES_256_GCM_SHA384",))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    mixed = files.context(tls_ciphers=("TLS_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256"))
    (seen,) = handshakes(mixed, files.client())
    assert seen.version == "TLSv1.3"
    with pytest.raises(ConfigError, match="tlsCiphers"):
        files.context(tls_ciphers=("TLS_AES_256_GCM_SHA384",), tls_protocols=("TLSv1.2",))


def test_an_unknown_suite_among_known_ones_is_an_error(files: TlsFiles) -> None:
    with pytest.raises(ConfigError, match="TLS_RSA_WITH_NOTHING"):
        files.context(tls_ciphers=("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_RSA_WITH_NOTHING"))


# --- clients that must prove themselves ------------------------------------------------------------------------------


def test_a_client_certificate_is_requested_if_required(files: TlsFiles) -> None:
    trust = files.path / "trust.pem"
    clients = Authority.create("Clients")
    trust.write_bytes(clients.pem)
    context = files.context(tls_trust_certs_file_path=str(trust), tls_require_trusted_client_cert_on_connect=True)
    certificate, key = clients.issue("alice")
    assert handshakes(context, files.client(certificate=certificate, key=key))
    for bad in (
        files.client(),
        files.client(**dict(zip(("certificate", "key"), Authority.create().issue("mallory"), strict=True))),
        files.client(**dict(zip(("certificate", "key"), clients.issue("alice", expired=True), strict=True))),
    ):
        with pytest.raises(REFUSED):
            handshakes(context, bad)


def test_an_optional_client_certificate_may_be_omitted_but_must_be_valid(files: TlsFiles) -> None:
    trust = files.path / "trust.pem"
    trust.write_bytes(files.authority.pem)
    context = files.context(tls_trust_certs_file_path=str(trust))
    assert handshakes(context, files.client())
    certificate, key = Authority.create().issue("mallory")
    with pytest.raises(REFUSED):
        handshakes(context, files.client(certificate=certificate, key=key))


def test_requiring_client_certificates_needs_authorities_to_trust(files: TlsFiles) -> None:
    with pytest.raises(ConfigError, match="tlsTrustCertsFilePath"):
        files.context(tls_require_trusted_client_cert_on_connect=True)
    (files.path / "trust.pem").write_text("garbage")
    with pytest.raises(ConfigError, match="tlsTrustCertsFilePath"):
        files.context(tls_trust_certs_file_path=str(files.path / "trust.pem"))


# --- files that are not what they should be --------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "setting"), [("cert.pem", "tlsCertificateFilePath"), ("key.pem", "tlsKeyFilePath")])
def test_a_missing_file_is_named_with_its_setting(files: TlsFiles, file: str, setting: str) -> None:
    (files.path / file).unlink()
    with pytest.raises(ConfigError, match=rf"{setting}.*{file}.*No such file"):
        files.context()


@pytest.mark.parametrize(("file", "setting"), [("cert.pem", "tlsCertificateFilePath"), ("key.pem", "tlsKeyFilePath")])
def test_a_directory_and_garbage_are_errors(files: TlsFiles, file: str, setting: str) -> None:
    (files.path / file).write_text("garbage")
    with pytest.raises(ConfigError, match=setting):
        files.context()
    (files.path / file).unlink()
    (files.path / file).mkdir()
    with pytest.raises(ConfigError, match=rf"{setting}.*directory"):
        files.context()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_an_unreadable_file_is_an_error(files: TlsFiles) -> None:
    (files.path / "key.pem").chmod(0)
    with pytest.raises(ConfigError, match=r"tlsKeyFilePath.*Permission"):
        files.context()


def test_a_key_of_another_certificate_is_an_error(files: TlsFiles) -> None:
    files.write(files.authority.issue("other")[0])
    with pytest.raises(ConfigError, match="does not belong"):
        files.context()


def test_an_encrypted_key_is_an_error_instead_of_a_passphrase_prompt(files: TlsFiles) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate, _ = files.authority.issue("first", key)
    files.write(certificate, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    with pytest.raises(ConfigError, match="encrypted"):
        files.context()


# --- renewal ---------------------------------------------------------------------------------------------------------


def test_an_expired_certificate_is_refused_by_clients_until_it_is_renewed(files: TlsFiles) -> None:
    files.write(*files.authority.issue("old", expired=True))
    context = files.context(tls_cert_refresh_check_duration_sec=0)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshakes(context, files.client())
    files.write(*files.authority.issue("new"))
    assert handshakes(context, files.client())[0].server_name == "new"


def test_renewal_is_checked_no_more_often_than_configured(files: TlsFiles) -> None:
    context = files.context(tls_cert_refresh_check_duration_sec=300)
    files.write(*files.authority.issue("second"))
    files.clock = 299
    assert handshakes(context, files.client())[0].server_name == "first"
    files.clock = 300
    assert handshakes(context, files.client())[0].server_name == "second"


def test_a_client_without_server_name_gets_the_renewed_certificate_too(files: TlsFiles) -> None:
    context = files.context(tls_cert_refresh_check_duration_sec=0)
    files.write(*files.authority.issue("second"))
    client = files.client()
    client.check_hostname = False
    (seen,) = handshakes(context, client, name=None)
    assert seen.server_name == "second"


def test_an_incomplete_renewal_changes_nothing_until_it_is_complete(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    context = files.context(tls_cert_refresh_check_duration_sec=0)
    certificate, key = files.authority.issue("second")
    files.write(certificate)
    assert [seen.server_name for seen in handshakes(context, files.client(), files.client())] == ["first", "first"]
    assert [record.levelname for record in caplog.records if "cannot reload the TLS certificate" in record.message] == [
        "WARNING"
    ]
    (files.path / "cert.pem").unlink()
    assert handshakes(context, files.client())[0].server_name == "first"
    files.write(certificate, key)
    assert handshakes(context, files.client())[0].server_name == "second"


def test_trusted_authorities_are_reloaded_too(files: TlsFiles) -> None:
    trust = files.path / "trust.pem"
    trust.write_bytes(Authority.create("Old").pem)
    context = files.context(
        tls_trust_certs_file_path=str(trust),
        tls_require_trusted_client_cert_on_connect=True,
        tls_cert_refresh_check_duration_sec=0,
    )
    new = Authority.create("New")
    certificate, key = new.issue("alice")
    client = files.client(certificate=certificate, key=key)
    with pytest.raises(REFUSED):
        handshakes(context, client)
    replace(trust, new.pem)
    assert handshakes(context, client)
