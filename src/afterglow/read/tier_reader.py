"""Reader of tiers for all topics of a process: opens and caches copies, within memory limits.

Three caches, each with its own limit: opened objects (``offloadIndexCacheMaxBytes``), stripes of data
(``offloadReadMaxBytes``), and offsets of frames in blocks whose index does not have them
(``offloadEntryOffsetCacheMaxBytes``). Object keys are never reused, so that no cached value becomes stale. Copies of
external drivers are opened through the driver, and a few of them are kept open.
"""

from __future__ import annotations

from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

from afterglow.errors import AfterglowError, DamagedStripe, StoreUnavailable
from afterglow.ledger.environment import SystemClock
from afterglow.read.cache import ByteCache, CachedStripes, StripeCache
from afterglow.read.driver_copies import open_driver_copy
from afterglow.read.mapfile import MapFileCopy, open_mapfile
from afterglow.read.objects import LedgerObject, open_object
from afterglow.read.ranges import ObjectLocator
from afterglow.read.tier_copy import Prefetch, TierCopy
from afterglow.tier.locations import MAPFILES, driver_setting, is_built_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig
    from afterglow.ledger.environment import Clock
    from afterglow.read.copies import LedgerCopy
    from afterglow.read.counters import ReadCounters
    from afterglow.read.mapfile import OpenMapFile
    from afterglow.read.objects import OpenObject, TierObject
    from afterglow.tier.locations import TierLocation, Tiers

T = TypeVar("T")

_BACKOFF_S: Final = 10.0
"""Backoff of an object or store that failed, for readers that have another copy: they need neither two minutes of
retries nor a failing request per read."""
_MAX_FAILURES: Final = 1_000
"""Objects and stores in backoff; with more, all are tried again."""
_MAX_EXTERNAL: Final = 64
"""Copies of external drivers that are kept open; only the driver knows the memory of each."""


class TierReader:
    """Opens copies in tiers. Thread-safe.

    Args:
        tiers: Opens stores.
        config: The broker's settings: the limits above, and the number of threads that prefetch.
        locator: Finds the tier locations of objects.
        clock: For the eviction of idle values.
    """

    def __init__(
        self,
        tiers: Tiers,
        config: BrokerConfig,
        locator: ObjectLocator | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.locator = locator or ObjectLocator()
        self._tiers = tiers
        self._config = config
        self._monotonic = (clock or SystemClock()).monotonic
        idle_s, monotonic = config.managed_ledger_inactive_offloaded_ledger_eviction_time_seconds, self._monotonic
        max_bytes = config.offload_index_cache_max_bytes
        self._objects: ByteCache[TierObject, OpenObject] = ByteCache(
            max_bytes, lambda opened: opened.memory_bytes, idle_s=idle_s, monotonic=monotonic
        )
        self._mapfiles: ByteCache[TierObject, OpenMapFile] = ByteCache(
            max_bytes, lambda opened: opened.memory_bytes, idle_s=idle_s, monotonic=monotonic
        )
        self._external: ByteCache[tuple[TierObject, int], LedgerCopy] = ByteCache(
            _MAX_EXTERNAL, lambda _: 1, idle_s=idle_s, monotonic=monotonic
        )
        self._cache = StripeCache(config, self._monotonic)
        self._lock = Lock()
        self._failures: dict[TierObject | TierLocation, tuple[float, AfterglowError]] = {}

    # --- copies ---

    def copy(
        self,
        tier_object: TierObject,
        ledger_id: int,
        policy: BrokerConfig,
        counters: ReadCounters,
        *,
        allow_truncated: bool = False,
        fail_fast: bool = False,
    ) -> LedgerCopy:
        """The copy of a ledger, or of a range of it, in an object.

        Args:
            tier_object: The object.
            ledger_id: The ledger.
            policy: Policy of the topic, for credentials and read buffer size.
            counters: Count every request.
            allow_truncated: Open also an object that is shorter than its index says; reading the missing part
                raises ``DamagedStripe``.
            fail_fast: Raise at once for an object or a store that failed a moment ago: there is another copy.

        Raises:
            ObjectMissing: It does not exist.
            IndexMissing: The object has no index.
            WrongLength: Its length differs from the one in its index.
            WrongVersion: A newer release wrote it.
            CorruptIndex: Its index is damaged, or does not name the ledger.
            CorruptBlock: It is a damaged MapFile.
            StorageError: A request failed.
            ConfigError: Its tier location cannot be opened, or its driver is not installed.
            NotSupported: Its tier location is of a kind that cannot be opened.
            MissingDependency: The SDK for its tier location, or the package of its driver, cannot be imported.
        """
        if fail_fast:
            self._check_failures(tier_object)
        if tier_object.location.driver != MAPFILES and not is_built_in(tier_object.location.driver):
            return self._external.get(
                (tier_object, ledger_id),
                lambda: _timed(lambda: open_driver_copy(tier_object, ledger_id, policy, self._tiers), counters),
            )
        store = self._tiers.store(tier_object.location, policy)
        if tier_object.location.driver == MAPFILES:
            mapfile = self._mapfiles.get(
                tier_object, lambda: _timed(lambda: open_mapfile(store, tier_object, counters), counters)
            )
            scan_bytes = self._config.offload_scan_read_buffer_size_in_bytes
            return MapFileCopy(store, mapfile, ledger_id, scan_bytes, counters)
        buffer_bytes: int = driver_setting(policy, tier_object.location.driver, "ReadBufferSizeInBytes")
        opened = self._objects.get(
            tier_object, lambda: _timed(lambda: open_object(store, tier_object, buffer_bytes), counters)
        )
        if not allow_truncated:
            opened.check_length()
        rounds = policy.managed_ledger_offload_prefetch_rounds
        return TierCopy(
            LedgerObject(store, opened, ledger_id, opened.stripes(ledger_id), counters),
            CachedStripes(self._cache, buffer_bytes, rounds),
            self._config.offload_scan_read_buffer_size_in_bytes,
            Prefetch(self._cache.executor, rounds),
        )

    def failed(self, tier_object: TierObject, error: AfterglowError) -> None:
        """Put an object, or its store, in backoff. Readers that have another copy avoid it; others open it again."""
        if isinstance(error, DamagedStripe):
            return  # other stripes may be intact
        self._objects.evict(tier_object)
        self._mapfiles.evict(tier_object)
        if not is_built_in(tier_object.location.driver):
            self._external.clear()  # only the driver knows which of its copies share a broken connection
        with self._lock:
            if len(self._failures) >= _MAX_FAILURES:
                self._failures.clear()
            failed = tier_object.location if isinstance(error, StoreUnavailable) else tier_object
            self._failures.setdefault(failed, (self._monotonic() + _BACKOFF_S, error))

    def _check_failures(self, tier_object: TierObject) -> None:
        with self._lock:
            for failed in (tier_object, tier_object.location):
                until, error = self._failures.get(failed, (0.0, None))
                if error is not None and self._monotonic() < until:
                    raise error.with_traceback(None)
                self._failures.pop(failed, None)

    # --- caches ---

    def evict_idle(self) -> None:
        """Evict values that were not used for ``managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds``."""
        for cache in (self._objects, self._mapfiles, self._external, self._cache.stripes, self._cache.tables):
            cache.evict_idle()

    def close(self) -> None:
        """Stop prefetching and wait for requests in progress. Copies stay readable."""
        self._cache.close()


def _timed(opening: Callable[[], T], counters: ReadCounters) -> T:
    """Open an object, and count it."""
    began_s = perf_counter()
    try:
        opened = opening()
    except AfterglowError:
        counters.failed()
        raise
    counters.opened(perf_counter() - began_s)
    return opened
