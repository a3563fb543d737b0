"""Scan ranges: half-open ranges of positions and times that a caller asks for, and the parsing of times."""

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
class ScanRange:
    """Range of messages, by position and by time; a message must be in both."""

    start: Position = EARLIEST
    """First entry, inclusive."""
    start_batch: int = 0
    """First message of the entry at ``start``, inclusive."""
    end: Position = LATEST
    """Entry at which the range ends."""
    end_batch: int = 0
    """Messages of the entry at ``end`` with a smaller batch index are in the range."""
    since_ms: int | None = None
    """Earliest time, epoch milliseconds, inclusive."""
    until_ms: int | None = None
    """Latest time, exclusive."""
    published_from_ms: int | None = None
    """Least publish time. Only prunes: messages that were published earlier may be read all the same."""
    published_to_ms: int | None = None
    """Greatest publish time, likewise."""

    @classmethod
    def of(cls, start: PositionLike, end: PositionLike, since: TimeLike, until: TimeLike, now_ms: int) -> Self:
        """Parse a range as callers and users give it; None: unbounded.

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
    def has_times(self) -> bool:
        """Whether it is bounded by time."""
        return self.since_ms is not None or self.until_ms is not None

    @property
    def has_positions(self) -> bool:
        """Whether it is bounded by positions."""
        return (self.start, self.end) != (EARLIEST, LATEST)

    @property
    def empty_reason(self) -> str | None:
        """Why the range is empty, if its end is before its start; else None."""
        if (self.end, self.end_batch) < (self.start, self.start_batch):
            return f"end {self.end} is before start {self.start}"
        if self.since_ms is not None and self.until_ms is not None and self.until_ms < self.since_ms:
            return f"until (epoch millisecond {self.until_ms}) is before since ({self.since_ms})"
        return None

    @property
    def can_prune(self) -> bool:
        """Whether blocks may be pruned by time."""
        return self.has_times or self.published_from_ms is not None or self.published_to_ms is not None

    @property
    def end_entry(self) -> Position:
        """Position after the last entry that holds a message of the range."""
        return self.end.next() if self.end_batch else self.end

    def ranges(self, ledgers: Iterable[LedgerRecord]) -> list[tuple[Position, Position]]:
        """The ranges of positions to read, in order: first position, inclusive, and end, exclusive.

        Ledgers are skipped if the ledger list shows that all their entries are out of the range of times: the broker
        time of the last entry is recorded if all entries have one, and it never goes back, even from ledger to ledger.

        Args:
            ledgers: The ledgers of the topic, ascending.
        """
        found: list[tuple[Position, Position]] = []
        newest = -1
        adjacent = False
        for ledger in ledgers:
            last_ms = ledger.last_broker_time_ms
            is_skipped = last_ms is not None and (
                (self.since_ms is not None and last_ms < self.since_ms)
                or (self.until_ms is not None and newest >= self.until_ms)
            )
            newest = newest if last_ms is None else last_ms
            begin = max(self.start, Position(ledger.ledger_id, -1))
            end = min(self.end_entry, Position(ledger.ledger_id + 1, -1))
            is_read = not is_skipped and begin < end
            if is_read:
                found.append((found.pop()[0] if adjacent else begin, end))
            adjacent = is_read
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
    """Parse a time to epoch milliseconds, rounded down.

    Args:
        given: RFC 3339, epoch milliseconds, an age such as ``15m``, or a datetime with a time zone.
        now_ms: Current time, from which ages count.

    Raises:
        ConfigError: It is not a valid time.
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
        f"{str(given)!r} is not a valid time; write RFC 3339 with a zone (2026-11-15T20:00:00Z), epoch milliseconds, "
        "or an age (15m, 4h, 2d)"
    )
