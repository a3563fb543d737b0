"""Opens copies in tiers for all readers of a process: objects are opened once, pieces fetched once, memory bounded.

Copies of external drivers are opened through the driver, and a few of them are kept open.

Three caches, each with its own limit: opened objects (``offloadIndexCacheMaxBytes``), pieces of data
(``offloadReadMaxBytes``), and offsets of frames in blocks whose index does not have them
(``offloadEntryOffsetCacheMaxBytes``). What has not been used for some time is evicted. Object keys are never reused, so
that no cached value becomes stale.
"""

from __future__ import annotations

from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

from afterglow.errors import AfterglowError, DamagedPiece, StoreUnavailable
from afterglow.ledger.environment import SystemClock
from afterglow.read.cache import ByteCache, CachedPieces, PieceCache
from afterglow.read.driver_copies import open_driver_copy
from afterglow.read.mapfile import MapFileCopy, open_mapfile
from afterglow.read.objects import LedgerObject, open_object
from afterglow.read.ranges import Locator
from afterglow.read.tier_copy import ReadAhead, TierCopy
from afterglow.tier.locations import MAPFILES, driver_setting, is_built_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig
    from afterglow.ledger.environment import Clock
    from afterglow.read.copies import LedgerCopy
    from afterglow.read.counters import ReadCounters
    from afterglow.read.mapfile import OpenMapFile
    from afterglow.read.objects import Located, OpenObject
    from afterglow.read.pruning import TimeBounds
    from afterglow.read.ranges import OffloadedRange
    from afterglow.tier.locations import TierLocation, Tiers

T = TypeVar("T")

_BACKOFF_S: Final = 10.0
"""Backoff of an object or store that failed, for readers that have another copy: neither two minutes of retries nor a
failing request at every read would help them."""
_MAX_FAILURES: Final = 1_000
"""Objects and stores in backoff; when there are more, all are tried again."""
_MAX_EXTERNAL: Final = 64
"""Copies of external drivers that are kept open: what each of them costs, only its driver knows."""


class TierSource:
    """Opens copies in tiers. Thread-safe.

    Args:
        tiers: Opens stores.
        config: The broker's settings: the budgets above, and the number of threads that read ahead.
        locator: Finds the tier locations of objects.
        clock: For the eviction of what is not used.
    """

    def __init__(
        self,
        tiers: Tiers,
        config: BrokerConfig,
        locator: Locator | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._locator = locator or Locator()
        self._tiers = tiers
        self._config = config
        self._monotonic = (clock or SystemClock()).monotonic
        self._objects: ByteCache[Located, OpenObject] = ByteCache(
            config.offload_index_cache_max_bytes,
            lambda opened: opened.memory_bytes,
            idle_s=config.managed_ledger_inactive_offloaded_ledger_eviction_time_seconds,
            monotonic=self._monotonic,
        )
        self._mapfiles: ByteCache[Located, OpenMapFile] = ByteCache(
            config.offload_index_cache_max_bytes,
            lambda opened: opened.memory_bytes,
            idle_s=config.managed_ledger_inactive_offloaded_ledger_eviction_time_seconds,
            monotonic=self._monotonic,
        )
        self._external: ByteCache[tuple[Located, int], LedgerCopy] = ByteCache(
            _MAX_EXTERNAL,
            lambda _: 1,
            idle_s=config.managed_ledger_inactive_offloaded_ledger_eviction_time_seconds,
            monotonic=self._monotonic,
        )
        self._cache = PieceCache(config, self._monotonic)
        self._lock = Lock()
        self._failures: dict[Located | TierLocation, tuple[float, AfterglowError]] = {}

    # --- copies ---

    def copy(
        self,
        located: Located,
        ledger_id: int,
        policy: BrokerConfig,
        counters: ReadCounters,
        *,
        lenient: bool = False,
        impatient: bool = False,
    ) -> LedgerCopy:
        """The copy of a ledger, or of a range of it, in an object.

        Args:
            located: The object.
            ledger_id: The ledger.
            policy: The topic's, for credentials and read buffers.
            counters: Count every request.
            lenient: Give also a copy that is shorter than its index says; what is missing will be found damaged.
            impatient: Give up at once on an object or a store that failed a moment ago: there is another copy.

        Raises:
            ObjectMissing: It does not exist.
            IndexMissing: The object has no index.
            WrongLength: It is not as long as its index says.
            WrongVersion: A newer release wrote it.
            CorruptIndex: Its index is damaged, or does not name the ledger.
            CorruptBlock: It is a MapFile, and damaged.
            StorageError: The store does not give it.
            ConfigError: Its tier location cannot be opened, or its driver is not installed.
            NotSupported: Its tier location is of a kind that cannot be opened.
            MissingDependency: The SDK for its tier location, or the package of its driver, cannot be imported.
        """
        if impatient:
            self._check_failures(located)
        if located.location.driver != MAPFILES and not is_built_in(located.location.driver):
            return self._external.get(
                (located, ledger_id),
                lambda: _timed(lambda: open_driver_copy(located, ledger_id, policy, self._tiers), counters),
            )
        store = self._tiers.store(located.location, policy)
        if located.location.driver == MAPFILES:
            mapfile = self._mapfiles.get(
                located, lambda: _timed(lambda: open_mapfile(store, located, counters), counters)
            )
            scan_bytes = self._config.offload_scan_read_buffer_size_in_bytes
            return MapFileCopy(store, mapfile, ledger_id, scan_bytes, counters)
        buffer_bytes: int = driver_setting(policy, located.location.driver, "ReadBufferSizeInBytes")
        opened = self._objects.get(located, lambda: _timed(lambda: open_object(store, located, buffer_bytes), counters))
        if not lenient:
            opened.check_length()
        rounds = policy.managed_ledger_offload_prefetch_rounds
        return TierCopy(
            LedgerObject(store, opened, ledger_id, opened.pieces(ledger_id), counters),
            CachedPieces(self._cache, buffer_bytes, rounds),
            self._config.offload_scan_read_buffer_size_in_bytes,
            ReadAhead(self._cache.executor, rounds),
        )

    def locate(self, name: str, offloaded: OffloadedRange, policy: BrokerConfig) -> Located:
        """Location of the object that holds a range of a topic.

        Raises:
            AfterglowError: See :meth:`~afterglow.read.ranges.Locator.locate`.
        """
        return self._locator.locate(name, offloaded, policy)

    def times(self, name: str, offloaded: OffloadedRange) -> TimeBounds | None:
        """Times of the entries in a range's object, where its record has them.

        Raises:
            AfterglowError: See :meth:`~afterglow.read.ranges.Locator.times`.
        """
        return self._locator.times(name, offloaded)

    def failed(self, located: Located, error: AfterglowError) -> None:
        """A copy could not be read. Readers that have another copy avoid it for a while; others open it again."""
        if isinstance(error, DamagedPiece):
            return  # the rest of it may be good
        self._objects.drop(located)
        self._mapfiles.drop(located)
        if not is_built_in(located.location.driver):
            self._external.clear()  # few are kept, and which of them hold on to what is broken only the driver knows
        with self._lock:
            if len(self._failures) >= _MAX_FAILURES:
                self._failures.clear()
            whose = located.location if isinstance(error, StoreUnavailable) else located
            self._failures.setdefault(whose, (self._monotonic() + _BACKOFF_S, error))

    def _check_failures(self, located: Located) -> None:
        with self._lock:
            for whose in (located, located.location):
                until, error = self._failures.get(whose, (0.0, None))
                if error is not None and self._monotonic() < until:
                    raise error.with_traceback(None)
                self._failures.pop(whose, None)

    # --- upkeep ---

    @property
    def cached_bytes(self) -> int:
        """Data that is held."""
        return self._cache.pieces.size_bytes

    @property
    def index_bytes(self) -> int:
        """Memory that opened objects take."""
        return self._objects.size_bytes

    @property
    def table_bytes(self) -> int:
        """Memory that learned offsets of frames take."""
        return self._cache.tables.size_bytes

    def drop_idle(self) -> None:
        """Evict what was not used for ``managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds``."""
        for cache in (self._objects, self._mapfiles, self._external, self._cache.pieces, self._cache.tables):
            cache.drop_idle()

    def close(self) -> None:
        """Stop reading ahead and wait for what is under way. Copies can be read on."""
        self._cache.close()


def _timed(opening: Callable[[], T], counters: ReadCounters) -> T:
    """Open an object, and have it counted."""
    began_s = perf_counter()
    try:
        opened = opening()
    except AfterglowError:
        counters.failed()
        raise
    counters.opened(perf_counter() - began_s)
    return opened
