"""From a ledger's frames to the blocks and the index of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.format.blocks import Format, encode_block_into
from afterglow.format.index import IndexBlock, LedgerGroup, ObjectIndex
from afterglow.format.ledger_metadata import ledger_info, ledger_metadata
from afterglow.format.statistics import measure_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from afterglow.format.ledger_metadata import ClosedLedger
    from afterglow.format.plan import BlockPlan
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.format.statistics import BlockStatistics


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


def index_v1(ledger: ClosedLedger, plans: Sequence[BlockPlan], statistics: Sequence[BlockStatistics]) -> ObjectIndex:
    """The index of a closed ledger's object."""
    last = plans[-1]
    group = LedgerGroup(
        None, ledger_metadata(ledger, statistics), _index_blocks(plans, 1), ledger.last_entry_id, tuple(statistics)
    )
    return ObjectIndex(Format.V1, last.offset + last.header.block_bytes, (group,))


def index_v2(
    ledgers: Iterable[tuple[ManagedLedgerInfo.LedgerInfo, Sequence[BlockPlan], Sequence[BlockStatistics]]],
) -> ObjectIndex:
    """The index of a segment: for each ledger its record, its blocks and their statistics, in the object's order."""
    groups: list[LedgerGroup] = []
    ordinal = 1
    data_bytes = 0
    for info, plans, statistics in ledgers:
        blocks = _index_blocks(plans, ordinal)
        groups.append(
            LedgerGroup(info.ledgerId, ledger_info(info, statistics), blocks, info.entries - 1, tuple(statistics))
        )
        ordinal += len(plans)
        data_bytes = plans[-1].offset + plans[-1].header.block_bytes
    return ObjectIndex(Format.V2, data_bytes, tuple(groups))


def _index_blocks(plans: Sequence[BlockPlan], ordinal: int) -> tuple[IndexBlock, ...]:
    return tuple(IndexBlock(plan.header.first_entry_id, ordinal + i, plan.offset) for i, plan in enumerate(plans))
