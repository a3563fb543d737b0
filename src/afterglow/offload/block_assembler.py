"""Assembler of the blocks of segments: entries in the order of positions become blocks, and blocks parts.

Blocks have the boundaries of :func:`~afterglow.format.blocks.plan_v2`: they depend on the first entry and the size of
blocks alone, so that the same entries give the same bytes, however they are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.format.blocks import HEADER_BYTES, BlockHeader, BlockPlan, Format, enclose_frames
from afterglow.format.frames import scan_frames
from afterglow.format.statistics import measure_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from afterglow.format.statistics import BlockStatistics


class BlockAssembler:
    """Assembles entries into blocks, in the buffer of the current part. Not thread-safe.

    Args:
        block_bytes: Maximum length of a block, which only a single larger entry exceeds.
        part_bytes: Minimum length of a part; None: all blocks are one part.
    """

    def __init__(self, block_bytes: int, part_bytes: int | None = None) -> None:
        self._block_bytes = block_bytes
        self._part_bytes = part_bytes
        self._buffer = bytearray()
        self._taken_bytes = 0  # of the parts before the current one
        self._block_at = 0  # offset of the open block in the buffer, if one is open
        self._open: tuple[int, int] | None = None  # ledger and first entry of the open block
        self._ledgers: dict[int, tuple[list[BlockPlan], list[BlockStatistics]]] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of the current part."""
        return len(self._buffer)

    @property
    def size_bytes(self) -> int:
        """Bytes of the object so far."""
        return self._taken_bytes + len(self._buffer)

    def ledgers(self) -> Iterator[tuple[int, Sequence[BlockPlan], Sequence[BlockStatistics]]]:
        """The closed blocks of each ledger, in the order of the object."""
        for ledger_id, (plans, blocks) in self._ledgers.items():
            yield ledger_id, plans, blocks

    def add(
        self, ledger_id: int, first_entry_id: int, frames: memoryview, offsets: NDArray[np.int64]
    ) -> Iterator[bytearray]:
        """Add consecutive entries of one ledger, which must follow those before; yields the parts that they fill.

        Args:
            ledger_id: The ledger.
            first_entry_id: Id of the first entry.
            frames: A buffer with their frames.
            offsets: Offset of each frame in the buffer, and the end of the last.
        """
        at, count = 0, offsets.size - 1
        while at < count:
            start = int(offsets[at])
            if not self._fits(ledger_id, int(offsets[at + 1]) - start):
                yield from self._end_block()
                self._block_at = len(self._buffer)
                self._open = ledger_id, first_entry_id + at
                self._buffer += bytes(HEADER_BYTES)
            free_bytes = self._block_bytes - (len(self._buffer) - self._block_at)
            stop = max(int(offsets.searchsorted(start + free_bytes, side="right")) - 1, at + 1)
            self._buffer += frames[start : int(offsets[stop])]
            at = stop

    def close(self) -> bytearray:
        """Close the last block; returns the last part, which is empty if the part before it was filled exactly."""
        full = list(self._end_block())
        return full[0] if full else self._take_buffer()

    def _fits(self, ledger_id: int, frame_bytes: int) -> bool:
        """Whether an entry fits into the open block."""
        if self._open is None or self._open[0] != ledger_id:
            return False
        return len(self._buffer) - self._block_at + frame_bytes <= self._block_bytes

    def _end_block(self) -> Iterator[bytearray]:
        """Close the open block, if any, and yield the part if it is full."""
        if self._open is None:
            return
        ledger_id, first_entry_id = self._open
        self._open = None
        block = memoryview(self._buffer)[self._block_at :]
        header = BlockHeader(Format.V2, block.nbytes, first_entry_id, ledger_id)
        enclose_frames(block, 0, header, block.nbytes - HEADER_BYTES)
        found = scan_frames(block, first_entry_id, HEADER_BYTES)
        plans, blocks = self._ledgers.setdefault(ledger_id, ([], []))
        plans.append(BlockPlan(header, found.end_entry_id, 0, 0, self._taken_bytes + self._block_at))
        blocks.append(measure_block(block, block, found.offsets))
        block.release()
        if self._part_bytes is not None and len(self._buffer) >= self._part_bytes:
            yield self._take_buffer()

    def _take_buffer(self) -> bytearray:
        part, self._buffer = self._buffer, bytearray()
        self._taken_bytes += len(part)
        return part
