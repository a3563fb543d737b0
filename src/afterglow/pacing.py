"""Waits between attempts (backoff), and token buckets that limit rates."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_DOUBLINGS: Final = 40
"""Beyond this every sensible maximum is passed; the power must not overflow."""

_RANDOM: Final = random.Random()  # noqa: S311 - spreads load, guards nothing


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits after failures in a row: the first, doubled at each further failure, up to the longest.

    Any unit of time will do; what comes back is in the same one.
    """

    first: float
    longest: float

    def delay(self, failures: int) -> float:
        """How long to wait after so many failures in a row; 0 after none."""
        return min(self.first * 2 ** min(failures - 1, _MOST_DOUBLINGS), self.longest) if failures > 0 else 0

    def jittered(self, failures: int, rng: random.Random = _RANDOM) -> float:
        """A wait drawn evenly from 0 to :meth:`delay` (full jitter), so that many clients do not retry at once."""
        return rng.uniform(0, self.delay(failures))


class TokenBucket:
    """Earns ``rate`` tokens a second, and saves up at most one second's worth.

    A bucket may run into debt: a charge larger than a second's worth is accepted, and later ones wait until the debt
    is paid. So the rate holds over time for charges of any size, and nothing can starve.

    Args:
        rate: Tokens per second, above 0.
        clock: Seconds from any origin, never going back.

    Raises:
        ConfigError: The rate is not positive.
    """

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if rate <= 0:
            raise ConfigError(f"a rate of {rate}/s lets nothing through; it must be above 0")
        self._rate = rate
        self._clock = clock
        self._lock = Lock()
        self._tokens = rate
        self._refilled_at = clock()

    def charge(self, tokens: float) -> float:
        """Take tokens without waiting; returns for how many seconds the bucket is in debt now."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._rate, self._tokens + (now - self._refilled_at) * self._rate) - tokens
            self._refilled_at = now
            return max(0.0, -self._tokens / self._rate)
