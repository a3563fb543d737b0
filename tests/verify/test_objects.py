from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from tests.support.faults import Fault, FaultRule, FaultyStore
from tests.support.offloaded import INSTANCE, random_entries

from afterglow.errors import BucketMissing, StoreUnavailable
from afterglow.verify import FindingKind

if TYPE_CHECKING:
    from tests.support.offloaded import OffloadedTopic

BLOCK = 4096
MIB = 1 << 20


def patch(world: OffloadedTopic, key: str, offset: int, data: bytes) -> None:
    found = bytearray(world.tier.get(key))
    found[offset : offset + len(data)] = data
    world.replace(key, found)


@pytest.mark.parametrize("deep", [False, True])
def test_a_clean_world_has_no_findings(any_world: OffloadedTopic, *, deep: bool) -> None:
    any_world.ledger(1, random_entries(40))
    any_world.offload(1, block_bytes=BLOCK)
    any_world.free(1)
    any_world.ledger(2, random_entries(40))
    any_world.ledger(3, random_entries(20))
    any_world.segment([(2, 0, 19)], block_bytes=BLOCK)
    any_world.segment([(2, 20, 39), (3, 0, 9)], block_bytes=BLOCK)
    any_world.free(2)
    any_world.ledger(4, [], closed=False)
    assert any_world.verify(deep=deep) == []


def test_an_empty_store_has_no_findings(world: OffloadedTopic) -> None:
    assert world.verify() == []


# --- missing objects ---


@pytest.mark.parametrize("fixture", ["v1", "v2"])
def test_a_missing_data_object_is_found(world: OffloadedTopic, fixture: str, request: pytest.FixtureRequest) -> None:
    key = request.getfixturevalue(fixture)
    world.tier.delete([key])
    [found] = world.verify()
    assert (found.kind, found.object, found.position) == (FindingKind.MISSING_OBJECT, key, "5:0")
    assert found.topic == "persistent://public/default/t"


@pytest.mark.parametrize("fixture", ["v1", "v2"])
def test_a_missing_index_is_found(world: OffloadedTopic, fixture: str, request: pytest.FixtureRequest) -> None:
    key = request.getfixturevalue(fixture)
    world.tier.delete([f"{key}-index"])
    [found] = world.verify()
    assert (found.kind, found.object) == (FindingKind.MISSING_INDEX, f"{key}-index")


def test_a_missing_pair_is_found_once(world: OffloadedTopic, v1: str) -> None:
    world.tier.delete([v1, f"{v1}-index"])
    [found] = world.verify()
    assert found.kind is FindingKind.MISSING_OBJECT


def test_objects_of_a_bucket_that_is_gone_are_missing(world: OffloadedTopic, v1: str) -> None:
    class Gone:
        url = "s3://gone"

        def head(self, key: str) -> None:
            raise BucketMissing(key)

    from afterglow.verify import CommittedObject, HeldRange, ParsedLocation
    from afterglow.verify.objects import verify_object

    target = CommittedObject("t", ParsedLocation(), v1, 1, (HeldRange(5, 0, 59),))
    [found] = verify_object(Gone(), target, instance=INSTANCE)  # type: ignore[arg-type]
    assert found.kind is FindingKind.MISSING_OBJECT


def test_a_failing_store_is_an_error_and_not_a_finding(world: OffloadedTopic, v1: str) -> None:
    world.tier = FaultyStore(world.tier, [FaultRule(Fault.ERROR_BEFORE)])
    with pytest.raises(StoreUnavailable):
        world.verify()


# --- lengths ---


@pytest.mark.parametrize("fixture", ["v1", "v2"])
def test_a_truncated_object_is_found_by_its_length(
    world: OffloadedTopic, fixture: str, request: pytest.FixtureRequest
) -> None:
    key = request.getfixturevalue(fixture)
    data = bytes(world.tier.get(key))
    world.replace(key, data[:-10])
    kinds = {FindingKind.WRONG_LENGTH}
    assert {found.kind for found in world.verify(deep=False)} == kinds
    deep = world.verify(deep=True)
    assert {found.kind for found in deep} == kinds | {FindingKind.DAMAGED_BLOCK}
    cut = next(found for found in deep if found.kind is FindingKind.DAMAGED_BLOCK)
    assert cut.position is not None
    assert cut.position.startswith("5:" if fixture == "v1" else "6:")
    assert "passes the block's end" in cut.detail


def test_a_truncated_object_names_the_first_entry_out_of_reach(world: OffloadedTopic, v1: str) -> None:
    world.replace(v1, bytes(world.tier.get(v1))[: BLOCK + 5])
    [found] = world.verify(deep=False)
    assert found.kind is FindingKind.WRONG_LENGTH
    index = bytes(world.tier.get(f"{v1}-index"))
    second = struct.unpack_from(">qiq", index, len(index) - 20 * (_blocks(index) - 1))
    assert found.position == f"5:{second[0]}"


def _blocks(index: bytes) -> int:
    return int(struct.unpack_from(">i", index, 24)[0])


def test_a_longer_object_is_found_by_its_length(world: OffloadedTopic, v1: str) -> None:
    world.replace(v1, bytes(world.tier.get(v1)) + b"\0")
    [found] = world.verify(deep=False)
    assert (found.kind, found.position) == (FindingKind.WRONG_LENGTH, None)


@pytest.mark.parametrize("fixture", ["v1", "v2"])
@pytest.mark.parametrize("wrong", [-1, 1, 5 * MIB])
def test_a_wrong_length_in_the_index_is_found_also_by_deep_verification(
    world: OffloadedTopic, fixture: str, wrong: int, request: pytest.FixtureRequest
) -> None:
    key = request.getfixturevalue(fixture)
    size = world.tier.head(key).size_bytes
    patch(world, f"{key}-index", 8, struct.pack(">q", size + wrong))
    [found] = world.verify()
    assert found.kind is FindingKind.WRONG_LENGTH


# --- the index ---


def test_a_torn_index_is_found(world: OffloadedTopic, v1: str) -> None:
    index = bytes(world.tier.get(f"{v1}-index"))
    world.replace(f"{v1}-index", index[:-7])
    [found] = world.verify()
    assert (found.kind, found.object) == (FindingKind.DAMAGED_BLOCK, f"{v1}-index")


@pytest.mark.parametrize(
    ("offset", "data", "words"),
    [
        (0, b"\x00\x00\x00\x00", "not that of an index"),
        (4, b"\x00\x00\x00\x01", "says that it has 1 bytes"),
        (16, struct.pack(">q", 64), "headers have 64"),
        (24, struct.pack(">i", 1 << 20), "pass its end"),
        (28, struct.pack(">i", -1), "pass its end"),
        (-20, struct.pack(">q", 0), "do not ascend"),
        (-12, struct.pack(">i", 9999), "not numbered"),
        (-8, struct.pack(">q", 1 << 40), "different lengths"),
    ],
)
def test_an_invalid_index_is_found(world: OffloadedTopic, v1: str, offset: int, data: bytes, words: str) -> None:
    index = bytearray(world.tier.get(f"{v1}-index"))
    at = offset % len(index)
    index[at : at + len(data)] = data
    world.replace(f"{v1}-index", index)
    [found] = world.verify(deep=False)
    assert (found.kind, found.object) == (FindingKind.DAMAGED_BLOCK, f"{v1}-index")
    assert words in found.detail


def test_an_index_of_the_other_layout_is_found(world: OffloadedTopic, v1: str) -> None:
    world.ledger(9, random_entries(3))
    other = world.segment([(9, 0, 2)])
    world.replace(f"{v1}-index", bytes(world.tier.get(f"{other}-index")))
    [found] = world.verify()
    assert found.kind is FindingKind.DAMAGED_BLOCK
    assert "layout V2" in found.detail


@pytest.mark.parametrize("version", ["2", None])
def test_a_wrong_format_version_is_found(world: OffloadedTopic, v1: str, version: str | None) -> None:
    metadata = dict(world.tier.head(v1).metadata)
    del metadata["s3managedledgeroffloaderformatversion"]
    if version is not None:
        metadata["s3managedledgeroffloaderformatversion"] = version
    world.tier.put(v1, bytes(world.tier.get(v1)), metadata=metadata)
    [found] = world.verify()
    assert found.kind is FindingKind.DAMAGED_BLOCK
    assert "format version" in found.detail


@pytest.mark.parametrize("instance", ["theirs", None])
def test_a_named_object_of_another_instance_is_reported_as_foreign(
    world: OffloadedTopic, v1: str, instance: str | None
) -> None:
    for key in (v1, f"{v1}-index"):
        metadata = dict(world.tier.head(key).metadata)
        del metadata["afterglowinstance"]
        if instance is not None:
            metadata["afterglowinstance"] = instance
        world.tier.put(key, bytes(world.tier.get(key)), metadata=metadata)
    [found] = world.verify()
    assert found.kind is FindingKind.FOREIGN
    assert not found.kind.is_fault


def test_an_object_that_was_copied_without_its_user_metadata_is_not_a_fault(world: OffloadedTopic, v1: str) -> None:
    for key in (v1, f"{v1}-index"):
        world.tier.put(key, bytes(world.tier.get(key)))
    [found] = world.verify()
    assert found.kind is FindingKind.FOREIGN


# --- entries ---


def test_an_object_with_fewer_entries_than_the_ledger_is_a_hole(world: OffloadedTopic, v1: str) -> None:
    world.edit_row(5, lambda row: setattr(row, "entries", 61))
    [found] = world.verify()
    assert (found.kind, found.object, found.position) == (FindingKind.HOLE, v1, "5:60")


def test_an_object_with_more_entries_than_the_ledger_is_an_overlap(world: OffloadedTopic, v1: str) -> None:
    world.edit_row(5, lambda row: setattr(row, "entries", 59))
    [found] = world.verify()
    assert (found.kind, found.position) == (FindingKind.OVERLAP, "5:59")


def test_a_segment_whose_object_is_another_one_is_found(world: OffloadedTopic, v2: str) -> None:
    world.ledger(9, random_entries(3))
    other = world.segment([(9, 0, 2)])
    for suffix in ("", "-index"):
        world.replace(v2 + suffix, bytes(world.tier.get(other + suffix)))
    found = world.verify()
    assert {FindingKind.HOLE, FindingKind.WRONG_LENGTH} <= {item.kind for item in found}
    assert {item.position for item in found if item.kind is FindingKind.HOLE} == {"5:0", "6:0"}


@pytest.mark.parametrize(("field", "value"), [("blocks", 3), ("entries", 7)])
def test_a_record_that_contradicts_the_index_is_found(world: OffloadedTopic, v2: str, field: str, value: int) -> None:
    from uuid import UUID

    from afterglow.format.proto.afterglow_pb2 import SegmentRecord

    path = world.paths.segment(world.topic, UUID(v2))
    node = world.metadata.get(path)
    assert node is not None
    record = SegmentRecord.FromString(node.value)
    setattr(record, field, value)
    world.put_record(path, record)
    [found] = world.verify()
    assert (found.kind, found.object) == (FindingKind.DAMAGED_BLOCK, f"{v2}-index")
