"""Caches bounded by bytes: a general one, and the one of fetched pieces that all readers of a process share.

Concurrent misses of a key are loaded once, and values that have not been used for some time are evicted.

A read of a few entries does not name its reader, only a position. Pieces stay in the cache so that the next read, a few
entries on, costs no request; and a read of the piece directly behind a cached one counts as reading in order, so that
the next pieces are prefetched.
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
from afterglow.read.objects import cut_frames
from afterglow.read.pieces import FrameTable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from typing import TypeAlias

    from afterglow.config import BrokerConfig
    from afterglow.read.objects import Cut, LedgerObject, Located
    from afterglow.read.pieces import BlockSpan

    _Key: TypeAlias = tuple[Located, int, int]
    """An object, and the start and end offset of a piece of it."""

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
        """Whether a value is here or on its way; no use of it."""
        return key in self._items or key in self._loading

    @property
    def size_bytes(self) -> int:
        """Bytes of all values."""
        return self._size_bytes

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The value of a key, loaded where it is not here. Concurrent callers wait for the same load.

        Raises:
            Exception: What ``load`` raises, to all who waited for it. The next to ask loads again.
        """
        return self.get_first((key,), lambda _: (load(),))

    def get_first(self, keys: Sequence[K], load: Callable[[int], Sequence[V | AfterglowError]]) -> V:
        """The value of the first key; where it is not here, those of the keys behind it are loaded with it.

        Args:
            keys: The key that is wanted, and those that may come along.
            load: Loads the first so many, up to one that is here or on its way already. What it returns in the place
                of a value is raised to the callers that ask for that one.

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


_QUEUED_PER_THREAD: Final = 4
"""Reads ahead that may wait for a thread; more would come too late to be of use."""
_ROOM: Final = 4
"""Read buffers that must fit the cache before anything is read ahead: else it would push out what is being read."""


class Piece:
    """A fetched piece, and its frames once they have been searched for."""

    __slots__ = ("_cut", "data")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._cut: Cut | str | None = None

    def cut(self, first_entry_id: int, start: int) -> Cut | str:
        """The frames from ``start`` on, which for one piece is always the same; or why the bytes are not frames."""
        if self._cut is None:
            self._cut = cut_frames(self.data, first_entry_id, start)
        return self._cut


class PieceCache:
    """Shared cache of pieces and of frame tables, and the threads that prefetch.

    Args:
        config: The broker's settings.
        monotonic: The clock, in seconds.
    """

    def __init__(self, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        idle_s = config.managed_ledger_inactive_offloaded_ledger_eviction_time_seconds
        self.pieces: ByteCache[_Key, Piece] = ByteCache(
            config.offload_read_max_bytes, lambda piece: piece.data.nbytes, idle_s=idle_s, monotonic=monotonic
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
        """The threads that read ahead, started when first needed."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="afterglow-tier")
            return self._pool

    def soon(self, work: Callable[[], object]) -> None:
        """Do something ahead of its use, unless too much waits already. Whether it fails shows when it is needed."""
        executor = self.executor
        with self._lock:
            if self._queued >= _QUEUED_PER_THREAD * self._threads:
                return
            self._queued += 1
        executor.submit(self._ahead, work)

    def _ahead(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._queued -= 1
        with suppress(AfterglowError):
            work()

    def close(self) -> None:
        """Stop reading ahead, and wait for what is under way."""
        with self._lock:
            pool, self._pool, self._queued = self._pool, None, 0
        if pool is not None:
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class CachedPieces:
    """The pieces of objects from the shared cache, fetched with the read buffers of one topic."""

    cache: PieceCache
    buffer_bytes: int
    """What one request fetches; a single piece may be larger."""
    rounds: int
    """Read buffers that are fetched ahead of a reader in order."""

    def piece(self, ledger: LedgerObject, number: int) -> Piece:
        """A piece of a ledger, by its number.

        Raises:
            DamagedPiece: It is damaged.
            ObjectMissing: The object is gone.
            StorageError: The store does not give it.
        """
        found = self.cache.pieces.peek(_key(ledger, number))
        if found is None:
            found = self._load(ledger, ledger.adjacent(number, self.buffer_bytes))
        self._read_ahead(ledger, number)
        return found

    def joined(self, ledger: LedgerObject, wanted: range) -> memoryview:
        """The data of adjacent pieces, by one request for those that are not here. Nothing is read ahead.

        Raises:
            DamagedPiece: One of them is damaged.
            ObjectMissing: The object is gone.
            StorageError: The store does not give them.
        """
        pieces = [self._load(ledger, range(number, wanted.stop)).data for number in wanted]
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def table(self, ledger: LedgerObject, block: BlockSpan) -> FrameTable:
        """What reading a block has shown so far."""
        key = (ledger.opened.located, block.start, block.piece_bytes)
        return self.cache.tables.get(key, lambda: FrameTable(ledger.pieces.header_bytes, block.piece_bytes))

    def learned(self, ledger: LedgerObject, block: BlockSpan, table: FrameTable) -> None:
        """The table has grown, and its weight with it."""
        self.cache.tables.put((ledger.opened.located, block.start, block.piece_bytes), table)

    def _load(self, ledger: LedgerObject, wanted: range) -> Piece:
        """The first of adjacent pieces; where it is not here, those behind it come with it."""

        def load(count: int) -> Sequence[Piece | AfterglowError]:
            return _split(ledger, wanted[:count])

        return self.cache.pieces.get_first([_key(ledger, at) for at in wanted], load)

    def _read_ahead(self, ledger: LedgerObject, number: int) -> None:
        """Have the pieces behind this one fetched, if the one before it was read lately, or it is the first."""
        pieces = self.cache.pieces
        if not self.rounds or self.cache.max_bytes < _ROOM * self.buffer_bytes:
            return
        if number and _key(ledger, number - 1) not in pieces:
            return
        following = number
        for _ in range(self.rounds):
            following += 1
            if following >= ledger.pieces.pieces:
                return
            if _key(ledger, following) not in pieces:
                break
            following = ledger.adjacent(following, self.buffer_bytes).stop - 1
        else:
            return
        self.cache.soon(lambda: self._load(ledger, ledger.adjacent(following, self.buffer_bytes)))


def _key(ledger: LedgerObject, number: int) -> _Key:
    block = ledger.pieces.block_of_piece(number)
    return (ledger.opened.located, *block.bounds(number - block.first_piece))


def _split(ledger: LedgerObject, wanted: range) -> list[Piece | AfterglowError]:
    """Adjacent pieces by one request, each with memory of its own, so that it can be let go alone."""
    fetched = ledger.fetch(wanted)
    if len(wanted) == 1:
        return [fetched.damage.get(wanted[0]) or Piece(fetched.data)]
    outcomes: list[Piece | AfterglowError] = []
    for number in wanted:
        start, end = (at - fetched.start for at in _key(ledger, number)[1:])
        outcomes.append(fetched.damage.get(number) or Piece(memoryview(bytes(fetched.data[start:end]))))
    return outcomes
