"""Read priority (PIP-73): the order in which the copies of an entry are tried.

Consumers (:mod:`~afterglow.read.tiered`), scans and splits (:mod:`~afterglow.read.split_planner`,
:mod:`~afterglow.read.splits`) all use :func:`copy_order`. What happens when the first copy does not serve is in
:mod:`~afterglow.read.fallback`.
"""

from __future__ import annotations

from afterglow.config.choices import ReadPriority
from afterglow.read.copies import Tier


def copy_order(priority: ReadPriority, *, has_hot: bool, has_tiered: bool) -> tuple[Tier, ...]:
    """The copies that may serve a read, the preferred one first; empty where there is no copy.

    Args:
        priority: Of the reader, else of the topic's policy.
        has_hot: Whether the hot log may have the entries, and can be reached.
        has_tiered: Whether a committed object in the tier holds them.
    """
    if priority is ReadPriority.BOOKKEEPER_FIRST:
        preferred = ((Tier.HOT, has_hot), (Tier.TIERED, has_tiered))
    else:
        preferred = ((Tier.TIERED, has_tiered), (Tier.HOT, has_hot))
    return tuple(tier for tier, exists in preferred if exists)
