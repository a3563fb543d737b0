"""A topic cut into splits: stretches that are read by themselves, many at a time, by threads or by other processes.

A split names the copy that is wanted and, where there is one, the other copy: an object by its place and key, the hot
log by the way there. :mod:`~afterglow.read.cutter` makes them, :mod:`~afterglow.read.split_reader` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.format.position import Position
from afterglow.read.copies import Tier

if TYPE_CHECKING:
    from afterglow.read.hot_places import HotPlace
    from afterglow.read.neighbours import Neighbourhood
    from afterglow.read.objects import Located
    from afterglow.read.stretches import Stretch
    from afterglow.read.window import Window

SPLIT_BYTES: Final = 32 << 20
"""Of blocks in one split, unless a single block is larger: some tenths of a second of work."""
WHOLE: Final = 1 << 62
"""Bytes in a split of what is not to be cut."""


@dataclass(frozen=True, slots=True)
class Split:
    """Consecutive entries of one ledger. Travels to other processes; holds no secrets."""

    topic: str
    """Full name, with the partition."""
    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    window: Window
    """Which messages of these entries are wanted."""
    wanted: Tier
    """The copy that is read; where it does not serve, the other one does if there is one."""
    located: Located | None
    """The object that holds them; None: no tier does."""
    hot: HotPlace | None
    """The hot log that holds them; None: it does not, or not any more."""
    size_bytes: int
    """Of the blocks that hold them, or of their frames in the hot log; there it may be an estimate."""
    skips_damage: bool
    """Whether what is damaged in every copy is left out and reported."""
    around: Neighbourhood
    """What stands before and behind them."""

    @property
    def entries(self) -> int:
        """How many there are."""
        return self.last - self.first + 1

    @property
    def order(self) -> tuple[Tier, ...]:
        """The copies to try, the wanted one first."""
        both = (self.wanted, Tier.TIERED if self.wanted is Tier.HOT else Tier.HOT)
        return tuple(tier for tier in both if (self.located if tier is Tier.TIERED else self.hot) is not None)


@dataclass(frozen=True, slots=True)
class Range:
    """Consecutive entries of one ledger that are worth reading as one."""

    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    stretch: Stretch | None
    """Where a tier has them; None: no tier does."""
    wanted: Tier
    """The copy that is to serve."""
    size_bytes: int
    """Of its blocks there, or of its frames; perhaps an estimate."""

    @property
    def start(self) -> Position:
        """Its first entry."""
        return Position(self.ledger_id, self.first)

    @property
    def end(self) -> Position:
        """The position behind its last entry."""
        return Position(self.ledger_id, self.last + 1)
