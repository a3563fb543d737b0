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
    def end_entry(self) -> Position:
        """Position behind the last entry that holds a wanted message."""
        return self.end.next() if self.end_batch else self.end

    def narrowed(self, ledgers: Iterable[LedgerRecord]) -> tuple[Position, Position]:
        """First entry, inclusive, and end, exclusive, that reading needs to look at.

        Whole ledgers at either end are passed over where the list shows that all their entries are too old or too
        young: the broker time of their last entry is recorded, so that all of them have one, and it never goes back.

        Args:
            ledgers: Of the topic, ascending.
        """
        start, end = self.start, self.end_entry
        newest: int | None = None
        begun = False
        behind: Position | None = None
        for ledger in ledgers:
            last_ms = ledger.last_broker_time_ms
            too_old = self.since_ms is not None and last_ms is not None and last_ms < self.since_ms
            too_young = (
                self.until_ms is not None and last_ms is not None and newest is not None and newest >= self.until_ms
            )
            if too_old and not begun:
                start = max(start, Position(ledger.ledger_id + 1, -1))
            begun = begun or not too_old
            if not too_young:
                behind = None
            elif behind is None:
                behind = Position(ledger.ledger_id, 0)
            newest = newest if last_ms is None else last_ms
        return start, end if behind is None else min(end, behind)


def _position(given: Place, default: Position) -> tuple[Position, int]:
    if given is None:
        return default, 0
    if isinstance(given, Position):
        return given, 0
    position, batch = parse_position(given)
    return position, max(batch, 0)
