"""Keeps the load on a store below a rate of bytes and of requests.

A bucket may run into debt: a request larger than a second's worth is let through, and those behind it wait until the
debt is paid. So the rate holds over time for requests of any size, and nothing can starve. One bucket may serve several
stores (a budget for the whole process), and one store several buckets (wrap it twice).
"""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from afterglow.errors import ConfigError
from afterglow.storage.wrapper import StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.storage.store import ObjectStore
    from afterglow.storage.wrapper import Call

__all__ = ["ThrottledStore", "TokenBucket"]

T = TypeVar("T")


class TokenBucket:
    """Hands out ``rate`` tokens a second, saving up at most ``burst``. A pickled copy is a full bucket of its own.

    Args:
        rate: Tokens per second, above 0.
        burst: Tokens that may be taken at once after a pause; by default one second's worth.
        clock: Seconds from any origin, never going back.
        sleep: Waits that many seconds.

    Raises:
        ConfigError: Rate or burst is not positive.
    """

    def __init__(
        self,
        rate: float,
        burst: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._burst = rate if burst is None else burst
        if self._rate <= 0 or self._burst <= 0:
            raise ConfigError(f"rate {rate}/s with burst {burst} lets nothing through; both must be above 0")
        self._clock = clock
        self._sleep = sleep
        self._lock = Lock()
        self._tokens = self._burst
        self._refilled_at = clock()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._rate, self._burst)

    def take(self, tokens: float) -> None:
        """Take tokens, and wait until they have been earned. Takers are served in order."""
        wait = self.charge(tokens)
        if wait > 0:
            self._sleep(wait)

    def charge(self, tokens: float) -> float:
        """Take tokens without waiting; tell for how many seconds the bucket is now in debt."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._refilled_at) * self._rate) - tokens
            self._refilled_at = now
            return max(0.0, -self._tokens / self._rate)


class ThrottledStore(StoreWrapper):
    """A store whose requests wait for their turn. Bytes read are charged once they are here and their number is known.

    Args:
        inner: The store.
        transfer: Bytes in either direction; None for no limit.
        requests: Requests; None for no limit.
    """

    def __init__(
        self, inner: ObjectStore, *, transfer: TokenBucket | None = None, requests: TokenBucket | None = None
    ) -> None:
        super().__init__(inner)
        self._transfer = transfer
        self._requests = requests

    def _call(self, call: Call, perform: Callable[[], T]) -> T:
        if self._requests is not None:
            self._requests.take(1)
        if self._transfer is None:
            return perform()
        self._transfer.take(call.sent_bytes)
        result = perform()
        if isinstance(result, memoryview):
            self._transfer.charge(result.nbytes)
        return result
