"""Counts and latencies of reads: the copy that served, the reasons of fallbacks, and the duration of requests.

Latencies have count and sum since the start, and quantiles of the last minutes. Times are counted in buckets, four per
doubling, so that a quantile is at most a quarter too high and never too low; the maximum is exact. The quantiles cover
two generations of buckets, each filled for some minutes.
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

    from afterglow.read.copies import StorageTier


QUANTILES: Final = (0.5, 0.95, 0.99, 1.0)
"""The quantiles that Pulsar's offloader reports."""
_GENERATION_S: Final = 300.0
"""Quantiles cover the last five to ten minutes; those of Pulsar cover ten."""


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Latencies of requests, in microseconds."""

    count: int = 0
    """Since the start."""
    sum_us: int = 0
    quantiles: Mapping[float, int] = field(default_factory=dict)
    """Of the last minutes; empty without a request in them."""


class Latencies:
    """Latencies of requests. Thread-safe.

    Args:
        monotonic: Seconds from any origin.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = Lock()
        self._count = 0
        self._sum_us = 0
        self._started_s = monotonic()
        self._older = _Generation()
        self._newer = _Generation()

    def record(self, seconds: float) -> None:
        """Count a request."""
        took_us = max(round(seconds * 1e6), 0)
        with self._lock:
            self._rotate()
            self._count += 1
            self._sum_us += took_us
            self._newer.buckets[_bucket_of(took_us)] += 1
            self._newer.longest_us = max(self._newer.longest_us, took_us)

    def summary(self) -> LatencySummary:
        """The current numbers."""
        with self._lock:
            self._rotate()
            buckets = self._older.buckets + self._newer.buckets
            longest_us = max(self._older.longest_us, self._newer.longest_us)
            return LatencySummary(self._count, self._sum_us, _quantiles(buckets, longest_us))

    def _rotate(self) -> None:
        """Start a new generation if the current one is full."""
        now_s = self._monotonic()
        if now_s - self._started_s < _GENERATION_S:
            return
        both_expired = now_s - self._started_s >= 2 * _GENERATION_S
        self._older = _Generation() if both_expired else self._newer
        self._newer = _Generation()
        self._started_s = now_s


class _Generation:
    """Requests of some minutes, by bucket."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.longest_us = 0


def _quantiles(buckets: Counter[int], longest_us: int) -> dict[float, int]:
    total = buckets.total()
    if not total:
        return {}
    found: dict[float, int] = {}
    passed = 0
    ordered = iter(sorted(buckets.items()))
    longest = 0
    for quantile in QUANTILES:
        while passed < quantile * total:
            number, count = next(ordered)
            passed += count
            longest = _longest_in(number)
        found[quantile] = min(longest, longest_us)
    return found


def _bucket_of(took_us: int) -> int:
    """The bucket of a time: one per microsecond up to 7 µs, then by the first three bits."""
    shift = max(took_us.bit_length() - 3, 0)
    return 4 * shift + (took_us >> shift)


def _longest_in(number: int) -> int:
    """The longest time in a bucket."""
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
    """One word for why a copy could not be read, for counters and metrics."""
    return next((word for kind, word in _REASONS if isinstance(error, kind)), "failed")


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """Counts since the start. Bytes are those of entries without frames."""

    entries: Mapping[StorageTier, int] = field(default_factory=dict)
    bytes: Mapping[StorageTier, int] = field(default_factory=dict)
    fallbacks: Mapping[tuple[StorageTier, str], int] = field(default_factory=dict)
    """Reads that the preferred copy did not serve, by that copy and the reason."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Entries that are damaged in every copy and were skipped, by reason."""
    requests: int = 0
    """Ranged reads of data objects."""
    fetched_bytes: int = 0
    """Bytes fetched by them: more than were read from the tier if stripes were fetched twice, or not used."""
    failed: int = 0
    """Objects that could not be opened, and ranged reads that failed."""
    index_latency: LatencySummary = field(default_factory=LatencySummary)
    """Of opening objects: head of the data object, fetching and parsing of its index."""
    data_latency: LatencySummary = field(default_factory=LatencySummary)
    """Of ranged reads of data objects."""


class ReadCounters:
    """Counts of one topic, which are added to the total too. Thread-safe.

    Args:
        total: Counts of all topics; None for the total itself.
    """

    def __init__(self, total: ReadCounters | None = None) -> None:
        self._total = total
        self._lock = Lock()
        self._entries: Counter[StorageTier] = Counter()
        self._bytes: Counter[StorageTier] = Counter()
        self._fallbacks: Counter[tuple[StorageTier, str]] = Counter()
        self._skipped: Counter[str] = Counter()
        self._requests = 0
        self._fetched_bytes = 0
        self._failed = 0
        self._index_latencies = Latencies()
        self._data_latencies = Latencies()

    def served(self, tier: StorageTier, entries: int, size_bytes: int) -> None:
        """Count entries that a copy served."""
        with self._lock:
            self._entries[tier] += entries
            self._bytes[tier] += size_bytes
        if self._total is not None:
            self._total.served(tier, entries, size_bytes)

    def fell_back(self, preferred: StorageTier, reason: str) -> None:
        """Count a read that another copy than the preferred one served."""
        with self._lock:
            self._fallbacks[preferred, reason] += 1
        if self._total is not None:
            self._total.fell_back(preferred, reason)

    def skipped(self, entries: int, reason: str) -> None:
        """Count skipped entries."""
        with self._lock:
            self._skipped[reason] += entries
        if self._total is not None:
            self._total.skipped(entries, reason)

    def fetched(self, size_bytes: int, seconds: float = 0.0) -> None:
        """Count a ranged read of a data object."""
        self._data_latencies.record(seconds)
        with self._lock:
            self._requests += 1
            self._fetched_bytes += size_bytes
        if self._total is not None:
            self._total.fetched(size_bytes, seconds)

    def opened(self, seconds: float) -> None:
        """Count an opened object."""
        self._index_latencies.record(seconds)
        if self._total is not None:
            self._total.opened(seconds)

    def failed(self) -> None:
        """Count an object that could not be opened, or a ranged read that failed."""
        with self._lock:
            self._failed += 1
        if self._total is not None:
            self._total.failed()

    def counts(self) -> ReadCounts:
        """The current counts."""
        with self._lock:
            return ReadCounts(
                dict(self._entries),
                dict(self._bytes),
                dict(self._fallbacks),
                dict(self._skipped),
                self._requests,
                self._fetched_bytes,
                self._failed,
                self._index_latencies.summary(),
                self._data_latencies.summary(),
            )
