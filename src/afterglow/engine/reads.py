"""Where the topics of an engine read from, and what was read from where."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from afterglow.read.counters import ReadCounters
from afterglow.read.tiered import TieredSource

if TYPE_CHECKING:
    from afterglow.offload.policies import Policies
    from afterglow.read.copies import HotReader
    from afterglow.read.counters import ReadCounts
    from afterglow.read.tier_source import TierSource


class TopicSources:
    """Sources of all topics; see :data:`~afterglow.ledger.source.Sources`. Thread-safe.

    Args:
        hot: The hot log.
        tiers: Reads objects.
        policies: Say which copy to read while both exist.
    """

    def __init__(self, hot: HotReader, tiers: TierSource, policies: Policies) -> None:
        self._hot = hot
        self._tiers = tiers
        self._policies = policies
        self._total = ReadCounters()
        self._lock = threading.Lock()
        self._topics: dict[str, ReadCounters] = {}

    def __call__(self, name: str) -> TieredSource:
        """The source of a topic by its managed-ledger name; a topic that is opened again counts on."""
        with self._lock:
            counters = self._topics.setdefault(name, ReadCounters(self._total))
        return TieredSource(name, self._hot, self._tiers, partial(self._policies.of, name), counters)

    def counts(self, name: str) -> ReadCounts | None:
        """What was read of a topic since the start; None where it was not opened yet."""
        with self._lock:
            counters = self._topics.get(name)
        return None if counters is None else counters.counts()

    def total(self) -> ReadCounts:
        """What was read of all topics since the start."""
        return self._total.counts()
