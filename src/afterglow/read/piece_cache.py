"""Fetched pieces of objects, shared by all readers, and read ahead for those who read in order.

A read of a few entries names no reader: each asks by position alone. Pieces stay here so that the next read, a few
entries on, costs no request; and who takes a piece right behind one that is still here reads in order, and finds the
next one fetched. Every piece is fetched once however many ask at a time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.errors import AfterglowError
from afterglow.read.caching import ByteCache
from afterglow.read.pieces import FrameTable
from afterglow.read.tier_copy import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from afterglow.config import BrokerConfig
    from afterglow.read.fetch import LedgerObject
    from afterglow.read.objects import Located
    from afterglow.read.pieces import BlockSpan

    _Key: TypeAlias = tuple[Located, int, int]
    """An object, and start and end of a stretch of it."""

_QUEUED_PER_THREAD: Final = 4
"""Reads ahead that may wait for a thread; more would come too late to be of use."""
_ROOM: Final = 4
"""Read buffers that must fit the cache before anything is read ahead: else it would push out what is being read."""


class PieceCache:
    """Pieces, where frames begin in blocks whose index does not tell, and the threads that read ahead.

    Args:
        config: The broker's settings.
        monotonic: Tells the time.
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
    """A :class:`~afterglow.read.tier_copy.PieceSource` over the shared cache, with the buffers of one topic."""

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
