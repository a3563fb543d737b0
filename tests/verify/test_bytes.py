from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.testing.offloaded import random_entries
from afterglow.verify import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.testing.offloaded import OffloadedTopic

BLOCK = 4096
MIB = 1 << 20


def patch(world: OffloadedTopic, key: str, offset: int, data: bytes) -> None:
    found = bytearray(world.tier.get(key))
    found[offset : offset + len(data)] = data
    world.replace(key, found)


def test_objects_without_statistics_are_told_as_unchecked(world: OffloadedTopic) -> None:
    world.ledger(5, random_entries(20))
    key = world.offload(5, block_bytes=BLOCK, statistics=False)
    world.ledger(6, random_entries(20))
    segment = world.segment([(6, 0, 19)], statistics=False)
    found = world.verify()
    assert {(item.kind, item.object) for item in found} == {(Kind.UNCHECKED, key), (Kind.UNCHECKED, segment)}
    assert f"{world.tier.head(key).size_bytes} bytes" in found[0].detail


def padding_of_first_block(world: OffloadedTopic, key: str) -> int:
    """An offset within the padding of the first block."""
    data = bytes(world.tier.get(key, 0, BLOCK))
    assert data.endswith(b"\xde\xad\xfe\xdc") or b"\xfe\xdc\xde\xad" in data[-64:]
    return BLOCK - 1


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (lambda _world, _key: 0, "begins with"),
        (lambda _world, _key: 11, "header says that it has"),
        (lambda _world, _key: 19, "header says"),
        (lambda _world, _key: 27, "begins with entry"),
        (lambda _world, _key: 100, "not zero"),
        (lambda _world, _key: 128, "passes the block's end"),
        (lambda _world, _key: 139, "should stand"),
        (padding_of_first_block, "neither a frame nor padding"),
    ],
)
@pytest.mark.parametrize("statistics", [True, False])
def test_a_flipped_byte_outside_of_entries_is_found_with_and_without_checksums(
    world: OffloadedTopic, where: Callable[[OffloadedTopic, str], int], words: str, *, statistics: bool
) -> None:
    world.ledger(5, random_entries(60))
    key = world.offload(5, block_bytes=BLOCK, statistics=statistics)
    world.spoil(key, where(world, key))
    assert [found for found in world.verify(deep=False) if found.kind.is_fault] == []
    [found] = [found for found in world.verify() if found.kind.is_fault]
    assert (found.kind, found.object) == (Kind.DAMAGED_BLOCK, key)
    assert words in found.detail
    assert ("CRC32C" in found.detail) is statistics


@pytest.mark.parametrize("fixture", ["v1", "v2"])
def test_a_flipped_byte_of_an_entry_is_found_by_the_checksum(
    world: OffloadedTopic, fixture: str, request: pytest.FixtureRequest
) -> None:
    key = request.getfixturevalue(fixture)
    world.spoil(key, 150)
    assert world.verify(deep=False) == []
    [found] = world.verify()
    assert (found.kind, found.position) == (Kind.DAMAGED_BLOCK, "5:0")
    assert "block 1 at 0" in found.detail


def test_a_flipped_byte_in_a_later_stripe_names_the_stripe_and_its_entry(world: OffloadedTopic) -> None:
    entries = random_entries(40, 200_000)
    world.ledger(5, entries)
    key = world.offload(5, block_bytes=64 * MIB)
    ends = [128]
    for entry in entries:
        ends.append(ends[-1] + 12 + len(entry))
    spoilt = 2 * MIB + 77
    world.spoil(key, spoilt)
    [found] = world.verify()
    assert "stripes 2 of" in found.detail
    spanning = next(i for i, end in enumerate(ends[1:]) if end > 2 * MIB)
    assert found.position == f"5:{spanning}"


def test_a_block_of_another_ledger_is_found(world: OffloadedTopic) -> None:
    world.ledger(5, random_entries(5))
    key = world.segment([(5, 0, 4)], statistics=False)
    patch(world, key, 28, struct.pack(">q", 6))
    [found] = [found for found in world.verify() if found.kind.is_fault]
    assert found.kind is Kind.DAMAGED_BLOCK
    assert "ledger 6" in found.detail


def test_a_block_that_lacks_its_last_entries_is_found(world: OffloadedTopic) -> None:
    entries = random_entries(20)
    world.ledger(5, entries)
    key = world.offload(5, statistics=False)
    last = 12 + len(entries[-1])
    data = bytearray(world.tier.get(key))
    data[-last:] = (b"\xfe\xdc\xde\xad" * last)[:last]
    world.replace(key, data)
    [found] = [found for found in world.verify() if found.kind.is_fault]
    assert (found.kind, found.position) == (Kind.DAMAGED_BLOCK, "5:19")
    assert "lacks the entries 19 to 19" in found.detail


def test_statistics_that_contradict_the_index_are_found(world: OffloadedTopic) -> None:
    from dataclasses import replace

    from afterglow.format.index import decode_index, encode_index
    from afterglow.format.ledger_metadata import ClosedLedger, ledger_metadata

    entries = random_entries(60)
    world.ledger(5, entries)
    key = world.offload(5, block_bytes=BLOCK)
    index = decode_index(world.tier.get(f"{key}-index"))
    group = index.groups[0]
    assert group.statistics is not None
    told = (replace(group.statistics[0], entries=group.statistics[0].entries + 1), *group.statistics[1:])
    ledger = ClosedLedger(59, sum(map(len, entries)), 1_700_000_000_000, world.topic)
    spoilt = replace(index, groups=(replace(group, metadata=ledger_metadata(ledger, told)),))
    world.replace(f"{key}-index", encode_index(spoilt))
    [found] = world.verify(deep=False)
    assert (found.kind, found.object) == (Kind.DAMAGED_BLOCK, f"{key}-index")


@pytest.mark.parametrize("column", ["stripe_entries_before", "stripe_first_frame"])
def test_stripes_that_point_beside_their_first_entry_are_found(world: OffloadedTopic, column: str) -> None:
    from dataclasses import replace

    from afterglow.format.index import decode_index, encode_index
    from afterglow.format.ledger_metadata import ClosedLedger, ledger_metadata

    entries = random_entries(40, 200_000)
    world.ledger(5, entries)
    key = world.offload(5)
    index = decode_index(world.tier.get(f"{key}-index"))
    group = index.groups[0]
    assert group.statistics is not None
    places = getattr(group.statistics[0], column)
    change: dict[str, Any] = {column: (*places[:-1], places[-1] + 1)}
    told = replace(group.statistics[0], **change)
    ledger = ClosedLedger(39, sum(map(len, entries)), 1_700_000_000_000, world.topic)
    spoilt = replace(index, groups=(replace(group, metadata=ledger_metadata(ledger, (told,))),))
    world.replace(f"{key}-index", encode_index(spoilt))
    [found] = world.verify()
    assert found.kind is Kind.DAMAGED_BLOCK
    assert "misplaces" in found.detail
