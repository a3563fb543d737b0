"""Counts what passes to a store: requests, bytes and time by operation, errors by operation and kind."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from afterglow.storage.wrapper import StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.storage.store import ObjectStore
    from afterglow.storage.wrapper import Call

__all__ = ["CountingStore", "OperationCount", "RequestCounters"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OperationCount:
    """What one operation has done since the store was wrapped. A page of a listing is one request."""

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    """Bytes of objects that ``get`` has handed back."""
    seconds: float = 0.0
    """Time spent waiting for the store, over all threads."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Requests that raised, by the name of the error's class."""


class RequestCounters:
    """Counts of one store, or of several together. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sums: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, float] = {}
        self._errors: Counter[tuple[str, str]] = Counter()

    def add(self, call: Call, *, received_bytes: int, seconds: float, error: str) -> None:
        """Count a request that has ended; ``error`` is empty where it succeeded."""
        with self._lock:
            self._sums[call.operation, "requests"] += 1
            self._sums[call.operation, "sent"] += call.sent_bytes
            self._sums[call.operation, "received"] += received_bytes
            self._seconds[call.operation] = self._seconds.get(call.operation, 0.0) + seconds
            if error:
                self._errors[call.operation, error] += 1

    def counts(self) -> dict[str, OperationCount]:
        """Tell the counts of every operation that was asked for so far."""
        with self._lock:
            return {
                operation: OperationCount(
                    requests=self._sums[operation, "requests"],
                    sent_bytes=self._sums[operation, "sent"],
                    received_bytes=self._sums[operation, "received"],
                    seconds=seconds,
                    errors={kind: count for (name, kind), count in self._errors.items() if name == operation},
                )
                for operation, seconds in self._seconds.items()
            }


class CountingStore(StoreWrapper):
    """A store that counts its requests. A pickled copy counts from zero.

    Args:
        inner: The store.
        clock: Seconds from any origin.
        counters: Where requests are counted; by default counters of its own.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        clock: Callable[[], float] = time.perf_counter,
        counters: RequestCounters | None = None,
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        self._counters = RequestCounters() if counters is None else counters

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.inner,)

    def counts(self) -> dict[str, OperationCount]:
        """Tell the counts of every operation that was asked for so far."""
        return self._counters.counts()

    def _call(self, call: Call, perform: Callable[[], T]) -> T:
        began = self._clock()
        received_bytes = 0
        error = ""
        try:
            result = perform()
            if isinstance(result, memoryview):
                received_bytes = result.nbytes
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self._counters.add(call, received_bytes=received_bytes, seconds=self._clock() - began, error=error)
        return result
