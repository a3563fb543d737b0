from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.offloaded import OffloadedTopic, random_entries

from afterglow.verify import FindingKind
from afterglow.verify.entries import BlockParser

BLOCKS = (200, 256, 1000, 4096, 100_000)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[OffloadedTopic, list[str]]:
    """A topic some of whose ledgers have objects of their own and some of which are in segments."""
    world = OffloadedTopic()
    keys: list[str] = []
    ledger_id = 0
    for _ in range(draw(st.integers(1, 3))):
        ledger_id += draw(st.integers(1, 5))
        world.ledger(ledger_id, random_entries(draw(st.integers(1, 30)), 60, draw(st.integers(0, 99))))
        keys.append(world.offload(ledger_id, block_bytes=draw(st.sampled_from(BLOCKS))))
        if draw(st.booleans()):
            world.free(ledger_id)
    ranges: list[tuple[int, int, int]] = []
    for _ in range(draw(st.integers(0, 3))):
        ledger_id += draw(st.integers(1, 5))
        count = draw(st.integers(1, 30))
        world.ledger(ledger_id, random_entries(count, 60, draw(st.integers(0, 99))))
        cuts = sorted(draw(st.sets(st.integers(1, count - 1), max_size=2))) if count > 1 else []
        for first, end in zip([0, *cuts], [*cuts, count], strict=True):
            ranges.append((ledger_id, first, end - 1))
            if end < count or draw(st.booleans()):
                keys.append(world.segment(ranges, block_bytes=draw(st.sampled_from(BLOCKS))))
                ranges = []
    if ranges:
        keys.append(world.segment(ranges))
    return world, keys


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_whatever_the_writers_write_is_sound(made: tuple[OffloadedTopic, list[str]]) -> None:
    world, _ = made
    assert world.verify(deep=False) == []
    assert world.verify(deep=True) == []


@settings(max_examples=100, deadline=None)
@given(worlds(), st.data())
def test_any_flipped_bit_of_a_data_object_is_found_in_its_block(
    made: tuple[OffloadedTopic, list[str]], data: st.DataObject
) -> None:
    world, keys = made
    key = data.draw(st.sampled_from(keys))
    offset = data.draw(st.integers(0, world.tier.head(key).size_bytes - 1))
    world.spoil(key, offset, 1 << data.draw(st.integers(0, 7)))
    found = world.verify()
    assert [(item.kind, item.object) for item in found] == [(FindingKind.DAMAGED_BLOCK, key)]
    assert world.verify(deep=False) == []


@settings(max_examples=100, deadline=None)
@given(worlds(), st.data())
def test_damage_to_an_index_never_stops_the_verifier(
    made: tuple[OffloadedTopic, list[str]], data: st.DataObject
) -> None:
    world, keys = made
    key = data.draw(st.sampled_from(keys)) + "-index"
    index = bytearray(world.tier.get(key))
    for _ in range(data.draw(st.integers(1, 4))):
        index[data.draw(st.integers(0, len(index) - 1))] = data.draw(st.integers(0, 255))
    world.replace(key, index[: data.draw(st.integers(0, len(index)))])
    world.verify()


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    padding=st.integers(0, 30),
    cuts=st.sets(st.integers(1, 600), max_size=12),
    stripe_bytes=st.integers(1, 64),
)
def test_a_parsed_block_is_the_same_however_it_is_buffered(
    sizes: list[int], padding: int, cuts: set[int], stripe_bytes: int
) -> None:
    from crc32c import crc32c

    from afterglow.format.frames import frame_entries

    frames = frame_entries([b"e" * size for size in sizes], 7)
    block = bytes(16) + frames + (b"\xfe\xdc\xde\xad" * 8)[:padding]
    parser = BlockParser(len(block), 16, 7, stripe_bytes)
    borders = [0, *sorted(cut for cut in cuts if cut < len(block)), len(block)]
    for start, end in pairwise(borders):
        parser.feed(memoryview(block)[start:end])
    parser.end()
    assert parser.damage is None
    assert parser.next_entry_id == 7 + len(sizes)
    assert parser.frames_end == 16 + len(frames)
    assert parser.crc32c == crc32c(block)
    starts = [16 + sum(12 + size for size in sizes[:i]) for i in range(len(sizes))]
    stripes = range(0, len(block), stripe_bytes)
    assert parser.stripe_crc32c == [crc32c(block[at : at + stripe_bytes]) for at in stripes]
    for (before, first), at in zip(parser.stripe_positions, stripes, strict=True):
        assert before == sum(start < at for start in starts)
        length = min(stripe_bytes, len(block) - at)
        following = min((start for start in starts if start >= at), default=len(block))
        assert first == min(following - at, length)


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    spoilt=st.sets(st.integers(0, 11), max_size=3),
    broker=st.booleans(),
    cuts=st.sets(st.integers(1, 1200), max_size=12),
)
def test_wrong_checksums_of_entries_are_found_however_the_block_is_buffered(
    sizes: list[int], spoilt: set[int], cuts: set[int], *, broker: bool
) -> None:
    from tests.support.ledgers import message

    from afterglow.format.frames import frame_entries

    added = bytes.fromhex("0e020000000908fbd095ffbc311000") if broker else b""
    entries = [bytearray(added + message(bytes(size))) for size in sizes]
    wrong = sorted(number for number in spoilt if number < len(entries))
    for number in wrong:
        entries[number][-1] ^= 0x10
    block = bytes(16) + frame_entries([bytes(entry) for entry in entries], 7)
    parser = BlockParser(len(block), 16, 7)
    for start, end in pairwise([0, *sorted(cut for cut in cuts if cut < len(block)), len(block)]):
        parser.feed(memoryview(block)[start:end])
    parser.end()
    assert parser.damage is None
    assert parser.entries.wrong_checksum.count == len(wrong)
    assert parser.entries.wrong_checksum.first == (7 + wrong[0] if wrong else -1)
    assert parser.entries.uncovered_bytes == len(added) * len(entries)
    assert (parser.entries.truncated.count, parser.entries.unparsable.count) == (0, 0)
