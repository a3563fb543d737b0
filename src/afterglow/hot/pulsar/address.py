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
        """Host and port, as a proxy is told them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"pulsar{'+ssl' if self.tls else ''}://{self.authority}"


@dataclass(frozen=True, slots=True)
class PulsarAddress:
    """A cluster, as its clients address it. Travels to other machines.

    Raises:
        ConfigError: The service URL is not well-formed.
    """

    service_url: str
    """``pulsar://host:port`` or ``pulsar+ssl://host:port``; several hosts with commas between."""
    token: str | None = field(default=None, repr=False)
    """Proves who this is; None where nothing is asked."""
    trust_certs: str | None = field(default=None, repr=False)
    """The authorities to trust with TLS: the path of a PEM file on the machine that connects, or PEM itself, which
    needs no file there. None: those that the system trusts."""
    verify_hostname: bool = True
    """Whether a broker's certificate must name the host that was asked for."""
    listener_name: str | None = None
    """Which of the brokers' advertised listeners to be sent to; None: the default one."""

    def __post_init__(self) -> None:
        parse_service_url(self.service_url)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Every host of the service URL, in its order."""
        return parse_service_url(self.service_url)


def parse_service_url(url: str) -> tuple[Endpoint, ...]:
    """Every host of a service URL.

    Raises:
        ConfigError: It is not well-formed.
    """
    scheme, _, rest = url.strip().partition("://")
    if scheme not in _PORTS or not rest.strip("/"):
        raise ConfigError(
            f"the service URL {url!r} is not well-formed: write pulsar://HOST:PORT or pulsar+ssl://HOST:PORT"
        )
    return tuple(_endpoint(scheme, item, url) for item in rest.rstrip("/").split(","))


def _endpoint(scheme: str, text: str, url: str) -> Endpoint:
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{text!r} in the service URL {url!r} is no HOST:PORT: {error}") from error
    if not host or parts.path or parts.query or parts.username:
        raise ConfigError(f"{text!r} in the service URL {url!r} is no HOST:PORT")
    return Endpoint(host, port or _PORTS[scheme], scheme == "pulsar+ssl")
