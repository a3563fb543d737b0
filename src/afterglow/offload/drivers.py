"""From a policy to an offloader: drivers are entry points, ours among them.

A driver's package registers, in the group ``afterglow.offloaders``, under the name by which policies ask for it, a
callable ``factory(policy, own, tiers)``:

* ``policy``: the topic's :class:`~afterglow.config.BrokerConfig`; what is particular to the driver stands in its
  ``managed_ledger_extra_configurations``.
* ``own``: the engine's own :class:`~afterglow.read.places.TierPlace`, or None.
* ``tiers``: opens stores; a driver of its own kind need not use it.

It returns a :class:`~afterglow.offload.offloader.LedgerOffloader`, and is cheap: it is called for every ledger, in the
engine and in workers.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeAlias

from afterglow.errors import ConfigError, MissingDependency
from afterglow.offload.blocks import BlockOffloader
from afterglow.offload.offloader import NullOffloader, OffloadedLedger
from afterglow.offload.policy_checks import DRIVER_GROUP
from afterglow.read.places import MEMORY, place_of_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.read.copies import LedgerCopy
    from afterglow.read.places import TierPlace, Tiers
    from afterglow.read.stretches import Stretch

    Factory: TypeAlias = Callable[[BrokerConfig, TierPlace | None, Tiers], LedgerOffloader]

_loaded: dict[str, Factory] = {}
_lock = threading.Lock()


def offloader_of(policy: BrokerConfig, own: TierPlace | None, tiers: Tiers) -> LedgerOffloader:
    """The offloader that a policy asks for; without a driver, that of the engine's own tier.

    Without either, one that refuses every use.

    Raises:
        ConfigError: The driver is unknown, or the policy lacks something that it needs.
        NotSupported: The driver is reserved for a later release.
        MissingDependency: The driver's package cannot be imported.
    """
    if policy.managed_ledger_offload_driver is None:
        return NullOffloader() if own is None else BlockOffloader(own, policy, tiers)
    try:
        factory = _factory(policy.managed_ledger_offload_driver)
    except ConfigError:
        with suppress(ConfigError):
            place_of_policy(policy, own)  # which has a word of its own for drivers that are reserved
        raise
    return factory(policy, own, tiers)


def offloader_named(name: str, policy: BrokerConfig, tiers: Tiers) -> LedgerOffloader:
    """The offloader of a driver that wrote something once, whatever the policy asks for today.

    Raises:
        ConfigError: The driver is unknown, or the policy lacks something that it needs.
        NotSupported: The driver is reserved for a later release.
        MissingDependency: The driver's package cannot be imported.
    """
    return offloader_of(replace(policy, managed_ledger_offload_driver=name), None, tiers)


def foreign_copies(tiers: Tiers) -> Callable[[Stretch, BrokerConfig], LedgerCopy]:
    """Lets readers open ledgers that a driver of somebody else has written."""

    def open_copy(stretch: Stretch, policy: BrokerConfig) -> LedgerCopy:
        assert stretch.driver is not None
        assert stretch.ledger_id is not None
        given = {pair.key: pair.value for pair in stretch.driver.properties}
        offloader = offloader_named(stretch.driver.name, policy, tiers)
        return offloader.read_offloaded(stretch.ledger_id, OffloadedLedger(stretch.uuid, given))

    return open_copy


def block_offloader(policy: BrokerConfig, own: TierPlace | None, tiers: Tiers) -> LedgerOffloader:
    """What our own drivers are registered with.

    Raises:
        ConfigError: The policy lacks something that the driver needs.
        NotSupported: The driver is reserved for a later release.
    """
    return BlockOffloader(place_of_policy(policy, own), policy, tiers)


def is_block_driver(name: str) -> bool:
    """Whether a driver writes our objects, which need no driver to be found again.

    Raises:
        ConfigError: The driver is unknown.
        MissingDependency: The driver's package cannot be imported.
    """
    return name == MEMORY or _factory(name) is block_offloader


def _factory(name: str) -> Factory:
    with _lock:
        if (known := _loaded.get(name.lower())) is not None:
            return known
        found = {point.name.lower(): point for point in entry_points(group=DRIVER_GROUP)}
        point = found.get(name.lower())
        if point is None:
            names = ", ".join(sorted(point.name for point in found.values())) or "none"
            raise ConfigError(
                f"managedLedgerOffloadDriver={name} is unknown; known are {names}. Install the package that has it: "
                f"drivers are found through the entry point group {DRIVER_GROUP}"
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
