"""Caches bounded by bytes: a general LRU cache, and the cache of fetched stripes that all readers of a process share.

A read of a few entries names a position and not its reader. Stripes stay in the cache so that the next read, a few
entries later, costs no request. A read of the stripe right after a cached one counts as sequential, and the stripes
after it are prefetched.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from afterglow.errors import AfterglowError
from afterglow.read.objects import locate_frames
from afterglow.read.stripes import FrameTable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from typing import TypeAlias

    from afterglow.config import BrokerConfig
    from afterglow.read.objects import FrameOffsets, LedgerObject, TierObject
    from afterglow.read.stripes import BlockSpan

    _Key: TypeAlias = tuple[TierObject, int, int]
    """An object, and the start and end offset of a stripe in it."""

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


@dataclass(slots=True)
class _Item(Generic[V]):
    value: V
    size_bytes: int
    used: float


class ByteCache(Generic[K, V]):
    """LRU cache. Concurrent misses of a key are loaded once. Thread-safe.

    Args:
        max_bytes: Limit for all values together. A larger value is returned and not cached.
        weigh: Returns the bytes of a value.
        idle_s: Seconds without use after which :meth:`evict_idle` evicts a value; 0: never.
        monotonic: The clock, in seconds.
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
        """Whether a value is cached or being loaded; does not count as a use."""
        return key in self._items or key in self._loading

    @property
    def size_bytes(self) -> int:
        """Bytes of all values."""
        return self._size_bytes

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The value of a key, loaded on a miss. Concurrent callers wait for the same load.

        Raises:
            Exception: ``load`` failed; raised to every caller that waited for it. The next call loads again.
        """
        return self.get_first((key,), lambda _: (load(),))

    def get_first(self, keys: Sequence[K], load: Callable[[int], Sequence[V | AfterglowError]]) -> V:
        """The value of the first key; on a miss, the keys after it are loaded by the same call.

        Args:
            keys: The wanted key, and further keys that may be loaded with it.
            load: Loads the first n keys, of which none is cached or being loaded. An error that it returns in place of
                a value is raised to the callers that wait for that key.

        Raises:
            Exception: The first key could not be loaded.
        """
        with self._lock:
            if (item := self._use(keys[0])) is not None:
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
        except BaseException as error:  # noqa: BLE001 - raised below, to this caller and to all that wait
            outcomes = [error] * len(mine)
        with self._lock:
            for key, outcome in zip(mine, outcomes, strict=True):
                del self._loading[key]
                if not isinstance(outcome, BaseException):
                    self._store(key, outcome)
        for future, outcome in zip(futures, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        return futures[0].result()

    def peek(self, key: K) -> V | None:
        """The value of a key; None if it is not cached."""
        with self._lock:
            item = self._use(key)
            return None if item is None else item.value

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        with self._lock:
            self._store(key, value)

    def evict(self, key: K) -> None:
        """Remove a key, if it is cached."""
        with self._lock:
            self._remove(key)

    def clear(self) -> None:
        """Remove all keys."""
        with self._lock:
            self._items.clear()
            self._size_bytes = 0

    def evict_idle(self) -> None:
        """Remove the values that were not used for ``idle_s``."""
        with self._lock:
            if not self._idle_s:
                return
            oldest = self._monotonic() - self._idle_s
            while self._items and next(iter(self._items.values())).used <= oldest:
                self._remove(next(iter(self._items)))

    def _use(self, key: K) -> _Item[V] | None:
        item = self._items.get(key)
        if item is not None:
            item.used = self._monotonic()
            self._items.move_to_end(key)
        return item

    def _store(self, key: K, value: V) -> None:
        self._remove(key)
        size_bytes = self._weigh(value)
        if size_bytes > self._max_bytes:
            return
        self._items[key] = _Item(value, size_bytes, self._monotonic())
        self._size_bytes += size_bytes
        while self._size_bytes > self._max_bytes:
            self._remove(next(iter(self._items)))

    def _remove(self, key: K) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            self._size_bytes -= item.size_bytes


_QUEUED_PER_THREAD: Final = 4
"""Prefetches that may wait for a thread; more would be done too late to be of use."""
_MIN_BUFFERS: Final = 4
"""Read buffers that must fit into the cache for prefetching: in a smaller one it would evict what is being read."""


class Stripe:
    """A fetched stripe, with the offsets of its frames once they have been located."""

    __slots__ = ("_frames", "data")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._frames: FrameOffsets | str | None = None

    def frames(self, first_entry_id: int, start: int) -> FrameOffsets | str:
        """The frames from ``start`` on, which is always the same for one stripe; or why the bytes are not frames."""
        if self._frames is None:
            self._frames = locate_frames(self.data, first_entry_id, start)
        return self._frames


class StripeCache:
    """Shared cache of stripes and of frame tables, and the threads that prefetch.

    Args:
        config: The broker's settings.
        monotonic: The clock, in seconds.
    """

    def __init__(self, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        idle_s = config.managed_ledger_inactive_offloaded_ledger_eviction_time_seconds
        self.stripes: ByteCache[_Key, Stripe] = ByteCache(
            config.offload_read_max_bytes, lambda stripe: stripe.data.nbytes, idle_s=idle_s, monotonic=monotonic
        )
        self.tables: ByteCache[_Key, FrameTable] = ByteCache(
            config.offload_entry_offset_cache_max_bytes,
            lambda table: table.size_bytes,
            idle_s=idle_s,
            monotonic=monotonic,
        )
        self.max_bytes = config.offload_read_max_bytes
        self._threads = config.managed_ledger_offload_read_threads
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._queued = 0

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The threads that prefetch, started when first needed."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="afterglow-tier")
            return self._pool

    def prefetch(self, work: Callable[[], object]) -> None:
        """Run work in a thread, unless too much waits already. Errors are ignored: the read itself will raise them."""
        executor = self.executor
        with self._lock:
            if self._queued >= _QUEUED_PER_THREAD * self._threads:
                return
            self._queued += 1
        executor.submit(self._run, work)

    def _run(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._queued -= 1
        with suppress(AfterglowError):
            work()

    def close(self) -> None:
        """Stop prefetching, and wait for requests in progress."""
        with self._lock:
            pool, self._pool, self._queued = self._pool, None, 0
        if pool is not None:
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class CachedStripes:
    """Stripes through the shared cache, fetched with the read buffer size of one topic."""

    cache: StripeCache
    buffer_bytes: int
    """Bytes per request; a single stripe may be larger."""
    rounds: int
    """Read buffers that are prefetched for a sequential reader."""

    def stripe(self, ledger: LedgerObject, number: int) -> Stripe:
        """A stripe of a ledger, by its number.

        Raises:
            DamagedStripe: It is damaged.
            ObjectMissing: The object does not exist any more.
            StorageError: The request failed.
        """
        found = self.cache.stripes.peek(_key(ledger, number))
        if found is None:
            found = self._load(ledger, ledger.adjacent(number, self.buffer_bytes))
        self._prefetch(ledger, number)
        return found

    def joined(self, ledger: LedgerObject, wanted: range) -> memoryview:
        """The data of adjacent stripes, with one request for those that are not cached. Nothing is prefetched.

        Raises:
            DamagedStripe: One of them is damaged.
            ObjectMissing: The object does not exist any more.
            StorageError: The request failed.
        """
        buffers = [self._load(ledger, range(number, wanted.stop)).data for number in wanted]
        return buffers[0] if len(buffers) == 1 else memoryview(b"".join(buffers))

    def table(self, ledger: LedgerObject, block: BlockSpan) -> FrameTable:
        """The frame offsets that reads of a block have found so far."""
        key = (ledger.opened.tier_object, block.start, block.stripe_bytes)
        return self.cache.tables.get(key, lambda: FrameTable(ledger.stripes.header_bytes, block.stripe_bytes))

    def update_table(self, ledger: LedgerObject, block: BlockSpan, table: FrameTable) -> None:
        """Weigh a table that has grown again."""
        self.cache.tables.put((ledger.opened.tier_object, block.start, block.stripe_bytes), table)

    def _load(self, ledger: LedgerObject, wanted: range) -> Stripe:
        """The first of adjacent stripes; if it is not cached, one request fetches those after it too."""

        def load(count: int) -> Sequence[Stripe | AfterglowError]:
            return _split(ledger, wanted[:count])

        return self.cache.stripes.get_first([_key(ledger, at) for at in wanted], load)

    def _prefetch(self, ledger: LedgerObject, number: int) -> None:
        """Fetch the stripes after this one in advance, if the one before it is cached, or it is the first."""
        stripes = self.cache.stripes
        if not self.rounds or self.cache.max_bytes < _MIN_BUFFERS * self.buffer_bytes:
            return
        if number and _key(ledger, number - 1) not in stripes:
            return
        following = number
        for _ in range(self.rounds):
            following += 1
            if following >= ledger.stripes.count:
                return
            if _key(ledger, following) not in stripes:
                break
            following = ledger.adjacent(following, self.buffer_bytes).stop - 1
        else:
            return
        self.cache.prefetch(lambda: self._load(ledger, ledger.adjacent(following, self.buffer_bytes)))


def _key(ledger: LedgerObject, number: int) -> _Key:
    return (ledger.opened.tier_object, *ledger.stripes.bounds(number))


def _split(ledger: LedgerObject, wanted: range) -> list[Stripe | AfterglowError]:
    """Adjacent stripes with one request, each copied into its own buffer, so that each can be evicted alone."""
    fetched = ledger.fetch(wanted)
    if len(wanted) == 1:
        return [fetched.damage.get(wanted[0]) or Stripe(fetched.data)]
    outcomes: list[Stripe | AfterglowError] = []
    for number in wanted:
        start, end = (at - fetched.start for at in _key(ledger, number)[1:])
        outcomes.append(fetched.damage.get(number) or Stripe(memoryview(bytes(fetched.data[start:end]))))
    return outcomes
