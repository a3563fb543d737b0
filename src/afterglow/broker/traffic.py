"""Counts of messages and bytes that have passed, and their rates per second.

A rate is the average since one to two periods ago. Counts are kept anyway: nothing is done when a message passes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(slots=True)
class Traffic:
    """Messages and their bytes that went one way since the topic was opened."""

    messages: int = 0
    size_bytes: int = 0

    def add(self, messages: int, size_bytes: int) -> None:
        """Count more."""
        self.messages += messages
        self.size_bytes += size_bytes


def total(parts: Iterable[Traffic]) -> Traffic:
    """All together."""
    whole = Traffic()
    for part in parts:
        whole.add(part.messages, part.size_bytes)
    return whole


class RateMeter:
    """Rates of several counts. One call at a time.

    A key that is not in the sample of one period ago has counted from 0 since; a count that is lower than it was has
    begun anew.

    Args:
        monotonic: Seconds from any origin.
        period_s: Shortest time between samples that :meth:`measure` takes.
    """

    __slots__ = ("_monotonic", "_newer", "_older", "_period_s")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, period_s: float = 0.0) -> None:
        self._monotonic = monotonic
        self._period_s = period_s
        self._older: tuple[float, Mapping[object, int]] = (monotonic(), {})
        self._newer: tuple[float, Mapping[object, int]] = self._older

    def sample(self, counts: Mapping[object, int]) -> None:
        """Keep all counts as of now, which must not change any more; to be called once in a period."""
        self._older, self._newer = self._newer, (self._monotonic(), counts)

    def rates(self, counts: Mapping[object, int]) -> dict[object, float]:
        """The rates up to now, given all counts as of now."""
        grown, passed_s = self.growth(counts)
        return {key: more / passed_s if passed_s else 0.0 for key, more in grown.items()}

    def growth(self, counts: Mapping[object, int]) -> tuple[dict[object, int], float]:
        """By how much each count has grown, and in how many seconds."""
        since_s, before = self._older
        return {key: _grown(count, before.get(key, 0)) for key, count in counts.items()}, self._monotonic() - since_s

    def measure(self, counts: Mapping[object, int]) -> dict[object, float]:
        """As :meth:`rates`, and sample the counts if a period has passed since the last sample."""
        if self._monotonic() - self._newer[0] >= self._period_s:
            self.sample(counts)
        return self.rates(counts)


def _grown(count: int, before: int) -> int:
    return count - before if count >= before else count


@dataclass(frozen=True, slots=True)
class Rate:
    """Average traffic in a second."""

    messages: float = 0.0
    size_bytes: float = 0.0
    message_bytes: float = 0.0
    """Average size of a message; 0 where none has passed."""


class TrafficMeter:
    """The rate of one count of messages and bytes, which begins at 0 now.

    Args:
        monotonic: Seconds from any origin.
    """

    __slots__ = ("_meter",)

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._meter = RateMeter(monotonic)

    def sample(self, count: Traffic) -> None:
        """Keep the count as of now; to be called once in a period."""
        self._meter.sample({"messages": count.messages, "bytes": count.size_bytes})

    def rate(self, count: Traffic) -> Rate:
        """The rate up to now, given the count as of now."""
        grown, passed_s = self._meter.growth({"messages": count.messages, "bytes": count.size_bytes})
        messages, size_bytes = grown["messages"], grown["bytes"]
        if passed_s <= 0:
            return Rate()
        # The average is that of the counts: rates are rounded, and their quotient would be off by a little.
        return Rate(messages / passed_s, size_bytes / passed_s, size_bytes / messages if messages else 0.0)
