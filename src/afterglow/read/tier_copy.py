"""Copy of a ledger in the tier: reads of a few entries, and bulk scans.

A read finds the block by binary search in the index, and the stripe by the index or by offsets that earlier reads have
found. It returns frames of one stripe, without copying them, or a single entry that spans stripes, joined.

A scan makes large requests, and fetches the next ones while the consumer uses the last. It bypasses the cache: it holds
only the buffers that it has requested, and evicts nothing that other readers use.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from afterglow.errors import AfterglowError, CorruptIndex
from afterglow.format.frames import FRAME, FRAME_BYTES, Frames
from afterglow.read.copies import FrameRun
from afterglow.read.objects import locate_frames
from afterglow.read.stripes import FrameStart

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor, Future

    from afterglow.read.cache import CachedStripes, Stripe
    from afterglow.read.objects import Fetched, FrameOffsets, LedgerObject
    from afterglow.read.stripes import BlockSpan


@dataclass(frozen=True, slots=True)
class TierCopy:
    """A :class:`~afterglow.read.copies.LedgerCopy` in a tier."""

    ledger: LedgerObject
    source: CachedStripes
    scan_bytes: int
    """Bytes per request of a scan."""
    prefetch: Prefetch

    def read(self, first: int, last: int, max_bytes: int) -> FrameRun:
        """Read a few entries; see :class:`~afterglow.read.copies.LedgerCopy`.

        Raises:
            DamagedStripe: The stripe that holds ``first`` is damaged.
            CorruptIndex: The index does not contain the entry.
            ObjectMissing: The object does not exist any more.
            StorageError: A request failed.
        """
        return self._flagged(self._read(first, last, max_bytes))

    def scan(self, first: int, last: int) -> Iterator[FrameRun]:
        """Scan entries; see :class:`~afterglow.read.copies.LedgerCopy`."""
        block = self._block(first)
        frame = self._nearest(block, first - block.first_entry_id)
        runs = BlockScan(self.ledger, first, last, self.scan_bytes, self.prefetch).runs(block, frame)
        return map(self._flagged, runs)

    def _flagged(self, run: FrameRun) -> FrameRun:
        return replace(run, markers_stripped=True) if self.ledger.opened.tier_object.markers_stripped else run

    def _read(self, first: int, last: int, max_bytes: int) -> FrameRun:
        block = self._block(first)
        stripe, frame, found = self._find(block, first - block.first_entry_id)
        at = first - block.first_entry_id - frame.entry
        if at == found.offsets.size - 1:
            return self._join_entry(block, FrameStart(frame.entry + at, self._offset(block, frame, found, at)))
        offsets = found.offsets[at:]
        fitting = int(np.searchsorted(offsets[1:], offsets[0] + max_bytes, side="right"))
        count = min(max(fitting, 1), last - first + 1)
        return FrameRun(self.ledger.ledger_id, stripe.data, Frames(first, offsets[: count + 1], None))

    def _block(self, entry_id: int) -> BlockSpan:
        block = self.ledger.stripes.find(entry_id)
        if block is None or (block.entries is not None and entry_id >= block.first_entry_id + block.entries):
            raise CorruptIndex(
                f"{self.ledger.opened.tier_object}: entry {self.ledger.ledger_id}:{entry_id} is missing in its index, "
                "contrary to metadata"
            )
        return block

    def _nearest(self, block: BlockSpan, entry: int) -> FrameStart:
        if self.ledger.stripes.has_entry_offsets:
            return self.ledger.stripes.nearest(block, entry)
        return self.source.table(self.ledger, block).nearest(entry)

    def _find(self, block: BlockSpan, entry: int) -> tuple[Stripe, FrameStart, FrameOffsets]:
        """The stripe in which an entry of a block begins, the first frame that begins in it, and its frames."""
        frame = self._nearest(block, entry)
        table = None if self.ledger.stripes.has_entry_offsets else self.source.table(self.ledger, block)
        while frame.offset < block.end - block.start:
            number, start = divmod(frame.offset, block.stripe_bytes)
            stripe = self.source.stripe(self.ledger, block.first_stripe + number)
            if not number:
                self.ledger.check_header(block, stripe.data)
            found = stripe.frames(block.first_entry_id + frame.entry, start)
            if isinstance(found, str):
                raise self.ledger.broken(block, frame.entry, found)
            if entry < frame.entry + found.offsets.size - 1 + found.has_partial:
                return stripe, frame, found
            if found.has_padding:
                break
            frame = self._next_frame(block, frame, found)
            if table is not None:
                table.add(frame)
                self.source.update_table(self.ledger, block, table)
        raise self.ledger.broken(block, entry, "it is missing")

    def _next_frame(self, block: BlockSpan, frame: FrameStart, found: FrameOffsets) -> FrameStart:
        """The first frame after all that begin in a stripe."""
        whole = found.offsets.size - 1
        offset = self._offset(block, frame, found, whole)
        if not found.has_partial:
            return FrameStart(frame.entry + whole, offset)
        return FrameStart(frame.entry + whole + 1, self._frame_end(block, FrameStart(frame.entry + whole, offset)))

    @staticmethod
    def _offset(block: BlockSpan, frame: FrameStart, found: FrameOffsets, at: int) -> int:
        """Offset in the block of a frame that was found in the stripe in which ``frame`` begins."""
        return frame.offset - frame.offset % block.stripe_bytes + int(found.offsets[at])

    def _frame_end(self, block: BlockSpan, frame: FrameStart) -> int:
        """Offset in the block after a frame."""
        length, entry_id = FRAME.unpack(self._bytes(block, frame.offset, frame.offset + FRAME_BYTES))
        end = frame.offset + FRAME_BYTES + length
        if length < 0 or entry_id != block.first_entry_id + frame.entry or end > block.end - block.start:
            raise self.ledger.broken(block, frame.entry, f"its frame says entry {entry_id} of {length} bytes")
        return int(end)

    def _join_entry(self, block: BlockSpan, frame: FrameStart) -> FrameRun:
        """A single entry that begins in one stripe and ends in another."""
        end = self._frame_end(block, frame)
        data = memoryview(self._bytes(block, frame.offset, end))
        frames = Frames(block.first_entry_id + frame.entry, np.array([0, data.nbytes], np.int64), None)
        return FrameRun(self.ledger.ledger_id, data, frames)

    def _bytes(self, block: BlockSpan, start: int, end: int) -> bytes:
        """Bytes of a block, from as many stripes as needed."""
        if end > block.end - block.start:
            raise self.ledger.broken(block, 0, f"a frame at {start} ends after the block")
        first, last = start // block.stripe_bytes, (end - 1) // block.stripe_bytes
        out = bytearray()
        for number in range(first, last + 1):
            origin = number * block.stripe_bytes
            data = self.source.stripe(self.ledger, block.first_stripe + number).data
            out += data[max(start - origin, 0) : end - origin]
        return bytes(out)


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Prefetching of a scan."""

    executor: Executor
    """Runs the requests."""
    rounds: int
    """Requests in progress beside the one whose entries are used; 0: none."""


@dataclass(frozen=True, slots=True)
class BlockScan:
    """Scan of consecutive entries over the blocks of an object."""

    ledger: LedgerObject
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    buffer_bytes: int
    """Bytes per request; a single stripe may be larger."""
    prefetch: Prefetch

    def runs(self, block: BlockSpan, frame: FrameStart) -> Iterator[FrameRun]:
        """The entries, in runs.

        Args:
            block: The block that holds the first entry.
            frame: The frame to begin with: of the first entry, or of one before it in the block.

        Raises:
            DamagedStripe: A stripe is damaged; all entries before it were returned.
            StorageError: A request failed.
        """
        begin = block.first_stripe + frame.offset // block.stripe_bytes
        cursor = _ScanCursor(self, block, frame)
        for stripes, fetched in self._fetched(begin):
            yield from _joined(cursor.runs_of(stripes, fetched), fetched.data)
            if cursor.entry_id > self.last:
                return
        raise self.ledger.broken(cursor.block, cursor.frame.entry, "the blocks end before it")

    def _fetched(self, begin: int) -> Iterator[tuple[range, Fetched]]:
        """The stripes of each request, in order, prefetched."""
        waiting: deque[tuple[range, Future[Fetched] | None]] = deque()
        requests = self._requests(begin)
        try:
            while True:
                while len(waiting) <= self.prefetch.rounds and (stripes := next(requests, None)) is not None:
                    # This thread needs the first one at once, and fetches it itself.
                    queued = self.prefetch.executor.submit(self.ledger.fetch, stripes) if waiting else None
                    waiting.append((stripes, queued))
                if not waiting:
                    return
                stripes, future = waiting.popleft()
                if future is None or future.cancel():  # not started: other reads keep the threads busy
                    yield stripes, self.ledger.fetch(stripes)
                else:
                    yield stripes, future.result()
        finally:
            for _, future in waiting:
                if future is not None:
                    future.cancel()

    def _requests(self, begin: int) -> Iterator[range]:
        """The adjacent stripes of each request, from a stripe on to the last that is needed."""
        stripes = self.ledger.stripes
        end = stripes.stripe_after(self.last)
        while begin < end:
            adjacent = self.ledger.adjacent(begin, self.buffer_bytes, one_block=not stripes.has_whole_blocks)
            yield range(begin, min(adjacent.stop, end))
            begin = adjacent.stop


class _ScanCursor:
    """Position of a scan in the blocks."""

    def __init__(self, scan: BlockScan, block: BlockSpan, frame: FrameStart) -> None:
        self._scan = scan
        self._ledger = scan.ledger
        self.block = block
        self.frame = frame
        """The next frame."""
        self._held = b""
        """The bytes of it that earlier requests have fetched."""

    @property
    def entry_id(self) -> int:
        """The next entry."""
        return self.block.first_entry_id + self.frame.entry

    def runs_of(self, stripes: range, fetched: Fetched) -> Iterator[tuple[FrameRun, int | None]]:
        """The runs of fetched stripes, each with the offset of its buffer in the fetched data; None: its own buffer."""
        at = stripes.start
        while at < stripes.stop:
            block = self._ledger.stripes.block_of_stripe(at)
            stop = min(block.first_stripe + block.stripe_count, stripes.stop)
            bad = next((number for number in range(at, stop) if number in fetched.damage), None)
            start = block.bounds(at - block.first_stripe)[0]
            end = block.bounds((stop if bad is None else bad) - 1 - block.first_stripe)[1] if at != bad else start
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
            if stop == block.first_stripe + block.stripe_count:
                self._leave()
            at = stop

    def _enter(self, block: BlockSpan) -> None:
        self.block = block
        self.frame = FrameStart(0, self._ledger.stripes.header_bytes)
        self._held = b""

    def _leave(self) -> None:
        """Verify at the end of a block that it held all its entries."""
        following = self._ledger.stripes.block(self.block.number + 1)
        expected = self.block.entries
        if following is not None:
            expected = following.first_entry_id - self.block.first_entry_id
        if self._held or (expected is not None and self.frame.entry != expected):
            raise self._ledger.broken(self.block, self.frame.entry, "it is missing")

    def _frames_of(self, data: memoryview, offset: int) -> Iterator[FrameRun]:
        """The runs in bytes of the block, which begin at ``offset`` in it."""
        if not offset and data.nbytes:
            self._ledger.check_header(self.block, data)
        if self._held:
            if (run := self._complete_frame(data)) is None:
                return
            yield from self._within(run)
        start = self.frame.offset - offset
        if start >= data.nbytes:
            return
        found = locate_frames(data, self.entry_id, start)
        if isinstance(found, str):
            raise self._ledger.broken(self.block, self.frame.entry, found)
        count = found.offsets.size - 1
        first = self.entry_id
        # No frame follows padding, so that the rest of the block is skipped.
        following = self.block.end - self.block.start if found.has_padding else offset + int(found.offsets[-1])
        self.frame = FrameStart(self.frame.entry + count, following)
        if found.has_partial:
            self._held = bytes(data[int(found.offsets[-1]) :])
        if count:
            yield from self._within(FrameRun(self._ledger.ledger_id, data, Frames(first, found.offsets, None)))

    def _complete_frame(self, data: memoryview) -> FrameRun | None:
        """The frame that began in earlier bytes; None where it does not end in these."""
        head = self._held[:FRAME_BYTES] + data[: FRAME_BYTES - len(self._held[:FRAME_BYTES])]
        if len(head) < FRAME_BYTES:
            self._held += data
            return None
        length, entry_id = FRAME.unpack(head)
        end = self.frame.offset + FRAME_BYTES + length
        if length < 0 or entry_id != self.entry_id or end > self.block.end - self.block.start:
            raise self._ledger.broken(
                self.block, self.frame.entry, f"its frame says entry {entry_id} of {length} bytes"
            )
        missing = FRAME_BYTES + length - len(self._held)
        if missing > data.nbytes:
            self._held += data
            return None
        whole = memoryview(self._held + data[:missing])
        self.frame = FrameStart(self.frame.entry + 1, end)
        self._held = b""
        frames = Frames(entry_id, np.array([0, whole.nbytes], np.int64), None)
        return FrameRun(self._ledger.ledger_id, whole, frames)

    def _within(self, run: FrameRun) -> Iterator[FrameRun]:
        """The entries of a run that are in the range of the scan, if there are any."""
        frames = run.frames
        first = max(self._scan.first, frames.first_entry_id)
        last = min(self._scan.last, frames.end_entry_id - 1)
        if first <= last:
            skipped = first - frames.first_entry_id
            yield FrameRun(run.ledger_id, run.data, frames.slice(skipped, last - frames.first_entry_id + 1))


def _joined(found: Iterator[tuple[FrameRun, int | None]], data: memoryview) -> Iterator[FrameRun]:
    """Join the runs of one buffer, across headers and padding of blocks: large runs are decoded faster.

    Args:
        found: Consecutive runs, each with the offset of its data in the buffer; None: it has its own buffer.
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
        yield from _join(waiting, data)  # entries before the damage are intact
        raise
    yield from _join(waiting, data)


def _join(runs: list[tuple[FrameRun, int]], data: memoryview) -> Iterator[FrameRun]:
    if len(runs) < 2:
        yield from (run for run, _ in runs)
        return
    parts = [run.frames.offsets + origin for run, origin in runs]
    gaps: list[tuple[int, int]] = []
    number = 0
    for before, after in pairwise(parts):
        number += before.size - 1
        gaps.append((number, int(after[0] - before[-1])))
    offsets = np.concatenate([*(part[:-1] for part in parts), parts[-1][-1:]])
    first = runs[0][0]
    yield FrameRun(first.ledger_id, data, Frames(first.frames.first_entry_id, offsets, None, tuple(gaps)))
