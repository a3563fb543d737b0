"""Pieces of the blocks of a ledger in an object, and the offsets of entries in them. Arithmetic, no I/O.

A piece is what is fetched, checked and cached as one:

===============================  ===============  =====================  =================================
the index has                    a piece is       checked by             an entry is found by
===============================  ===============  =====================  =================================
stripes with their first frames  a stripe         its CRC32C             the table in the index
stripes alone                    a stripe         its CRC32C             reading the block from its start
block statistics                 a whole block    its CRC32C             reading the block
nothing (Apache Pulsar wrote it) a read buffer    the framing alone      reading the block from its start
===============================  ===============  =====================  =================================

Pieces are numbered through all blocks of the ledger. Where the index does not have the piece in which an entry begins,
what reading the block has shown is kept in a :class:`FrameTable`, so that the next reader need not begin at its start.
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

_LEAST_PIECE = 64 << 10
"""Smaller read buffers would cost more in requests and tables than they spare in bytes."""
_TABLE_BYTES = 500
"""Of memory, for what a table holds beside its marks."""
_NO_END = 1 << 62
"""Behind every entry."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a block where a frame begins, or where the block's frames end."""

    entry: int
    """Number of the entry in its block, from 0."""
    offset: int
    """Of its frame from the block's start."""


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """One block of a ledger in an object."""

    number: int
    """In the ledger's group of the index, from 0."""
    start: int
    """Of its header in the object."""
    end: int
    """Behind its last byte in the object."""
    first_entry_id: int
    entries: int | None
    """None where only reading the block tells: the last of a ledger in a segment that Pulsar wrote."""
    first_piece: int
    """Number of its first piece among the pieces of the ledger."""
    piece_bytes: int
    """Length of each piece but the last."""

    @property
    def pieces(self) -> int:
        """How many pieces it has."""
        return -(-(self.end - self.start) // self.piece_bytes)

    def bounds(self, piece: int) -> tuple[int, int]:
        """Start and end of a piece in the object."""
        start = self.start + piece * self.piece_bytes
        return start, min(start + self.piece_bytes, self.end)


class FrameTable:
    """What reading a block has shown: for each piece in turn, the first frame that begins in it or behind it."""

    def __init__(self, header_bytes: int, piece_bytes: int) -> None:
        self._lock = Lock()
        self._piece_bytes = piece_bytes
        self._entries = array("q", [0])
        self._offsets = array("q", [header_bytes])

    @property
    def size_bytes(self) -> int:
        """Roughly, of memory."""
        return _TABLE_BYTES + 2 * self._entries.itemsize * len(self._entries)

    def nearest(self, entry: int) -> Mark:
        """The last known mark that does not stand behind an entry."""
        at = bisect_right(self._entries, entry) - 1
        return Mark(self._entries[at], self._offsets[at])

    def learn(self, mark: Mark) -> None:
        """Note the first frame behind those of the last known piece: no frame begins in the pieces between."""
        with self._lock:
            while len(self._entries) <= mark.offset // self._piece_bytes:
                self._offsets.append(mark.offset)
                self._entries.append(mark.entry)  # last: readers without the lock look for it first


class LedgerPieces:
    """The pieces of one ledger in an object.

    Args:
        index: The object's index; known to be sound.
        group: The ledger's group of it.
        buffer_bytes: Length of pieces where the index has no checksums.
    """

    def __init__(self, index: ObjectIndex, group: LedgerGroup, buffer_bytes: int) -> None:
        ends = {start: end for _, _, start, end in index.extents()}
        statistics = group.statistics
        self.header_bytes = index.header_bytes
        self._firsts = np.array([block.first_entry_id for block in group.blocks], np.int64)
        self._starts = np.array([block.offset for block in group.blocks], np.int64)
        self._ends = np.array([ends[block.offset] for block in group.blocks], np.int64)
        if statistics is not None:
            self._counts = np.array([block.entries for block in statistics], np.int64)
        else:
            end_id = group.last_entry_id + 1 if index.format is Format.V1 else -1
            after = np.append(self._firsts[1:], end_id)
            self._counts = np.where(after < 0, -1, after - self._firsts)
        striped = statistics is not None and any(block.stripes for block in statistics)
        lengths = self._ends - self._starts
        if striped:
            self._sizes = np.full_like(lengths, STRIPE_BYTES)
        elif statistics is not None:
            self._sizes = lengths
        else:
            self._sizes = np.full_like(lengths, max(buffer_bytes, _LEAST_PIECE))
        self._first_pieces = np.append(0, np.cumsum(-(-lengths // self._sizes)))
        self._whole = int(self._first_pieces[-1]) == self._firsts.size
        self.times: NDArray[np.int64] | None = None
        """Of each block the least and greatest broker time, then publish time, -1 for none; None: not measured."""
        self._crcs: NDArray[np.uint32] | None = None
        self._before: NDArray[np.int64] | None = None
        self._frames: NDArray[np.int64] | None = None
        if statistics is not None:
            crcs = [crc for block in statistics for crc in (block.stripes or (block.crc32c,))]
            self._crcs = np.array(crcs, np.uint32)
            self.times = np.array([[_or_none(time) for time in block.times] for block in statistics], np.int64)
            if striped and all(block.stripe_entries_before for block in statistics):
                self._before = np.array([n for block in statistics for n in block.stripe_entries_before], np.int64)
                self._frames = np.array([n for block in statistics for n in block.stripe_first_frame], np.int64)

    @property
    def size_bytes(self) -> int:
        """Roughly, of memory."""
        arrays = (self._firsts, self._starts, self._ends, self._counts, self._sizes, self._first_pieces)
        perhaps = (self.times, self._crcs, self._before, self._frames)
        return sum(array.nbytes for array in (*arrays, *perhaps) if array is not None)

    @property
    def pieces(self) -> int:
        """How many there are."""
        return int(self._first_pieces[-1])

    @property
    def located(self) -> bool:
        """Whether the index tells in which piece an entry begins."""
        return self._before is not None

    @property
    def whole_blocks(self) -> bool:
        """Whether each piece is a block."""
        return self._whole

    @property
    def first_entries(self) -> NDArray[np.int64]:
        """Id of the first entry of each block."""
        return self._firsts

    def block_number(self, entry_id: int) -> int:
        """Number of the block that holds an entry if any does, by binary search; -1 before the first."""
        return int(np.searchsorted(self._firsts, entry_id, side="right")) - 1

    def find(self, entry_id: int) -> BlockSpan | None:
        """The block that holds an entry if any does, by binary search."""
        number = self.block_number(entry_id)
        return None if number < 0 else self.block(number)

    def block(self, number: int) -> BlockSpan | None:
        """A block by its number; None behind the last."""
        if number >= self._firsts.size:
            return None
        count = int(self._counts[number])
        return BlockSpan(
            number,
            int(self._starts[number]),
            int(self._ends[number]),
            int(self._firsts[number]),
            None if count < 0 else count,
            int(self._first_pieces[number]),
            int(self._sizes[number]),
        )

    def block_of_piece(self, piece: int) -> BlockSpan:
        """The block of a piece."""
        number = piece if self._whole else int(np.searchsorted(self._first_pieces, piece, side="right")) - 1
        found = self.block(number)
        assert found is not None
        return found

    def crc32c(self, piece: int) -> int | None:
        """Checksum of a piece; None where the index has none."""
        return None if self._crcs is None else int(self._crcs[piece])

    def nearest(self, block: BlockSpan, entry: int) -> Mark:
        """The mark of the piece in which an entry of a block begins, by the index; else that of the block's start."""
        if self._before is None or self._frames is None:
            return Mark(0, self.header_bytes)
        end = block.first_piece + block.pieces
        at = max(int(np.searchsorted(self._before[block.first_piece : end], entry, side="right")) - 1, 0)
        number = block.first_piece + at
        return Mark(int(self._before[number]), at * block.piece_bytes + int(self._frames[number]))

    def piece_behind(self, entry_id: int) -> int:
        """Number of the first piece that is not needed for the entries up to ``entry_id``."""
        block = self.find(entry_id)
        if block is None:
            return 0
        end = block.first_piece + block.pieces
        if not self.located or (block.entries is not None and entry_id + 1 >= block.first_entry_id + block.entries):
            return end
        # Where the entry behind it begins, this one ends.
        following = self.nearest(block, entry_id + 1 - block.first_entry_id)
        return min(block.first_piece + following.offset // block.piece_bytes + 1, end)

    def end_of_damage(self, block: BlockSpan, piece: int) -> int:
        """Id of the first entry behind a damaged piece of a block that does not touch it."""
        if self._before is not None and piece + 1 < block.pieces:
            return block.first_entry_id + int(self._before[block.first_piece + piece + 1])
        following = self.block(block.number + 1)
        if following is not None:
            return following.first_entry_id
        return _NO_END if block.entries is None else block.first_entry_id + block.entries


def _or_none(time: int | None) -> int:
    return -1 if time is None else time
