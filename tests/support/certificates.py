"""Certificates that sign themselves, for tests with TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def write_certificate(
    directory: Path, *, hosts: Sequence[str] = ("localhost",), addresses: Sequence[str] = ("127.0.0.1",)
) -> tuple[Path, Path]:
    """Write a certificate for hosts and addresses, valid for a day, and its key; returns their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "afterglow test")])
    now = dt.datetime.now(dt.UTC)
    names = [
        *(x509.DNSName(host) for host in hosts),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
    ]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / "certificate.pem", directory / "key.pem"
    certificate_path.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate_path, key_path
