"""Offload drivers by name, through the entry points that register them.

Every package that needs a driver resolves it here: the server, tasks, readers in any process, and the checker. A driver
is supported if and only if an installed distribution registers it in the group ``afterglow.offloaders``; the built-in
ones are registered by Afterglow itself.
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
"""Entry points of drivers, by the name that policies and metadata use; case does not count."""

M = TypeVar("M", bound="Callable[..., Any]")

_loaded: dict[str, Factory] = {}
_lock = threading.Lock()


def unsupported(method: M) -> M:
    """Mark the default of an optional method of drivers: one that inherits it does not support the method."""
    method.is_unsupported = True  # type: ignore[attr-defined]
    return method


def can_stream(offloader: object) -> bool:
    """Whether a driver writes segments, or takes whole ledgers only."""
    method = getattr(type(offloader), "streaming_offload", None)
    return method is not None and not getattr(method, "is_unsupported", False)


def installed_drivers() -> tuple[str, ...]:
    """Names of all drivers that are installed, sorted."""
    return tuple(sorted(entry_points(group=DRIVER_GROUP).names))


def driver_factory(name: str) -> Factory:
    """The callable that a driver is registered with.

    Args:
        name: As in a policy or in metadata; case does not count.

    Raises:
        ConfigError: No such driver is installed.
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
