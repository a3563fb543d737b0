"""Windows of messages: from a position to another, from a time to another, both half-open; and the parsing of times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

from afterglow.config.value_types import duration
from afterglow.errors import ConfigError
from afterglow.format.position import EARLIEST, LATEST, Position, parse_position

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from afterglow.ledger.ledger_list import LedgerRecord

    PositionLike: TypeAlias = Position | str | None
    TimeLike: TypeAlias = datetime | str | int | None


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
    def of(cls, start: PositionLike, end: PositionLike, since: TimeLike, until: TimeLike, now_ms: int) -> Self:
        """A window as programs and people give it; None is unbounded.

        Raises:
            InvalidName: A position is not valid.
            ConfigError: A time is not valid.
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
        """Whether times may show that something need not be read."""
        return self.timed or self.published_from_ms is not None or self.published_to_ms is not None

    @property
    def end_entry(self) -> Position:
        """Position behind the last entry that holds a wanted message."""
        return self.end.next() if self.end_batch else self.end

    def ranges(self, ledgers: Iterable[LedgerRecord]) -> list[tuple[Position, Position]]:
        """The ranges of positions to read, in order: first position, inclusive, and end, exclusive.

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


def _position(given: PositionLike, default: Position) -> tuple[Position, int]:
    if given is None:
        return default, 0
    if isinstance(given, Position):
        return given, 0
    position, batch = parse_position(given)
    return position, max(batch, 0)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_AGE: Final = duration(1)


def parse_time(given: str | int | datetime, now_ms: int) -> int:
    """A moment in epoch milliseconds; fractions of one are dropped.

    Args:
        given: RFC 3339, epoch milliseconds, an age such as ``15m``, or a datetime with a time zone.
        now_ms: What ages count from.

    Raises:
        ConfigError: It is none of these.
    """
    if isinstance(given, int):
        return given
    try:
        if isinstance(given, datetime):
            return (given - _EPOCH) // _MILLISECOND
        text = given.strip()
        if text.isascii() and text.isdigit():
            return int(text)
        if _RFC_3339.fullmatch(text):
            return (datetime.fromisoformat(text.upper()) - _EPOCH) // _MILLISECOND
        age_ms = _AGE.parse(text)
        if age_ms >= 0:
            return now_ms - age_ms
    except (TypeError, ValueError):  # a datetime without a zone cannot be compared
        pass
    raise ConfigError(
        f"{str(given)!r} is no time; write RFC 3339 with a zone (2026-11-15T20:00:00Z), epoch milliseconds, or an age "
        "(15m, 4h, 2d)"
    )
