"""Access of offload tasks to the hot log of a server.

Tasks of a local Spark master read the ledger files. Tasks of other masters may run on other machines: they get the
address of the broker's port, a token and the trusted authorities, and read over the protocol.
"""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from afterglow.broker.auth import TOKEN, Authenticator, is_loopback
from afterglow.errors import ConfigError
from afterglow.format.wire import Refused
from afterglow.hot.pulsar import PulsarAddress
from afterglow.ledger.offload_buffer import OffloadBuffer
from afterglow.spark.master import is_local, master_hosts
from afterglow.tier.locations import FILESYSTEM

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.tier.locations import TierLocation

_log = logging.getLogger(__name__)

_TOKEN_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"  # noqa: S105 - the name of a class
_BEGIN: Final = "-----BEGIN"


class TaskAccess:
    """The address at which tasks of one server read its topics. Settings that cannot work are refused at once.

    Args:
        config: The broker's settings.
        location: The server's own tier.

    Raises:
        ConfigError: Tasks could not reach the broker, or could not authenticate.
    """

    def __init__(self, config: BrokerConfig, location: TierLocation) -> None:
        self._config = config
        self._urls = ("", "")
        self._trust_certs: str | None = None
        local = is_local(config.spark_master)
        self._over_protocol = not (local and config.offload_tasks_read_files)
        if not self._over_protocol:
            return
        _check_port(config)
        if not local:
            _check_reachable(config)
            if location.driver == FILESYSTEM:
                _log.warning(
                    "the tier %s must be the same directory on every machine where sparkMaster=%s runs tasks; share "
                    "it, or set another --tier",
                    *(location.url, config.spark_master),
                )
        _check_role(config, _token(config))
        self._trust_certs = _trust_certs(config)

    @property
    def buffer(self) -> OffloadBuffer | None:
        """Memory for entries that wait for their upload; None if tasks read them from disk."""
        budget_bytes = self._config.offload_buffer_max_bytes
        return OffloadBuffer(budget_bytes) if self._over_protocol and budget_bytes else None

    def set_broker_urls(self, service_url: str, service_url_tls: str) -> None:
        """Set the addresses of the broker's open ports; empty for a port that is not open."""
        self._urls = (service_url, service_url_tls)

    def __call__(self) -> PulsarAddress | None:
        """The address for a task; None if the task reads files.

        Raises:
            ConfigError: The token's file cannot be read.
        """
        if not self._over_protocol:
            return None
        plain, tls = self._urls
        return PulsarAddress(
            tls if self._config.broker_client_tls_enabled else plain or tls,
            token=_token(self._config),
            trust_certs=self._trust_certs,
            verify_hostname=self._config.tls_hostname_verification_enabled,
        )


def _check_port(config: BrokerConfig) -> None:
    if config.broker_client_tls_enabled and config.broker_service_port_tls is None:
        raise ConfigError("brokerClientTlsEnabled=true needs a TLS port for offload tasks; set brokerServicePortTls")
    if config.broker_service_port is None and config.broker_service_port_tls is None:
        raise ConfigError(
            f"sparkMaster={config.spark_master}, offloadTasksReadFiles="
            f"{str(config.offload_tasks_read_files).lower()}: offload tasks need a port of the broker; set "
            "brokerServicePort or brokerServicePortTls"
        )


def _check_reachable(config: BrokerConfig) -> None:
    """Refuse loopback addresses if tasks run on other machines; warn if that is not certain."""
    advertised = config.advertised_address or config.bind_address
    loopback = next(
        (
            f"{key}={host}"
            for key, host in (("bindAddress", config.bind_address), ("advertisedAddress", advertised))
            if is_loopback(host)
        ),
        None,
    )
    hosts = master_hosts(config.spark_master)
    if loopback is None or (hosts and all(map(_is_this_machine, hosts))):
        return
    problem = (
        f"sparkMaster={config.spark_master} runs offload tasks on other machines, which cannot reach the broker at "
        f"{loopback}; set bindAddress, and advertisedAddress to a name that they can resolve"
    )
    if hosts:
        raise ConfigError(problem)
    _log.warning("%s; this works only if all tasks run on this machine", problem)


def _is_this_machine(host: str) -> bool:
    """Whether all addresses of a host belong to this machine: a socket can be bound to such addresses only."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
    except OSError:
        return False
    return True


def _token(config: BrokerConfig) -> str | None:
    plugin, parameters = config.broker_client_authentication_plugin, config.broker_client_authentication_parameters
    if plugin not in {None, _TOKEN_PLUGIN}:
        raise ConfigError(
            f"brokerClientAuthenticationPlugin={plugin} is not supported for offload tasks that read over the "
            f"protocol; use {_TOKEN_PLUGIN}"
        )
    if parameters is None:
        if config.authentication_enabled and config.anonymous_user_role is None:
            raise ConfigError(
                "authenticationEnabled=true: offload tasks that read over the protocol need a token; set "
                "brokerClientAuthenticationParameters to token:… or file:///path"
            )
        return None
    if not parameters.startswith("file:"):
        return parameters.removeprefix("token:")
    path = Path(unquote(urlsplit(parameters).path))
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"brokerClientAuthenticationParameters: {path} cannot be read: {error}") from error


def _check_role(config: BrokerConfig, token: str | None) -> None:
    """Warn if authorization may refuse tasks. Topics and grants may be added later, so this is not an error."""
    if not config.authorization_enabled:
        return
    authenticator = Authenticator.from_config(config)
    try:
        role = authenticator.authenticate("none" if token is None else TOKEN, token or "").role
    except Refused as refused:
        _log.warning("offload tasks cannot read topics: brokerClientAuthenticationParameters: %s", refused)
        return
    if not authenticator.is_super_user(role):
        _log.warning(
            "offload tasks read topics as the role %r, which is not among superUserRoles: grant it consume on every "
            "topic that is offloaded, or set brokerClientAuthenticationParameters to a token of a superuser",
            role,
        )


def _trust_certs(config: BrokerConfig) -> str | None:
    """The content of the trust file, since the file may be missing on the machines where tasks run."""
    path = config.broker_client_trust_certs_file_path
    if path is None:
        return None
    try:
        pem = Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"brokerClientTrustCertsFilePath={path} cannot be read: {error}") from error
    if _BEGIN not in pem:
        raise ConfigError(f"brokerClientTrustCertsFilePath={path} contains no PEM certificate")
    return pem[pem.index(_BEGIN) :]
