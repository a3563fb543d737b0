"""A store that retries failed requests, with backoff, within a deadline.

Only ``StoreUnavailable`` and its kinds, and ``ChecksumMismatch`` (bytes damaged on their way), are retried. Any of
them but ``StoreThrottled`` leaves open whether the request had its effect. Then:

* ``put``, ``upload_part``, ``delete``, ``abort_upload`` and all reads are repeated: twice does what once does.
* ``put`` with ``if_absent`` is repeated; if the key is then taken, the object there is read and compared. The same
  bytes and metadata mean that it is ours.
* ``complete_upload`` is repeated; if the upload is then gone, the object's length tells whether it was completed.
* ``create_upload`` is not repeated: it could leave an upload behind that nobody knows.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NoReturn, TypeVar

from afterglow.errors import (
    ChecksumMismatch,
    ObjectExists,
    ObjectMissing,
    StorageError,
    StoreThrottled,
    StoreTimeout,
    StoreUnavailable,
    UploadMissing,
)
from afterglow.pacing import Backoff
from afterglow.storage.store import as_view, normal_metadata
from afterglow.storage.wrapper import StoreRequest, StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from afterglow.storage.store import Data, ObjectStore, Part, Upload

__all__ = ["RetryPolicy", "RetryingStore"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often. The n-th pause is drawn evenly from 0 to ``first_delay_s * 2**n`` (full jitter)."""

    deadline_s: float = 120.0
    """From the first attempt; no attempt begins later. 0: no second attempt."""
    first_delay_s: float = 0.1
    """Longest first pause."""
    max_delay_s: float = 2.0
    """Longest pause; so long may it take until the end of an outage is noticed."""
    max_throttled_delay_s: float = 10.0
    """Longest pause where the store asked to be called less often."""


class RetryingStore(StoreWrapper):
    """A store that repeats what failed in passing.

    Args:
        inner: The store.
        policy: How long and how often.
        clock: Seconds from any origin, never going back.
        sleep: Waits that many seconds.
        rng: Draws the pauses.
    """

    def __init__(
        self,
        inner: ObjectStore,
        policy: RetryPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(inner)
        self.policy = policy or RetryPolicy()
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing

    def put(self, key: str, data: Data, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Write an object; see the module for ``if_absent``."""

        def settle(error: StorageError) -> None:
            if not isinstance(error, ObjectExists) or not self._holds(key, data, metadata):
                raise error

        request = StoreRequest("put", key, as_view(data).nbytes)
        self._attempt(request, lambda: self.inner.put(key, data, metadata=metadata, if_absent=if_absent), settle)

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Read a range, and again if less of it arrived than was asked for."""

        def whole() -> memoryview:
            data = self.inner.get(key, start, end)
            if end is not None and data.nbytes != end - start:
                raise StoreUnavailable(f"{self.url}: {data.nbytes} bytes of [{start}, {end}) of {key!r} arrived")
            return data

        return self._call(StoreRequest("get", key), whole)

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Complete an upload; see the module."""

        def settle(error: StorageError) -> None:
            if not isinstance(error, UploadMissing) or not self._has_length_of(upload.key, parts):
                raise error

        self._attempt(
            StoreRequest("complete_upload", upload.key), lambda: self.inner.complete_upload(upload, parts), settle
        )

    def _call(self, request: StoreRequest, perform: Callable[[], T]) -> T:
        return self._attempt(request, perform, _give_up)

    def _attempt(self, request: StoreRequest, perform: Callable[[], T], settle: Callable[[StorageError], T]) -> T:
        """Perform a request until it ends; ``settle`` judges a refusal that follows an unknown outcome."""
        began = self._clock()
        unknown = False
        for number in count():
            try:
                return perform()
            except (StoreUnavailable, ChecksumMismatch) as error:
                unknown = unknown or not isinstance(error, StoreThrottled | ChecksumMismatch)
                if unknown and request.operation == "create_upload":
                    raise
                throttled = isinstance(error, StoreThrottled)
                longest_s = self.policy.max_throttled_delay_s if throttled else self.policy.max_delay_s
                pause = Backoff(self.policy.first_delay_s, longest_s).jittered(number + 1, self._rng)
                elapsed = self._clock() - began
                if elapsed + pause >= self.policy.deadline_s:
                    if not unknown:
                        raise
                    raise StoreTimeout(
                        f"{self.url}: {request.operation} of {request.key!r} failed {number + 1} times in "
                        f"{elapsed:.1f} s, and may have taken effect; last error: {error}"
                    ) from error
                self._sleep(pause)
            except StorageError as error:
                if not unknown:
                    raise
                return settle(error)
        raise AssertionError  # count() does not end

    def _holds(self, key: str, data: Data, metadata: Mapping[str, str] | None) -> bool:
        try:
            found = self.head(key)
            return (
                found.size_bytes == as_view(data).nbytes
                and found.metadata == normal_metadata(metadata)
                and self.get(key) == as_view(data)
            )
        except ObjectMissing:
            return False

    def _has_length_of(self, key: str, parts: Sequence[Part]) -> bool:
        try:
            return self.head(key).size_bytes == sum(part.size_bytes for part in parts)
        except ObjectMissing:
            return False


def _give_up(error: StorageError) -> NoReturn:
    raise error
