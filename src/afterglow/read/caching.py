"""A cache bounded by bytes, whose misses are filled once however many ask, and which forgets what lies idle."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import takewhile
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from afterglow.errors import AfterglowError

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


@dataclass(slots=True)
class _Item(Generic[V]):
    value: V
    size_bytes: int
    used: float


class ByteCache(Generic[K, V]):
    """Values by key; the ones unused for longest go first. Thread-safe.

    Args:
        max_bytes: Bound for all values together. A larger value is handed out and not kept.
        weigh: Bytes of a value.
        idle_s: Seconds without use after which a value is dropped; 0: never.
        monotonic: Tells the time.
    """

    def __init__(
        self, max_bytes: int, weigh: Callable[[V], int], *, idle_s: float, monotonic: Callable[[], float]
    ) -> None:
        self._max_bytes = max_bytes
        self._weigh = weigh
        self._idle_s = idle_s
        self._monotonic = monotonic
        self._lock = Lock()
        self._items: OrderedDict[K, _Item[V]] = OrderedDict()
        self._loading: dict[K, Future[V]] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        """Whether a value is here or on its way; no use of it."""
        return key in self._items or key in self._loading

    @property
    def size_bytes(self) -> int:
        """Bytes of all values."""
        return self._size_bytes

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The value of a key, loaded where it is not here. Whoever asks meanwhile waits for the same load.

        Raises:
            Exception: What ``load`` raises, to all who waited for it. The next to ask loads again.
        """
        return self.get_first((key,), lambda _: (load(),))

    def get_first(self, keys: Sequence[K], load: Callable[[int], Sequence[V | AfterglowError]]) -> V:
        """The value of the first key; where it is not here, those of the keys behind it are loaded with it.

        Args:
            keys: The key that is wanted, and those that may come along.
            load: Loads the first so many, up to one that is here or on its way already. What it returns in the place
                of a value is raised to whoever asks for that one.

        Raises:
            Exception: The first could not be loaded.
        """
        with self._lock:
            if (item := self._items.get(keys[0])) is not None:
                item.used = self._monotonic()
                self._items.move_to_end(keys[0])
                return item.value
            awaited = self._loading.get(keys[0])
            if awaited is None:
                mine = list(takewhile(lambda key: key not in self, keys))
                futures: list[Future[V]] = [Future() for _ in mine]
                self._loading.update(zip(mine, futures, strict=True))
        if awaited is not None:
            return awaited.result()
        outcomes: Sequence[V | BaseException]
        try:
            outcomes = load(len(mine))
        except BaseException as error:  # noqa: BLE001 - raised below, to this caller and to all who wait
            outcomes = [error] * len(mine)
        with self._lock:
            for key, outcome in zip(mine, outcomes, strict=True):
                del self._loading[key]
                if not isinstance(outcome, BaseException):
                    self._keep(key, outcome)
        for future, outcome in zip(futures, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        return futures[0].result()

    def peek(self, key: K) -> V | None:
        """The value of a key if it is here."""
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return None
            item.used = self._monotonic()
            self._items.move_to_end(key)
            return item.value

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        with self._lock:
            self._keep(key, value)

    def drop(self, key: K) -> None:
        """Forget a key."""
        with self._lock:
            self._forget(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            for key in tuple(self._items):
                self._forget(key)

    def drop_idle(self) -> None:
        """Forget what was not used for too long."""
        with self._lock:
            if not self._idle_s:
                return
            oldest = self._monotonic() - self._idle_s
            while self._items and next(iter(self._items.values())).used <= oldest:
                self._forget(next(iter(self._items)))

    def _keep(self, key: K, value: V) -> None:
        self._forget(key)
        size_bytes = self._weigh(value)
        if size_bytes > self._max_bytes:
            return
        self._items[key] = _Item(value, size_bytes, self._monotonic())
        self._size_bytes += size_bytes
        while self._size_bytes > self._max_bytes:
            self._forget(next(iter(self._items)))

    def _forget(self, key: K) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            self._size_bytes -= item.size_bytes
