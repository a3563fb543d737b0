"""Counts of messages and bytes, and their rates per second.

A rate is the average over the last one to two periods, computed from counts that exist anyway: measuring it costs
nothing per message.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from afterglow.ledger.reader import ReadOrigin, ReadResult


class OriginBytes:
    """Bytes of entries that raw readers were sent, by origin, since the start. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._bytes: Counter[ReadOrigin] = Counter()

    def count(self, reading: ReadResult) -> None:
        """Add the entries of one read."""
        entries = iter(reading.entries)
        for origin, count in reading.origins:
            self._bytes[origin] += sum(len(entry.data) for entry in islice(entries, count))

    def __getitem__(self, origin: ReadOrigin) -> int:
        """The bytes of one origin."""
        return self._bytes[origin]


@dataclass(slots=True)
class Traffic:
    """Messages and their bytes in one direction since the topic was opened."""

    messages: int = 0
    size_bytes: int = 0

    def add(self, messages: int, size_bytes: int) -> None:
        """Add to the counts."""
        self.messages += messages
        self.size_bytes += size_bytes


def total(parts: Iterable[Traffic]) -> Traffic:
    """The sum of several counts."""
    whole = Traffic()
    for part in parts:
        whole.add(part.messages, part.size_bytes)
    return whole


class RateMeter:
    """Rates of several counts. Not thread-safe.

    A key that is missing in the older sample counts from 0; a count that is lower than before has restarted at 0.

    Args:
        monotonic: Seconds from any origin.
        period_s: Minimum time between the samples that :meth:`measure` takes.
    """

    __slots__ = ("_monotonic", "_newer", "_older", "_period_s")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, period_s: float = 0.0) -> None:
        self._monotonic = monotonic
        self._period_s = period_s
        self._older: tuple[float, Mapping[object, int]] = (monotonic(), {})
        self._newer: tuple[float, Mapping[object, int]] = self._older

    def sample(self, counts: Mapping[object, int]) -> None:
        """Keep a sample of all counts, which must not change afterwards; to be called once per period."""
        self._older, self._newer = self._newer, (self._monotonic(), counts)

    def growth(self, counts: Mapping[object, int]) -> tuple[dict[object, int], float]:
        """The growth of each count, and the seconds that it took."""
        since_s, before = self._older
        return {key: _grown(count, before.get(key, 0)) for key, count in counts.items()}, self._monotonic() - since_s

    def measure(self, counts: Mapping[object, int]) -> dict[object, float]:
        """Return the rates, and sample the counts if a period has passed since the last sample."""
        if self._monotonic() - self._newer[0] >= self._period_s:
            self.sample(counts)
        grown, passed_s = self.growth(counts)
        return {key: more / passed_s if passed_s else 0.0 for key, more in grown.items()}


def _grown(count: int, before: int) -> int:
    return count - before if count >= before else count


@dataclass(frozen=True, slots=True)
class Rate:
    """Average traffic per second."""

    messages: float = 0.0
    size_bytes: float = 0.0
    message_bytes: float = 0.0
    """Average size of a message; 0 without messages."""


class TrafficMeter:
    """Rate of one count of messages and bytes that starts at 0 now.

    Args:
        monotonic: Seconds from any origin.
    """

    __slots__ = ("_meter",)

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._meter = RateMeter(monotonic)

    def sample(self, count: Traffic) -> None:
        """Keep a sample of the count; to be called once per period."""
        self._meter.sample({"messages": count.messages, "bytes": count.size_bytes})

    def rate(self, count: Traffic) -> Rate:
        """The rate up to now, from the current count."""
        grown, passed_s = self._meter.growth({"messages": count.messages, "bytes": count.size_bytes})
        messages, size_bytes = grown["messages"], grown["bytes"]
        if passed_s <= 0:
            return Rate()
        # The average size comes from the counts: the quotient of two rounded rates would be slightly off.
        return Rate(messages / passed_s, size_bytes / passed_s, size_bytes / messages if messages else 0.0)
