"""Splits of a topic: ranges that threads or other processes read independently.

A split names the copies that hold its entries: an object by its tier location and key, the hot log by its location.
:mod:`~afterglow.read.split_planner` plans splits, :mod:`~afterglow.read.split_reader` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.format.position import Position
from afterglow.read.priority import copy_order

if TYPE_CHECKING:
    from afterglow.config.choices import ReadPriority
    from afterglow.read.copies import StorageTier
    from afterglow.read.hot_readers import HotLocation
    from afterglow.read.neighbours import Neighbourhood
    from afterglow.read.objects import TierObject
    from afterglow.read.ranges import OffloadedRange
    from afterglow.read.scan_range import ScanRange

SPLIT_BYTES: Final = 32 << 20
"""Bytes of blocks in one split, unless a single block is larger: some tenths of a second of work."""
UNDIVIDED: Final = 1 << 62
"""Split size that divides no range."""


@dataclass(frozen=True, slots=True)
class Split:
    """Consecutive entries of one ledger. Can be sent to other processes; holds no credentials."""

    topic: str
    """Full name, with the partition."""
    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    scan_range: ScanRange
    """The messages of these entries to read."""
    priority: ReadPriority
    tier_object: TierObject | None
    """The object that holds them; None: no tier has them."""
    hot: HotLocation | None
    """The hot log that holds them; None: it does not have them, or not any more."""
    size_bytes: int
    """Bytes of their blocks, or of their frames in the hot log, perhaps estimated."""
    skips_damage: bool
    """Whether entries that are damaged in every copy are skipped and reported."""
    neighbourhood: Neighbourhood
    """Ranges of the topic before and after them."""

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.last - self.first + 1

    @property
    def order(self) -> tuple[StorageTier, ...]:
        """The copies to try, the preferred one first."""
        return copy_order(self.priority, has_hot=self.hot is not None, has_tiered=self.tier_object is not None)


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Consecutive entries of one ledger to read as one."""

    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    offloaded: OffloadedRange | None
    """Their range in a tier; None: no tier has them."""
    preferred: StorageTier
    """The first copy to read."""
    size_bytes: int
    """Bytes of their blocks in the tier, or of their frames, perhaps estimated."""

    @property
    def start(self) -> Position:
        """Position of its first entry."""
        return Position(self.ledger_id, self.first)

    @property
    def end(self) -> Position:
        """Position after its last entry."""
        return Position(self.ledger_id, self.last + 1)
