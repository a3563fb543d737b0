"""Positions of entries, and of messages in them, in a topic."""

from __future__ import annotations

import re
from dataclasses import dataclass

from afterglow.errors import InvalidName

_TEXT = re.compile(r"(-?\d{1,19}):(-?\d{1,19})(?::(-?\d{1,10}))?")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """An entry of a topic. Positions order as the topic does: ledger ids grow, entry ids grow inside a ledger."""

    ledger_id: int
    entry_id: int
    """From 0; -1 is the position before a ledger's first entry."""

    def next(self) -> Position:
        """Return the next position in the same ledger, whether or not it has an entry."""
        return Position(self.ledger_id, self.entry_id + 1)

    def previous(self) -> Position:
        """Return the previous position in the same ledger; entry -1 precedes entry 0."""
        return Position(self.ledger_id, self.entry_id - 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST = Position(-1, -1)
"""Pulsar's position before every entry."""

LATEST = Position(2**63 - 1, 2**63 - 1)
"""Pulsar's position after every entry."""


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Consecutive entries of one ledger."""

    ledger_id: int
    first: int
    """First entry id, inclusive."""
    last: int
    """Last entry id, inclusive; never below ``first``."""

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.first}..{self.last}"


def parse_position(text: str) -> tuple[Position, int]:
    """Parse ``LEDGER:ENTRY[:BATCH]``, ``earliest`` or ``latest``; returns the position and the batch index or -1.

    Raises:
        InvalidName: The text has another form.
    """
    word = text.strip().lower()
    if word == "earliest":
        return EARLIEST, -1
    if word == "latest":
        return LATEST, -1
    match = _TEXT.fullmatch(word)
    if match is None:
        raise InvalidName(f"invalid position {text!r}; write LEDGER:ENTRY[:BATCH], earliest or latest")
    ledger_id, entry_id, batch = match.groups()
    return Position(int(ledger_id), int(entry_id)), -1 if batch is None else int(batch)
