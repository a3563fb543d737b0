"""Entry source of a topic over hot log and tiers, used by consumers and topic readers.

For every run the ledger's newest list entry gives the offloaded range, and the policy gives the read priority, so that
a change of either takes effect on open readers. :mod:`~afterglow.read.priority` decides which copy is preferred,
:mod:`~afterglow.read.fallback` reads from it or from the other one.

The read priority concerns entries that consumers receive. A search by time delivers no entry, so it takes the cheapest
copy whatever the priority: the hot log on this machine as long as it has the ledger, then the tier by its
:mod:`~afterglow.read.time_index`. A hot log behind brokers, where each probe is a round trip, is used only for entries
that no tier has. Entries read by a search are not counted as read; its requests to tiers are counted like all others.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from afterglow.config.choices import DamagePolicy, ReadPriority
from afterglow.errors import AfterglowError, LedgerMissing
from afterglow.ledger.entry_source import EntrySlice
from afterglow.read.copies import HotCopy, Tier
from afterglow.read.counters import ReadCounters
from afterglow.read.fallback import Copies, FallbackReader
from afterglow.read.hot_readers import RemoteHot
from afterglow.read.priority import copy_order
from afterglow.read.ranges import offloaded_range_at
from afterglow.read.time_index import TimeIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.copies import HotReader, LedgerCopy, ServedRun
    from afterglow.read.ranges import OffloadedRange
    from afterglow.read.tier_source import TierSource


@dataclass(frozen=True, slots=True)
class _Read:
    """One read: its ledger, range, policy and order of copies."""

    row: ManagedLedgerInfo.LedgerInfo
    offloaded: OffloadedRange | None
    policy: BrokerConfig
    order: tuple[Tier, ...]

    @property
    def hot_gone(self) -> bool:
        return self.row.offloadContext.bookkeeperDeleted

    @property
    def skips(self) -> bool:
        return self.policy.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT


class TieredSource:
    """An :class:`~afterglow.ledger.entry_source.EntrySource` over hot log and tiers. Thread-safe.

    Args:
        name: The topic's managed-ledger name.
        hot: The hot log.
        tiers: Opens copies in tiers.
        policy: Gives the topic's current policy.
        counters: Count what was served, and from where.
    """

    def __init__(
        self,
        name: str,
        hot: HotReader,
        tiers: TierSource,
        policy: Callable[[], BrokerConfig],
        counters: ReadCounters,
    ) -> None:
        self.counters = counters
        self._name = name
        self._hot = hot
        self._tiers = tiers
        self._policy = policy
        self._through = FallbackReader(name, counters)
        self._searches = FallbackReader(name, ReadCounters())
        self._probes_hot = not isinstance(hot, RemoteHot)

    def read(self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
        """Entries of one ledger; see the protocol."""
        return _first_run(self.walk(row, first, last, max_bytes), last)

    def probe(self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
        """Entries of one ledger for a search; see the protocol."""
        priority = ReadPriority.BOOKKEEPER_FIRST if self._probes_hot else ReadPriority.TIERED_STORAGE_FIRST
        find_copies = partial(self._find_copies, row, last, priority)
        return _first_run(self._searches.walk(find_copies, first, last, max_bytes), last)

    def narrow(self, row: ManagedLedgerInfo.LedgerInfo, entries: range, time_ms: int, *, stamped: bool) -> range:
        """Where in a ledger to search for a moment; see the protocol."""
        if self._is_cheap(row):
            return entries
        return TimeIndex(self._name, self._tiers, self._policy(), self.counters).narrow(
            row, entries, time_ms, stamped=stamped
        )

    def _is_cheap(self, row: ManagedLedgerInfo.LedgerInfo) -> bool:
        """Whether the hot log has a ledger and a probe of it costs next to nothing."""
        if row.offloadContext.bookkeeperDeleted or not self._probes_hot:
            return False
        try:
            self._hot.open(row.ledgerId)
        except LedgerMissing:
            return False
        return True

    def walk(
        self,
        row: ManagedLedgerInfo.LedgerInfo,
        first: int,
        last: int,
        max_bytes: int,
        priority: ReadPriority | None = None,
    ) -> Iterator[ServedRun]:
        """Entries from ``first`` to ``last``, both inclusive, in runs of at most ``max_bytes`` or one entry.

        Args:
            row: The ledger, as the newest list has it; not to be changed.
            first: First entry.
            last: Last entry.
            max_bytes: Bound for all entries of a run but the first.
            priority: Which copy serves while both exist; None asks the policy at each run.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read.
        """
        return self._through.walk(partial(self._find_copies, row, last, priority), first, last, max_bytes)

    def scan(
        self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, priority: ReadPriority | None = None
    ) -> Iterator[ServedRun]:
        """The same in bulk: large runs, prefetched, without the cache.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read; runs before that are good.
        """
        return self._through.scan(partial(self._find_copies, row, last, priority), first, last)

    def _find_copies(
        self, row: ManagedLedgerInfo.LedgerInfo, last: int, priority: ReadPriority | None, first: int
    ) -> Copies:
        policy = self._policy()
        offloaded = offloaded_range_at(row, first)
        if offloaded is not None:
            last = min(last, offloaded.last)
        # A hot copy that was deleted stays in the order, so that reading the other one counts as a fallback.
        order = copy_order(
            priority or policy.managed_ledger_offloaded_read_priority, has_hot=True, has_tiered=offloaded is not None
        )
        read = _Read(row, offloaded, policy, order)
        return Copies(
            row.ledgerId,
            last,
            order,
            read.skips,
            offloaded and offloaded.uuid,
            partial(self._copy, read),
            partial(self._failed, read),
        )

    def _copy(self, read: _Read, tier: Tier) -> LedgerCopy:
        ledger_id = read.row.ledgerId
        if tier is Tier.HOT:
            if read.hot_gone:
                raise LedgerMissing(f"{self._name}: the hot copy of ledger {ledger_id} is gone")
            return HotCopy(self._hot, ledger_id)
        assert read.offloaded is not None
        return self._tiers.copy(
            self._tiers.locate(self._name, read.offloaded, read.policy),
            ledger_id,
            read.policy,
            self.counters,
            lenient=read.skips,
            impatient=read.order[0] is Tier.TIERED and not read.hot_gone,
        )

    def _failed(self, read: _Read, tier: Tier, error: AfterglowError) -> None:
        if tier is Tier.TIERED and read.offloaded is not None:
            with suppress(AfterglowError):  # an object that cannot be located is not tried again anyway
                self._tiers.failed(self._tiers.locate(self._name, read.offloaded, read.policy), error)


def _first_run(served: Iterator[ServedRun], last: int) -> EntrySlice:
    """The first run; an empty one behind ``last`` where all entries up to there were left out."""
    found = next(served, None)
    if found is None:
        return EntrySlice(last + 1, ())
    return EntrySlice(found.run.frames.first_entry_id, found.run.entries(), found.tier is Tier.TIERED)
