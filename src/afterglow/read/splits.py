"""A topic cut into splits: stretches that processes elsewhere read by themselves, many at a time.

A split names the copy that it is read from: an object by its place and key, or the hot log of a home. Whoever reads one
from a tier needs the way there and credentials from its own environment, no metadata, no engine and no home. A copy
that cannot be read is an error: no split falls through to another copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afterglow.config.choices import ReadPriority
from afterglow.read.copies import HotCopy, ServedRun, Tier
from afterglow.read.counters import ReadCounters
from afterglow.read.handle import SharedHot
from afterglow.read.places import Tiers
from afterglow.read.stretches import stretch_at
from afterglow.read.tier_source import TierSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.read.copies import LedgerCopy
    from afterglow.read.handle import TopicView
    from afterglow.read.objects import Located
    from afterglow.read.pieces import LedgerPieces
    from afterglow.read.window import Window

SPLIT_BYTES: Final = 32 << 20
"""Of blocks in one split, unless a single block is larger: some tenths of a second of work."""


@dataclass(frozen=True, slots=True)
class Split:
    """Consecutive entries of one ledger in one copy. Travels to other processes; holds no secrets."""

    topic: str
    """Full name, with the partition."""
    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    window: Window
    """Which messages of these entries are wanted."""
    located: Located | None
    """The object that holds them; None: the hot log does."""
    home: str
    """The home whose hot log it is, an absolute path on the engine's machine."""


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts a pinned view of one topic into splits.

    Where the priority is the tier, the hot log gives what no tier has; where it is the hot log, a tier gives what has
    left the hot log. Entries of the hot log are not cut further than by ledger.
    """

    topic: str
    """Full name, with the partition."""
    view: TopicView
    tiers: TierSource
    """Knows where objects are."""
    policy: BrokerConfig
    """The topic's."""
    home: str
    """The home of its hot log, absolute."""
    counters: ReadCounters

    def splits(
        self,
        start: Position,
        end: Position,
        window: Window,
        *,
        priority: ReadPriority | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> Iterator[Split]:
        """The splits of a stretch of the topic, in order. Asks the tier for the indexes of its objects.

        Args:
            start: First position, inclusive; it need not be an entry.
            end: End position, exclusive.
            window: Which messages are wanted.
            priority: Which copy is read while both exist; None: what the policy says.
            split_bytes: Bytes of blocks in a split of an object, unless a single block is larger.

        Raises:
            AfterglowError: An index cannot be read, or metadata does not tell where an object is.
        """
        for span in self.view.spans(start, end):
            first = span.first
            while first <= span.last:
                located, last = self._copy(span.ledger_id, first, span.last, priority)
                borders = [(first, last)]
                if located is not None:
                    pieces = self.tiers.copy(located, span.ledger_id, self.policy, self.counters).ledger.pieces
                    borders = list(_cut(pieces, first, last, split_bytes))
                for low, high in borders:
                    yield Split(self.topic, span.ledger_id, low, high, window, located, self.home)
                first = last + 1

    def _copy(self, ledger_id: int, first: int, last: int, priority: ReadPriority | None) -> tuple[Located | None, int]:
        """Which object gives an entry, None: the hot log; and the last entry, not beyond ``last``, of which it does."""
        row = self.view.rows[ledger_id]
        hot_first = (priority or self.policy.managed_ledger_offloaded_read_priority) is ReadPriority.BOOKKEEPER_FIRST
        stretch = stretch_at(row, first)
        if stretch is None or (hot_first and not row.offloadContext.bookkeeperDeleted):
            return None, last
        return self.tiers.locate(self.view.name, stretch, self.policy), min(stretch.last, last)


class SplitReader:
    """Reads splits in any process; one of these serves all its splits. Thread-safe.

    Args:
        config: Credentials and budgets, as the environment of this process has them.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._tiers = TierSource(Tiers(), config)
        self._counters = ReadCounters()

    def read(self, split: Split) -> Iterator[ServedRun]:
        """The entries of a split, in runs.

        Raises:
            LedgerMissing: It names the hot log, and that has not got them, or is not on this machine.
            AfterglowError: They cannot be read; runs before that are good.
        """
        tier = Tier.HOT if split.located is None else Tier.TIERED
        for run in self._copy(split).scan(split.first, split.last):
            yield ServedRun(run, tier)

    def _copy(self, split: Split) -> LedgerCopy:
        if split.located is None:
            return HotCopy(SharedHot(Path(split.home)), split.ledger_id)
        return self._tiers.copy(split.located, split.ledger_id, self._config, self._counters)


def _cut(pieces: LedgerPieces, first: int, last: int, split_bytes: int) -> Iterator[tuple[int, int]]:
    """Entries from ``first`` to ``last`` in stretches of whole blocks."""
    block = pieces.find(first)
    size_bytes = 0
    while block is not None and block.first_entry_id <= last:
        length = block.end - block.start
        if size_bytes and size_bytes + length > split_bytes:
            yield first, block.first_entry_id - 1
            first, size_bytes = block.first_entry_id, 0
        size_bytes += length
        block = pieces.block(block.number + 1)
    yield first, last
