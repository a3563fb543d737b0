from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from afterglow.errors import CorruptBlock
from afterglow.format.blocks import (
    HEADER_BYTES,
    BlockHeader,
    Format,
    block_checksum,
    decode_header,
    encode_block,
    encode_block_into,
)
from afterglow.format.frames import PADDING, frame_entries

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
    with pytest.raises(ValueError, match="names its ledger"):
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
def test_an_offset_without_room_for_a_header_is_refused(offset: int) -> None:
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
    with pytest.raises(CorruptBlock, match="cannot be"):
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
