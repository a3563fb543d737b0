"""Which messages are wanted: from a position to another, from a moment to another, both half-open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from afterglow.format.position import EARLIEST, LATEST, Position, parse_position
from afterglow.read.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from typing import TypeAlias

    from afterglow.ledger.ledger_list import LedgerRecord

    Place: TypeAlias = Position | str | None
    Moment: TypeAlias = datetime | str | int | None


@dataclass(frozen=True, slots=True)
class Window:
    """A message is in iff it is between the positions and between the moments."""

    start: Position = EARLIEST
    """First entry, inclusive."""
    start_batch: int = 0
    """First message wanted of the entry at ``start``, inclusive."""
    end: Position = LATEST
    """Entry at which it ends."""
    end_batch: int = 0
    """Of that entry, the messages before this one are still in."""
    since_ms: int | None = None
    """Earliest time, epoch milliseconds, inclusive."""
    until_ms: int | None = None
    """Latest time, exclusive."""
    published_from_ms: int | None = None
    """What is measured to be published earlier need not be read. It may be, all the same."""
    published_to_ms: int | None = None
    """The same of what is published later."""

    @classmethod
    def of(cls, start: Place, end: Place, since: Moment, until: Moment, now_ms: int) -> Self:
        """A window as programs and people give it; None is no bound.

        Raises:
            InvalidName: A position is none.
            ConfigError: A moment is none.
        """
        first, first_batch = _position(start, EARLIEST)
        last, last_batch = _position(end, LATEST)
        return cls(
            first,
            first_batch,
            last,
            last_batch,
            None if since is None else parse_time(since, now_ms),
            None if until is None else parse_time(until, now_ms),
        )

    @property
    def timed(self) -> bool:
        """Whether time bounds it."""
        return self.since_ms is not None or self.until_ms is not None

    @property
    def bounded(self) -> bool:
        """Whether positions bound it."""
        return (self.start, self.end) != (EARLIEST, LATEST)

    @property
    def contradiction(self) -> str | None:
        """Why nothing can be in it, where its bounds are the wrong way round; None: they are not."""
        if (self.end, self.end_batch) < (self.start, self.start_batch):
            return f"end {self.end} lies before start {self.start}"
        if self.since_ms is not None and self.until_ms is not None and self.until_ms < self.since_ms:
            return f"until (epoch millisecond {self.until_ms}) lies before since ({self.since_ms})"
        return None

    @property
    def prunes(self) -> bool:
        """Whether times tell that something need not be read."""
        return self.timed or self.published_from_ms is not None or self.published_to_ms is not None

    @property
    def end_entry(self) -> Position:
        """Position behind the last entry that holds a wanted message."""
        return self.end.next() if self.end_batch else self.end

    def stretches(self, ledgers: Iterable[LedgerRecord]) -> list[tuple[Position, Position]]:
        """What reading must look at, in order: first position, inclusive, and end, exclusive, of each stretch.

        Ledgers are passed over where the list shows that all their entries are too old or too young: the broker time of
        the last entry is recorded where all entries have one, and it never goes back, also from ledger to ledger.

        Args:
            ledgers: Of the topic, ascending.
        """
        found: list[tuple[Position, Position]] = []
        newest = -1
        adjacent = False
        for ledger in ledgers:
            last_ms = ledger.last_broker_time_ms
            passed_over = last_ms is not None and (
                (self.since_ms is not None and last_ms < self.since_ms)
                or (self.until_ms is not None and newest >= self.until_ms)
            )
            newest = newest if last_ms is None else last_ms
            begin = max(self.start, Position(ledger.ledger_id, -1))
            end = min(self.end_entry, Position(ledger.ledger_id + 1, -1))
            if not passed_over and begin < end:
                found.append((found.pop()[0] if adjacent else begin, end))
            adjacent = not passed_over and begin < end
        return found


def _position(given: Place, default: Position) -> tuple[Position, int]:
    if given is None:
        return default, 0
    if isinstance(given, Position):
        return given, 0
    position, batch = parse_position(given)
    return position, max(batch, 0)
