"""Where blocks begin and end: pure arithmetic over the offsets of a ledger's frames.

The hot ledger file holds exactly the frames that blocks hold, so a block is a header and a range of that file, and the
borders of all blocks are known before any byte is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from afterglow.errors import EntryTooLarge
from afterglow.format.blocks import HEADER_BYTES, BlockHeader, Format
from afterglow.format.frames import FRAME_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

V1_BLOCK_BYTES = 64 << 20
"""Pulsar's default."""

V2_BLOCK_BYTES = 1 << 20
"""Small enough for a fine index, narrow Spark splits, and a checksum over a piece one is willing to fetch."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One block: which entries, which bytes of the ledger's frames, how long."""

    header: BlockHeader
    end_entry_id: int
    """Id behind the block's last entry."""
    start: int
    """Offset of the first frame among the ledger's frames."""
    end: int
    """Offset behind the last frame."""
    offset: int
    """Where the block begins in its object."""

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.end_entry_id - self.header.first_entry_id

    @property
    def payload_bytes(self) -> int:
        """Bytes of the entries without their frames."""
        return self.end - self.start - FRAME_BYTES * self.entries


def plan_v1(offsets: NDArray[np.int64], max_block_bytes: int = V1_BLOCK_BYTES) -> tuple[BlockPlan, ...]:
    """Blocks of a whole ledger, as Pulsar cuts them: all of ``max_block_bytes`` exactly, padded, but for the last.

    Args:
        offsets: Offset of each frame from entry 0 on, and behind the last.
        max_block_bytes: Size of every block but the last, which is as long as it needs to be.

    Raises:
        EntryTooLarge: An entry does not fit an empty block. Found before anything is written; Pulsar would drop it and
            all entries behind it, and report success.
    """
    plans: list[BlockPlan] = []
    count = offsets.size - 1
    first = 0
    while first < count:
        start = int(offsets[first])
        left = int(offsets[-1]) - start + HEADER_BYTES
        end = count if left <= max_block_bytes else _fitting(offsets, first, max_block_bytes)
        if end <= first:
            size = int(offsets[first + 1]) - start - FRAME_BYTES
            raise EntryTooLarge(
                f"entry {first} has {size} bytes and does not fit a block of {max_block_bytes}; raise "
                f"managedLedgerOffloadMaxBlockSizeInBytes to at least {size + FRAME_BYTES + HEADER_BYTES}"
            )
        header = BlockHeader(Format.V1, min(left, max_block_bytes), first)
        plans.append(BlockPlan(header, end, start, int(offsets[end]), max_block_bytes * len(plans)))
        first = end
    return tuple(plans)


def plan_v2(
    offsets: NDArray[np.int64],
    ledger_id: int,
    first_entry_id: int,
    *,
    block_bytes: int = V2_BLOCK_BYTES,
    offset: int = 0,
) -> tuple[BlockPlan, ...]:
    """Blocks of a range of one ledger in a segment: at most ``block_bytes`` each, without padding.

    An entry that does not fit gets a block of its own size.

    Args:
        offsets: Offset of each frame of the range, and behind the last.
        ledger_id: The ledger.
        first_entry_id: Id of the range's first entry.
        block_bytes: Size that no block passes unless a single entry does.
        offset: Where the first block begins in the object.
    """
    plans: list[BlockPlan] = []
    count = offsets.size - 1
    first = 0
    while first < count:
        end = max(_fitting(offsets, first, block_bytes), first + 1)
        start, stop = int(offsets[first]), int(offsets[end])
        header = BlockHeader(Format.V2, HEADER_BYTES + stop - start, first_entry_id + first, ledger_id)
        plans.append(BlockPlan(header, first_entry_id + end, start, stop, offset))
        offset += header.block_bytes
        first = end
    return tuple(plans)


def _fitting(offsets: NDArray[np.int64], first: int, block_bytes: int) -> int:
    """Index behind the last entry that fits a block which begins with entry ``first``."""
    return int(np.searchsorted(offsets, offsets[first] + (block_bytes - HEADER_BYTES), side="right")) - 1
