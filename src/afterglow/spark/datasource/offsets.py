"""Offsets of streams, which Spark keeps as JSON: a point of every topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from afterglow.errors import CorruptMetadata, InvalidName
from afterglow.format.position import EARLIEST, Position, parse_position

if TYPE_CHECKING:
    from collections.abc import Mapping

    Offsets: TypeAlias = Mapping[str, "Point"]
    """By full name of the topic or partition. A topic that is missing was not read at all."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A point before a message of a topic. Points have the order of the topic."""

    position: Position
    """The entry."""
    batch: int = 0
    """Index of the message in the entry's batch; 0 is before the entry."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``LEDGER:ENTRY[:BATCH]``, ``earliest`` or ``latest``.

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
_START: Final = "earliest"


def to_json(offsets: Offsets) -> dict[str, str]:
    """Encode offsets: ``LEDGER:ENTRY:BATCH`` of the first message that was not read."""
    return {name: _START if point == START else str(point) for name, point in offsets.items()}


def from_json(stored: Mapping[str, object]) -> dict[str, Point]:
    """Decode offsets.

    Raises:
        CorruptMetadata: They are not offsets of this source.
    """
    try:
        return {name: Point.parse(str(text)) for name, text in stored.items()}
    except InvalidName as error:
        raise CorruptMetadata(f"the checkpoint's offset is not one of this source: {error}") from error
