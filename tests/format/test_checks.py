from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.assemble import encode_block

from afterglow.errors import CorruptBlock
from afterglow.format.blocks import HEADER_BYTES, BlockHeader, Format
from afterglow.format.checks import Damage, block_problems, index_problems, open_block
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.index import IndexBlock, LedgerGroup, ObjectIndex
from afterglow.format.statistics import measure_block


def block_of(entries: list[bytes], first: int, ledger: int = 4, padding: int = 0) -> bytes:
    framed = frame_entries(entries, first)
    return bytes(encode_block(BlockHeader(Format.V2, HEADER_BYTES + len(framed) + padding, first, ledger), framed))


def v1(*firsts_and_offsets: tuple[int, int], data_bytes: int = 1000) -> ObjectIndex:
    blocks = tuple(IndexBlock(first, part, offset) for part, (first, offset) in enumerate(firsts_and_offsets, 1))
    return ObjectIndex(Format.V1, data_bytes, (LedgerGroup(None, b"", blocks, 9),))


def details(*damage: Damage) -> list[tuple[int | None, int | None, str]]:
    return [(item.ledger_id, item.entry_id, item.detail) for item in damage]


def test_a_sound_index_has_no_problems() -> None:
    assert list(index_problems(v1((0, 0), (4, 500)), 1000, 7)) == []


def test_the_length_of_the_data_object_is_compared() -> None:
    assert details(*index_problems(v1((0, 0)), 999)) == [
        (None, None, "the index says 1000 bytes, the data object has 999")
    ]


@pytest.mark.parametrize(
    ("index", "position"),
    [
        (v1((0, 0), (0, 500)), (7, 0)),  # the same entry twice
        (v1((0, 0), (5, 500), (4, 700)), (7, 4)),  # backwards
        (v1((0, 0), (5, 900)), (7, 5)),  # 100 bytes hold no header
        (v1((0, 0), (5, 1000)), (7, 5)),  # behind the end
        (v1((0, 0), (5, 100)), (7, 0)),  # the first one has no room
        (v1((0, -5)), (7, 0)),
        (v1((0, 100)), (None, None)),  # a hole in front
        (v1((1, 0)), (7, 1)),  # entry 0 is nowhere
        (ObjectIndex(Format.V2, 1000, ()), (None, None)),
        (ObjectIndex(Format.V1, 1000, (LedgerGroup(None, b"", (), 9),)), (None, None)),
        (
            ObjectIndex(
                Format.V2,
                1000,
                (
                    LedgerGroup(3, b"", (IndexBlock(0, 1, 0),), 9),
                    LedgerGroup(3, b"", (IndexBlock(5, 2, 500),), 9),
                ),
            ),
            (3, 5),
        ),
    ],
)
def test_contradictions_in_an_index_are_reported_with_the_position(
    index: ObjectIndex, position: tuple[int | None, int | None]
) -> None:
    found = list(index_problems(index, 1000, 7))
    assert position in [(item.ledger_id, item.entry_id) for item in found]


def test_damage_names_its_position() -> None:
    assert str(Damage(3, 4, "gone")) == "entry 3:4: gone"
    assert str(Damage(None, 4, "gone")) == "entry ?:4: gone"
    assert str(Damage(None, None, "gone")) == "object: gone"


def test_a_block_must_be_the_one_that_the_index_names() -> None:
    data = block_of([b"a"], 5)
    assert len(open_block(data, 5, 4).frames) == 1
    for first, ledger, reason in ((6, 4, "begins with entry 5"), (5, 3, "belongs to ledger 4")):
        with pytest.raises(CorruptBlock, match=reason):
            open_block(data, first, ledger)
    with pytest.raises(CorruptBlock, match=f"its block has {len(data) + 1} bytes, its header says {len(data)}"):
        open_block(data + b"x")


def group_of(*blocks: bytes, last: int, statistics: bool = True) -> LedgerGroup:
    opened = [open_block(block) for block in blocks]
    return LedgerGroup(
        4,
        b"",
        tuple(IndexBlock(block.header.first_entry_id, i, 0) for i, block in enumerate(opened, 1)),
        last,
        tuple(measure_block(data, data, block.frames.offsets) for data, block in zip(blocks, opened, strict=True))
        if statistics
        else None,
    )


def test_sound_blocks_have_no_problems_whatever_their_padding() -> None:
    blocks = block_of([b"a", b"b"], 0, padding=7), block_of([b"c"], 2)
    group = group_of(*blocks, last=2)
    for number, data in enumerate(blocks):
        assert list(block_problems(data, open_block(data), group, number, whole_ledger=True)) == []


def test_missing_entries_are_reported_from_the_first_on() -> None:
    blocks = block_of([b"a", b"b"], 0), block_of([b"c"], 4)
    group = group_of(*blocks, last=7, statistics=False)
    found = [
        details(*block_problems(data, open_block(data), group, number, whole_ledger=True))
        for number, data in enumerate(blocks)
    ]
    assert found == [[(4, 2, "entries 2..3 are missing")], [(4, 5, "entries 5..7 are missing")]]
    # A segment need not hold its ledger to the end.
    assert list(block_problems(blocks[1], open_block(blocks[1]), group, 1, whole_ledger=False)) == []


def test_entries_of_the_next_block_are_reported() -> None:
    data = block_of([b"a", b"b", b"c"], 0)
    group = LedgerGroup(4, b"", (IndexBlock(0, 1, 0), IndexBlock(1, 2, 300)), 9)
    found = details(*block_problems(data, open_block(data), group, 0, whole_ledger=False))
    assert found == [(4, 1, "entries 1..2 follow the block's last entry")]


def test_an_empty_block_is_reported() -> None:
    data = block_of([], 3)
    group = LedgerGroup(4, b"", (IndexBlock(3, 1, 0),), 9)
    assert details(*block_problems(data, open_block(data), group, 0, whole_ledger=False)) == [
        (4, 3, "its block is empty")
    ]


def test_every_flipped_byte_of_a_block_is_found_where_there_are_statistics() -> None:
    data = block_of([b"one", b"", b"three"], 0, padding=5)
    group = group_of(data, last=2)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        try:
            block = open_block(flipped, 0, 4)
        except CorruptBlock:
            continue
        found = list(block_problems(flipped, block, group, 0, whole_ledger=True))
        assert any("CRC32C" in item.detail for item in found)


def test_a_wrong_count_in_the_statistics_is_reported() -> None:
    data = block_of([b"a"], 0)
    group = group_of(data, last=0)
    assert group.statistics is not None
    group = replace(group, statistics=(replace(group.statistics[0], entries=2),))
    assert details(*block_problems(data, open_block(data), group, 0, whole_ledger=True)) == [
        (4, 0, "its block has 1 entries, the index says 2")
    ]


def test_a_torn_frame_is_reported_with_its_entry() -> None:
    whole = frame_entries([b"a" * 10, b"b" * 10], 6)
    data = bytes(encode_block(BlockHeader(Format.V2, HEADER_BYTES + len(whole) - 1, 6, 4), whole[:-1]))
    group = LedgerGroup(4, b"", (IndexBlock(6, 1, 0),), 7)
    found = details(*block_problems(data, open_block(data), group, 0, whole_ledger=True))
    assert found == [(4, 7, "the frame of entry 7 is truncated")]
    assert scan_frames(data, 6, HEADER_BYTES).end_entry_id == 7
