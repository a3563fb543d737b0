"""Read priority (PIP-73): the order in which the copies of an entry are tried.

This is the only statement of the order: consumers (:mod:`~afterglow.read.entry_source`), scans and splits
(:mod:`~afterglow.read.split_planner`, :mod:`~afterglow.read.splits`) all call :func:`copy_order`. If the first copy
cannot be read, :mod:`~afterglow.read.fallback` reads the next.
"""

from __future__ import annotations

from afterglow.config.choices import ReadPriority
from afterglow.read.copies import StorageTier


def copy_order(priority: ReadPriority, *, has_hot: bool, has_tiered: bool) -> tuple[StorageTier, ...]:
    """The copies that may serve a read, the preferred one first; empty if no copy exists.

    Args:
        priority: Read priority of the request, else of the topic's policy.
        has_hot: Whether the hot log may have the entries, and can be reached.
        has_tiered: Whether a committed object in the tier holds them.
    """
    if priority is ReadPriority.BOOKKEEPER_FIRST:
        preferred = ((StorageTier.HOT, has_hot), (StorageTier.TIERED, has_tiered))
    else:
        preferred = ((StorageTier.TIERED, has_tiered), (StorageTier.HOT, has_hot))
    return tuple(tier for tier, exists in preferred if exists)
