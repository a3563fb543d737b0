"""How offload tasks come to a server's hot log, wherever Spark runs them.

Tasks of a local master read the ledgers' files. Those of any other may run on other machines: they get the address of
the broker's port, a token and the authorities to trust, and read over the protocol what they do not find on their disk.
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
    """Where the tasks of one server read its topics. What cannot work is refused at once.

    Args:
        config: The broker's settings.
        location: The server's own tier.

    Raises:
        ConfigError: Tasks could not reach the broker, or would not be let in.
    """

    def __init__(self, config: BrokerConfig, location: TierLocation) -> None:
        self._config = config
        self._urls = ("", "")
        self._trust_certs: str | None = None
        local = is_local(config.spark_master)
        self._afar = not (local and config.offload_tasks_read_files)
        if not self._afar:
            return
        _check_port(config)
        if not local:
            _check_reachable(config)
            if location.driver == FILESYSTEM:
                _log.warning(
                    "the tier %s must be the same directory on every machine where sparkMaster=%s runs tasks: share "
                    "it, or give another --tier",
                    *(location.url, config.spark_master),
                )
        _check_role(config, _token(config))
        self._trust_certs = _trust_certs(config)

    @property
    def buffer(self) -> OffloadBuffer | None:
        """Memory for entries that wait for their upload; None where tasks find them on the disk."""
        budget_bytes = self._config.offload_buffer_max_bytes
        return OffloadBuffer(budget_bytes) if self._afar and budget_bytes else None

    def listening(self, service_url: str, service_url_tls: str) -> None:
        """The broker's ports are open; an address is empty where a port is not."""
        self._urls = (service_url, service_url_tls)

    def __call__(self) -> PulsarAddress | None:
        """The address that goes with a task; None where the task reads files.

        Raises:
            ConfigError: The token's file cannot be read any more.
        """
        if not self._afar:
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
        raise ConfigError("brokerClientTlsEnabled=true needs brokerServicePortTls, at which offload tasks read")
    if config.broker_service_port is None and config.broker_service_port_tls is None:
        raise ConfigError(
            f"sparkMaster={config.spark_master}, offloadTasksReadFiles="
            f"{str(config.offload_tasks_read_files).lower()}: offload tasks read at the broker's port, and none is "
            "open; set brokerServicePort or brokerServicePortTls"
        )


def _check_reachable(config: BrokerConfig) -> None:
    """Refuse ports that only this machine can reach where tasks run on another; where that is not sure, warn."""
    advertised = config.advertised_address or config.bind_address
    lonely = next(
        (
            f"{key}={host}"
            for key, host in (("bindAddress", config.bind_address), ("advertisedAddress", advertised))
            if is_loopback(host)
        ),
        None,
    )
    hosts = master_hosts(config.spark_master)
    if lonely is None or (hosts and all(map(_is_here, hosts))):
        return
    problem = (
        f"sparkMaster={config.spark_master} runs offload tasks on other machines, which cannot reach the broker at "
        f"{lonely}: set bindAddress, and advertisedAddress to a name that they know"
    )
    if hosts:
        raise ConfigError(problem)
    _log.warning("%s; this works only if they all run here", problem)


def _is_here(host: str) -> bool:
    """Whether a name stands for an address of this machine: only to such a one can a socket be bound."""
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
                "authenticationEnabled=true: offload tasks that read over the protocol must prove who they are; set "
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
    """Warn where authorization may keep tasks out: what topics there will be, and their grants, nobody knows yet."""
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
    """The authorities themselves: the file need not be on the machines where tasks run."""
    path = config.broker_client_trust_certs_file_path
    if path is None:
        return None
    try:
        pem = Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"brokerClientTrustCertsFilePath={path} cannot be read: {error}") from error
    if _BEGIN not in pem:
        raise ConfigError(f"brokerClientTrustCertsFilePath={path} holds no certificate in PEM")
    return pem[pem.index(_BEGIN) :]
