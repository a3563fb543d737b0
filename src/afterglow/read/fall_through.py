"""Reading from the copy that is wanted, falling through to the other, leaving out, and telling of it.

* A hot copy that is gone is passed over in silence; one that is damaged, and an object that is missing, damaged or out
  of reach, is told of.
* Every read counts the tier that served it; one that another served than was wanted counts as a fall-back, by reason.
* Where no copy serves, the read fails; or, where damage is to be skipped, what is damaged for good in every copy is
  left out. A store that cannot be reached is never a reason to leave anything out; nor is a hot ledger that is gone
  while no other copy is known, since what is known may be older than the deletion.
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

    Choose: TypeAlias = Callable[[int], "Choice"]
    """What may serve the entries from one on. Asked anew for every run."""

log = logging.getLogger(__name__)

_FOR_GOOD: Final = (CorruptBlock, CorruptIndex, WrongLength, ObjectMissing, LedgerMissing)
"""What trying again does not mend."""
_MAX_TOLD: Final = 1_000
"""Objects whose trouble was logged and is not logged again."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What may serve some entries of one ledger."""

    ledger_id: int
    last: int
    """Last entry, inclusive, of which this is true."""
    order: tuple[Tier, ...]
    """The copies to try, the wanted one first."""
    skips: bool
    """Whether what is damaged for good in every copy is left out."""
    object_name: object
    """Tells the object in the tier from others; None where there is none."""
    open: Callable[[Tier], LedgerCopy]
    """Opens a copy; raises ``AfterglowError`` where that cannot be."""
    failed: Callable[[Tier, AfterglowError], None]
    """Told of a copy that did not serve."""


class FallThrough:
    """Reads entries of one topic as choices say. Thread-safe.

    Args:
        name: The topic, for messages.
        counters: Told what was served, and from where.
    """

    def __init__(self, name: str, counters: ReadCounters) -> None:
        self.counters = counters
        self._name = name
        self._lock = Lock()
        self._told: set[object] = set()

    def walk(self, choose: Choose, first: int, last: int, max_bytes: int) -> Iterator[ServedRun]:
        """Entries from ``first`` to ``last``, both inclusive, in runs of at most ``max_bytes`` or one entry.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read.
        """
        while first <= last:
            choice = choose(first)
            failures: list[tuple[Tier, AfterglowError]] = []
            for tier in choice.order:
                try:
                    run = choice.open(tier).read(first, min(choice.last, last), max_bytes)
                except AfterglowError as error:
                    failures.append((tier, error))
                    choice.failed(tier, error)
                    continue
                self._report(choice, tier, run, failures)
                yield ServedRun(run, tier)
                first = run.frames.end_entry_id
                break
            else:
                first = self._leave_out(choice, first, last, failures)

    def scan(self, choose: Choose, first: int, last: int) -> Iterator[ServedRun]:
        """The same in bulk: large runs, read ahead, past the cache.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read; runs before that are good.
        """
        while first <= last:
            began = first
            choice = choose(first)
            failures: list[tuple[Tier, AfterglowError]] = []
            until = min(choice.last, last) + 1
            for tier in choice.order:
                try:
                    for run in choice.open(tier).scan(first, until - 1):
                        self._report(choice, tier, run, failures)
                        failures.clear()
                        yield ServedRun(run, tier)
                        first = run.frames.end_entry_id
                except AfterglowError as error:
                    failures.append((tier, error))
                    choice.failed(tier, error)
                    if isinstance(error, DamagedPiece):  # behind it, the wanted copy is good again
                        until = min(until, max(error.until, first + 1))
                if first > began:
                    break  # choose anew where this one failed, or ended
            else:
                first = self._leave_out(choice, first, last, failures)

    def _report(self, choice: Choice, tier: Tier, run: FrameRun, failures: list[tuple[Tier, AfterglowError]]) -> None:
        """A copy has served after others failed to."""
        self.counters.served(tier, len(run.frames), run.frames.payload_bytes)
        for failed, error in failures:
            self.counters.fell_back(failed, reason_of(error))
            if isinstance(error, LedgerMissing):
                continue  # gone from the hot log, as is the way of things
            whose = choice.object_name if failed is Tier.TIERED and choice.object_name else choice.ledger_id
            if self._first_time((failed, whose)):
                log.warning("%s: the %s copy cannot be read, the other one serves: %s", self._name, failed, error)

    def _leave_out(self, choice: Choice, first: int, last: int, failures: list[tuple[Tier, AfterglowError]]) -> int:
        """No copy serves an entry. Returns the first behind it that may be tried, if it may be left out.

        Raises:
            AfterglowError: It may not; the most telling of what the copies said.
        """
        told = [error for _, error in failures if not isinstance(error, LedgerMissing)]
        error = told[0] if told else failures[-1][1]
        lost = [failed for _, failed in failures]
        if not choice.skips or not told or not all(isinstance(failed, _FOR_GOOD) for failed in lost):
            raise error
        end = min(choice.last, last) + 1
        until = end
        for failed in lost:
            if isinstance(failed, DamagedPiece):
                until = min(until, failed.until)
            elif isinstance(failed, CorruptBlock):  # of the hot copy, which does not tell how far it goes
                until = first + 1
        until = min(max(until, first + 1), end)
        self.counters.left_out(until - first, reason_of(error))
        if self._first_time((choice.ledger_id, first)):
            log.warning(
                "%s: entries %s:%s to %s are left out: %s", self._name, choice.ledger_id, first, until - 1, error
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
