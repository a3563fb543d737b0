"""Entries before and after a range that is read, for chunked messages and transactions that extend beyond it.

A chunked message may begin before the split that holds its last chunk, and the marker of a transaction follows its
messages. In one process the whole pinned view can be read. The reader of a split has no metadata, so a split carries a
list of the ranges around it: bounded, packed, and the same object for adjacent splits, so that it adds little to them.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections import deque
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.errors import OutOfReach
from afterglow.format.position import LATEST, Position
from afterglow.read.objects import TierObject
from afterglow.tier.locations import TierLocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from afterglow.config.choices import ReadPriority
    from afterglow.read.copies import ServedRun
    from afterglow.read.hot_readers import HotLocation
    from afterglow.read.split_reader import SplitReader
    from afterglow.read.splits import Split
    from afterglow.read.topic_reader import TopicReader

    Read: TypeAlias = Callable[[int, int], Iterator[ServedRun]]
    """Reads entries of a ledger from first to last, both inclusive, in order."""

RANGES_BEFORE: Final = 64
"""Ranges listed before a split: chunks of one message follow each other within minutes."""
RANGES_AFTER: Final = 256
"""Ranges listed after it: a transaction may stay open for hours."""
RANGES_PER_GROUP: Final = 16
"""Ranges whose splits share one list."""


@dataclass(frozen=True, slots=True)
class NeighbourRange:
    """Consecutive entries of one ledger that one object, or only the hot log, holds."""

    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    tier_object: TierObject | None
    """The object; None: no tier has them."""
    hot: bool
    """Whether the hot log should have them."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The ranges around splits, sent with them."""

    packed: bytes
    """The ranges, compressed; see :meth:`neighbours`."""
    hot: HotLocation | None
    """Location of the hot log; None: it cannot be reached."""
    has_first: bool
    """Whether they include the first range of the topic."""
    has_last: bool
    """Whether they include the last range of the topic, as it was pinned."""

    @classmethod
    def of(
        cls, neighbours: Sequence[NeighbourRange], hot: HotLocation | None, *, has_first: bool, has_last: bool
    ) -> Neighbourhood:
        """Pack ranges, which must be in order."""
        locations: dict[TierLocation, int] = {}
        rows = [
            [
                each.ledger_id,
                each.first,
                each.last,
                int(each.hot),
                *(
                    [locations.setdefault(known.location, len(locations)), known.key, int(known.markers_stripped)]
                    if (known := each.tier_object)
                    else []
                ),
            ]
            for each in neighbours
        ]
        named = [astuple(location) for location in locations]
        return cls(zlib.compress(json.dumps([named, rows], separators=(",", ":")).encode()), hot, has_first, has_last)

    def neighbours(self) -> tuple[NeighbourRange, ...]:
        """The ranges, in order."""
        named, rows = json.loads(zlib.decompress(self.packed))
        # JSON has made lists of the properties' tuples.
        locations = [replace(TierLocation(*each[:-1]), properties=tuple(map(tuple, each[-1]))) for each in named]
        return tuple(
            NeighbourRange(
                ledger_id,
                first,
                last,
                TierObject(locations[rest[0]], rest[1], bool(rest[2])) if rest else None,
                bool(hot),
            )
            for ledger_id, first, last, hot, *rest in rows
        )


def find_range(neighbours: Sequence[NeighbourRange], position: Position) -> int:
    """Index of the last range that begins at or before a position; -1: no range does."""
    key = (position.ledger_id, position.entry_id)
    return bisect_right(neighbours, key, key=lambda each: (each.ledger_id, each.first)) - 1


_STEP_ENTRIES: Final = 4
"""Entries of the first step back: a chunk has some 5 MB, and the one before it is usually close."""
_STEP_BYTES: Final = 8 << 20
"""Target size of further steps."""
_HELD_BYTES: Final = 16 << 20
"""Bytes kept of a step that is larger than expected."""
_SCAN_AFTER_BYTES: Final = 16 << 20
"""Bytes after which reading forwards turns into a scan, which prefetches and bypasses the cache."""


class ViewNeighbours:
    """The :class:`~afterglow.read.messages.Neighbours` in a whole pinned view.

    Args:
        reader: Reader of the view.
        priority: Read priority; None: that of the policy.
    """

    def __init__(self, reader: TopicReader, priority: ReadPriority | None = None) -> None:
        self._reader = reader
        self._priority = priority

    def before(self, position: Position) -> Iterator[ServedRun]:
        """The entries before a position; see :class:`~afterglow.read.messages.Neighbours`."""
        layout = self._reader.view.layout
        for ledger_id in reversed(layout.ids):
            if ledger_id > position.ledger_id:
                continue
            last = (layout.entries_of(ledger_id) or 0) - 1
            if ledger_id == position.ledger_id:
                last = min(last, position.entry_id - 1)
            yield from _backwards(partial(self._read, ledger_id), 0, last)

    def after(self, position: Position) -> Iterator[ServedRun]:
        """The entries from a position on; see :class:`~afterglow.read.messages.Neighbours`."""
        size_bytes = 0
        for served in self._reader.read(position, LATEST, priority=self._priority, scan=False):
            yield served
            size_bytes += served.run.frame_bytes
            if size_bytes > _SCAN_AFTER_BYTES:
                position = Position(served.run.ledger_id, served.run.frames.end_entry_id)
                yield from self._reader.read(position, LATEST, priority=self._priority)
                return

    def _read(self, ledger_id: int, first: int, last: int) -> Iterator[ServedRun]:
        start, end = Position(ledger_id, first), Position(ledger_id, last + 1)
        return self._reader.read(start, end, priority=self._priority, scan=False)


class SplitNeighbours:
    """The :class:`~afterglow.read.messages.Neighbours` in the neighbourhood of a split.

    Args:
        split: The split.
        reader: Reads the ranges.
    """

    def __init__(self, split: Split, reader: SplitReader) -> None:
        self._split = split
        self._reader = reader
        self._neighbours: tuple[NeighbourRange, ...] | None = None

    def before(self, position: Position) -> Iterator[ServedRun]:
        """The entries before a position; see :class:`~afterglow.read.messages.Neighbours`.

        Raises:
            OutOfReach: The topic begins before the split's neighbourhood.
        """
        neighbours = self._known()
        for at in range(find_range(neighbours, position.previous()), -1, -1):
            each = neighbours[at]
            same = each.ledger_id == position.ledger_id
            last = min(each.last, position.entry_id - 1) if same else each.last
            yield from _backwards(partial(self._read, each), each.first, last)
        if not self._split.neighbourhood.has_first:
            raise self._out_of_reach("before", position)

    def after(self, position: Position) -> Iterator[ServedRun]:
        """The entries from a position on; see :class:`~afterglow.read.messages.Neighbours`.

        Raises:
            OutOfReach: The topic ends after the split's neighbourhood.
        """
        neighbours = self._known()
        for each in neighbours[max(find_range(neighbours, position), 0) :]:
            first = max(each.first, position.entry_id) if each.ledger_id == position.ledger_id else each.first
            if each.ledger_id >= position.ledger_id and first <= each.last:
                yield from self._read(each, first, each.last)
        if not self._split.neighbourhood.has_last:
            raise self._out_of_reach("after", position)

    def _known(self) -> tuple[NeighbourRange, ...]:
        if self._neighbours is None:
            self._neighbours = self._split.neighbourhood.neighbours()
        return self._neighbours

    def _read(self, each: NeighbourRange, first: int, last: int) -> Iterator[ServedRun]:
        neighbourhood = self._split.neighbourhood
        split = replace(
            self._split,
            ledger_id=each.ledger_id,
            first=first,
            last=last,
            tier_object=each.tier_object,
            hot=neighbourhood.hot if each.hot else None,
        )
        return self._reader.read(split, scan=False)

    def _out_of_reach(self, where: str, position: Position) -> OutOfReach:
        return OutOfReach(
            f"{self._split.topic}: a message near {position} needs entries {where} it, beyond the "
            f"{len(self._known())} ranges that its split lists; read this topic in one process, with "
            "afterglow.connect(…).topic(…).scan()"
        )


def _backwards(read: Read, first: int, last: int) -> Iterator[ServedRun]:
    """Entries of a ledger from ``last`` back to ``first``: the nearest run first.

    Each step is read forwards. If it is larger than expected from the step before, only its nearest runs are kept, and
    the others are read again.
    """
    count = _STEP_ENTRIES
    while last >= first:
        low = max(first, last - count + 1)
        held: deque[ServedRun] = deque()
        size_bytes = 0
        for served in read(low, last):
            held.append(served)
            size_bytes += served.run.frame_bytes
            while size_bytes > _HELD_BYTES and len(held) > 1:
                size_bytes -= held.popleft().run.frame_bytes
                low = held[0].run.frames.first_entry_id
        seen = last - low + 1
        last = low - 1
        while held:
            yield held.pop()
        count = min(max(_STEP_BYTES * seen // max(size_bytes, 1), 1), 4 * count)
