"""Admission of tasks at the rates that policies allow, without anybody waiting.

A task is handed out when no bucket that it draws on is in debt, and may then bring them into debt by its size: so the
rate holds over time for tasks of any size. What is not admitted is asked for again at the next look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from afterglow.storage.throttle import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.config import BrokerConfig
    from afterglow.ledger.clock import Clock


class _Rated(NamedTuple):
    rate: int
    bucket: TokenBucket


class Admission:
    """Buckets of bytes and requests, for the process and for each topic. Not thread-safe.

    Args:
        clock: Tokens are earned by its time that only passes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Rated] = {}

    def open(self, name: str, policy: BrokerConfig) -> bool:
        """Whether a task of the topic may be handed out now."""
        return all(bucket.charge(0) <= 0 for _, bucket in self._of(name, policy))

    def charge(self, name: str, policy: BrokerConfig, size_bytes: int, requests: int) -> None:
        """Take note of a task that is handed out."""
        for unit, bucket in self._of(name, policy):
            bucket.charge(size_bytes if unit == "bytes" else requests)

    def forget(self, name: str) -> None:
        """Drop the buckets of a topic."""
        for unit in ("bytes", "requests"):
            self._buckets.pop((name, unit), None)

    def _of(self, name: str, policy: BrokerConfig) -> Iterator[tuple[str, TokenBucket]]:
        for owner, unit, rate in (
            ("", "bytes", policy.offload_throttling_rate_in_bytes),
            ("", "requests", policy.offload_throttling_rate_in_requests),
            (name, "bytes", policy.offload_throttling_rate_per_topic_in_bytes),
            (name, "requests", policy.offload_throttling_rate_per_topic_in_requests),
        ):
            if not rate:
                self._buckets.pop((owner, unit), None)
                continue
            known = self._buckets.get((owner, unit))
            if known is None or known.rate != rate:  # a policy was changed: the new rate holds from a full bucket on
                known = self._buckets[owner, unit] = _Rated(rate, TokenBucket(rate, clock=self._clock.monotonic))
            yield unit, known.bucket
