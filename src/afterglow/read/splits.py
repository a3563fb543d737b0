"""Splits of a topic: ranges that are read independently, many at a time, by threads or by other processes.

A split names the copies that hold its entries: an object by its tier location and key, the hot log by its address.
:mod:`~afterglow.read.split_planner` plans them, :mod:`~afterglow.read.split_reader` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.format.position import Position
from afterglow.read.priority import copy_order

if TYPE_CHECKING:
    from afterglow.config.choices import ReadPriority
    from afterglow.read.copies import Tier
    from afterglow.read.hot_readers import HotLocation
    from afterglow.read.neighbours import Neighbourhood
    from afterglow.read.objects import Located
    from afterglow.read.ranges import OffloadedRange
    from afterglow.read.window import Window

SPLIT_BYTES: Final = 32 << 20
"""Of blocks in one split, unless a single block is larger: some tenths of a second of work."""
WHOLE: Final = 1 << 62
"""Bytes in a split of what is not to be divided."""


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
    priority: ReadPriority
    """Which copy is preferred while both exist; where it does not serve, the other one does."""
    located: Located | None
    """The object that holds them; None: no tier does."""
    hot: HotLocation | None
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
        """The copies to try, the preferred one first."""
        return copy_order(self.priority, has_hot=self.hot is not None, has_tiered=self.located is not None)


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Consecutive entries of one ledger that are worth reading as one."""

    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    offloaded: OffloadedRange | None
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
