"""The bytes of a part: blocks of one or more ledgers, assembled in one buffer.

Frames are read from the hot log straight into their place in the part, and every one of them is checked there: the hot
copy will be deleted because this object holds the same entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import CorruptBlock, HotLogError
from afterglow.format.blocks import Format, enclose_frames
from afterglow.format.frames import check_whole, scan_frames
from afterglow.format.statistics import measure_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.format.blocks import BlockPlan
    from afterglow.format.statistics import BlockStatistics
    from afterglow.hot.log import ReadableLedger


class PartBuffer:
    """Blocks, one behind the other, in a buffer of a known size.

    Args:
        size_bytes: Of all blocks that will be added.
    """

    def __init__(self, size_bytes: int) -> None:
        self._buffer = memoryview(bytearray(size_bytes))
        self._end = 0

    @property
    def data(self) -> memoryview:
        """The blocks so far."""
        return self._buffer[: self._end]

    def add(self, ledger: ReadableLedger, plan: BlockPlan) -> BlockStatistics:
        """Append a block, and measure it.

        Raises:
            HotLogError: The ledger cannot be read, or not yet so far: worth trying again.
            CorruptBlock: The ledger's frames are not those that were planned.
        """
        header = plan.header
        last = plan.end_entry_id - 1
        if ledger.confirmed < last:
            raise HotLogError(
                f"ledger {ledger.ledger_id} is readable here up to entry {ledger.confirmed} only, and {last} is "
                "wanted; the server has not written it back yet"
            )
        block = self._buffer[self._end : self._end + header.block_bytes]
        body, end = header.header_bytes, header.header_bytes + plan.end - plan.start
        enclose_frames(block, 0, header, end - body)
        _read_frames(ledger, header.first_entry_id, last, block[body:end])
        frames = scan_frames(block, header.first_entry_id, body, end)
        check_whole(frames, f"ledger {ledger.ledger_id}")
        if frames.end_entry_id != plan.end_entry_id:
            raise CorruptBlock(
                f"ledger {ledger.ledger_id}: {len(frames)} entries stand where {plan.entries} from entry "
                f"{header.first_entry_id} on were planned"
            )
        self._end += header.block_bytes
        return measure_block(block, block, frames.offsets, stripes=header.format is Format.V1)


def group_blocks(plans: Sequence[BlockPlan], max_bytes: int) -> list[tuple[BlockPlan, ...]]:
    """Blocks in parts of at most ``max_bytes`` each; a larger block is a part by itself."""
    parts: list[list[BlockPlan]] = []
    room = 0
    for plan in plans:
        if plan.header.block_bytes > room:
            parts.append([])
            room = max_bytes
        parts[-1].append(plan)
        room -= plan.header.block_bytes
    return [tuple(part) for part in parts]


def _read_frames(ledger: ReadableLedger, first: int, last: int, target: memoryview) -> None:
    # Some ledgers need no buffer of their own to be read. Asked for by name: of a protocol it would take far longer.
    if (read_into := getattr(ledger, "read_into", None)) is not None:
        read_into(first, last, target)
        return
    while first <= last:
        # One entry comes even where none fits: then the slice is shorter than what came, which is no plan of this
        # ledger.
        frames, count = ledger.read_frames(first, target.nbytes)
        if not count or frames.nbytes > target.nbytes:
            raise CorruptBlock(f"ledger {ledger.ledger_id}: the frames from entry {first} on are not as planned")
        target[: frames.nbytes] = frames
        target = target[frames.nbytes :]
        first += count
    if target.nbytes:  # else an entry whose end did not come would stand there with zeros
        raise CorruptBlock(f"ledger {ledger.ledger_id}: the frames up to entry {last} are {target.nbytes} bytes short")
