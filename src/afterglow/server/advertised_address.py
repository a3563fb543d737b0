"""The address that lookups return: one that clients can reach, and that the certificate names.

A client connects to the address in the response of a lookup. A wildcard such as ``0.0.0.0`` cannot be connected to, so
if ``advertisedAddress`` is not set, the address of this machine's default route is returned.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.config import BrokerConfig

log = logging.getLogger(__name__)

_WILDCARDS: Final = {
    "0.0.0.0": (socket.AF_INET, "192.0.2.1", "127.0.0.1"),  # noqa: S104 - compared, not bound
    "::": (socket.AF_INET6, "2001:db8::1", "::1"),
}
"""Family, an address of another machine (from the ranges for documentation), and the loopback address."""


def with_advertised_address(config: BrokerConfig) -> BrokerConfig:
    """Return the configuration with an advertised address, if the ports listen on all addresses of this machine.

    A configured address that the TLS certificate does not name is logged only, since clients need not verify it.

    Raises:
        ConfigError: ``advertisedAddress`` is not set, and the TLS certificate does not name the address found.
    """
    names = _certificate_names(config)
    if config.advertised_address or config.bind_address not in _WILDCARDS:
        host = config.advertised_address or config.bind_address
        if names is not None and not _names_host(names, host):
            log.warning(
                "the TLS certificate %s does not name %s, the address in lookups: clients that verify host names will "
                "not connect; set advertisedAddress to one of its names (%s), or renew the certificate",
                config.tls_certificate_file_path,
                host,
                ", ".join(names) or "none",
            )
        return config
    host = _own_address(config.bind_address)
    if names is not None and not _names_host(names, host):
        raise ConfigError(
            f"bindAddress {config.bind_address} is not an address that clients can connect to, and {host}, that of "
            f"this machine, is not in the TLS certificate {config.tls_certificate_file_path}; set advertisedAddress "
            f"to one of the names in the certificate: {', '.join(names) or 'none'}"
        )
    log.info("advertisedAddress is not set: lookups return %s", host)
    return dataclasses.replace(config, advertised_address=host)


def _own_address(wildcard: str) -> str:
    """The address from which this machine reaches others; the loopback address without a network."""
    family, elsewhere, loopback = _WILDCARDS[wildcard]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Connecting a datagram socket picks the route and sends nothing.
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return loopback


def _certificate_names(config: BrokerConfig) -> list[str] | None:
    """Host names and addresses in the certificate; None without a TLS port, or if the file cannot be read.

    Problems of the file are reported when the ports are opened.
    """
    path = config.tls_certificate_file_path
    if path is None or (config.broker_service_port_tls is None and config.web_service_port_tls is None):
        return None
    try:
        from cryptography import x509  # noqa: PLC0415 - an extra

        certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ImportError, OSError, ValueError):
        return None
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def _names_host(names: Iterable[str], host: str) -> bool:
    """Whether clients accept a certificate with these names for a host (RFC 9525)."""
    try:
        address = str(ipaddress.ip_address(host))
    except ValueError:
        wanted = host.lower().rstrip(".")
        above = f"*.{wanted.partition('.')[2]}"
        return any(name.lower() in {wanted, above} for name in names)
    return address in names
