"""Offload drivers by name, from the entry points that register them.

The server, tasks, readers and the verifier all resolve drivers here. A driver is supported if and only if an installed
distribution registers it in the entry point group ``afterglow.offloaders``; Afterglow registers the built-in ones.
"""

from __future__ import annotations

import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from afterglow.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig
    from afterglow.tier.locations import TierLocation, Tiers

    Factory: TypeAlias = Callable[[BrokerConfig, TierLocation | None, Tiers], Any]
    """Makes a :class:`~afterglow.offload.offloader.LedgerOffloader`."""

DRIVER_GROUP: Final = "afterglow.offloaders"
"""Entry point group of drivers, by the name in policies and metadata; names are case-insensitive."""

M = TypeVar("M", bound="Callable[..., Any]")

_loaded: dict[str, Factory] = {}
_lock = threading.Lock()


def unsupported(method: M) -> M:
    """Mark the default of an optional driver method: a driver that inherits it does not support the method."""
    method.is_unsupported = True  # type: ignore[attr-defined]
    return method


def can_stream(offloader: object) -> bool:
    """Return whether a driver writes segments, not only whole ledgers."""
    method = getattr(type(offloader), "streaming_offload", None)
    return method is not None and not getattr(method, "is_unsupported", False)


def installed_drivers() -> tuple[str, ...]:
    """Return the names of all installed drivers, sorted."""
    return tuple(sorted(entry_points(group=DRIVER_GROUP).names))


def driver_factory(name: str) -> Factory:
    """Return the factory that a driver is registered with.

    Args:
        name: Name in a policy or in metadata, case-insensitive.

    Raises:
        ConfigError: The driver is not installed.
        MissingDependency: Its package cannot be imported.
    """
    with _lock:
        if (known := _loaded.get(name.lower())) is not None:
            return known
        found = {point.name.lower(): point for point in entry_points(group=DRIVER_GROUP)}
        point = found.get(name.lower())
        if point is None:
            raise ConfigError(
                f"offload driver {name!r} is not installed; supported here: {', '.join(installed_drivers())}. Install "
                f"the package that registers it in the entry point group {DRIVER_GROUP}"
            )
        try:
            factory: Factory = point.load()
        except (ImportError, AttributeError) as error:
            package = "its package" if point.dist is None else f"the package {point.dist.name}"
            raise MissingDependency(
                f"offload driver {point.name} ({point.value}) cannot be loaded: {error}; install {package} again"
            ) from error
        _loaded[name.lower()] = factory
        return factory
