"""One ledger's copy in a tier, read by entry.

A read finds the block by binary search in the index and the piece by the index or by what earlier readers have met; it
gives frames of one piece, which are not copied, or a single entry that lies across pieces, which is put together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from afterglow.errors import CorruptIndex
from afterglow.format.frames import FRAME, FRAME_BYTES, Frames
from afterglow.read.copies import FrameRun
from afterglow.read.fetch import cut_frames
from afterglow.read.pieces import Mark
from afterglow.read.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.read.fetch import Cut, LedgerObject
    from afterglow.read.pieces import BlockSpan, FrameTable
    from afterglow.read.scan import ReadAhead


class Piece:
    """A fetched piece, and its frames once somebody has looked for them."""

    __slots__ = ("_cut", "data")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._cut: Cut | str | None = None

    def cut(self, first_entry_id: int, start: int) -> Cut | str:
        """The frames from ``start`` on, which for one piece is always the same; or why these are none."""
        if self._cut is None:
            self._cut = cut_frames(self.data, first_entry_id, start)
        return self._cut


class PieceSource(Protocol):
    """Where pieces come from, with what all readers share."""

    def piece(self, ledger: LedgerObject, number: int) -> Piece:
        """A piece of a ledger, by its number."""
        ...

    def joined(self, ledger: LedgerObject, wanted: range) -> memoryview:
        """The data of adjacent pieces, by one request."""
        ...

    def table(self, ledger: LedgerObject, block: BlockSpan) -> FrameTable:
        """What reading a block has shown so far."""
        ...

    def learned(self, ledger: LedgerObject, block: BlockSpan, table: FrameTable) -> None:
        """The table has grown."""
        ...


@dataclass(frozen=True, slots=True)
class TierCopy:
    """A :class:`~afterglow.read.copies.LedgerCopy` in a tier."""

    ledger: LedgerObject
    source: PieceSource
    scan_bytes: int
    """What a scan fetches by one request."""
    read_ahead: ReadAhead

    def read(self, first: int, last: int, max_bytes: int) -> FrameRun:
        """Some entries; see the protocol.

        Raises:
            DamagedPiece: The piece that holds ``first`` is damaged.
            CorruptIndex: The index does not know the entry.
            ObjectMissing: The object is gone.
            StorageError: The store does not give it.
        """
        block = self._block(first)
        piece, mark, cut = self._find(block, first - block.first_entry_id)
        at = first - block.first_entry_id - mark.entry
        if at == cut.offsets.size - 1:
            return self._across(block, Mark(mark.entry + at, self._offset(block, mark, cut, at)))
        offsets = cut.offsets[at:]
        fitting = int(np.searchsorted(offsets[1:], offsets[0] + max_bytes, side="right"))
        count = min(max(fitting, 1), last - first + 1)
        return FrameRun(self.ledger.ledger_id, piece.data, Frames(first, offsets[: count + 1], None))

    def scan(self, first: int, last: int) -> Iterator[FrameRun]:
        """All entries; see the protocol."""
        block = self._block(first)
        mark = self._nearest(block, first - block.first_entry_id)
        return Scan(self.ledger, first, last, self.scan_bytes, self.read_ahead).runs(block, mark)

    def _block(self, entry_id: int) -> BlockSpan:
        block = self.ledger.pieces.find(entry_id)
        if block is None or (block.entries is not None and entry_id >= block.first_entry_id + block.entries):
            raise CorruptIndex(
                f"{self.ledger.opened.located}: its index does not know entry {self.ledger.ledger_id}:{entry_id}, "
                "which metadata says is there"
            )
        return block

    def _nearest(self, block: BlockSpan, entry: int) -> Mark:
        if self.ledger.pieces.located:
            return self.ledger.pieces.nearest(block, entry)
        return self.source.table(self.ledger, block).nearest(entry)

    def _find(self, block: BlockSpan, entry: int) -> tuple[Piece, Mark, Cut]:
        """The piece in which an entry of a block begins, the first frame that begins in it, and its frames."""
        mark = self._nearest(block, entry)
        table = None if self.ledger.pieces.located else self.source.table(self.ledger, block)
        while mark.offset < block.end - block.start:
            number, start = divmod(mark.offset, block.piece_bytes)
            piece = self.source.piece(self.ledger, block.first_piece + number)
            if not number:
                self.ledger.check_header(block, piece.data)
            cut = piece.cut(block.first_entry_id + mark.entry, start)
            if isinstance(cut, str):
                raise self.ledger.broken(block, mark.entry, cut)
            if entry < mark.entry + cut.offsets.size - 1 + cut.torn:
                return piece, mark, cut
            if cut.ended:
                break
            mark = self._behind(block, mark, cut)
            if table is not None:
                table.learn(mark)
                self.source.learned(self.ledger, block, table)
        raise self.ledger.broken(block, entry, "it is missing")

    def _behind(self, block: BlockSpan, mark: Mark, cut: Cut) -> Mark:
        """The first frame behind all that begin in a piece."""
        whole = cut.offsets.size - 1
        offset = self._offset(block, mark, cut, whole)
        if not cut.torn:
            return Mark(mark.entry + whole, offset)
        return Mark(mark.entry + whole + 1, self._frame_end(block, Mark(mark.entry + whole, offset)))

    @staticmethod
    def _offset(block: BlockSpan, mark: Mark, cut: Cut, at: int) -> int:
        """Offset in the block of the frame that is at an index of a cut."""
        return mark.offset - mark.offset % block.piece_bytes + int(cut.offsets[at])

    def _frame_end(self, block: BlockSpan, mark: Mark) -> int:
        """Offset behind a frame of a block."""
        length, entry_id = FRAME.unpack(self._bytes(block, mark.offset, mark.offset + FRAME_BYTES))
        end = mark.offset + FRAME_BYTES + length
        if length < 0 or entry_id != block.first_entry_id + mark.entry or end > block.end - block.start:
            raise self.ledger.broken(block, mark.entry, f"its frame says entry {entry_id} of {length} bytes")
        return int(end)

    def _across(self, block: BlockSpan, mark: Mark) -> FrameRun:
        """A single entry that begins in one piece and ends in another."""
        end = self._frame_end(block, mark)
        data = memoryview(self._bytes(block, mark.offset, end))
        frames = Frames(block.first_entry_id + mark.entry, np.array([0, data.nbytes], np.int64), None)
        return FrameRun(self.ledger.ledger_id, data, frames)

    def _bytes(self, block: BlockSpan, start: int, end: int) -> bytes:
        """Bytes of a block from as many pieces as hold them."""
        if end > block.end - block.start:
            raise self.ledger.broken(block, 0, f"a frame at {start} reaches beyond the block")
        first, last = start // block.piece_bytes, (end - 1) // block.piece_bytes
        out = bytearray()
        for number in range(first, last + 1):
            origin = number * block.piece_bytes
            data = self.source.piece(self.ledger, block.first_piece + number).data
            out += data[max(start - origin, 0) : end - origin]
        return bytes(out)
