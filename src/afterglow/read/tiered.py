"""Which copy of an entry serves a read: the choice of PIP-73, falling through, leaving out, and telling of it.

For every read the stretch of the ledger is looked up in the newest list, and the policy is asked anew: a change takes
effect on readers that are open.

* **Hot first** falls to the tier where the hot copy is gone, in silence, or damaged.
* **Tiered first** falls to the hot log where the object is missing, damaged, or cannot be reached, and says so.
* Every read counts the tier that served it; one that another served than was wanted counts as a fall-back, by reason.
* Where no copy serves, the read fails; or, with ``damagedDataPolicy=skip-and-report``, what is damaged for good in
  every copy is left out. A store that cannot be reached is never a reason to leave anything out; nor is a hot ledger
  that is gone while the list names no other copy, since the list may be older than the deletion.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.config.choices import DamagePolicy, ReadPriority
from afterglow.errors import (
    AfterglowError,
    CorruptBlock,
    CorruptIndex,
    DamagedPiece,
    LedgerMissing,
    ObjectMissing,
    WrongLength,
)
from afterglow.ledger.source import EntryRun
from afterglow.read.copies import HotCopy, ServedRun, Tier
from afterglow.read.counters import reason_of
from afterglow.read.stretches import stretch_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.copies import FrameRun, HotReader, LedgerCopy
    from afterglow.read.counters import ReadCounters
    from afterglow.read.stretches import Stretch
    from afterglow.read.tier_source import TierSource

log = logging.getLogger(__name__)

_FOR_GOOD: Final = (CorruptBlock, CorruptIndex, WrongLength, ObjectMissing, LedgerMissing)
"""What trying again does not mend."""
_MAX_TOLD: Final = 1_000
"""Objects whose trouble was logged and is not logged again."""


@dataclass(frozen=True, slots=True)
class _Read:
    """One read: what is wanted, and from where."""

    row: ManagedLedgerInfo.LedgerInfo
    stretch: Stretch | None
    last: int
    """Last entry, inclusive, not beyond the stretch."""
    policy: BrokerConfig
    order: tuple[Tier, ...]
    """The copies to try, the wanted one first."""

    @property
    def hot_gone(self) -> bool:
        return self.row.offloadContext.bookkeeperDeleted

    @property
    def skips(self) -> bool:
        return self.policy.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT


class TieredSource:
    """An :class:`~afterglow.ledger.source.EntrySource` over hot log and tiers. Thread-safe.

    Args:
        name: The topic's managed-ledger name.
        hot: The hot log.
        tiers: Opens copies in tiers.
        policy: Gives the topic's policy of now.
        counters: Told what was served, and from where.
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
        self._lock = Lock()
        self._told: set[object] = set()

    def read(self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntryRun:
        """Entries of one ledger; see the protocol."""
        for served in self.walk(row, first, last, max_bytes):
            return EntryRun(served.run.frames.first_entry_id, served.run.entries())
        return EntryRun(last + 1, ())

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
        while first <= last:
            read = self._plan(row, first, last, priority)
            failures: list[tuple[Tier, AfterglowError]] = []
            for tier in read.order:
                try:
                    run = self._copy(tier, read).read(first, read.last, max_bytes)
                except AfterglowError as error:
                    failures.append((tier, error))
                    self._failed(tier, read, error)
                    continue
                self._report(read, tier, run, failures)
                yield ServedRun(run, tier)
                first = run.frames.end_entry_id
                break
            else:
                first = self._leave_out(read, first, failures)

    def scan(
        self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, priority: ReadPriority | None = None
    ) -> Iterator[ServedRun]:
        """The same in bulk: large runs, read ahead, past the cache.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read; runs before that are good.
        """
        while first <= last:
            began = first
            read = self._plan(row, first, last, priority)
            failures: list[tuple[Tier, AfterglowError]] = []
            until = read.last + 1
            for tier in read.order:
                try:
                    for run in self._copy(tier, read).scan(first, until - 1):
                        self._report(read, tier, run, failures)
                        failures.clear()
                        yield ServedRun(run, tier)
                        first = run.frames.end_entry_id
                except AfterglowError as error:
                    failures.append((tier, error))
                    self._failed(tier, read, error)
                    if isinstance(error, DamagedPiece):  # behind it, the wanted copy is good again
                        until = min(until, max(error.until, first + 1))
                if first > began:
                    break  # plan anew where this one failed, or ended
            else:
                first = self._leave_out(read, first, failures)

    # --- one copy ---

    def _plan(self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, priority: ReadPriority | None) -> _Read:
        policy = self._policy()
        stretch = stretch_at(row, first)
        if stretch is None:
            return _Read(row, None, last, policy, (Tier.HOT,))
        wanted = priority or policy.managed_ledger_offloaded_read_priority
        hot_first = wanted is ReadPriority.BOOKKEEPER_FIRST
        order = (Tier.HOT, Tier.TIERED) if hot_first else (Tier.TIERED, Tier.HOT)
        return _Read(row, stretch, min(last, stretch.last), policy, order)

    def _copy(self, tier: Tier, read: _Read) -> LedgerCopy:
        ledger_id = read.row.ledgerId
        if tier is Tier.HOT:
            if read.hot_gone:
                raise LedgerMissing(f"{self._name}: the hot copy of ledger {ledger_id} is gone")
            return HotCopy(self._hot, ledger_id)
        assert read.stretch is not None
        foreign = self._tiers.foreign_copy(read.stretch, read.policy)
        return foreign or self._tiers.copy(
            self._tiers.locate(self._name, read.stretch, read.policy),
            ledger_id,
            read.policy,
            self.counters,
            lenient=read.skips,
            impatient=read.order[0] is Tier.TIERED and not read.hot_gone,
        )

    def _failed(self, tier: Tier, read: _Read, error: AfterglowError) -> None:
        if tier is Tier.TIERED and read.stretch is not None:
            with suppress(AfterglowError):  # what cannot be located needs no patience
                self._tiers.failed(self._tiers.locate(self._name, read.stretch, read.policy), error)

    # --- telling of it ---

    def _report(self, read: _Read, tier: Tier, run: FrameRun, failures: list[tuple[Tier, AfterglowError]]) -> None:
        """A copy has served after others failed to."""
        self.counters.served(tier, len(run.frames), run.frames.payload_bytes)
        for failed, error in failures:
            self.counters.fell_back(failed, reason_of(error))
            if isinstance(error, LedgerMissing):
                continue  # gone from the hot log, as is the way of things
            whose = read.stretch.uuid if failed is Tier.TIERED and read.stretch else read.row.ledgerId
            if self._first_time((failed, whose)):
                log.warning("%s: the %s copy cannot be read, the other one serves: %s", self._name, failed, error)

    def _leave_out(self, read: _Read, first: int, failures: list[tuple[Tier, AfterglowError]]) -> int:
        """No copy serves an entry. Returns the first behind it that may be tried, if it may be left out.

        Raises:
            AfterglowError: It may not; the most telling of what the copies said.
        """
        told = [error for _, error in failures if not isinstance(error, LedgerMissing)]
        error = told[0] if told else failures[-1][1]
        lost = [failed for _, failed in failures]
        if not read.skips or not told or not all(isinstance(failed, _FOR_GOOD) for failed in lost):
            raise error
        until = read.last + 1
        for failed in lost:
            if isinstance(failed, DamagedPiece):
                until = min(until, failed.until)
            elif isinstance(failed, CorruptBlock):  # of the hot copy, which does not tell how far it goes
                until = first + 1
        until = min(max(until, first + 1), read.last + 1)
        self.counters.left_out(until - first, reason_of(error))
        if self._first_time((read.row.ledgerId, first)):
            log.warning(
                "%s: entries %s:%s to %s are left out: %s", self._name, read.row.ledgerId, first, until - 1, error
            )
        return until

    def _first_time(self, what: object) -> bool:
        with self._lock:
            if what in self._told:
                return False
            if len(self._told) >= _MAX_TOLD:
                self._told.clear()
            self._told.add(what)
            return True
