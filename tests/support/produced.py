"""What was produced to topics, as a plain list, and what readers must give of it.

Derived from the list alone: nothing here is shared with the readers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.random_messages import Row, Sent

Point: TypeAlias = tuple[int, int, int]
"""Ledger, entry and number in a batch; -1 is before the entry."""

FIRST: Final[Point] = (-1, -1, -1)
LAST: Final[Point] = (2**62, -1, -1)


@dataclass(frozen=True, slots=True)
class Asked:
    """Which messages are wanted."""

    start: Point = FIRST
    end: Point = LAST
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, row: Row) -> bool:
        """Whether a message is in."""
        time_ms = (row["publish_time"] if row["broker_time"] is None else row["broker_time"]) // 1000
        return (
            self.start <= (row["ledger_id"], row["entry_id"], row["batch_index"]) < self.end
            and (self.since_ms is None or self.since_ms <= time_ms)
            and (self.until_ms is None or time_ms < self.until_ms)
        )

    def options(self) -> dict[str, str]:
        """The same as options of the data source and of ``scan``."""
        found = {}
        for name, point, default in (("start", self.start, FIRST), ("end", self.end, LAST)):
            if point != default:
                found[name] = ":".join(map(str, point[: 3 if point[2] > 0 else 2]))
        for name, time_ms in (("since", self.since_ms), ("until", self.until_ms)):
            if time_ms is not None:
                found[name] = str(time_ms)
        return found


@dataclass(slots=True)
class Ledger:
    """One ledger of a topic, with the state that the server has to bring it to."""

    ledger_id: int
    entries: int = 0
    closed: bool = False
    tiered: int = 0
    """Entries of it that the tier has, from the first on."""
    whole: bool = False
    """Whether the tier has it in an object of its own."""
    freed: bool = False


@dataclass(slots=True)
class Produced:
    """What was produced to one topic by its own name."""

    name: str
    rows: list[tuple[Row, frozenset[int], int | None]] = field(default_factory=list)
    """By position: the message, the ledgers that hold its entries, and its transaction."""
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    """Those that are there, ascending."""
    waiting: list[list[Sent]] = field(default_factory=list)
    """Entries of messages in chunks that are still to be sent, in order."""
    chunks: dict[str, set[int]] = field(default_factory=dict)
    """Ledgers that hold the chunks of a message so far."""
    open: set[int] = field(default_factory=set)
    """Transactions that were not ended."""
    committed: set[int] = field(default_factory=set)
    index: int | None = None
    broker_time_ms: int = 0
    """Of the last entry that has one."""
    read_to: int = -1
    """Ledgers below this id are not needed by a stream any more."""

    def there(self) -> Iterator[Row]:
        """The messages that are to be seen now."""
        for row, ledgers, transaction in self.rows:
            if all(each in self.ledgers for each in ledgers) and transaction in {None, *self.committed}:
                yield row

    def tier(self, row: Row, *, hot_first: bool) -> str:
        """The copy of a message that serves."""
        ledger = self.ledgers[row["ledger_id"]]
        tiered = row["entry_id"] < ledger.tiered and not (hot_first and not ledger.freed)
        return "tiered" if tiered else "hot"
