"""Authentication of clients on all ports, and the check of the addresses that the broker listens on.

The result is a :class:`Principal`, or an error that names the setting and the fix and never the credentials. Rights of
roles are in :mod:`~afterglow.broker.authorization`.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final

from afterglow.config import AuthenticationProvider
from afterglow.errors import ConfigError
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused

if TYPE_CHECKING:
    from collections.abc import Collection

    from afterglow.broker.tokens import TokenVerifier
    from afterglow.config import BrokerConfig

TOKEN: Final = "token"  # noqa: S105 - the name of the method
"""Name of the method in CONNECT."""

_NO_METHOD: Final = frozenset({"", "none"})
"""Names that clients without credentials send."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated client."""

    role: str | None
    """None without authentication."""
    expires_at: float | None = None
    """Epoch seconds from which the token is not valid, allowed skew included. None: it does not expire."""


class Authenticator:
    """Authenticates clients. Thread-safe.

    Args:
        tokens: Verifies tokens; None without authentication.
        anonymous_role: Role of clients without credentials; None: they are refused.
        super_users: Roles that may do everything.
    """

    def __init__(
        self,
        tokens: TokenVerifier | None = None,
        *,
        anonymous_role: str | None = None,
        super_users: Collection[str] = (),
    ) -> None:
        self._tokens = tokens
        self._anonymous_role = anonymous_role
        self._super_users = frozenset(super_users)

    @classmethod
    def from_config(cls, config: BrokerConfig) -> Authenticator:
        """Create the authenticator of a configuration, and read its keys.

        Raises:
            ConfigError: A key cannot be read, or has the wrong kind for its setting.
            MissingDependency: Tokens are configured and their library is not installed.
        """
        if not config.authentication_enabled:
            return cls()
        if AuthenticationProvider.TOKEN not in config.authentication_providers:
            raise ConfigError("authenticationEnabled=true needs authenticationProviders=token")
        from afterglow.broker.tokens import TokenVerifier  # noqa: PLC0415 - an extra, and 0.2 s to import

        return cls(
            TokenVerifier(config), anonymous_role=config.anonymous_user_role, super_users=config.super_user_roles
        )

    @property
    def enabled(self) -> bool:
        """Whether clients must authenticate."""
        return self._tokens is not None

    def authenticate(self, method: str, data: bytes | str) -> Principal:
        """Authenticate a client by the method and the data of its CONNECT or AUTH_RESPONSE.

        Raises:
            Refused: The credentials are missing or not valid.
        """
        if self._tokens is None:
            return Principal(None)
        if method in _NO_METHOD:
            if self._anonymous_role is not None:
                return Principal(self._anonymous_role)
            raise _refused(
                "this broker requires a token (authenticationEnabled=true); "
                "configure the client with token authentication"
            )
        if method != TOKEN:
            raise _refused(f"authentication method {method[:32]!r} is not supported; use token authentication")
        token = _text(data).strip()
        if not token:
            raise _refused("the client sent an empty token; check where it reads its token from")
        return Principal(*self._tokens.verify(token))

    def authenticate_header(self, authorization: str | None) -> Principal:
        """Authenticate the sender of an HTTP request by its ``Authorization`` header.

        Raises:
            Refused: The credentials are missing or not valid.
        """
        if self._tokens is None:
            return Principal(None)
        token = bearer(authorization)
        return self.authenticate("none", b"") if token is None else self.authenticate(TOKEN, token)

    def is_super_user(self, role: str | None) -> bool:
        """Whether the role may do everything; without authentication every client may."""
        return not self.enabled or role in self._super_users


def bearer(header: str | None) -> str | None:
    """Return the token of an ``Authorization: Bearer …`` header; None without a header.

    Raises:
        Refused: The header has another scheme.
    """
    if header is None:
        return None
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != "bearer":
        raise _refused("the Authorization header has another scheme; send `Authorization: Bearer TOKEN`")
    return token.strip()


def check_exposure(config: BrokerConfig, *, insecure: bool) -> None:
    """Refuse to listen beyond this machine without authentication, or on a port without TLS.

    A host name is resolved to all its addresses, since the broker would listen on all of them.

    Raises:
        ConfigError: The broker would be exposed and ``insecure`` is not set, or the host name is unknown.
    """
    if insecure or is_loopback(config.bind_address):
        return
    plain = [
        key
        for key, port in (
            ("brokerServicePort", config.broker_service_port),
            ("webServicePort", config.web_service_port),
        )
        if port is not None
    ]
    if not plain and config.broker_service_port_tls is None and config.web_service_port_tls is None:
        return
    fixes = []
    if not config.authentication_enabled:
        fixes.append("set authenticationEnabled=true with authenticationProviders=token and a key")
    if plain:
        fixes.append(f"set {', '.join(f'{key}Tls' for key in plain)} and leave {', '.join(plain)} empty")
    if fixes:
        raise ConfigError(
            f"bindAddress {config.bind_address!r} can be reached from other machines: {'; '.join(fixes)}; "
            f"or bind to 127.0.0.1, or give --insecure"
        )


def is_loopback(host: str) -> bool:
    """Whether all addresses of a host name are loopback addresses.

    Raises:
        ConfigError: The name is unknown.
    """
    if not host:
        return False  # every address
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"bindAddress {host!r} cannot be resolved; set it to an address of this machine") from error
    return all(_is_loopback_address(str(sockaddr[0])) for *_, sockaddr in found)


def _is_loopback_address(text: str) -> bool:
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _text(data: bytes | str) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise _refused("the client sent a token that is not text; check where it reads its token from") from error


def _refused(message: str) -> Refused:
    return Refused(wire.AuthenticationError, message)
