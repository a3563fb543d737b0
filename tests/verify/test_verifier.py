from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from tests.support.offloaded import OffloadedTopic, random_entries

from afterglow.errors import CorruptMetadata, WrongVersion
from afterglow.format.compression import Codec
from afterglow.format.metadata_envelope import serialize_managed_ledger
from afterglow.format.proto.afterglow_pb2 import DeleteRecord, SegmentRecord
from afterglow.metadata.paths import managed_ledger_path
from afterglow.verify import FindingKind

if TYPE_CHECKING:
    from afterglow.metadata.store import Versioned


def reported(world: OffloadedTopic, *, hot: bool = True) -> list[tuple[FindingKind, str | None]]:
    return [(found.kind, found.position) for found in world.verify(hot=hot)]


def cut_stub(world: OffloadedTopic, ledger_id: int, number: int, end: int) -> None:
    """Let the list say another end of a segment."""
    world.edit_row(ledger_id, lambda row: setattr(row.offloadContext.offloadSegment[number], "endEntryId", end))


def change_record(world: OffloadedTopic, key: str, **changes: tuple[int, int]) -> None:
    path = world.paths.segment(world.topic, UUID(key))
    node = world.metadata.get(path)
    assert node is not None
    record = SegmentRecord.FromString(node.value)
    for name, (ledger_id, entry_id) in changes.items():
        position = getattr(record, name)
        position.ledger_id, position.entry_id = ledger_id, entry_id
    world.put_record(path, record)


# --- V1 ---


def test_a_ledger_that_was_freed_without_a_copy_is_a_hole(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(5))
    world.free(1)
    assert reported(world) == [(FindingKind.HOLE, "1:0")]
    assert reported(world, hot=False) == [(FindingKind.HOLE, "1:0")]


def test_a_ledger_that_was_freed_before_its_copy_was_complete_is_a_hole(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(5))
    key = world.assign(1)
    world.write_v1(key, 1)
    world.free(1)
    assert reported(world) == [(FindingKind.HOLE, "1:0")]


def test_a_ledger_without_a_copy_must_be_in_the_hot_log(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(5))
    world.ledger(2, random_entries(5), closed=False)
    assert reported(world) == []
    world.hot.clear()
    assert reported(world) == [(FindingKind.HOLE, "1:0"), (FindingKind.HOLE, "2:0")]
    assert reported(world, hot=False) == []  # it is not known


def test_an_empty_ledger_needs_no_copy(world: OffloadedTopic) -> None:
    world.ledger(1, [])
    world.hot.clear()
    assert reported(world) == []


def test_ledgers_of_their_own_may_complete_out_of_order(world: OffloadedTopic) -> None:
    for ledger_id in (1, 2, 3):
        world.ledger(ledger_id, random_entries(5))
    world.offload(3)
    world.offload(1)
    assert reported(world) == []


def test_an_offload_in_progress_is_not_a_finding(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(5))
    key = world.assign(1)
    assert reported(world) == []
    world.tier.create_upload(key)
    assert reported(world) == []
    world.write_v1(key, 1)
    assert reported(world) == []


# --- segments ---


@pytest.fixture
def streamed(world: OffloadedTopic) -> list[str]:
    """Ledgers 1 to 3 of 20 entries in three segments; the borders lie within ledgers 1 and 2."""
    for ledger_id in (1, 2, 3):
        world.ledger(ledger_id, random_entries(20, seed=ledger_id))
    return [
        world.segment([(1, 0, 9)]),
        world.segment([(1, 10, 19), (2, 0, 4)]),
        world.segment([(2, 5, 19), (3, 0, 9)]),
    ]


def test_segments_may_end_within_a_ledger_and_span_others(world: OffloadedTopic, streamed: list[str]) -> None:
    assert reported(world) == []
    world.free(1)
    world.free(2)
    assert reported(world) == []


def test_a_ledger_that_was_freed_behind_the_last_segment_is_a_hole(world: OffloadedTopic, streamed: list[str]) -> None:
    world.free(3)
    assert reported(world) == [(FindingKind.HOLE, "3:10")]


def test_the_rest_of_a_streamed_ledger_must_be_in_the_hot_log(world: OffloadedTopic, streamed: list[str]) -> None:
    world.hot = {1, 2}
    assert reported(world) == [(FindingKind.HOLE, "3:10")]


def test_trimmed_ledgers_leave_segments_that_begin_before_the_list(world: OffloadedTopic, streamed: list[str]) -> None:
    world.edit(lambda info: info.ledgerInfo.pop(0))
    world.metadata.delete(world.paths.segment(world.topic, UUID(streamed[0])), 0)
    world.tier.delete([streamed[0], f"{streamed[0]}-index"])
    assert reported(world) == []


def test_a_segment_that_the_list_lost_leaves_a_hole(world: OffloadedTopic, streamed: list[str]) -> None:
    world.edit_row(2, lambda row: row.offloadContext.offloadSegment.pop(1))
    assert reported(world) == [(FindingKind.HOLE, "2:5")]


@pytest.mark.parametrize(("ledger_id", "position"), [(1, "1:0"), (3, "3:0")])
def test_a_segment_that_the_list_lost_at_its_end_leaves_a_hole(
    world: OffloadedTopic, ledger_id: int, position: str
) -> None:
    for every in (1, 2, 3):
        world.ledger(every, random_entries(20, seed=every))
    world.segment([(1, 0, 19), (2, 0, 19), (3, 0, 9)])
    world.edit_row(ledger_id, lambda row: row.ClearField("offloadContext"))
    assert reported(world) == [(FindingKind.HOLE, position)]


def test_a_ledger_that_segments_pass_over_is_a_hole(world: OffloadedTopic) -> None:
    for ledger_id in (1, 2, 3):
        world.ledger(ledger_id, random_entries(5))
    world.segment([(1, 0, 4)])
    world.segment([(3, 0, 4)])
    assert reported(world) == [(FindingKind.HOLE, "2:0")]


def test_a_ledger_with_an_object_of_its_own_between_segments_is_not_a_hole(world: OffloadedTopic) -> None:
    for ledger_id in (1, 2, 3):
        world.ledger(ledger_id, random_entries(5))
    world.segment([(1, 0, 4)])
    world.offload(2)
    world.segment([(3, 0, 4)])
    assert reported(world) == []


def test_an_assigned_segment_behind_the_others_is_not_a_finding(world: OffloadedTopic, streamed: list[str]) -> None:
    world.edit_row(3, lambda row: world.add_stub(row, uuid4(), None, complete=False))
    assert reported(world) == []


def test_a_segment_that_was_committed_before_the_one_in_front_of_it_leaves_a_hole(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(20))
    world.edit_row(1, lambda row: world.add_stub(row, uuid4(), None, complete=False))
    world.segment([(1, 10, 19)])
    kinds = reported(world)
    assert (FindingKind.HOLE, "1:0") in kinds
    assert {position for _, position in kinds} == {"1:0"}


def test_segments_that_hold_the_same_entries_overlap(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(20))
    world.segment([(1, 0, 9)])
    world.segment([(1, 5, 19)])
    assert reported(world) == [(FindingKind.OVERLAP, "1:5")]


def test_segments_that_hold_the_same_entries_overlap_also_without_records(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(20))
    world.segment([(1, 0, 9)], record=False)
    world.segment([(1, 5, 19)], record=False)
    assert reported(world) == [(FindingKind.OVERLAP, "1:5")]


def test_segments_that_leave_out_entries_leave_a_hole(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(20))
    world.segment([(1, 0, 9)])
    world.segment([(1, 12, 19)])
    assert reported(world) == [(FindingKind.HOLE, "1:10")]


def test_segments_that_leave_out_entries_leave_a_hole_also_without_records(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(20))
    world.segment([(1, 0, 9)], record=False)
    world.segment([(1, 12, 19)], record=False)
    assert reported(world) == [(FindingKind.HOLE, "1:10")]


def test_a_list_whose_segments_do_not_ascend_overlaps(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(20))
    world.segment([(1, 0, 9)], record=False)
    world.segment([(1, 10, 19)], record=False)
    cut_stub(world, 1, 1, 3)
    assert (FindingKind.OVERLAP, "1:3") in reported(world)


def test_segments_beyond_the_end_of_a_ledger_overlap(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(20))
    world.segment([(1, 0, 19)])
    world.edit_row(1, lambda row: setattr(row, "entries", 15))
    assert reported(world) == [(FindingKind.OVERLAP, "1:15")]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"begin": (1, 3)}, (FindingKind.HOLE, "1:0")),
        ({"end": (2, 7)}, (FindingKind.HOLE, "2:8")),
    ],
)
def test_a_record_that_holds_less_than_the_list_says_is_a_hole(
    world: OffloadedTopic, changes: dict[str, tuple[int, int]], expected: tuple[FindingKind, str]
) -> None:
    world.ledger(1, random_entries(20))
    world.ledger(2, random_entries(20))
    key = world.segment([(1, 0, 19), (2, 0, 9)])
    change_record(world, key, **changes)
    assert expected in reported(world)


def test_a_record_that_ends_behind_what_the_list_says_overlaps(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(20))
    key = world.segment([(1, 0, 9)])
    cut_stub(world, 1, 0, 7)
    assert reported(world) == [(FindingKind.OVERLAP, "1:8")]
    assert world.verify()[0].object == key


# --- metadata as a whole ---


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZLIB, Codec.ZSTD, Codec.SNAPPY])
def test_a_compressed_list_is_read(world: OffloadedTopic, codec: Codec) -> None:
    for ledger_id in range(1, 20):
        world.ledger(ledger_id, [b"x"])
    world.free(3)
    world.put(managed_ledger_path(world.topic), serialize_managed_ledger(world.info, codec, 0))
    assert reported(world) == [(FindingKind.HOLE, "3:0")]


def test_topics_of_all_kinds_of_names_are_verified(world: OffloadedTopic) -> None:
    names = ["t/n/persistent/a", "t/n/persistent/a-partition-1", "t/c/n/persistent/legacy", f"t/n/persistent/{uuid4()}"]
    for name in names:
        other = OffloadedTopic(world.tier, world.metadata, name)
        other.ledger(1, [b"x"])
        other.free(1)
    found = world.verify()
    assert {item.kind for item in found} == {FindingKind.HOLE}
    assert {str(item.topic) for item in found} == {
        "persistent://t/n/a", "persistent://t/n/a-partition-1", "persistent://t/c/n/legacy",
        f"persistent://t/n/{names[-1].rpartition('/')[2]}",
    }  # fmt: skip


def test_the_copied_ledger_list_of_an_attached_cluster_is_verified_too(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(5))
    world.put(world.paths.managed_ledger(world.topic), serialize_managed_ledger(world.info))
    key = world.offload(1)  # in Pulsar's own list alone
    assert reported(world) == []
    world.tier.delete([key])
    assert reported(world) == [(FindingKind.MISSING_OBJECT, "1:0")]


@pytest.mark.parametrize("value", [b"\x47\x78", b"\x47\x78\0\0\0\x02\x08\x01xx", b"\x0a\x7f", b"\x0a\x02\x10\x01"])
def test_a_list_that_does_not_parse_is_an_error_that_names_it(world: OffloadedTopic, value: bytes) -> None:
    world.put(managed_ledger_path(world.topic), value)
    with pytest.raises(CorruptMetadata, match="public/default/persistent/t"):
        world.verify()


def test_a_record_of_a_newer_release_is_refused(world: OffloadedTopic) -> None:
    uuid = uuid4()
    world.put_record(world.paths.delete(world.topic, uuid), DeleteRecord(version=2, uuid=str(uuid)))
    with pytest.raises(WrongVersion, match="upgrade"):
        world.verify()


def test_a_record_at_the_path_of_another_is_refused(world: OffloadedTopic) -> None:
    world.put_record(world.paths.delete(world.topic, uuid4()), DeleteRecord(version=1, uuid=str(uuid4())))
    with pytest.raises(CorruptMetadata, match="deletes"):
        world.verify()


# --- beside a running server ---


class Meanwhile:
    """Metadata under which something happens right after a path was first read."""

    def __init__(self, world: OffloadedTopic, path: str, happens: object) -> None:
        self._inner = world.metadata
        self._path = path
        self._happens = happens

    def get(self, path: str) -> Versioned | None:
        node = self._inner.get(path)
        if path == self._path and self._happens is not None:
            happens, self._happens = self._happens, None
            happens()  # type: ignore[operator]
        return node

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_a_ledger_that_is_trimmed_meanwhile_is_not_a_finding(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(5))
    key = world.offload(1)
    world.free(1)
    world.ledger(2, random_entries(5))
    inner = OffloadedTopic(world.tier, world.metadata)

    def trim() -> None:
        inner.edit(lambda info: [info.ledgerInfo.pop(0), info.ledgerInfo.pop(0)])
        world.tier.delete([key, f"{key}-index"])
        world.hot.clear()

    world.metadata = Meanwhile(world, managed_ledger_path(world.topic), trim)  # type: ignore[assignment]
    assert world.verify() == []
