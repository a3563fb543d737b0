"""Reads from the preferred copy, with fallback to the other copy, and skipping of damaged entries.

The order of the copies is that of :func:`afterglow.read.priority.copy_order` (PIP-73), and is determined anew for every
run of entries. An object that could not be read is in backoff (:class:`~afterglow.read.tier_reader.TierReader`): until
that ends, readers that have a hot copy are served from it at once.

* A ledger that was deleted from the hot log is not logged; a damaged hot copy, and an object that is missing, damaged
  or unreachable, is logged once.
* Every read counts the copy that served it; a read that another copy than the preferred one served also counts as a
  fallback, by reason.
* If no copy can be read, the read fails; or, if the policy is to skip damage, entries that are permanently damaged in
  every copy are skipped. Entries are never skipped because a store is unreachable, nor because the hot ledger is
  deleted while no other copy is known: the ledger list may be older than the deletion.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.errors import (
    AfterglowError,
    CorruptBlock,
    CorruptIndex,
    DamagedStripe,
    LedgerMissing,
    ObjectMissing,
    WrongLength,
)
from afterglow.read.copies import ServedRun, StorageTier
from afterglow.read.counters import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from afterglow.read.copies import FrameRun, LedgerCopy
    from afterglow.read.counters import ReadCounters

    FindCopies: TypeAlias = Callable[[int], "Copies"]
    """Returns the copies that may serve the entries from an entry id on. Called for every run."""

log = logging.getLogger(__name__)

_PERMANENT: Final = (CorruptBlock, CorruptIndex, WrongLength, ObjectMissing, LedgerMissing)
"""Errors that a retry does not resolve."""
_MAX_LOGGED: Final = 1_000
"""Objects whose failure is not logged again."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies that may serve some entries of one ledger."""

    ledger_id: int
    last: int
    """Last entry, inclusive, that these copies may serve."""
    order: tuple[StorageTier, ...]
    """The copies to try, the preferred one first."""
    skip_damaged: bool
    """Whether to skip entries that are permanently damaged in every copy."""
    object_name: object
    """Identifies the object in the tier; None: no tier has the entries."""
    open: Callable[[StorageTier], LedgerCopy]
    """Opens a copy; raises ``AfterglowError`` if that fails."""
    on_failure: Callable[[StorageTier, AfterglowError], None]
    """Called with a copy that could not be read, and its error."""


class FallbackReader:
    """Reads entries of one topic, each run from the first of its copies that can be read. Thread-safe.

    Args:
        name: The topic, for log messages.
        counters: Count reads by the copy that served them.
    """

    def __init__(self, name: str, counters: ReadCounters) -> None:
        self.counters = counters
        self._name = name
        self._lock = Lock()
        self._logged: set[object] = set()

    def walk(self, find_copies: FindCopies, first: int, last: int, max_bytes: int) -> Iterator[ServedRun]:
        """Entries from ``first`` to ``last``, both inclusive, in runs of at most ``max_bytes`` or one entry.

        Raises:
            LedgerMissing: No copy of the ledger exists.
            AfterglowError: No copy of an entry can be read.
        """
        while first <= last:
            copies = find_copies(first)
            failures: list[tuple[StorageTier, AfterglowError]] = []
            for tier in copies.order:
                try:
                    run = copies.open(tier).read(first, min(copies.last, last), max_bytes)
                except AfterglowError as error:
                    failures.append((tier, error))
                    copies.on_failure(tier, error)
                    continue
                self._report(copies, tier, run, failures)
                yield ServedRun(run, tier)
                first = run.frames.end_entry_id
                break
            else:
                first = self._skip(copies, first, last, failures)

    def scan(self, find_copies: FindCopies, first: int, last: int) -> Iterator[ServedRun]:
        """The same in bulk: large runs, prefetched, without the cache.

        Raises:
            LedgerMissing: No copy of the ledger exists.
            AfterglowError: No copy of an entry can be read; the runs before it are valid.
        """
        while first <= last:
            began = first
            copies = find_copies(first)
            failures: list[tuple[StorageTier, AfterglowError]] = []
            until = min(copies.last, last) + 1
            for tier in copies.order:
                try:
                    for run in copies.open(tier).scan(first, until - 1):
                        self._report(copies, tier, run, failures)
                        failures.clear()
                        yield ServedRun(run, tier)
                        first = run.frames.end_entry_id
                except AfterglowError as error:
                    failures.append((tier, error))
                    copies.on_failure(tier, error)
                    if isinstance(error, DamagedStripe):  # after it, the preferred copy is intact again
                        until = min(until, max(error.until, first + 1))
                if first > began:
                    break  # find the copies again from where this one failed, or ended
            else:
                first = self._skip(copies, first, last, failures)

    def _report(
        self, copies: Copies, tier: StorageTier, run: FrameRun, failures: list[tuple[StorageTier, AfterglowError]]
    ) -> None:
        """Count a run, and the failures of the copies that were tried before."""
        self.counters.served(tier, len(run.frames), run.frames.payload_bytes)
        for failed, error in failures:
            self.counters.fell_back(failed, reason_of(error))
            if isinstance(error, LedgerMissing):
                continue  # deleted from the hot log, as expected after offload
            name = copies.object_name if failed is StorageTier.TIERED and copies.object_name else copies.ledger_id
            if self._is_first((failed, name)):
                log.warning("%s: the %s copy cannot be read, reading the other one: %s", self._name, failed, error)

    def _skip(self, copies: Copies, first: int, last: int, failures: list[tuple[StorageTier, AfterglowError]]) -> int:
        """Skip entries that no copy can serve, if that is allowed. Returns the first entry after them.

        Raises:
            AfterglowError: It is not allowed; the most informative error of the copies.
        """
        reported = [error for _, error in failures if not isinstance(error, LedgerMissing)]
        error = reported[0] if reported else failures[-1][1]
        lost = [failed for _, failed in failures]
        if not copies.skip_damaged or not reported or not all(isinstance(failed, _PERMANENT) for failed in lost):
            raise error
        end = min(copies.last, last) + 1
        until = end
        for failed in lost:
            if isinstance(failed, DamagedStripe):
                until = min(until, failed.until)
            elif isinstance(failed, CorruptBlock):  # of the hot copy: the extent of the damage is not known
                until = first + 1
        until = min(max(until, first + 1), end)
        self.counters.skipped(until - first, reason_of(error))
        if self._is_first((copies.ledger_id, first)):
            log.warning(
                "%s: entries %s:%s to %s are skipped: %s", self._name, copies.ledger_id, first, until - 1, error
            )
        return until

    def _is_first(self, failure: object) -> bool:
        """Whether a failure was not logged before."""
        with self._lock:
            if failure in self._logged:
                return False
            if len(self._logged) >= _MAX_LOGGED:
                self._logged.clear()
            self._logged.add(failure)
            return True
