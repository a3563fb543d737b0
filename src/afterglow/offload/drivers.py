"""From a policy to an offloader: drivers are entry points, the built-in ones among them.

A driver's package registers, in the group ``afterglow.offloaders``, under the name by which policies ask for it, a
callable ``factory(policy, own, tiers)``:

* ``policy``: the topic's :class:`~afterglow.config.BrokerConfig`; what is particular to the driver stands in its
  ``managed_ledger_extra_configurations``.
* ``own``: the server's own :class:`~afterglow.read.places.TierPlace`, or None.
* ``tiers``: opens stores; a driver of its own kind need not use it.

It returns a :class:`~afterglow.offload.offloader.LedgerOffloader`, and is cheap: it is called for every ledger, in the
server and in workers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from afterglow.offload.blocks import BlockOffloader
from afterglow.offload.offloader import NullOffloader
from afterglow.read.drivers import driver_factory
from afterglow.read.places import is_built_in, place_of_policy

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.read.places import TierPlace, Tiers


def offloader_of(policy: BrokerConfig, own: TierPlace | None, tiers: Tiers) -> LedgerOffloader:
    """The offloader that a policy asks for; without a driver, that of the server's own tier.

    Without either, one that refuses every use.

    Raises:
        ConfigError: The driver is not installed, or the policy lacks something that it needs.
        MissingDependency: The driver's package cannot be imported.
    """
    if policy.managed_ledger_offload_driver is None:
        return NullOffloader() if own is None else BlockOffloader(own, policy, tiers)
    made = driver_factory(policy.managed_ledger_offload_driver)(policy, own, tiers)
    return cast("LedgerOffloader", made)


def offloader_at(place: TierPlace, policy: BrokerConfig, tiers: Tiers) -> LedgerOffloader:
    """The offloader that wrote something to a place once, whatever the policy asks for today.

    Raises:
        ConfigError: The driver is not installed, or the policy lacks something that it needs.
        MissingDependency: The driver's package cannot be imported.
    """
    if is_built_in(place.driver):
        return BlockOffloader(place, policy, tiers)
    return offloader_of(replace(policy, managed_ledger_offload_driver=place.driver), None, tiers)


def block_offloader(policy: BrokerConfig, own: TierPlace | None, tiers: Tiers) -> LedgerOffloader:
    """What the built-in drivers are registered with.

    Raises:
        ConfigError: The policy lacks something that the driver needs.
    """
    return BlockOffloader(place_of_policy(policy, own), policy, tiers)
