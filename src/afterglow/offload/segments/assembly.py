"""A segment's blocks and parts, put together from entries that come one behind the other.

Cut as :func:`~afterglow.offload.segments.cutting.plan_parts` cuts them, without knowing what comes: a block ends when
the next entry does not fit it or belongs to another ledger, and a part with the block that fills it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.format.blocks import HEADER_BYTES, BlockHeader, Format, enclose_frames
from afterglow.format.frames import scan_frames
from afterglow.format.plan import BlockPlan
from afterglow.format.statistics import measure_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from afterglow.format.statistics import BlockStatistics
    from afterglow.offload.segments.cutting import Sizes


class Assembly:
    """Blocks of a segment, in the buffer of the part that fills. Not thread-safe.

    Args:
        sizes: Of blocks and parts.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._buffer = bytearray()
        self._gone_bytes = 0
        self._block_at = 0  # where the open block begins in the buffer, if one is open
        self._open: tuple[int, int] | None = None  # ledger and first entry of the open block
        self._ledgers: dict[int, tuple[list[BlockPlan], list[BlockStatistics]]] = {}

    @property
    def held_bytes(self) -> int:
        """Of the part that fills."""
        return len(self._buffer)

    @property
    def size_bytes(self) -> int:
        """Of the object so far."""
        return self._gone_bytes + len(self._buffer)

    def ledgers(self) -> Iterator[tuple[int, Sequence[BlockPlan], Sequence[BlockStatistics]]]:
        """The blocks of each ledger in the order of the object, but for one that is open."""
        for ledger_id, (plans, blocks) in self._ledgers.items():
            yield ledger_id, plans, blocks

    def add(
        self, ledger_id: int, first_entry_id: int, frames: memoryview, offsets: NDArray[np.int64]
    ) -> Iterator[bytearray]:
        """Add consecutive entries of one ledger, which must follow those before; gives the parts that they fill.

        Args:
            ledger_id: The ledger.
            first_entry_id: Of the first of them.
            frames: Holds their frames.
            offsets: Of each frame there, and behind the last.
        """
        at, count = 0, offsets.size - 1
        while at < count:
            start = int(offsets[at])
            if not self._fits(ledger_id, int(offsets[at + 1]) - start):
                yield from self._end_block()
                self._block_at = len(self._buffer)
                self._open = ledger_id, first_entry_id + at
                self._buffer += bytes(HEADER_BYTES)
            room = self._sizes.block_bytes - (len(self._buffer) - self._block_at)
            stop = max(int(offsets.searchsorted(start + room, side="right")) - 1, at + 1)
            self._buffer += frames[start : int(offsets[stop])]
            at = stop

    def close(self) -> bytearray:
        """End the last block; gives the last part, which is empty where the one before was filled exactly."""
        full = list(self._end_block())
        return full[0] if full else self._take_buffer()

    def _fits(self, ledger_id: int, frame_bytes: int) -> bool:
        """Whether an entry goes into the open block."""
        if self._open is None or self._open[0] != ledger_id:
            return False
        return len(self._buffer) - self._block_at + frame_bytes <= self._sizes.block_bytes

    def _end_block(self) -> Iterator[bytearray]:
        """Close the open block, if any, and give the part if that fills it."""
        if self._open is None:
            return
        ledger_id, first_entry_id = self._open
        self._open = None
        block = memoryview(self._buffer)[self._block_at :]
        header = BlockHeader(Format.V2, block.nbytes, first_entry_id, ledger_id)
        enclose_frames(block, 0, header, block.nbytes - HEADER_BYTES)
        found = scan_frames(block, first_entry_id, HEADER_BYTES)
        plans, blocks = self._ledgers.setdefault(ledger_id, ([], []))
        plans.append(BlockPlan(header, found.end_entry_id, 0, 0, self._gone_bytes + self._block_at))
        blocks.append(measure_block(block, block, found.offsets))
        block.release()
        if len(self._buffer) >= self._sizes.part_bytes:
            yield self._take_buffer()

    def _take_buffer(self) -> bytearray:
        part, self._buffer = self._buffer, bytearray()
        self._gone_bytes += len(part)
        return part
