"""A store that retries failed requests with exponential backoff and full jitter, within a deadline.

Uploads are also retried at two further levels, which :mod:`afterglow.offload.backoff` lists.

Retried errors are ``StoreUnavailable`` with its subclasses, and ``ChecksumMismatch`` (bytes corrupted in transit).
After ``StoreUnavailable`` and ``StoreTimeout`` the request may have taken effect:

* ``put``, ``upload_part``, ``delete``, ``abort_upload`` and all reads are idempotent and are retried.
* ``put`` with ``if_absent`` is retried; if the key then exists, its object is read and compared. The same bytes and
  metadata mean that an earlier attempt succeeded.
* ``complete_upload`` is retried; if the upload is then missing, the object's length tells whether it was completed.
* ``create_upload`` is not retried: that could leave an upload that no record names.
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
    """Deadline and backoff of retries. The n-th delay is drawn uniformly from 0 to ``first_delay_s * 2**n``."""

    deadline_s: float = 120.0
    """Counted from the first attempt; no attempt begins later. 0: no retries."""
    first_delay_s: float = 0.1
    """Longest first delay."""
    max_delay_s: float = 2.0
    """Longest delay, and so the longest time until the end of an outage is noticed."""
    max_throttled_delay_s: float = 10.0
    """Longest delay after the store throttled a request."""


class RetryingStore(StoreWrapper):
    """A store that retries transient failures.

    Args:
        inner: The store.
        policy: Deadline and backoff.
        clock: Monotonic clock, in seconds.
        sleep: Waits for a number of seconds.
        rng: Source of jitter.
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
        """Write an object; the module docstring describes ``if_absent``."""

        def settle(error: StorageError) -> None:
            if not isinstance(error, ObjectExists) or not self._holds(key, data, metadata):
                raise error

        request = StoreRequest("put", key, as_view(data).nbytes)
        self._attempt(request, lambda: self.inner.put(key, data, metadata=metadata, if_absent=if_absent), settle)

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Read a range; a short read is retried."""

        def whole() -> memoryview:
            data = self.inner.get(key, start, end)
            if end is not None and data.nbytes != end - start:
                raise StoreUnavailable(f"{self.url}: received {data.nbytes} bytes of [{start}, {end}) of {key!r}")
            return data

        return self._call(StoreRequest("get", key), whole)

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Complete an upload; the module docstring describes its retries."""

        def settle(error: StorageError) -> None:
            if not isinstance(error, UploadMissing) or not self._has_length_of(upload.key, parts):
                raise error

        self._attempt(
            StoreRequest("complete_upload", upload.key), lambda: self.inner.complete_upload(upload, parts), settle
        )

    def _call(self, request: StoreRequest, perform: Callable[[], T]) -> T:
        return self._attempt(request, perform, _give_up)

    def _attempt(self, request: StoreRequest, perform: Callable[[], T], settle: Callable[[StorageError], T]) -> T:
        """Perform a request with retries; ``settle`` decides on an error that follows an unknown outcome."""
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
