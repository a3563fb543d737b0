"""Counts and latencies of reads: which tier served, why another one had to, and how long requests took.

Latencies have count and sum since the start, and quantiles of the last minutes, in little memory: times are counted in
classes, four to each doubling, so that a quantile is at most a quarter too high and never too low. The longest one is
kept as it is. Two generations of classes, each filled for some minutes, make the period that quantiles are of.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.errors import (
    AccessDenied,
    BucketMissing,
    FormatError,
    IndexMissing,
    LedgerMissing,
    ObjectMissing,
    StoreUnavailable,
    WrongVersion,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.read.copies import Tier


QUANTILES: Final = (0.5, 0.95, 0.99, 1.0)
"""Those that Pulsar's offloader reports."""
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


_REASONS = (
    (LedgerMissing, "gone"),
    (IndexMissing, "index_missing"),
    (ObjectMissing, "object_missing"),
    (BucketMissing, "bucket_missing"),
    (StoreUnavailable, "unreachable"),
    (AccessDenied, "denied"),
    (WrongVersion, "wrong_version"),
    (FormatError, "damaged"),
)


def reason_of(error: Exception) -> str:
    """One word for why a copy did not serve, for counters and metrics."""
    return next((word for kind, word in _REASONS if isinstance(error, kind)), "failed")


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """What was read so far. Bytes are of entries without their frames."""

    entries: Mapping[Tier, int] = field(default_factory=dict)
    bytes: Mapping[Tier, int] = field(default_factory=dict)
    fallbacks: Mapping[tuple[Tier, str], int] = field(default_factory=dict)
    """Reads that the wanted tier did not serve, by that tier and the reason; the other tier served."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Entries that no copy could give and that were left out, by reason."""
    requests: int = 0
    """Ranged reads of data objects."""
    fetched_bytes: int = 0
    """Bytes that came with them: more than was read from the tier where pieces were fetched twice, or for nothing."""
    failed: int = 0
    """Objects that could not be opened, and ranged reads that the store did not answer."""
    index_latency: LatencySummary = field(default_factory=LatencySummary)
    """Of opening objects: the head of the data object, its index, and what is made of it."""
    data_latency: LatencySummary = field(default_factory=LatencySummary)
    """Of ranged reads of data objects."""


class ReadCounters:
    """Counts of one topic; what is counted here is counted in the total too. Thread-safe.

    Args:
        total: Counts of all topics; None for the total itself.
    """

    def __init__(self, total: ReadCounters | None = None) -> None:
        self._total = total
        self._lock = Lock()
        self._entries: Counter[Tier] = Counter()
        self._bytes: Counter[Tier] = Counter()
        self._fallbacks: Counter[tuple[Tier, str]] = Counter()
        self._left_out: Counter[str] = Counter()
        self._requests = 0
        self._fetched_bytes = 0
        self._failed = 0
        self._index_latencies = Latencies()
        self._data_latencies = Latencies()

    def served(self, tier: Tier, entries: int, size_bytes: int) -> None:
        """A tier served entries."""
        with self._lock:
            self._entries[tier] += entries
            self._bytes[tier] += size_bytes
        if self._total is not None:
            self._total.served(tier, entries, size_bytes)

    def fell_back(self, wanted: Tier, reason: str) -> None:
        """The wanted tier did not serve a read, the other one did."""
        with self._lock:
            self._fallbacks[wanted, reason] += 1
        if self._total is not None:
            self._total.fell_back(wanted, reason)

    def left_out(self, entries: int, reason: str) -> None:
        """Entries were left out."""
        with self._lock:
            self._left_out[reason] += entries
        if self._total is not None:
            self._total.left_out(entries, reason)

    def fetched(self, size_bytes: int, seconds: float = 0.0) -> None:
        """A ranged read of a data object brought bytes, and took so long."""
        self._data_latencies.record(seconds)
        with self._lock:
            self._requests += 1
            self._fetched_bytes += size_bytes
        if self._total is not None:
            self._total.fetched(size_bytes, seconds)

    def opened(self, seconds: float) -> None:
        """An object was opened, which took so long."""
        self._index_latencies.record(seconds)
        if self._total is not None:
            self._total.opened(seconds)

    def failed(self) -> None:
        """An object could not be opened, or a ranged read was not answered."""
        with self._lock:
            self._failed += 1
        if self._total is not None:
            self._total.failed()

    @property
    def fallbacks(self) -> dict[tuple[Tier, str], int]:
        """How often which tier did not serve, and why."""
        with self._lock:
            return dict(self._fallbacks)

    def counts(self) -> ReadCounts:
        """The counts as of now."""
        with self._lock:
            return ReadCounts(
                dict(self._entries),
                dict(self._bytes),
                dict(self._fallbacks),
                dict(self._left_out),
                self._requests,
                self._fetched_bytes,
                self._failed,
                self._index_latencies.summary(),
                self._data_latencies.summary(),
            )
