"""Entry source of a topic over hot log and tiers, used by consumers and topic readers.

Ledger list and policy are evaluated for every run, so that an offload or a change of the read priority takes effect on
open readers. :mod:`~afterglow.read.priority` puts the copies in order, :mod:`~afterglow.read.fallback` reads from them.

The read priority concerns entries that consumers receive. A search by time delivers no entries, so it takes the
cheapest copy: the hot log on this machine as long as it has the ledger, then the tier by its
:mod:`~afterglow.read.time_index`. A hot log behind brokers or bookies, where each probe is a round trip, is probed only
for entries that no tier has. Entries read by a search are not counted as read; its requests to tiers are counted like
all others.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from afterglow.config.choices import DamagePolicy, ReadPriority
from afterglow.errors import AfterglowError, LedgerMissing
from afterglow.ledger.entry_source import EntrySlice
from afterglow.read.bookie_log import BookieLog
from afterglow.read.copies import HotCopy, StorageTier
from afterglow.read.counters import ReadCounters
from afterglow.read.fallback import Copies, FallbackReader
from afterglow.read.hot_readers import RemoteHotLog
from afterglow.read.priority import copy_order
from afterglow.read.ranges import offloaded_range_at
from afterglow.read.time_index import TimeIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.copies import HotReader, LedgerCopy, ServedRun
    from afterglow.read.tier_reader import TierReader


class TieredEntrySource:
    """An :class:`~afterglow.ledger.entry_source.EntrySource` over hot log and tiers. Thread-safe.

    Args:
        name: The topic's managed-ledger name.
        hot: The hot log.
        tiers: Opens copies in tiers.
        policy: Gives the topic's current policy.
        counters: Count reads by the copy that served them.
    """

    def __init__(
        self,
        name: str,
        hot: HotReader,
        tiers: TierReader,
        policy: Callable[[], BrokerConfig],
        counters: ReadCounters,
    ) -> None:
        self.counters = counters
        self._name = name
        self._hot = hot
        self._tiers = tiers
        self._policy = policy
        self._reads = FallbackReader(name, counters)
        self._searches = FallbackReader(name, ReadCounters())
        self._probes_hot = not isinstance(hot, RemoteHotLog | BookieLog)

    def read(self, ledger: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
        """Read entries; see :class:`~afterglow.ledger.entry_source.EntrySource`."""
        return _first_run(self.walk(ledger, first, last, max_bytes), last)

    def probe(self, ledger: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
        """Read entries for a search; see :class:`~afterglow.ledger.entry_source.EntrySource`."""
        priority = ReadPriority.BOOKKEEPER_FIRST if self._probes_hot else ReadPriority.TIERED_STORAGE_FIRST
        find_copies = partial(self._find_copies, ledger, last, priority)
        return _first_run(self._searches.walk(find_copies, first, last, max_bytes), last)

    def narrow(self, ledger: ManagedLedgerInfo.LedgerInfo, entries: range, time_ms: int, *, stamped: bool) -> range:
        """Narrow a search by time; see :class:`~afterglow.ledger.entry_source.EntrySource`."""
        if self._is_cheap(ledger):
            return entries
        return TimeIndex(self._name, self._tiers, self._policy(), self.counters).narrow(
            ledger, entries, time_ms, stamped=stamped
        )

    def _is_cheap(self, ledger: ManagedLedgerInfo.LedgerInfo) -> bool:
        """Whether the hot log on this machine has a ledger."""
        if ledger.offloadContext.bookkeeperDeleted or not self._probes_hot:
            return False
        try:
            self._hot.open(ledger.ledgerId)
        except LedgerMissing:
            return False
        return True

    def walk(
        self,
        ledger: ManagedLedgerInfo.LedgerInfo,
        first: int,
        last: int,
        max_bytes: int,
        priority: ReadPriority | None = None,
    ) -> Iterator[ServedRun]:
        """Entries from ``first`` to ``last``, both inclusive, in runs of at most ``max_bytes`` or one entry.

        Args:
            ledger: The ledger, from the newest ledger list; not to be changed.
            first: First entry.
            last: Last entry.
            max_bytes: Bound for all entries of a run but the first.
            priority: Read priority; None: that of the policy at each run.

        Raises:
            LedgerMissing: No copy of the ledger exists.
            AfterglowError: No copy of an entry can be read.
        """
        return self._reads.walk(partial(self._find_copies, ledger, last, priority), first, last, max_bytes)

    def scan(
        self, ledger: ManagedLedgerInfo.LedgerInfo, first: int, last: int, priority: ReadPriority | None = None
    ) -> Iterator[ServedRun]:
        """The same in bulk: large runs, prefetched, without the cache.

        Raises:
            LedgerMissing: No copy of the ledger exists.
            AfterglowError: No copy of an entry can be read; the runs before it are valid.
        """
        return self._reads.scan(partial(self._find_copies, ledger, last, priority), first, last)

    def _find_copies(
        self, ledger: ManagedLedgerInfo.LedgerInfo, last: int, priority: ReadPriority | None, first: int
    ) -> Copies:
        policy = self._policy()
        priority = priority or policy.managed_ledger_offloaded_read_priority
        skip_damaged = policy.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT
        is_hot_deleted = ledger.offloadContext.bookkeeperDeleted
        offloaded = offloaded_range_at(ledger, first)
        # A freed hot copy stays in the order, so that reading the other one counts as a fallback.
        order = copy_order(priority, has_hot=True, has_tiered=offloaded is not None)

        def open_copy(tier: StorageTier) -> LedgerCopy:
            if tier is StorageTier.HOT:
                if is_hot_deleted:
                    raise LedgerMissing(f"{self._name}: ledger {ledger.ledgerId} is not in the hot log any more")
                return HotCopy(self._hot, ledger.ledgerId)
            assert offloaded is not None
            return self._tiers.copy(
                self._tiers.locator.locate(self._name, offloaded, policy),
                ledger.ledgerId,
                policy,
                self.counters,
                allow_truncated=skip_damaged,
                fail_fast=order[0] is StorageTier.TIERED and not is_hot_deleted,
            )

        def on_failure(tier: StorageTier, error: AfterglowError) -> None:
            if tier is StorageTier.TIERED and offloaded is not None:
                with suppress(AfterglowError):  # an object that cannot be located needs no backoff
                    self._tiers.failed(self._tiers.locator.locate(self._name, offloaded, policy), error)

        last = last if offloaded is None else min(last, offloaded.last)
        object_name = None if offloaded is None else offloaded.uuid
        return Copies(ledger.ledgerId, last, order, skip_damaged, object_name, open_copy, on_failure)


def _first_run(served: Iterator[ServedRun], last: int) -> EntrySlice:
    """The first run; an empty one after ``last`` where all entries up to there were skipped."""
    found = next(served, None)
    if found is None:
        return EntrySlice(last + 1, ())
    return EntrySlice(found.run.frames.first_entry_id, found.run.entries(), found.tier is StorageTier.TIERED)
