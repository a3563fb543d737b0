"""Tiers: locations of offloaded objects, the drivers that write them, and the stores that hold them.

Entry points: :class:`~afterglow.tier.locations.TierLocation` names a location, :class:`~afterglow.tier.locations.Tiers`
opens its store, :func:`~afterglow.tier.drivers.driver_factory` finds the driver of a policy.
"""
