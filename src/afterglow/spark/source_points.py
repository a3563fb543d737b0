"""Where reading begins or ends: a position with the number of a message in its entry. Offsets of streams are these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from afterglow.format.position import EARLIEST, Position, parse_position


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """Before a message of a topic. Points order as the topic does."""

    position: Position
    """The entry."""
    batch: int = 0
    """Number of the message in it; 0 is before the entry."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``LEDGER:ENTRY[:BATCH]``, ``earliest`` or ``latest``.

        Raises:
            InvalidName: It is none of these.
        """
        position, batch = parse_position(text)
        return cls(position, max(batch, 0))

    @classmethod
    def before(cls, ledger_id: int) -> Self:
        """The point before the first entry of a ledger."""
        return cls(Position(ledger_id, -1))

    def __str__(self) -> str:
        return f"{self.position}:{self.batch}"


START: Final = Point(EARLIEST)
"""Before every message."""
