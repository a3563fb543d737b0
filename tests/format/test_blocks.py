from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.support.assemble import encode_block, encode_block_into

from afterglow.errors import CorruptBlock, EntryTooLarge
from afterglow.format.blocks import HEADER_BYTES, BlockHeader, Format, block_checksum, decode_header, plan_v1, plan_v2
from afterglow.format.checks import open_block
from afterglow.format.frames import FRAME_BYTES, PADDING, frame_entries, iter_entries, scan_frames

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from afterglow.format.blocks import BlockPlan


LONGS = st.integers(0, 2**63 - 1)


@st.composite
def headers(draw: st.DrawFn) -> BlockHeader:
    version = draw(st.sampled_from(Format))
    ledger = draw(LONGS) if version is Format.V2 else None
    header_bytes = draw(st.integers(HEADER_BYTES, 300))
    return BlockHeader(version, draw(st.integers(header_bytes, 2**62)), draw(LONGS), ledger, header_bytes)


def test_the_known_v1_block_is_written() -> None:
    frames = frame_entries([b"A" * 10, b"B" * 10, b"C" * 10])
    block = encode_block(BlockHeader(Format.V1, 194, 0), frames)
    assert block[:28].hex() == "fbdbabcb000000000000008000000000000000c20000000000000000"
    assert block[28:128] == bytes(100)
    assert block[128:150].hex() == "0000000a000000000000000041414141414141414141"
    assert len(block) == 194


def test_the_known_v2_header_is_written() -> None:
    expected = "26a66d320000000000000080000000000050000000000000000000000000000000000007" + "00" * 92
    assert BlockHeader(Format.V2, 5 << 20, 0, 7).encode().hex() == expected


@given(headers(), st.binary(max_size=20), st.binary(max_size=20))
def test_a_header_comes_back_from_anywhere_in_the_data(header: BlockHeader, before: bytes, behind: bytes) -> None:
    encoded = header.encode()
    assert len(encoded) == header.header_bytes
    assert decode_header(before + encoded + behind, len(before)) == header


def test_a_v2_header_must_name_its_ledger() -> None:
    with pytest.raises(ValueError, match="needs a ledger id"):
        BlockHeader(Format.V2, 200, 0).encode()


@given(st.integers(0, 40), st.integers(0, 20))
def test_a_block_is_padded_from_the_first_free_byte(size: int, missing: int) -> None:
    header = BlockHeader(Format.V1, HEADER_BYTES + size + missing, 3)
    block = encode_block(header, b"x" * size)
    assert len(block) == header.block_bytes
    assert block[HEADER_BYTES : HEADER_BYTES + size] == b"x" * size
    assert block[HEADER_BYTES + size :] == (PADDING * 6)[:missing]
    assert block_checksum(block) == crc32c(bytes(block))


def test_frames_that_do_not_fit_leave_the_target_untouched() -> None:
    target = bytearray(400)
    with pytest.raises(CorruptBlock, match="50 bytes of entries do not fit a block of 170 that begins with entry 9"):
        encode_block_into(target, 10, BlockHeader(Format.V1, 170, 9), bytes(50))
    assert target == bytes(400)


def test_blocks_are_written_one_behind_the_other() -> None:
    target = bytearray(b"\xff" * 500)
    first, second = BlockHeader(Format.V2, 150, 0, 1), BlockHeader(Format.V2, 160, 1, 1)
    behind = encode_block_into(target, 5, first, b"a" * 20)
    assert behind == 155
    assert encode_block_into(memoryview(target), behind, second, b"b" * 32) == 315
    assert target[5:155] == encode_block(first, b"a" * 20)
    assert target[155:315] == encode_block(second, b"b" * 32)
    assert set(target[:5] + target[315:]) == {0xFF}


@pytest.mark.parametrize("size", range(HEADER_BYTES))
def test_too_few_bytes_are_no_header(size: int) -> None:
    with pytest.raises(CorruptBlock, match="too few"):
        decode_header(BlockHeader(Format.V1, 200, 0).encode()[:size])


@pytest.mark.parametrize("offset", [-1, 73, 1000])
def test_a_header_beyond_the_end_is_rejected(offset: int) -> None:
    with pytest.raises(CorruptBlock, match=f"offset {offset}"):
        decode_header(bytes(200), offset)


@pytest.mark.parametrize(
    "header",
    [
        BlockHeader(Format.V1, 127, 0),  # shorter than its header
        BlockHeader(Format.V1, -1, 0),
        BlockHeader(Format.V1, 200, -1),
        BlockHeader(Format.V2, 200, -5, 1),
    ],
)
def test_lengths_that_contradict_each_other_are_refused(header: BlockHeader) -> None:
    with pytest.raises(CorruptBlock, match="invalid block header"):
        decode_header(header.encode())


def test_a_header_shorter_than_its_fields_is_refused() -> None:
    encoded = bytearray(BlockHeader(Format.V2, 200, 0, 1).encode())
    for length, good in ((35, False), (36, True), (-128, False)):
        encoded[4:12] = length.to_bytes(8, "big", signed=True)
        if good:
            assert decode_header(encoded).header_bytes == length
        else:
            with pytest.raises(CorruptBlock):
                decode_header(encoded)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_bytes_are_a_header_or_an_error(data: bytes) -> None:
    try:
        header = decode_header(data)
    except CorruptBlock:
        return
    assert header.encode()[:28] == data[:28]


def test_every_flipped_bit_of_a_header_gives_a_header_or_an_error() -> None:
    encoded = BlockHeader(Format.V2, 200, 3, 7).encode()
    outcomes: set[bool | None] = set()
    for bit in range(8 * 36):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            outcomes.add(decode_header(flipped) == decode_header(encoded))
        except CorruptBlock:
            outcomes.add(None)
    assert outcomes == {False, None}  # none is mistaken for the true one


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
    payload_bytes = BLOCK - HEADER_BYTES - count * FRAME_BYTES + delta
    sizes = [payload_bytes // count] * (count - 1)
    sizes.append(payload_bytes - sum(sizes))
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
