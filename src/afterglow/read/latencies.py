"""How long requests took: count and sum since the start, and quantiles of the last minutes, in little memory.

Times are counted in classes, four to each doubling, so that a quantile is told at most a quarter too high and never too
low. The longest is kept as it is. Two generations of classes, each filled for some minutes, make the window.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

QUANTILES: Final = (0.5, 0.95, 0.99, 1.0)
"""Those that Pulsar's offloader tells."""
_GENERATION_S: Final = 300.0
"""Quantiles are of the last five to ten minutes; of Pulsar's, of ten."""


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Requests in numbers. Times are microseconds."""

    count: int = 0
    """Since the start."""
    sum_us: int = 0
    quantiles: Mapping[float, int] = field(default_factory=dict)
    """Of the window; empty where there was none in it."""


class Latencies:
    """Times of requests. Thread-safe.

    Args:
        monotonic: Seconds from any origin.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = Lock()
        self._count = 0
        self._sum_us = 0
        self._begun_s = monotonic()
        self._older = _Generation()
        self._newer = _Generation()

    def record(self, seconds: float) -> None:
        """A request took so long."""
        took_us = max(round(seconds * 1e6), 0)
        with self._lock:
            self._turn()
            self._count += 1
            self._sum_us += took_us
            self._newer.classes[_class_of(took_us)] += 1
            self._newer.longest_us = max(self._newer.longest_us, took_us)

    def summary(self) -> LatencySummary:
        """The numbers as of now."""
        with self._lock:
            self._turn()
            classes = self._older.classes + self._newer.classes
            longest_us = max(self._older.longest_us, self._newer.longest_us)
            return LatencySummary(self._count, self._sum_us, _quantiles(classes, longest_us))

    def _turn(self) -> None:
        """Begin a new generation where it is time to."""
        now_s = self._monotonic()
        if now_s - self._begun_s < _GENERATION_S:
            return
        both_are_old = now_s - self._begun_s >= 2 * _GENERATION_S
        self._older = _Generation() if both_are_old else self._newer
        self._newer = _Generation()
        self._begun_s = now_s


class _Generation:
    """Requests of some minutes, by the class of their time."""

    def __init__(self) -> None:
        self.classes: Counter[int] = Counter()
        self.longest_us = 0


def _quantiles(classes: Counter[int], longest_us: int) -> dict[float, int]:
    total = classes.total()
    if not total:
        return {}
    found: dict[float, int] = {}
    passed = 0
    ordered = iter(sorted(classes.items()))
    longest_so_far = 0
    for quantile in QUANTILES:
        while passed < quantile * total:
            number, count = next(ordered)
            passed += count
            longest_so_far = _longest_of(number)
        found[quantile] = min(longest_so_far, longest_us)
    return found


def _class_of(took_us: int) -> int:
    """Which class a time belongs to: up to 7 µs each its own, then by its first three bits."""
    shift = max(took_us.bit_length() - 3, 0)
    return 4 * shift + (took_us >> shift)


def _longest_of(number: int) -> int:
    """The longest time of a class."""
    shift = max(number // 4 - 1, 0)
    return ((number - 4 * shift + 1) << shift) - 1
