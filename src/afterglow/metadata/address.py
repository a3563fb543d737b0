"""Opening of the metadata store that an address names, by its scheme."""

from __future__ import annotations

import inspect
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import ConfigError
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.sqlite import SqliteMetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig
    from afterglow.metadata.store import MetadataStore

_FORMS: Final = "memory://NAME, sqlite:PATH or zk://HOST:2181[,HOST2:2181][/CHROOT]"
_ZOOKEEPER_PORT: Final = 2181


def open_metadata(address: str, config: BrokerConfig | None = None, **options: Any) -> MetadataStore:
    """Open the metadata store at ``address``; the caller closes it.

    Args:
        address: ``memory://NAME`` (shared within the process; without a name, a private store), ``sqlite:PATH``, or
            ``zk://HOST:PORT[,HOST2:PORT][/CHROOT]`` (Pulsar's own form ``zk:HOST:PORT`` is accepted).
        config: Settings with the timeouts of the store; None: the store's own defaults.
        options: Keyword arguments of the store's class; they override ``config``.

    Raises:
        ConfigError: The scheme or an option is unknown, or the address is malformed.
        MissingDependency: The store needs a package that is not installed.
        MetadataUnavailable: The store cannot be reached.
    """
    scheme, colon, rest = address.partition(":")
    opener = _OPENERS.get(scheme)
    if not colon or opener is None:
        near = get_close_matches(scheme, _OPENERS, n=1, cutoff=0.0)[0]
        raise ConfigError(f"unknown scheme in metadata address {address!r}; did you mean {near!r}? Forms: {_FORMS}")
    return opener(address, rest, _timeouts(scheme, config) | options)


def _timeouts(scheme: str, config: BrokerConfig | None) -> dict[str, Any]:
    """Return the options of a store that come from settings."""
    if config is None or scheme == "memory":
        return {}
    operation_s = float(config.metadata_store_operation_timeout_seconds)
    if scheme == "sqlite":
        return {"busy_timeout_s": operation_s}
    session_s = config.metadata_store_session_timeout_millis / 1000
    return {"operation_timeout_s": operation_s, "session_timeout_s": session_s}


def _open_memory(address: str, rest: str, options: dict[str, Any]) -> MetadataStore:
    if not rest.startswith("//"):
        raise ConfigError(f"invalid metadata address {address!r}; write memory://NAME")
    _check_options(address, MemoryMetadataStore, options)
    return MemoryMetadataStore(rest[2:] or None, **options)


def _open_sqlite(address: str, rest: str, options: dict[str, Any]) -> MetadataStore:
    if not rest or (rest.startswith("//") and not rest.startswith("///")):
        raise ConfigError(f"invalid metadata address {address!r}; write sqlite:PATH")
    _check_options(address, SqliteMetadataStore, options)
    return SqliteMetadataStore(rest, **options)


def _open_zookeeper(address: str, rest: str, options: dict[str, Any]) -> MetadataStore:
    from afterglow.metadata.zookeeper import ZooKeeperMetadataStore  # noqa: PLC0415  kazoo is optional

    hosts, slash, chroot = rest.removeprefix("//").partition("/")
    members = [_with_port(address, host) for host in hosts.split(",")]
    _check_options(address, ZooKeeperMetadataStore, options)
    return ZooKeeperMetadataStore(",".join(members), chroot=(slash + chroot).rstrip("/"), **options)


def _with_port(address: str, host: str) -> str:
    match = re.fullmatch(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::(?P<port>[0-9]{1,5}))?", host)
    if match is None:
        raise ConfigError(f"invalid host {host!r} in metadata address {address!r}; write HOST:PORT")
    return f"{match['name']}:{match['port'] or _ZOOKEEPER_PORT}"


def _check_options(address: str, store: type, options: dict[str, Any]) -> None:
    parameters = inspect.signature(store).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ConfigError(f"the metadata store {address!r} has no option {name!r}; did you mean {near!r}?")


_OPENERS: Final[dict[str, Callable[[str, str, dict[str, Any]], MetadataStore]]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "zk": _open_zookeeper,
}
