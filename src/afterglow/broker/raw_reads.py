"""Counts of where entries were found that raw readers were sent."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afterglow.ledger.reader import ReadOrigin, ReadResult


class OriginBytes:
    """Bytes of entries by where they were found, since the start. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._bytes: Counter[ReadOrigin] = Counter()

    def count(self, reading: ReadResult) -> None:
        """Count what one read brought."""
        entries = iter(reading.entries)
        for origin, count in reading.origins:
            self._bytes[origin] += sum(len(entry.data) for entry in islice(entries, count))

    def __getitem__(self, origin: ReadOrigin) -> int:
        """The bytes that were found there."""
        return self._bytes[origin]
