"""Reading entries from the preferred copy, with fallback to the other one, and skipping of damaged entries.

* A hot copy that is gone is passed over silently; a damaged one, and an object that is missing, damaged or unreachable,
  is logged once.
* Every read counts the tier that served it; a read that another tier than the preferred one served also counts as a
  fallback, by reason.
* Where no copy serves, the read fails; or, where the policy is to skip damage, entries that are permanently damaged in
  every copy are left out. A store that cannot be reached is never a reason to leave entries out; nor is a hot ledger
  that is gone while no other copy is known, since the ledger list may be older than the deletion.
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
    DamagedPiece,
    LedgerMissing,
    ObjectMissing,
    WrongLength,
)
from afterglow.read.copies import ServedRun, Tier
from afterglow.read.counters import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from afterglow.read.copies import FrameRun, LedgerCopy
    from afterglow.read.counters import ReadCounters

    FindCopies: TypeAlias = Callable[[int], "Copies"]
    """Gives the copies that may serve the entries from one on. Called for every run."""

log = logging.getLogger(__name__)

_FOR_GOOD: Final = (CorruptBlock, CorruptIndex, WrongLength, ObjectMissing, LedgerMissing)
"""Errors that a retry does not resolve."""
_MAX_LOGGED: Final = 1_000
"""Objects whose failure was logged and is not logged again."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies that may serve some entries of one ledger."""

    ledger_id: int
    last: int
    """Last entry, inclusive, of which this is true."""
    order: tuple[Tier, ...]
    """The copies to try, the preferred one first."""
    skips: bool
    """Whether entries that are permanently damaged in every copy are left out."""
    object_name: object
    """Identifies the object in the tier; None where there is none."""
    open: Callable[[Tier], LedgerCopy]
    """Opens a copy; raises ``AfterglowError`` where that cannot be."""
    failed: Callable[[Tier, AfterglowError], None]
    """Called with a copy that did not serve, and its error."""


class FallbackReader:
    """Reads entries of one topic, each run from the first of its copies that serves. Thread-safe.

    Args:
        name: The topic, for messages.
        counters: Count what was served, and from where.
    """

    def __init__(self, name: str, counters: ReadCounters) -> None:
        self.counters = counters
        self._name = name
        self._lock = Lock()
        self._logged: set[object] = set()

    def walk(self, find_copies: FindCopies, first: int, last: int, max_bytes: int) -> Iterator[ServedRun]:
        """Entries from ``first`` to ``last``, both inclusive, in runs of at most ``max_bytes`` or one entry.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read.
        """
        while first <= last:
            copies = find_copies(first)
            failures: list[tuple[Tier, AfterglowError]] = []
            for tier in copies.order:
                try:
                    run = copies.open(tier).read(first, min(copies.last, last), max_bytes)
                except AfterglowError as error:
                    failures.append((tier, error))
                    copies.failed(tier, error)
                    continue
                self._report(copies, tier, run, failures)
                yield ServedRun(run, tier)
                first = run.frames.end_entry_id
                break
            else:
                first = self._leave_out(copies, first, last, failures)

    def scan(self, find_copies: FindCopies, first: int, last: int) -> Iterator[ServedRun]:
        """The same in bulk: large runs, prefetched, without the cache.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read; runs before that are good.
        """
        while first <= last:
            began = first
            copies = find_copies(first)
            failures: list[tuple[Tier, AfterglowError]] = []
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
                    copies.failed(tier, error)
                    if isinstance(error, DamagedPiece):  # behind it, the preferred copy is good again
                        until = min(until, max(error.until, first + 1))
                if first > began:
                    break  # find the copies again where this one failed, or ended
            else:
                first = self._leave_out(copies, first, last, failures)

    def _report(self, copies: Copies, tier: Tier, run: FrameRun, failures: list[tuple[Tier, AfterglowError]]) -> None:
        """A copy has served after others failed to."""
        self.counters.served(tier, len(run.frames), run.frames.payload_bytes)
        for failed, error in failures:
            self.counters.fell_back(failed, reason_of(error))
            if isinstance(error, LedgerMissing):
                continue  # deleted from the hot log, as expected after offload
            whose = copies.object_name if failed is Tier.TIERED and copies.object_name else copies.ledger_id
            if self._first_time((failed, whose)):
                log.warning("%s: the %s copy cannot be read, the other one serves: %s", self._name, failed, error)

    def _leave_out(self, copies: Copies, first: int, last: int, failures: list[tuple[Tier, AfterglowError]]) -> int:
        """No copy serves an entry. Returns the first behind it that may be tried, if it may be left out.

        Raises:
            AfterglowError: It may not; the most informative error of the copies.
        """
        reported = [error for _, error in failures if not isinstance(error, LedgerMissing)]
        error = reported[0] if reported else failures[-1][1]
        lost = [failed for _, failed in failures]
        if not copies.skips or not reported or not all(isinstance(failed, _FOR_GOOD) for failed in lost):
            raise error
        end = min(copies.last, last) + 1
        until = end
        for failed in lost:
            if isinstance(failed, DamagedPiece):
                until = min(until, failed.until)
            elif isinstance(failed, CorruptBlock):  # of the hot copy, whose extent is not known
                until = first + 1
        until = min(max(until, first + 1), end)
        self.counters.left_out(until - first, reason_of(error))
        if self._first_time((copies.ledger_id, first)):
            log.warning(
                "%s: entries %s:%s to %s are left out: %s", self._name, copies.ledger_id, first, until - 1, error
            )
        return until

    def _first_time(self, what: object) -> bool:
        with self._lock:
            if what in self._logged:
                return False
            if len(self._logged) >= _MAX_LOGGED:
                self._logged.clear()
            self._logged.add(what)
            return True
