"""Planner of segments: their ends, blocks and parts, derived from the offsets of frames. Pure functions.

A part is planned once and recorded, so that any worker that uploads it, now or after a crash, writes the same bytes.
Where the hot log does not list the offsets of all frames, only the entries of a part are planned, and its task cuts the
blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from afterglow.errors import CorruptMetadata
from afterglow.format.blocks import HEADER_BYTES, BlockHeader, BlockPlan, Format, plan_v2
from afterglow.format.position import LedgerRange, Position
from afterglow.offload.task import LedgerPart, UncutLedgerPart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    from afterglow.config import BrokerConfig
    from afterglow.offload.segments.uncovered import EntryRange, PositionRange

    Offsets: TypeAlias = Callable[[int, int, int], NDArray[np.int64]]
    """Returns the offset of each frame of a hot ledger, given its id, first and last entry, and the end of the last
    frame; raises ``HotLogError``."""
    FrameEnd: TypeAlias = Callable[[int, int], int]
    """Returns the end of a frame among the frames of a hot ledger, given the ids of the ledger and of the entry; raises
    ``HotLogError``."""

MAX_PARTS: Final = 1_000
"""Parts of one segment: its upload record has an item for each, and stores allow 10,000."""

MAX_BLOCKS: Final = 8_192
"""Blocks of one segment: at some 50 bytes each in its upload record, less than half of the size limit of a node."""


ONE_PART_BYTES: Final = 1 << 62
"""A part size that no segment reaches."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a segment's blocks and parts. Fixed when it is assigned."""

    block_bytes: int
    """Maximum length of a block, which only a single larger entry exceeds."""
    part_bytes: int
    """Minimum length of a part, except for the last."""

    @classmethod
    def of(cls, max_segment_bytes: int, block_bytes: int, part_bytes: int) -> Sizes:
        """The configured sizes, raised if a segment would have too many blocks or parts.

        Args:
            max_segment_bytes: Size at which a segment closes.
            block_bytes: Configured size of blocks.
            part_bytes: Configured size of parts.
        """
        # A block is at least half full if no entry is larger than half of it, hence twice the bytes per block.
        block_bytes = max(block_bytes, -(-2 * max_segment_bytes // MAX_BLOCKS))
        return cls(block_bytes, max(part_bytes, block_bytes, -(-max_segment_bytes // MAX_PARTS)))

    @classmethod
    def of_policy(cls, policy: BrokerConfig) -> Sizes:
        """The sizes of a policy."""
        return cls.of(
            policy.max_offload_segment_size_in_bytes,
            policy.streaming_offload_block_size_in_bytes,
            policy.streaming_offload_part_size_in_bytes,
        )

    def in_one_part(self) -> Sizes:
        """The same size of blocks, with all blocks in one part, which is planned when the segment ends."""
        return Sizes(self.block_bytes, ONE_PART_BYTES)


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """One part of a segment."""

    number: int
    """From 1, without gaps."""
    ledgers: tuple[LedgerPart, ...] | tuple[UncutLedgerPart, ...]
    """Its blocks, with offsets in the object, or its entries."""

    @property
    def begin(self) -> Position:
        """Its first entry."""
        entries = self.ledgers[0].entries
        return Position(entries.ledger_id, entries.first)

    @property
    def end(self) -> Position:
        """Its last entry."""
        entries = self.ledgers[-1].entries
        return Position(entries.ledger_id, entries.last)

    @property
    def plans(self) -> tuple[BlockPlan, ...]:
        """Its blocks; empty if its task cuts them."""
        return tuple(plan for part in self.ledgers if isinstance(part, LedgerPart) for plan in part.plans)

    @property
    def block_bytes(self) -> tuple[int, ...]:
        """The length of each of its blocks; empty if its task cuts them."""
        return tuple(plan.header.block_bytes for plan in self.plans)

    @property
    def size_bytes(self) -> int:
        """Its length; at most this if its task cuts the blocks."""
        return sum(part.size_bytes for part in self.ledgers)

    @property
    def is_sized(self) -> bool:
        """Whether its length is known before its task has cut the blocks."""
        return all(part.is_sized for part in self.ledgers if isinstance(part, UncutLedgerPart))

    @property
    def uncut_bytes(self) -> int:
        """Length of its frames if its task cuts the blocks; else 0."""
        return sum(part.frame_bytes for part in self.ledgers if isinstance(part, UncutLedgerPart))


def cut_by_size(entries: PositionRange, frame_end: FrameEnd, max_bytes: int) -> Position | None:
    """The last entry of a segment that begins with the range and whose frames fill ``max_bytes``; at least one entry.

    None if the range is shorter. By binary search, so that a ledger of millions of entries takes some dozen small
    reads.

    Raises:
        HotLogError: A ledger cannot be read.
    """
    left = max_bytes
    end: Position | None = None
    for entry_range in entries.ranges:
        length = frame_bytes(entry_range, entry_range.last, frame_end)
        if length < left:
            left -= length
            end = entry_range.end
            continue
        last = _last_within(entry_range, frame_end, left)
        if last >= entry_range.first:
            return Position(entry_range.ledger_id, last)
        return end or entry_range.begin
    return None


def _last_within(entry_range: EntryRange, frame_end: FrameEnd, max_bytes: int) -> int:
    """The last entry up to which the frames of a range fit ``max_bytes``; the entry before the range if none fits."""
    low, high = entry_range.first - 1, entry_range.last  # entries up to ``low`` fit
    while low < high:
        middle = (low + high + 1) // 2
        if frame_bytes(entry_range, middle, frame_end) <= max_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def plan_parts(
    entries: PositionRange, offsets: Offsets, sizes: Sizes, *, number: int, offset: int, closing: bool
) -> tuple[PlannedPart, ...]:
    """Plan the parts of a range of entries.

    Args:
        entries: Entries after the parts that are planned already.
        offsets: Offsets of frames.
        sizes: Sizes of blocks and parts.
        number: Number of the first part.
        offset: Offset of that part in the object.
        closing: Whether the segment ends with the range. If not, entries that do not fill a part are left for later.

    Raises:
        HotLogError: A ledger cannot be read.
    """
    parts: list[PlannedPart] = []
    gathered: list[LedgerPart] = []
    gathered_bytes = 0
    for entry_range in entries.ranges:
        ends = offsets(entry_range.ledger_id, entry_range.first, entry_range.last)
        plans = plan_v2(ends, entry_range.ledger_id, entry_range.first, block_bytes=sizes.block_bytes, offset=offset)
        if not closing and not entry_range.closed:
            plans = plans[:-1]  # further entries may follow in the last block
        mine: list[BlockPlan] = []
        for plan in plans:
            mine.append(plan)
            gathered_bytes += plan.header.block_bytes
            offset += plan.header.block_bytes
            if gathered_bytes >= sizes.part_bytes:
                parts.append(
                    PlannedPart(number + len(parts), (*gathered, LedgerPart(entry_range.ledger_id, tuple(mine))))
                )
                gathered, mine, gathered_bytes = [], [], 0
        if mine:
            gathered.append(LedgerPart(entry_range.ledger_id, tuple(mine)))
        if not closing and not entry_range.closed:
            break
    if gathered and closing:
        parts.append(PlannedPart(number + len(parts), tuple(gathered)))
    return tuple(parts)


def plan_uncut_parts(
    entries: PositionRange, frame_end: FrameEnd, sizes: Sizes, *, number: int, closing: bool, is_sized: bool = True
) -> tuple[PlannedPart, ...]:
    """Plan the parts of a range of entries, whose blocks their tasks cut; a part ends where its frames fill it.

    Args:
        entries: Entries after the parts that are planned already.
        frame_end: Ends of frames.
        sizes: Sizes of blocks and parts.
        number: Number of the first part.
        closing: Whether the segment ends with the range. If not, entries that do not fill a part are left for later.
        is_sized: Whether the ends of frames are known; if not, they are estimates.

    Raises:
        HotLogError: A ledger cannot be read.
    """
    parts: list[PlannedPart] = []
    gathered: list[UncutLedgerPart] = []
    missing = sizes.part_bytes
    for entry_range in entries.ranges:
        rest: EntryRange | None = entry_range
        while rest is not None:
            length = frame_bytes(rest, rest.last, frame_end)
            last = rest.last if length <= missing else _last_within(rest, frame_end, missing - 1) + 1
            mine = length if last == rest.last else frame_bytes(rest, last, frame_end)
            mine_range = LedgerRange(rest.ledger_id, rest.first, last)
            gathered.append(UncutLedgerPart(mine_range, mine, sizes.block_bytes, is_sized))
            missing -= mine
            if missing <= 0:
                parts.append(PlannedPart(number + len(parts), tuple(gathered)))
                gathered, missing = [], sizes.part_bytes
            rest = replace(rest, first=last + 1) if last < rest.last else None
    if gathered and closing:
        parts.append(PlannedPart(number + len(parts), tuple(gathered)))
    return tuple(parts)


def restore_uncut_part(
    number: int,
    entries: PositionRange,
    frame_bytes_recorded: int,
    sizes: Sizes,
    frame_end: FrameEnd,
    *,
    is_sized: bool = True,
) -> PlannedPart:
    """Restore a planned part, whose blocks its task cuts, from its record.

    Args:
        number: Number of the part.
        entries: Its entries.
        frame_bytes_recorded: Length of its frames.
        sizes: Sizes of the segment's blocks and parts.
        frame_end: Ends of frames.
        is_sized: Whether these are known; if not, the recorded length is an estimate too.

    Raises:
        CorruptMetadata: The entries have another length.
        HotLogError: A ledger cannot be read.
    """
    (part,) = plan_uncut_parts(entries, frame_end, sizes.in_one_part(), number=number, closing=True, is_sized=is_sized)
    if is_sized and part.uncut_bytes != frame_bytes_recorded:
        raise CorruptMetadata(f"part {number}: its frames have {part.uncut_bytes} bytes, not {frame_bytes_recorded}")
    return part


def restore_part(
    number: int, entries: PositionRange, block_bytes: Sequence[int], offsets: Offsets, offset: int
) -> PlannedPart:
    """Restore a planned part from its record.

    Args:
        number: Number of the part.
        entries: Its entries.
        block_bytes: Length of each of its blocks.
        offsets: Offsets of frames.
        offset: Offset of the part in the object.

    Raises:
        CorruptMetadata: The lengths do not match blocks of these entries.
        HotLogError: A ledger cannot be read.
    """
    left = list(reversed(block_bytes))
    ledgers: list[LedgerPart] = []
    for entry_range in entries.ranges:
        ends = offsets(entry_range.ledger_id, entry_range.first, entry_range.last)
        plans: list[BlockPlan] = []
        at = 0
        while at < ends.size - 1:
            length = left.pop() if left else 0
            stop = int(ends.searchsorted(int(ends[at]) + length - HEADER_BYTES))
            if stop <= at or stop >= ends.size or int(ends[stop]) - int(ends[at]) + HEADER_BYTES != length:
                at_entry = Position(entry_range.ledger_id, entry_range.first + at)
                raise CorruptMetadata(f"part {number}: no block of {length} bytes begins with entry {at_entry}")
            header = BlockHeader(Format.V2, length, entry_range.first + at, entry_range.ledger_id)
            plans.append(BlockPlan(header, entry_range.first + stop, int(ends[at]), int(ends[stop]), offset))
            offset += length
            at = stop
        ledgers.append(LedgerPart(entry_range.ledger_id, tuple(plans)))
    if left:
        raise CorruptMetadata(f"part {number} has {len(left)} blocks more than its entries")
    return PlannedPart(number, tuple(ledgers))


def frame_bytes(entry_range: EntryRange, last: int, frame_end: FrameEnd) -> int:
    """Bytes of the frames from the range's first entry to ``last``."""
    start = frame_end(entry_range.ledger_id, entry_range.first - 1) if entry_range.first else 0
    return frame_end(entry_range.ledger_id, last) - start
