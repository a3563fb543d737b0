"""Objects that Apache Pulsar itself wrote: the sound ones pass, the defective ones are found."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.support.golden import cases
from tests.support.offloaded import OffloadedTopic

from afterglow.metadata.paths import managed_ledger_path
from afterglow.verify import FindingKind

if TYPE_CHECKING:
    from tests.support.golden import GoldenCase

    from afterglow.verify import Finding

CASES = cases()
DEFECTIVE = {"oversize", "streaming_v2_manyblocks"}
V1 = sorted(name for name, case in CASES.items() if (case.path / "mlinfo.bin").exists() and name != "fs_mapfile")
V2 = sorted(name for name in CASES if name.startswith("streaming_v2"))


def load(case: GoldenCase) -> OffloadedTopic:
    world = OffloadedTopic()
    metadata = {item.key: item.user_metadata for item in case.listing}
    for key, data in case.objects.items():
        world.tier.put(key, data, metadata=metadata[key])
    return world


def load_v1(case: GoldenCase) -> OffloadedTopic:
    world = load(case)
    world.put(managed_ledger_path(world.topic), (case.path / "mlinfo.bin").read_bytes())
    return world


def load_v2(case: GoldenCase) -> OffloadedTopic:
    """A list around a segment, as the broker would have written one, had it ever called the code."""
    world = load(case)
    uuid = UUID(next(key for key in case.objects if not key.endswith("-index")))
    entries = case.entries()
    assert entries is not None
    lasts: dict[int, int] = {}
    for entry in entries:
        lasts[entry["ledgerId"]] = max(lasts.get(entry["ledgerId"], -1), entry["entryId"])
    for ledger_id, last in sorted(lasts.items()):
        world.ledger(ledger_id, [b""] * (last + 1))
        world.edit_row(ledger_id, lambda row, last=last: world.add_stub(row, uuid, last))  # type: ignore[misc]
    return world


def faults(world: OffloadedTopic) -> list[Finding]:
    return [found for found in world.verify(hot=False) if found.kind.is_fault]


def unchecked(world: OffloadedTopic, *, deep: bool) -> list[Finding]:
    return [found for found in world.verify(deep=deep, hot=False) if found.kind is FindingKind.UNCHECKED]


@pytest.mark.parametrize("name", [name for name in V1 if name not in DEFECTIVE])
def test_ledgers_that_pulsar_offloaded_are_sound(name: str) -> None:
    """The indexes have no checksums, so that only the entries' own tell: those do not cover what the broker adds."""
    world = load_v1(CASES[name])
    assert faults(world) == []
    complete = sum(row.offloadContext.complete for row in world.info.ledgerInfo)
    assert complete
    assert len(unchecked(world, deep=False)) == complete
    assert len(unchecked(world, deep=True)) == (complete if name == "entry_meta" else 0)
    assert FindingKind.FOREIGN in {found.kind for found in world.verify(hot=False)}


@pytest.mark.parametrize("name", [name for name in V2 if name not in DEFECTIVE])
def test_segments_that_pulsar_wrote_are_sound(name: str) -> None:
    world = load_v2(CASES[name])
    assert faults(world) == []
    assert len(unchecked(world, deep=False)) == len(unchecked(world, deep=True)) == 1  # its entries are no messages


@pytest.mark.parametrize("name", sorted({"plain_unbatched", "batched_lz4", "txn"} & set(CASES)))
def test_any_flipped_byte_of_an_object_that_pulsar_wrote_is_found(name: str) -> None:
    """Though nothing but the entries' own checksums and the shape of all else can tell."""
    world = load_v1(CASES[name])
    key = min((key for key in CASES[name].objects if not key.endswith("-index")), key=len)
    size = world.tier.head(key).size_bytes
    offsets = {*range(160), *random.Random(7).sample(range(size), 60)}
    for offset in sorted(offset for offset in offsets if offset < size):
        world.spoil(key, offset, 0x41)
        found = faults(world)
        assert [(item.kind, item.object) for item in found] == [(FindingKind.DAMAGED_BLOCK, key)], offset
        world.spoil(key, offset, 0x41)


@pytest.mark.skipif("oversize" not in CASES, reason="the full set of golden cases is not at hand")
def test_the_entries_that_pulsar_dropped_as_too_large_are_found_missing() -> None:
    found = faults(load_v1(CASES["oversize"]))
    assert FindingKind.WRONG_LENGTH in {item.kind for item in found}
    assert FindingKind.DAMAGED_BLOCK in {item.kind for item in found}
    assert any("lacks the entries" in item.detail for item in found)


@pytest.mark.skipif("streaming_v2_manyblocks" not in CASES, reason="the full set of golden cases is not at hand")
def test_the_blocks_that_pulsar_misplaced_are_found_damaged() -> None:
    found = faults(load_v2(CASES["streaming_v2_manyblocks"]))
    assert FindingKind.DAMAGED_BLOCK in {item.kind for item in found}


@pytest.mark.skipif("fs_mapfile" not in CASES, reason="the full set of golden cases is not at hand")
def test_map_files_are_reported_as_unchecked() -> None:
    world = load_v1(CASES["fs_mapfile"])
    kinds = {found.kind for found in world.verify(hot=False)}
    assert FindingKind.UNCHECKED in kinds
    assert not any(kind.is_fault for kind in kinds)
