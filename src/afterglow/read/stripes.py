"""Stripes of the blocks of a ledger in an object, and the offsets of entries in them. Arithmetic, no I/O.

A stripe is the unit that is fetched, verified and cached as one:

===============================  ==================  =====================  =================================
the index has                    a stripe is         verified by            an entry is found by
===============================  ==================  =====================  =================================
stripes with their first frames  1 MiB of a block    its CRC32C             the table in the index
stripes alone                    1 MiB of a block    its CRC32C             reading the block from its start
block statistics                 a whole block       its CRC32C             reading the block
nothing (Apache Pulsar wrote it) a read buffer       the framing alone      reading the block from its start
===============================  ==================  =====================  =================================

Stripes are numbered through all blocks of the ledger. Where the index does not say in which stripe an entry begins, the
offsets that a reader has found are kept in a :class:`FrameTable`, so that the next reader need not begin at the start.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from afterglow.format.blocks import Format
from afterglow.format.statistics import STRIPE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from afterglow.format.index import LedgerGroup, ObjectIndex

_MIN_STRIPE_BYTES = 64 << 10
"""Smaller read buffers would cost more in requests and tables than they save in bytes."""
_TABLE_BYTES = 500
"""Memory of a table without its offsets, estimated."""
_NO_END = 1 << 62
"""Greater than every entry id."""


@dataclass(frozen=True, slots=True)
class FrameStart:
    """Start of a frame in a block, or the end of the block's frames."""

    entry: int
    """Number of the entry in its block, from 0."""
    offset: int
    """Offset of its frame from the start of the block."""


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """One block of a ledger in an object."""

    number: int
    """In the ledger's group of the index, from 0."""
    start: int
    """Offset of its header in the object."""
    end: int
    """Offset after its last byte in the object."""
    first_entry_id: int
    entries: int | None
    """None where only reading the block shows it: the last block of a ledger in a segment that Pulsar wrote."""
    first_stripe: int
    """Number of its first stripe among the stripes of the ledger."""
    stripe_bytes: int
    """Length of each stripe but the last."""

    @property
    def stripe_count(self) -> int:
        """Number of stripes."""
        return -(-(self.end - self.start) // self.stripe_bytes)

    def bounds(self, stripe: int) -> tuple[int, int]:
        """Start and end offset of a stripe in the object."""
        start = self.start + stripe * self.stripe_bytes
        return start, min(start + self.stripe_bytes, self.end)


class FrameTable:
    """Frame offsets of a block, found by reads: per stripe in turn, the first frame that starts in or after it."""

    def __init__(self, header_bytes: int, stripe_bytes: int) -> None:
        self._lock = Lock()
        self._stripe_bytes = stripe_bytes
        self._entries = array("q", [0])
        self._offsets = array("q", [header_bytes])

    @property
    def size_bytes(self) -> int:
        """Memory, estimated."""
        return _TABLE_BYTES + 2 * self._entries.itemsize * len(self._entries)

    def nearest(self, entry: int) -> FrameStart:
        """The last known frame start at or before an entry."""
        at = bisect_right(self._entries, entry) - 1
        return FrameStart(self._entries[at], self._offsets[at])

    def add(self, frame: FrameStart) -> None:
        """Record the first frame after those of the last known stripe: no frame starts in the stripes between."""
        with self._lock:
            while len(self._entries) <= frame.offset // self._stripe_bytes:
                self._offsets.append(frame.offset)
                self._entries.append(frame.entry)  # after the offset: readers without the lock search the entries first


class LedgerStripes:
    """The stripes of one ledger in an object.

    Args:
        index: The object's index, already validated.
        group: The ledger's group in the index.
        buffer_bytes: Length of stripes where the index has no checksums.
    """

    def __init__(self, index: ObjectIndex, group: LedgerGroup, buffer_bytes: int) -> None:
        ends = {start: end for _, _, start, end in index.extents()}
        statistics = group.statistics
        self.header_bytes = index.header_bytes
        self.first_entries = np.array([block.first_entry_id for block in group.blocks], np.int64)
        """Id of the first entry of each block."""
        self._starts = np.array([block.offset for block in group.blocks], np.int64)
        self._ends = np.array([ends[block.offset] for block in group.blocks], np.int64)
        if statistics is not None:
            self._counts = np.array([block.entries for block in statistics], np.int64)
        else:
            end_id = group.last_entry_id + 1 if index.format is Format.V1 else -1
            after = np.append(self.first_entries[1:], end_id)
            self._counts = np.where(after < 0, -1, after - self.first_entries)
        striped = statistics is not None and any(block.stripes for block in statistics)
        lengths = self._ends - self._starts
        if striped:
            self._sizes = np.full_like(lengths, STRIPE_BYTES)
        elif statistics is not None:
            self._sizes = lengths
        else:
            self._sizes = np.full_like(lengths, max(buffer_bytes, _MIN_STRIPE_BYTES))
        self._first_stripes = np.append(0, np.cumsum(-(-lengths // self._sizes)))
        self.has_whole_blocks = int(self._first_stripes[-1]) == self.first_entries.size
        """Whether each stripe is a whole block."""
        self.times: NDArray[np.int64] | None = None
        """Per block the least and greatest broker time, then publish time, -1 for none; None: not measured."""
        self._crcs: NDArray[np.uint32] | None = None
        self._before: NDArray[np.int64] | None = None
        self._frames: NDArray[np.int64] | None = None
        if statistics is not None:
            crcs = [crc for block in statistics for crc in (block.stripes or (block.crc32c,))]
            self._crcs = np.array(crcs, np.uint32)
            self.times = np.array(
                [[-1 if time is None else time for time in block.times] for block in statistics], np.int64
            )
            if striped and all(block.stripe_entries_before for block in statistics):
                self._before = np.array([n for block in statistics for n in block.stripe_entries_before], np.int64)
                self._frames = np.array([n for block in statistics for n in block.stripe_first_frame], np.int64)

    @property
    def size_bytes(self) -> int:
        """Memory, estimated."""
        arrays = (self.first_entries, self._starts, self._ends, self._counts, self._sizes, self._first_stripes)
        optional = (self.times, self._crcs, self._before, self._frames)
        return sum(array.nbytes for array in (*arrays, *optional) if array is not None)

    @property
    def count(self) -> int:
        """Number of stripes."""
        return int(self._first_stripes[-1])

    @property
    def has_entry_offsets(self) -> bool:
        """Whether the index says in which stripe an entry begins."""
        return self._before is not None

    def block_number(self, entry_id: int) -> int:
        """Number of the block that may hold an entry, by binary search; -1 before the first."""
        return int(np.searchsorted(self.first_entries, entry_id, side="right")) - 1

    def find(self, entry_id: int) -> BlockSpan | None:
        """The block that may hold an entry, by binary search."""
        number = self.block_number(entry_id)
        return None if number < 0 else self.block(number)

    def block(self, number: int) -> BlockSpan | None:
        """A block by its number; None after the last."""
        if number >= self.first_entries.size:
            return None
        count = int(self._counts[number])
        return BlockSpan(
            number,
            int(self._starts[number]),
            int(self._ends[number]),
            int(self.first_entries[number]),
            None if count < 0 else count,
            int(self._first_stripes[number]),
            int(self._sizes[number]),
        )

    def block_of_stripe(self, stripe: int) -> BlockSpan:
        """The block of a stripe."""
        number = (
            stripe if self.has_whole_blocks else int(np.searchsorted(self._first_stripes, stripe, side="right")) - 1
        )
        found = self.block(number)
        assert found is not None
        return found

    def bounds(self, stripe: int) -> tuple[int, int]:
        """Start and end offset of a stripe in the object."""
        block = self.block_of_stripe(stripe)
        return block.bounds(stripe - block.first_stripe)

    def crc32c(self, stripe: int) -> int | None:
        """Checksum of a stripe; None where the index has none."""
        return None if self._crcs is None else int(self._crcs[stripe])

    def nearest(self, block: BlockSpan, entry: int) -> FrameStart:
        """The first frame of the stripe in which an entry of a block begins, by the index; else that of the block."""
        if self._before is None or self._frames is None:
            return FrameStart(0, self.header_bytes)
        end = block.first_stripe + block.stripe_count
        at = max(int(np.searchsorted(self._before[block.first_stripe : end], entry, side="right")) - 1, 0)
        number = block.first_stripe + at
        return FrameStart(int(self._before[number]), at * block.stripe_bytes + int(self._frames[number]))

    def stripe_after(self, entry_id: int) -> int:
        """Number of the first stripe that is not needed for the entries up to ``entry_id``."""
        block = self.find(entry_id)
        if block is None:
            return 0
        end = block.first_stripe + block.stripe_count
        if not self.has_entry_offsets or (
            block.entries is not None and entry_id + 1 >= block.first_entry_id + block.entries
        ):
            return end
        # This entry ends where the next one begins.
        following = self.nearest(block, entry_id + 1 - block.first_entry_id)
        return min(block.first_stripe + following.offset // block.stripe_bytes + 1, end)

    def end_of_damage(self, block: BlockSpan, stripe: int) -> int:
        """Id of the first entry after a damaged stripe of a block that does not touch the stripe."""
        if self._before is not None and stripe + 1 < block.stripe_count:
            return block.first_entry_id + int(self._before[block.first_stripe + stripe + 1])
        following = self.block(block.number + 1)
        if following is not None:
            return following.first_entry_id
        return _NO_END if block.entries is None else block.first_entry_id + block.entries
