"""Whole blocks from frames in memory, for tests and benchmarks; offload tasks write theirs in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.format.blocks import Format, enclose_frames
from afterglow.format.statistics import measure_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from afterglow.format.blocks import BlockHeader, BlockPlan
    from afterglow.format.statistics import BlockStatistics


def encode_block(header: BlockHeader, frames: Buffer) -> bytearray:
    """A whole block: header, the given frames as they are, padding up to the block's length.

    Raises:
        CorruptBlock: The frames do not fit the block's length.
    """
    out = bytearray(header.block_bytes)
    encode_block_into(out, 0, header, frames)
    return out


def encode_block_into(out: bytearray | memoryview, offset: int, header: BlockHeader, frames: Buffer) -> int:
    """Write a whole block at ``offset`` of ``out``; returns the offset behind it.

    Raises:
        CorruptBlock: The frames do not fit the block's length.
    """
    source = memoryview(frames).cast("B")
    end = enclose_frames(out, offset, header, source.nbytes)
    body = offset + header.header_bytes
    memoryview(out)[body : body + source.nbytes] = source
    return end


def assemble_blocks(
    frames: Buffer, offsets: NDArray[np.int64], plans: Sequence[BlockPlan]
) -> tuple[bytearray, list[BlockStatistics]]:
    """Write consecutive blocks of one ledger into one buffer: an object, or a part of one.

    Args:
        frames: The bytes that the plans' offsets count from.
        offsets: Offset of each frame from the first plan's first entry on, and behind the last.
        plans: Consecutive plans.

    Returns:
        The blocks' bytes, and the statistics of each.
    """
    source = memoryview(frames).cast("B")
    out = bytearray(sum(plan.header.block_bytes for plan in plans))
    target = memoryview(out)
    statistics: list[BlockStatistics] = []
    at = 0
    first = 0
    for plan in plans:
        end = encode_block_into(target, at, plan.header, source[plan.start : plan.end])
        mine = offsets[first : first + plan.entries + 1]
        statistics.append(
            measure_block(target[at:end], source, mine, stripes=plan.header.format is Format.V1),
        )
        at = end
        first += plan.entries
    return out, statistics
