from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.errors import CorruptMetadata
from afterglow.format.blocks import HEADER_BYTES
from afterglow.format.position import Position
from afterglow.offload.segments.part_planner import (
    MAX_BLOCKS,
    MAX_PARTS,
    Sizes,
    cut_by_size,
    plan_parts,
    plan_uncut_parts,
    restore_part,
    restore_uncut_part,
)
from afterglow.offload.segments.uncovered import EntryRange, PositionRange

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from afterglow.offload.segments.part_planner import PlannedPart

FRAME = 12


class Ledgers:
    """Ledgers of entries of given sizes."""

    def __init__(self, *ledgers: list[int]) -> None:
        self._ends = [np.cumsum([0, *(FRAME + size for size in sizes)], dtype=np.int64) for sizes in ledgers]
        self.asked = 0

    def __call__(self, ledger_id: int, first: int, last: int) -> NDArray[np.int64]:
        self.asked += 1
        return self._ends[ledger_id][first : last + 2]

    def frame_end(self, ledger_id: int, entry_id: int) -> int:
        return int(self(ledger_id, entry_id, entry_id)[1])

    def run(self, first: int = 0, *, growing: bool = True) -> PositionRange:
        ranges = []
        for ledger_id, ends in enumerate(self._ends):
            if ends.size > 1 + first:
                ranges.append(EntryRange(ledger_id, first, ends.size - 2, closed=ledger_id < len(self._ends) - 1))
                first = 0
        return PositionRange(tuple(ranges), growing=growing)


def entries(parts: tuple[PlannedPart, ...]) -> list[tuple[int, int]]:
    return [
        (ledger_part.ledger_id, entry)
        for part in parts
        for ledger_part in part.ledgers
        for entry in range(ledger_part.entries.first, ledger_part.entries.last + 1)
    ]


def test_a_segment_ends_where_its_frames_fill_it() -> None:
    ledgers = Ledgers([88] * 10, [88] * 10)  # frames of 100 bytes
    run = ledgers.run()
    assert cut_by_size(run, ledgers.frame_end, 2_001) is None
    assert cut_by_size(run, ledgers.frame_end, 2_000) == Position(1, 9)
    assert cut_by_size(run, ledgers.frame_end, 1_999) == Position(1, 8)
    assert cut_by_size(run, ledgers.frame_end, 1_000) == Position(0, 9)
    assert cut_by_size(run, ledgers.frame_end, 1_099) == Position(0, 9)
    assert cut_by_size(run, ledgers.frame_end, 150) == Position(0, 0)
    assert cut_by_size(run, ledgers.frame_end, 1) == Position(0, 0), "one entry goes, however large"
    assert cut_by_size(ledgers.run(5), ledgers.frame_end, 600) == Position(1, 0)


def test_a_cut_in_a_ledger_of_a_million_entries_costs_some_dozen_small_reads() -> None:
    ledgers = Ledgers([88] * 1_000_000)
    assert cut_by_size(ledgers.run(), ledgers.frame_end, 54_321_000) == Position(0, 543_209)
    assert ledgers.asked < 50


def test_only_what_fills_a_part_is_planned_while_the_segment_grows() -> None:
    ledgers = Ledgers([372] * 3, [372] * 20)  # frames of 384 bytes; two fit a block of 1,000
    parts = plan_parts(ledgers.run(), ledgers, Sizes(1_000, 2_000), number=1, offset=0, closing=False)
    block = HEADER_BYTES + 2 * 384
    # The first ledger ends with a short block; behind it every three blocks make a part.
    assert parts[0].block_bytes == (block, HEADER_BYTES + 384, block)
    assert all(part.block_bytes == (block,) * 3 for part in parts[1:])
    assert parts[-1].end == Position(1, 19 - 6)
    assert [part.number for part in parts] == [1, 2, 3]
    rest = ledgers.run().after(parts[-1].end)
    assert rest is not None
    offset = sum(part.size_bytes for part in parts)
    assert plan_parts(rest, ledgers, Sizes(1_000, 2_500), number=4, offset=offset, closing=False) == ()
    last = plan_parts(rest, ledgers, Sizes(1_000, 9_000), number=4, offset=offset, closing=True)
    assert last[-1].end == Position(1, 19)
    assert last[0].plans[0].offset == offset


def test_the_sizes_bound_what_is_recorded() -> None:
    gib = 1 << 30
    assert Sizes.of(gib, 1 << 20, 8 << 20) == Sizes(1 << 20, 8 << 20)
    for segment in (gib, 8 * gib, 100 * gib, 4_000 * gib):
        sizes = Sizes.of(segment, 1 << 20, 8 << 20)
        assert 2 * segment / sizes.block_bytes <= MAX_BLOCKS
        assert segment / sizes.part_bytes <= MAX_PARTS
        assert sizes.part_bytes >= sizes.block_bytes


@given(
    st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=30), min_size=1, max_size=4),
    st.integers(129, 2_000),
    st.integers(1, 6_000),
    st.lists(st.floats(0, 1), max_size=4),
)
def test_parts_planned_in_any_steps_hold_every_entry_once_and_can_be_restored(
    sizes: list[list[int]], block_bytes: int, part_bytes: int, steps: list[float]
) -> None:
    ledgers = Ledgers(*sizes)
    whole = ledgers.run()
    cut = Sizes(block_bytes, part_bytes)
    parts: tuple[PlannedPart, ...] = ()
    left: PositionRange | None = whole
    for step in (*sorted(steps), 1.0):
        assert left is not None
        last = left.ranges[-1]
        known = last.first + int(step * (last.last - last.first))
        closing = step == 1.0
        seen = PositionRange(
            (*left.ranges[:-1], EntryRange(last.ledger_id, last.first, known, closed=False)), growing=True
        )
        offset = sum(part.size_bytes for part in parts)
        parts += plan_parts(seen, ledgers, cut, number=len(parts) + 1, offset=offset, closing=closing)
        if closing:
            break
        left = whole.after(parts[-1].end) if parts else whole
    assert entries(parts) == [(ledger, entry) for ledger, found in enumerate(sizes) for entry in range(len(found))]
    at = 0
    for part in parts:
        assert part is parts[-1] or part.size_bytes >= part_bytes
        run = whole.after(Position(part.begin.ledger_id, part.begin.entry_id - 1))
        assert run is not None
        assert restore_part(part.number, run.up_to(part.end), part.block_bytes, ledgers, at) == part
        at += part.size_bytes


@given(
    st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=30), min_size=1, max_size=4),
    st.integers(1, 6_000),
    st.lists(st.floats(0, 1), max_size=4),
)
def test_parts_of_uncut_entries_end_where_they_are_full_however_they_are_planned(
    sizes: list[list[int]], part_bytes: int, steps: list[float]
) -> None:
    ledgers = Ledgers(*sizes)
    whole = ledgers.run()
    cut = Sizes(1_000, part_bytes)
    at_once = plan_uncut_parts(whole, ledgers.frame_end, cut, number=1, closing=True)
    parts: tuple[PlannedPart, ...] = ()
    for step in sorted(steps):
        left = whole.after(parts[-1].end) if parts else whole
        if left is None:
            break
        last = left.ranges[-1]
        known = EntryRange(last.ledger_id, last.first, last.first + int(step * (last.last - last.first)), closed=False)
        seen = PositionRange((*left.ranges[:-1], known), growing=True)
        parts += plan_uncut_parts(seen, ledgers.frame_end, cut, number=len(parts) + 1, closing=False)
    if (left := whole.after(parts[-1].end) if parts else whole) is not None:
        parts += plan_uncut_parts(left, ledgers.frame_end, cut, number=len(parts) + 1, closing=True)
    assert parts == at_once
    assert entries(parts) == [(ledger, entry) for ledger, found in enumerate(sizes) for entry in range(len(found))]
    assert sum(part.uncut_bytes for part in parts) == sum(FRAME + size for found in sizes for size in found)
    for part in parts:
        assert part is parts[-1] or part.uncut_bytes >= part_bytes
        run = whole.after(Position(part.begin.ledger_id, part.begin.entry_id - 1))
        assert run is not None
        run = run.up_to(part.end)
        assert restore_uncut_part(part.number, run, part.uncut_bytes, cut, ledgers.frame_end) == part
        with pytest.raises(CorruptMetadata, match="its frames have"):
            restore_uncut_part(part.number, run, part.uncut_bytes + 1, cut, ledgers.frame_end)


def test_lengths_that_no_blocks_have_are_noticed() -> None:
    ledgers = Ledgers([88] * 4)
    run = ledgers.run()
    whole = HEADER_BYTES + 400
    assert restore_part(1, run, [whole], ledgers, 0).size_bytes == whole
    for wrong in ([whole - 1], [whole + 1], [], [whole, 228], [HEADER_BYTES], [HEADER_BYTES + 100]):
        with pytest.raises(CorruptMetadata, match="part 1"):
            restore_part(1, run, wrong, ledgers, 0)
