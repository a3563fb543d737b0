"""Backoff between attempts, and token buckets that limit rates. No other module computes waits between retries."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DOUBLINGS: Final = 40
"""Keeps the power finite; every sensible maximum is reached before."""

_RANDOM: Final = random.Random()  # noqa: S311 - spreads load, guards nothing


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: the first delay doubles with each consecutive failure, up to the longest.

    Delays have the unit of time of ``first`` and ``longest``.
    """

    first: float
    longest: float

    def delay(self, failures: int) -> float:
        """Return the delay after so many consecutive failures; 0 after none."""
        return min(self.first * 2 ** min(failures - 1, _MAX_DOUBLINGS), self.longest) if failures > 0 else 0

    def jittered(self, failures: int, rng: random.Random = _RANDOM) -> float:
        """Return a delay drawn uniformly from 0 to :meth:`delay` (full jitter): many clients do not retry at once."""
        return rng.uniform(0, self.delay(failures))


class TokenBucket:
    """A token bucket that refills at ``rate`` tokens per second and holds at most one second's worth.

    The balance may become negative: a charge larger than a second's worth is accepted, and later charges wait until
    the balance is positive again. So the rate holds over time for charges of any size, and no caller starves.

    Args:
        rate: Tokens per second, above 0.
        clock: Monotonic clock, in seconds.

    Raises:
        ConfigError: The rate is not positive.
    """

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if rate <= 0:
            raise ConfigError(f"invalid rate {rate}/s; it must be above 0")
        self._rate = rate
        self._clock = clock
        self._lock = Lock()
        self._tokens = rate
        self._refilled_at = clock()

    def charge(self, tokens: float) -> float:
        """Take tokens without waiting; returns the seconds until the balance is positive again."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._rate, self._tokens + (now - self._refilled_at) * self._rate) - tokens
            self._refilled_at = now
            return max(0.0, -self._tokens / self._rate)
