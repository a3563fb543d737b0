from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.errors import EntryTooLarge
from afterglow.format.blocks import HEADER_BYTES, Format, encode_block
from afterglow.format.checks import open_block
from afterglow.format.frames import FRAME_BYTES, frame_entries, iter_entries, scan_frames
from afterglow.format.plan import plan_v1, plan_v2

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from afterglow.format.plan import BlockPlan

BLOCK = 200
"""Small enough that a handful of entries fills several blocks."""

ROOM = BLOCK - HEADER_BYTES - FRAME_BYTES
"""The largest entry that fits an empty block."""

EDGE_SIZES = st.one_of(
    st.integers(0, ROOM),
    st.sampled_from([0, 1, ROOM - FRAME_BYTES - 1, ROOM - FRAME_BYTES, ROOM // 2 - 6, ROOM // 2, ROOM - 1, ROOM]),
)
SIZES = st.lists(EDGE_SIZES, max_size=12)


def offsets_of(sizes: list[int], start: int = 0) -> NDArray[np.int64]:
    return np.array(list(accumulate((FRAME_BYTES + size for size in sizes), initial=start)), np.int64)


def pulsars_blocks(sizes: list[int], max_block: int) -> list[tuple[int, int, int]]:
    """Size, first entry and end entry of each block, entry by entry as Pulsar's own writer goes."""
    blocks: list[tuple[int, int, int]] = []
    ledger_length, written, first = sum(sizes), 0, 0
    while first < len(sizes):
        block_size = min(max_block, (len(sizes) - first) * 12 + (ledger_length - written) + 128)
        at, entry = 128, first
        while entry < len(sizes) and at + 12 + sizes[entry] <= block_size:
            at += 12 + sizes[entry]
            entry += 1
        if entry == first:
            raise EntryTooLarge(str(first))
        blocks.append((block_size, first, entry))
        written += at - 128 - 12 * (entry - first)
        first = entry
    return blocks


def tight_blocks(sizes: list[int], max_block: int) -> list[tuple[int, int, int]]:
    """The same for segments: blocks without padding, one of its own for an entry that is too large."""
    blocks: list[tuple[int, int, int]] = []
    for entry, size in enumerate(sizes):
        if blocks and blocks[-1][0] + 12 + size <= max_block:
            blocks[-1] = (blocks[-1][0] + 12 + size, blocks[-1][1], entry + 1)
        else:
            blocks.append((128 + 12 + size, entry, entry + 1))
    return blocks


def shape(plans: tuple[BlockPlan, ...], first: int = 0) -> list[tuple[int, int, int]]:
    return [(plan.header.block_bytes, plan.header.first_entry_id - first, plan.end_entry_id - first) for plan in plans]


@given(SIZES, st.integers(BLOCK - 1, BLOCK + 1), st.integers(0, 50))
def test_v1_blocks_are_cut_as_pulsar_cuts_them(sizes: list[int], block: int, start: int) -> None:
    try:
        expected = pulsars_blocks(sizes, block)
    except EntryTooLarge:
        with pytest.raises(EntryTooLarge):
            plan_v1(offsets_of(sizes, start), block)
        return
    plans = plan_v1(offsets_of(sizes, start), block)
    assert shape(plans) == expected
    assert [plan.offset for plan in plans] == [block * number for number in range(len(plans))]
    assert all(plan.header.format is Format.V1 and plan.header.ledger_id is None for plan in plans)


@given(st.lists(st.integers(0, ROOM + 40), max_size=12), st.integers(BLOCK - 1, BLOCK + 1), st.integers(0, 2**40))
def test_v2_blocks_are_cut_tightly_and_drop_nothing(sizes: list[int], block: int, first: int) -> None:
    plans = plan_v2(offsets_of(sizes), 7, first, block_bytes=block, offset=1000)
    expected = tight_blocks(sizes, block)
    assert shape(plans, first) == expected
    assert [plan.offset for plan in plans] == list(accumulate((size for size, _, _ in expected), initial=1000))[:-1]
    assert all(plan.header.format is Format.V2 and plan.header.ledger_id == 7 for plan in plans)
    assert all(plan.header.block_bytes <= block or plan.entries == 1 for plan in plans)


@pytest.mark.parametrize("version", Format)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("delta", [-1, 0, 1])
@pytest.mark.parametrize("tail", [0, 1, 30])
def test_around_every_block_edge_what_is_written_is_read(version: Format, count: int, delta: int, tail: int) -> None:
    # ``count`` entries that fill a block to the byte, or miss it by one to either side; then one more.
    room = BLOCK - HEADER_BYTES - count * FRAME_BYTES + delta
    sizes = [room // count] * (count - 1)
    sizes.append(room - sum(sizes))
    entries = [bytes([i]) * size for i, size in enumerate([*sizes, *sizes, tail])]
    framed = frame_entries(entries)
    offsets = scan_frames(framed, 0).offsets
    if version is Format.V1 and max(map(len, entries)) > ROOM:
        with pytest.raises(EntryTooLarge):
            plan_v1(offsets, BLOCK)
        return
    plans = plan_v1(offsets, BLOCK) if version is Format.V1 else plan_v2(offsets, 3, 0, block_bytes=BLOCK)
    data = b"".join(encode_block(plan.header, framed[plan.start : plan.end]) for plan in plans)
    read: list[tuple[int, bytes]] = []
    for plan in plans:
        block = data[plan.offset : plan.offset + plan.header.block_bytes]
        opened = open_block(block, plan.header.first_entry_id)
        assert opened.frames.damage is None
        assert (len(opened.frames), opened.frames.payload_bytes) == (plan.entries, plan.payload_bytes)
        read += [(entry_id, bytes(entry)) for entry_id, entry in iter_entries(block, opened.frames)]
    assert read == list(enumerate(entries))
    assert len(data) == plans[-1].offset + plans[-1].header.block_bytes


def test_an_entry_that_fits_to_the_byte_is_taken_and_one_byte_more_is_refused() -> None:
    assert shape(plan_v1(offsets_of([ROOM, ROOM]), BLOCK)) == [(BLOCK, 0, 1), (BLOCK, 1, 2)]
    with pytest.raises(EntryTooLarge, match=rf"entry 1 has {ROOM + 1} bytes .* to at least {BLOCK + 1}$"):
        plan_v1(offsets_of([ROOM, ROOM + 1]), BLOCK)


@pytest.mark.parametrize("block", [-1, 0, 1, 100, 127, 128, 139])
def test_a_block_size_that_holds_nothing_is_refused_and_not_looped_over(block: int) -> None:
    with pytest.raises(EntryTooLarge):
        plan_v1(offsets_of([0, 5]), block)
    assert shape(plan_v2(offsets_of([0, 5]), 1, 0, block_bytes=block)) == [(140, 0, 1), (145, 1, 2)]


def test_no_entries_make_no_blocks() -> None:
    assert plan_v1(offsets_of([])) == ()
    assert plan_v2(offsets_of([]), 1, 5) == ()
