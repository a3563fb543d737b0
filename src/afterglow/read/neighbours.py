"""What stands before and behind a split, for messages that do not end where they begin.

A message in chunks may begin before the split that holds its last chunk, and what became of a transaction is told
behind its messages. Who reads a split far from any metadata looks there: so a split brings a list of the stretches
around it, bounded, packed, and the same for the splits near each other, so that they cost little together.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.read.objects import Located
from afterglow.read.places import TierPlace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.format.position import Position
    from afterglow.read.hot_places import HotPlace

BEFORE: Final = 64
"""Stretches listed before a split: chunks of one message follow each other within minutes."""
BEHIND: Final = 256
"""Stretches listed behind it: a transaction may stay open for hours."""
GROUP: Final = 16
"""Stretches whose splits share one list."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Consecutive entries of one ledger that one object holds, or the hot log alone."""

    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    located: Located | None
    """The object; None: no tier has them."""
    hot: bool
    """Whether the hot log is to have them."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The stretches around some splits. Travels with them."""

    packed: bytes
    """Of :meth:`neighbours`."""
    hot: HotPlace | None
    """The hot log of those that it has; None: it cannot be reached."""
    first: bool
    """Whether nothing of the topic stands before them."""
    last: bool
    """Whether nothing of the topic, as it was pinned, stands behind them."""

    @classmethod
    def of(cls, neighbours: Sequence[Neighbour], hot: HotPlace | None, *, first: bool, last: bool) -> Neighbourhood:
        """Pack stretches, which are in order."""
        places: dict[TierPlace, int] = {}
        rows = [
            [
                each.ledger_id,
                each.first,
                each.last,
                int(each.hot),
                *([places.setdefault(each.located.place, len(places)), each.located.key] if each.located else []),
            ]
            for each in neighbours
        ]
        named = [[place.driver, place.bucket, place.region, place.endpoint, place.prefix] for place in places]
        return cls(zlib.compress(json.dumps([named, rows], separators=(",", ":")).encode()), hot, first, last)

    def neighbours(self) -> tuple[Neighbour, ...]:
        """The stretches, in order."""
        named, rows = json.loads(zlib.decompress(self.packed))
        places = [TierPlace(*fields) for fields in named]
        return tuple(
            Neighbour(ledger_id, first, last, Located(places[rest[0]], rest[1]) if rest else None, bool(hot))
            for ledger_id, first, last, hot, *rest in rows
        )


def at_or_before(neighbours: Sequence[Neighbour], position: Position) -> int:
    """Index of the last stretch that begins at or before a position; -1 where none does."""
    key = (position.ledger_id, position.entry_id)
    return bisect_right(neighbours, key, key=lambda each: (each.ledger_id, each.first)) - 1
