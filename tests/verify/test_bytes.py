from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.ledgers import message
from tests.support.offloaded import random_entries

from afterglow.storage.wrapper import StoreWrapper
from afterglow.verify import FindingKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.offloaded import OffloadedTopic

BLOCK = 4096
MIB = 1 << 20


def patch(world: OffloadedTopic, key: str, offset: int, data: bytes) -> None:
    found = bytearray(world.tier.get(key))
    found[offset : offset + len(data)] = data
    world.replace(key, found)


def test_objects_without_statistics_are_reported_as_unchecked(world: OffloadedTopic) -> None:
    world.ledger(5, random_entries(20))
    key = world.offload(5, block_bytes=BLOCK, statistics=False)
    world.ledger(6, random_entries(20))
    segment = world.segment([(6, 0, 19)], statistics=False)
    for deep, size in ((False, world.tier.head(key).size_bytes), (True, sum(map(len, world.entries[5])))):
        found = world.verify(deep=deep)
        assert {(item.kind, item.object) for item in found} == {
            (FindingKind.UNCHECKED, key),
            (FindingKind.UNCHECKED, segment),
        }
        assert f"{size} bytes" in found[0].detail


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
        (lambda _world, _key: 139, "says entry"),
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
    assert (found.kind, found.object) == (FindingKind.DAMAGED_BLOCK, key)
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
    assert (found.kind, found.position) == (FindingKind.DAMAGED_BLOCK, "5:0")
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
    assert found.kind is FindingKind.DAMAGED_BLOCK
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
    assert (found.kind, found.position) == (FindingKind.DAMAGED_BLOCK, "5:19")
    assert "lacks the entries 19 to 19" in found.detail


def test_statistics_that_contradict_the_index_are_found(world: OffloadedTopic) -> None:
    from dataclasses import replace

    from afterglow.format.index import ClosedLedger, decode_index, encode_index, ledger_metadata

    entries = random_entries(60)
    world.ledger(5, entries)
    key = world.offload(5, block_bytes=BLOCK)
    index = decode_index(world.tier.get(f"{key}-index"))
    group = index.groups[0]
    assert group.statistics is not None
    changed = (replace(group.statistics[0], entries=group.statistics[0].entries + 1), *group.statistics[1:])
    ledger = ClosedLedger(59, sum(map(len, entries)), 1_700_000_000_000, world.topic)
    spoilt = replace(index, groups=(replace(group, metadata=ledger_metadata(ledger, changed)),))
    world.replace(f"{key}-index", encode_index(spoilt))
    [found] = world.verify(deep=False)
    assert (found.kind, found.object) == (FindingKind.DAMAGED_BLOCK, f"{key}-index")


@pytest.mark.parametrize("column", ["stripe_entries_before", "stripe_first_frame"])
def test_stripes_that_point_beside_their_first_entry_are_found(world: OffloadedTopic, column: str) -> None:
    from dataclasses import replace

    from afterglow.format.index import ClosedLedger, decode_index, encode_index, ledger_metadata

    entries = random_entries(40, 200_000)
    world.ledger(5, entries)
    key = world.offload(5)
    index = decode_index(world.tier.get(f"{key}-index"))
    group = index.groups[0]
    assert group.statistics is not None
    locations = getattr(group.statistics[0], column)
    change: dict[str, Any] = {column: (*locations[:-1], locations[-1] + 1)}
    changed = replace(group.statistics[0], **change)
    ledger = ClosedLedger(39, sum(map(len, entries)), 1_700_000_000_000, world.topic)
    spoilt = replace(index, groups=(replace(group, metadata=ledger_metadata(ledger, (changed,))),))
    world.replace(f"{key}-index", encode_index(spoilt))
    [found] = world.verify()
    assert found.kind is FindingKind.DAMAGED_BLOCK
    assert "misplaces" in found.detail


# --- segments ---


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (0, "begins with"),
        (11, "header says that it has"),
        (19, "header says"),
        (27, "begins with entry"),
        (35, "says ledger"),
        (100, "not zero"),
        (128, "passes the block's end"),
        (139, "says entry"),
    ],
)
@pytest.mark.parametrize("statistics", [True, False])
def test_a_flipped_byte_outside_of_the_entries_of_a_segment_is_found(
    world: OffloadedTopic, offset: int, words: str, *, statistics: bool
) -> None:
    world.ledger(5, random_entries(60))
    key = world.segment([(5, 0, 59)], block_bytes=BLOCK, statistics=statistics)
    world.spoil(key, offset)
    [found] = [found for found in world.verify() if found.kind.is_fault]
    assert (found.kind, found.object, found.position) == (FindingKind.DAMAGED_BLOCK, key, "5:0")
    assert words in found.detail
    assert ("CRC32C" in found.detail) is statistics


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("kind", ["ledger", "segment"])
def test_swapped_blocks_are_both_found(world: OffloadedTopic, kind: str, *, statistics: bool) -> None:
    world.ledger(5, [bytes([i]) * 500 for i in range(60)])
    if kind == "ledger":
        key = world.offload(5, block_bytes=BLOCK, statistics=statistics)
    else:
        key = world.segment([(5, 0, 59)], block_bytes=BLOCK, statistics=statistics)
    data = bytearray(world.tier.get(key))
    length = struct.unpack_from(">q", data, 12)[0]
    assert struct.unpack_from(">q", data, length + 12)[0] == length
    data[: 2 * length] = data[length : 2 * length] + data[:length]
    world.replace(key, data)
    found = [found for found in world.verify() if found.kind.is_fault]
    assert [item.kind for item in found] == [FindingKind.DAMAGED_BLOCK] * 2
    assert [item.detail.partition(":")[0] for item in found] == ["block 1 at 0", f"block 2 at {length}"]


# --- checksums of entries ---


def sound(count: int, size: int = 200) -> list[bytes]:
    return [message(entry, 1_700_000_000_000 + i) for i, entry in enumerate(random_entries(count, size))]


@pytest.mark.parametrize("kind", ["ledger", "segment"])
def test_an_entry_that_came_with_a_wrong_checksum_is_found_though_its_block_is_as_it_was_written(
    world: OffloadedTopic, kind: str
) -> None:
    entries = sound(60)
    for spoilt in (33, 34):
        entries[spoilt] = entries[spoilt][:-1] + bytes([entries[spoilt][-1] ^ 1])
    world.ledger(5, entries)
    key = world.offload(5) if kind == "ledger" else world.segment([(5, 0, 59)])
    [found] = world.verify()
    assert (found.kind, found.object, found.position) == (FindingKind.DAMAGED_BLOCK, key, "5:33")
    assert "entry 33 and 1 more" in found.detail
    assert "own checksum" in found.detail
    assert "CRC32C" not in found.detail


def test_the_checksum_of_an_entry_identifies_it_in_its_block(world: OffloadedTopic) -> None:
    entries = sound(60)
    world.ledger(5, entries)
    key = world.segment([(5, 0, 59)])
    world.spoil(key, 128 + sum(12 + len(entry) for entry in entries[:41]) + 60)
    [found] = world.verify()
    assert found.position == "5:41"
    assert "CRC32C" in found.detail


def test_without_statistics_the_entries_own_checksums_count(world: OffloadedTopic) -> None:
    world.ledger(5, sound(60))
    key = world.offload(5, block_bytes=BLOCK, statistics=False)
    assert world.verify() == []
    assert [found.kind for found in world.verify(deep=False)] == [FindingKind.UNCHECKED]
    world.spoil(key, 200)
    [found] = world.verify()
    assert (found.kind, found.position) == (FindingKind.DAMAGED_BLOCK, "5:0")


def test_broker_metadata_is_unchecked_and_found_if_truncated(world: OffloadedTopic) -> None:
    added = bytes.fromhex("0e020000000908fbd095ffbc311000")
    world.ledger(5, [added + entry for entry in sound(10)])
    key = world.segment([(5, 0, 9)], statistics=False)
    [found] = world.verify()
    assert found.kind is FindingKind.UNCHECKED
    assert f"{10 * len(added)} bytes" in found.detail
    world.spoil(key, 128 + 12 + 3, 0x70)
    assert [(item.kind, item.position) for item in world.verify()][:1] == [(FindingKind.DAMAGED_BLOCK, "5:0")]


def test_a_lost_mark_before_the_checksum_is_found(world: OffloadedTopic) -> None:
    """Without its magic number, an entry seems to have no checksum."""
    world.ledger(5, sound(10))
    key = world.segment([(5, 0, 9)], statistics=False)
    world.spoil(key, 128 + 12)
    [found] = [found for found in world.verify() if found.kind.is_fault]
    assert (found.kind, found.position) == (FindingKind.DAMAGED_BLOCK, "5:0")
    assert "cannot be read as a message" in found.detail


@pytest.mark.parametrize("column", ["max_publish_time", "min_publish_time", "max_broker_time"])
def test_times_in_the_index_that_would_hide_entries_are_found(world: OffloadedTopic, column: str) -> None:
    from dataclasses import replace

    from afterglow.format.index import ClosedLedger, decode_index, encode_index, ledger_metadata

    added = bytes.fromhex("0e020000000908fbd095ffbc311000")
    entries = [added + entry for entry in sound(40)]
    world.ledger(5, entries)
    key = world.offload(5)
    index = decode_index(world.tier.get(f"{key}-index"))
    group = index.groups[0]
    assert group.statistics is not None
    first = group.statistics[0]
    change: dict[str, Any] = {column: getattr(first, column) + (5 if column.startswith("min") else -5)}
    if column == "max_broker_time":
        change["min_broker_time"] = change[column]
    ledger = ClosedLedger(39, sum(map(len, entries)), 1_700_000_000_000, world.topic)
    spoilt = replace(index, groups=(replace(group, metadata=ledger_metadata(ledger, (replace(first, **change),))),))
    world.replace(f"{key}-index", encode_index(spoilt))
    assert world.verify(deep=False) == []
    [found] = world.verify()
    position = {"max_publish_time": 35, "min_publish_time": 0, "max_broker_time": 0}[column]
    assert (found.kind, found.position) == (FindingKind.DAMAGED_BLOCK, f"5:{position}")
    assert "times of entry" in found.detail


# --- memory ---


def test_a_large_block_is_read_in_small_buffers_and_entries_may_span_them(
    world: OffloadedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    from afterglow.verify import blocks

    monkeypatch.setattr(blocks, "READ_BYTES", 100_000)
    entries = [message(entry, 1_700_000_000_000) for entry in random_entries(9, 300_000)]
    world.ledger(5, entries)
    key = world.offload(5, statistics=False)
    asked: list[int] = []

    class Asked(StoreWrapper):
        def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
            found = super().get(key, start, end)
            asked.append(len(found))
            return found

    world.tier = Asked(world.tier)
    assert world.verify() == []
    assert max(asked) == 100_000
    assert len(asked) > 10
    last = sum(12 + len(entry) for entry in entries[:-1])
    world.spoil(key, 128 + last + 90_000)
    [found] = world.verify()
    assert (found.kind, found.position) == (FindingKind.DAMAGED_BLOCK, "5:8")
    assert "own checksum" in found.detail
