"""Copy of a ledger in the tier, read by entry, or scanned from one entry to another in bulk.

A read finds the block by binary search in the index, and the piece by the index or by what earlier readers have met; it
gives frames of one piece, which are not copied, or a single entry that lies across pieces, which is assembled.

A scan makes large requests, with the next ones under way while the entries of the last one are used. It caches nothing:
it holds only the buffers that it has requested, and evicts nothing that other readers use.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from afterglow.errors import AfterglowError, CorruptIndex
from afterglow.format.frames import FRAME, FRAME_BYTES, Frames
from afterglow.read.copies import FrameRun
from afterglow.read.objects import cut_frames
from afterglow.read.pieces import Mark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor, Future

    from afterglow.read.cache import CachedPieces, Piece
    from afterglow.read.objects import Cut, Fetched, LedgerObject
    from afterglow.read.pieces import BlockSpan


@dataclass(frozen=True, slots=True)
class TierCopy:
    """A :class:`~afterglow.read.copies.LedgerCopy` in a tier."""

    ledger: LedgerObject
    source: CachedPieces
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


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Prefetching of a scan."""

    executor: Executor
    """Runs its requests."""
    rounds: int
    """Requests under way beside the one whose entries are used; 0: none."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What is to be scanned."""

    ledger: LedgerObject
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    buffer_bytes: int
    """What one request fetches; a single piece may be larger."""
    ahead: ReadAhead

    def runs(self, block: BlockSpan, mark: Mark) -> Iterator[FrameRun]:
        """The entries, in runs.

        Args:
            block: The block that holds the first entry.
            mark: Where in it to begin; that entry or one before it.

        Raises:
            DamagedPiece: A piece is damaged; all entries before it were given.
            StorageError: The store does not give a piece.
        """
        begin = block.first_piece + mark.offset // block.piece_bytes
        walk = _Walk(self, block, mark)
        for pieces, fetched in self._fetched(begin):
            yield from _joined(walk.through(pieces, fetched), fetched.data)
            if walk.entry_id > self.last:
                return
        raise self.ledger.broken(walk.block, walk.mark.entry, "the blocks end before it")

    def _fetched(self, begin: int) -> Iterator[tuple[range, Fetched]]:
        """Each request's pieces, in order, asked for ahead of their use."""
        waiting: deque[tuple[range, Future[Fetched] | None]] = deque()
        windows = self._windows(begin)
        try:
            while True:
                while len(waiting) <= self.ahead.rounds and (pieces := next(windows, None)) is not None:
                    # The first is needed at once, by this very thread.
                    queued = self.ahead.executor.submit(self.ledger.fetch, pieces) if waiting else None
                    waiting.append((pieces, queued))
                if not waiting:
                    return
                pieces, future = waiting.popleft()
                if future is None or future.cancel():  # not begun: others keep the threads busy
                    yield pieces, self.ledger.fetch(pieces)
                else:
                    yield pieces, future.result()
        finally:
            for _, future in waiting:
                if future is not None:
                    future.cancel()

    def _windows(self, begin: int) -> Iterator[range]:
        """Adjacent pieces that one request fetches, from a piece on to the last that is needed."""
        pieces = self.ledger.pieces
        end = pieces.piece_behind(self.last)
        while begin < end:
            window = self.ledger.adjacent(begin, self.buffer_bytes, one_block=not pieces.whole_blocks)
            yield range(begin, min(window.stop, end))
            begin = window.stop


class _Walk:
    """Where a scan is."""

    def __init__(self, scan: Scan, block: BlockSpan, mark: Mark) -> None:
        self._scan = scan
        self._ledger = scan.ledger
        self.block = block
        self.mark = mark
        """The next frame."""
        self._held = b""
        """What has come of it so far."""

    @property
    def entry_id(self) -> int:
        """The next entry."""
        return self.block.first_entry_id + self.mark.entry

    def through(self, pieces: range, fetched: Fetched) -> Iterator[tuple[FrameRun, int | None]]:
        """Go through what one request has brought: runs, and where their buffers begin in it; None: not in it."""
        at = pieces.start
        while at < pieces.stop:
            block = self._ledger.pieces.block_of_piece(at)
            stop = min(block.first_piece + block.pieces, pieces.stop)
            bad = next((number for number in range(at, stop) if number in fetched.damage), None)
            start = block.bounds(at - block.first_piece)[0]
            end = block.bounds((stop if bad is None else bad) - 1 - block.first_piece)[1] if at != bad else start
            if block.number != self.block.number:
                self._enter(block)
            origin = start - fetched.start
            data = fetched.data[origin : end - fetched.start]
            for run in self._frames_of(data, start - block.start):
                yield run, origin if run.data is data else None
            if bad is not None and fetched.damage[bad].until > max(self.entry_id, self._scan.first):
                raise fetched.damage[bad]
            if self.entry_id > self._scan.last:
                return
            if stop == block.first_piece + block.pieces:
                self._leave()
            at = stop

    def _enter(self, block: BlockSpan) -> None:
        self.block = block
        self.mark = Mark(0, self._ledger.pieces.header_bytes)
        self._held = b""

    def _leave(self) -> None:
        """The block's bytes are used up: it must have given all its entries."""
        following = self._ledger.pieces.block(self.block.number + 1)
        expected = self.block.entries
        if following is not None:
            expected = following.first_entry_id - self.block.first_entry_id
        if self._held or (expected is not None and self.mark.entry != expected):
            raise self._ledger.broken(self.block, self.mark.entry, "it is missing")

    def _frames_of(self, data: memoryview, offset: int) -> Iterator[FrameRun]:
        """Go through bytes of the block that stand at ``offset`` in it."""
        if not offset and data.nbytes:
            self._ledger.check_header(self.block, data)
        if self._held:
            if (run := self._rest(data)) is None:
                return
            yield from self._within(run)
        start = self.mark.offset - offset
        if start >= data.nbytes:
            return
        cut = cut_frames(data, self.entry_id, start)
        if isinstance(cut, str):
            raise self._ledger.broken(self.block, self.mark.entry, cut)
        count = cut.offsets.size - 1
        first = self.entry_id
        # Behind padding nothing is looked for.
        behind = self.block.end - self.block.start if cut.ended else offset + int(cut.offsets[-1])
        self.mark = Mark(self.mark.entry + count, behind)
        if cut.torn:
            self._held = bytes(data[int(cut.offsets[-1]) :])
        if count:
            yield from self._within(FrameRun(self._ledger.ledger_id, data, Frames(first, cut.offsets, None)))

    def _rest(self, data: memoryview) -> FrameRun | None:
        """The frame that began in the bytes before; None where it goes on behind these."""
        head = self._held[:FRAME_BYTES] + data[: FRAME_BYTES - len(self._held[:FRAME_BYTES])]
        if len(head) < FRAME_BYTES:
            self._held += data
            return None
        length, entry_id = FRAME.unpack(head)
        end = self.mark.offset + FRAME_BYTES + length
        if length < 0 or entry_id != self.entry_id or end > self.block.end - self.block.start:
            raise self._ledger.broken(self.block, self.mark.entry, f"its frame says entry {entry_id} of {length} bytes")
        missing = FRAME_BYTES + length - len(self._held)
        if missing > data.nbytes:
            self._held += data
            return None
        whole = memoryview(self._held + data[:missing])
        self.mark = Mark(self.mark.entry + 1, end)
        self._held = b""
        frames = Frames(entry_id, np.array([0, whole.nbytes], np.int64), None)
        return FrameRun(self._ledger.ledger_id, whole, frames)

    def _within(self, run: FrameRun) -> Iterator[FrameRun]:
        """The entries of a run that are wanted, if any are."""
        frames = run.frames
        first = max(self._scan.first, frames.first_entry_id)
        last = min(self._scan.last, frames.end_entry_id - 1)
        if first <= last:
            skipped = first - frames.first_entry_id
            yield FrameRun(run.ledger_id, run.data, frames.part(skipped, last - frames.first_entry_id + 1))


def _joined(found: Iterator[tuple[FrameRun, int | None]], data: memoryview) -> Iterator[FrameRun]:
    """Runs of one buffer as one, whatever stands between their blocks: the larger a run, the less it costs to decode.

    Args:
        found: Runs, each behind the last, and where in the buffer their own begin; None: they are not of it.
        data: The buffer.
    """
    waiting: list[tuple[FrameRun, int]] = []
    try:
        for run, origin in found:
            if origin is None:
                yield from _join(waiting, data)
                waiting.clear()
                yield run
            else:
                waiting.append((run, origin))
    except AfterglowError:
        yield from _join(waiting, data)  # what stands before the damage is good
        raise
    yield from _join(waiting, data)


def _join(runs: list[tuple[FrameRun, int]], data: memoryview) -> Iterator[FrameRun]:
    if len(runs) < 2:
        yield from (run for run, _ in runs)
        return
    parts = [run.frames.offsets + origin for run, origin in runs]
    gaps: list[tuple[int, int]] = []
    number = 0
    for before, behind in pairwise(parts):
        number += before.size - 1
        gaps.append((number, int(behind[0] - before[-1])))
    offsets = np.concatenate([*(part[:-1] for part in parts), parts[-1][-1:]])
    first = runs[0][0]
    yield FrameRun(first.ledger_id, data, Frames(first.frames.first_entry_id, offsets, None, tuple(gaps)))
