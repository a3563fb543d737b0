"""What the record of an upload says of its segment."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from afterglow.format.position import Position
from afterglow.format.proto.afterglow_pb2 import PlannedPart as PlannedPartRecord
from afterglow.offload.segments import records
from afterglow.offload.segments.part_planner import PlannedPart, Sizes
from afterglow.offload.task import PartResult
from afterglow.storage.store import Part
from afterglow.tier.locations import TierLocation

if TYPE_CHECKING:
    from afterglow.format.proto.afterglow_pb2 import UploadRecord


def new_record(*ends: int, end: int | None) -> UploadRecord:
    """A segment of ledger 1 with parts planned up to these entries."""
    record = records.new_record(
        uuid4(),
        TierLocation("memory", "records"),
        Position(1, 0),
        None if end is None else Position(1, end),
        owner_epoch=1,
        sizes=Sizes(256, 512),
        assigned_ms=1,
        first_entry_ms=1,
    )
    first = 0
    for number, last in enumerate(ends, 1):
        begin, until = (records.to_proto(Position(1, at)) for at in (first, last))
        record.planned.append(PlannedPartRecord(number=number, begin=begin, end=until, block_bytes=[300]))
        first = last + 1
    return record


def upload(record: UploadRecord, number: int, tag: str = "a") -> None:
    """Record that a part is uploaded."""
    records.add_done(record, PlannedPart(number, ()), PartResult(f"x/{number}", Part(number, 300, tag, 7), (), None))


def test_a_segment_is_whole_once_it_is_planned_to_its_end_and_all_parts_are_uploaded() -> None:
    live = new_record(4, 9, end=None)
    ended = new_record(4, 9, end=9)
    unplanned = new_record(4, 9, end=12)
    for record in (live, ended, unplanned):
        upload(record, 1)
        assert not records.is_uploaded(record)
        upload(record, 2)
    assert [records.is_uploaded(record) for record in (live, ended, unplanned)] == [False, True, False]


def test_a_part_that_was_uploaded_twice_counts_once_as_the_store_has_it_now() -> None:
    record = new_record(4, 9, end=9)
    upload(record, 2)
    upload(record, 1)
    upload(record, 2, tag="b")
    assert [(part.number, part.tag) for part in records.uploaded_parts(record)] == [(1, "a"), (2, "b")]
