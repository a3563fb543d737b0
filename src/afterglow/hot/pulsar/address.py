"""Addresses of a cluster's brokers, with the credentials for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from afterglow.errors import ConfigError

_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One broker or proxy."""

    host: str
    port: int
    tls: bool

    @property
    def authority(self) -> str:
        """Host and port, as a proxy expects them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"pulsar{'+ssl' if self.tls else ''}://{self.authority}"


@dataclass(frozen=True, slots=True)
class PulsarAddress:
    """Address of a cluster with credentials; serialisable, for tasks on other machines.

    Raises:
        ConfigError: The service URL is not well-formed.
    """

    service_url: str
    """``pulsar://host:port`` or ``pulsar+ssl://host:port``; several hosts separated by commas."""
    token: str | None = field(default=None, repr=False)
    """Authentication token; None without authentication."""
    trust_certs: str | None = field(default=None, repr=False)
    """Trusted certificates for TLS: the path of a PEM file on the machine that connects, or the PEM text itself, which
    needs no file there. None: those of the system."""
    verify_hostname: bool = True
    """Whether a broker's certificate must match its host name."""
    listener_name: str | None = None
    """The advertised listener to use; None: the default one."""

    def __post_init__(self) -> None:
        parse_service_url(self.service_url)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Every host of the service URL, in its order."""
        return parse_service_url(self.service_url)


@dataclass(frozen=True, slots=True)
class ClusterBrokers:
    """The brokers of an Apache Pulsar cluster, as a source of entries of which some are not delivered; serialisable.

    Brokers deliver neither markers nor messages of aborted transactions; in their place are entries without any byte.
    """

    address: PulsarAddress


def parse_service_url(url: str) -> tuple[Endpoint, ...]:
    """Every host of a service URL.

    Raises:
        ConfigError: It is not well-formed.
    """
    scheme, _, rest = url.strip().partition("://")
    if scheme not in _PORTS or not rest.strip("/"):
        raise ConfigError(f"invalid service URL {url!r}; expected pulsar://HOST:PORT or pulsar+ssl://HOST:PORT")
    return tuple(_endpoint(scheme, item, url) for item in rest.rstrip("/").split(","))


def _endpoint(scheme: str, text: str, url: str) -> Endpoint:
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"invalid host {text!r} in the service URL {url!r}: {error}; expected HOST:PORT") from error
    if not host or parts.path or parts.query or parts.username:
        raise ConfigError(f"invalid host {text!r} in the service URL {url!r}; expected HOST:PORT")
    return Endpoint(host, port or _PORTS[scheme], scheme == "pulsar+ssl")
