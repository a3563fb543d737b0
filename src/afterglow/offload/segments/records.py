"""The record of a segment on its way, and what follows from it alone: the index, the segment's record, what it covers.

Pure functions over the protobuf messages of ``afterglow.proto``. Nothing else is needed to finish a segment once its
record says where it ends and that all its parts are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptIndex, CorruptMetadata
from afterglow.format import statistics
from afterglow.format.blocks import HEADER_BYTES, BlockHeader, BlockPlan, Format
from afterglow.format.index import index_v2
from afterglow.format.position import Position
from afterglow.format.proto import afterglow_pb2 as proto
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.offload.segments.part_planner import Sizes
from afterglow.storage.store import Part
from afterglow.tier.locations import is_built_in, location_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from uuid import UUID

    from afterglow.format.index import ObjectIndex
    from afterglow.format.statistics import BlockStatistics
    from afterglow.offload.segments.part_planner import PlannedPart
    from afterglow.offload.task import PartResult
    from afterglow.tier.locations import TierLocation

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a segment holds of one ledger."""

    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""


def new_record(
    uuid: UUID,
    location: TierLocation,
    begin: Position,
    end: Position | None,
    *,
    owner_epoch: int,
    sizes: Sizes,
    assigned_ms: int,
    first_entry_ms: int,
) -> proto.UploadRecord:
    """The record with which a segment begins.

    Args:
        uuid: Of the segment; the object's key is the same.
        location: Where it goes.
        begin: Its first entry.
        end: Its last entry; None where it is live.
        owner_epoch: Of the topic's owner.
        sizes: How it is cut.
        assigned_ms: Now.
        first_entry_ms: When its first entry was written.
    """
    return proto.UploadRecord(
        version=VERSION,
        uuid=str(uuid),
        owner_epoch=owner_epoch,
        location=location_record(location, str(uuid)),
        begin=to_proto(begin),
        end=None if end is None else to_proto(end),
        assigned_ms=assigned_ms,
        first_entry_ms=first_entry_ms,
        block_bytes=sizes.block_bytes,
        part_bytes=sizes.part_bytes,
    )


def parse_upload(data: bytes, path: str) -> proto.UploadRecord:
    """Read an upload record.

    Raises:
        CorruptMetadata: It does not parse, or a newer release wrote it.
    """
    return _parse(proto.UploadRecord, data, path)


def parse_segment(data: bytes, path: str) -> proto.SegmentRecord:
    """Read the lasting record of a segment.

    Raises:
        CorruptMetadata: It does not parse, or a newer release wrote it.
    """
    return _parse(proto.SegmentRecord, data, path)


_R = TypeVar("_R", proto.UploadRecord, proto.SegmentRecord)


def _parse(kind: type[_R], data: bytes, path: str) -> _R:
    try:
        record = kind.FromString(data)
    except DecodeError as error:
        raise CorruptMetadata(f"the record {path} does not parse: {error}") from error
    if record.version != VERSION:
        raise CorruptMetadata(
            f"the record {path} has version {record.version}, {VERSION} is known: use a newer release"
        )
    return record


def to_proto(position: Position) -> proto.Position:
    """A position for a record."""
    return proto.Position(ledger_id=position.ledger_id, entry_id=position.entry_id)


def position_of(position: proto.Position) -> Position:
    """A position of a record."""
    return Position(position.ledger_id, position.entry_id)


def end_of(record: proto.UploadRecord) -> Position | None:
    """The segment's last entry; None while it is live."""
    return position_of(record.end) if record.HasField("end") else None


def sizes_of(record: proto.UploadRecord) -> Sizes:
    """How the segment is cut."""
    return Sizes(record.block_bytes, record.part_bytes)


def planned_end(record: proto.UploadRecord) -> Position | None:
    """The last entry of the last part that is planned; None where none is."""
    return position_of(record.planned[-1].end) if record.planned else None


def planned_bytes(record: proto.UploadRecord) -> int:
    """Length of all parts that are planned."""
    return sum(sum(part.block_bytes) for part in record.planned)


def planned_frame_bytes(record: proto.UploadRecord) -> int:
    """Length of the frames in all parts that are planned: without the headers of blocks."""
    return planned_bytes(record) - HEADER_BYTES * sum(len(part.block_bytes) for part in record.planned)


def add_planned(record: proto.UploadRecord, parts: Iterable[PlannedPart]) -> None:
    """Record parts before anybody uploads them; those that are recorded already stay as they are."""
    for part in parts:
        if part.number > len(record.planned):
            record.planned.add(
                number=part.number, begin=to_proto(part.begin), end=to_proto(part.end), block_bytes=part.block_bytes
            )


def add_done(record: proto.UploadRecord, part: PlannedPart, result: PartResult) -> None:
    """Record that a part is uploaded; a second time replaces the first, since the store did so too."""
    assert result.part is not None
    done = proto.DonePart(
        number=part.number, tag=result.part.tag, crc32c=result.part.crc32c or 0, bytes=result.part.size_bytes
    )
    for ledger_part, blocks in zip(part.ledgers, result.statistics, strict=True):
        done.ledgers.add(
            ledger_id=ledger_part.ledger_id,
            first_entry_id=[plan.header.first_entry_id for plan in ledger_part.plans],
            statistics=proto.BlockStatistics.FromString(statistics.encode_statistics(blocks)),
        )
    others = [other for other in record.done if other.number != part.number]
    del record.done[:]
    record.done.extend(sorted([*others, done], key=lambda item: item.number))


def missing_parts(record: proto.UploadRecord) -> tuple[proto.PlannedPart, ...]:
    """Parts that are planned and not uploaded, as far as is recorded."""
    done = {part.number for part in record.done}
    return tuple(part for part in record.planned if part.number not in done)


def parts_whole(record: proto.UploadRecord) -> bool:
    """Whether the segment has ended and all its parts are uploaded."""
    return record.HasField("end") and planned_end(record) == end_of(record) and not missing_parts(record)


def uploaded_parts(record: proto.UploadRecord) -> tuple[Part, ...]:
    """The parts as the store knows them."""
    return tuple(Part(part.number, part.bytes, part.tag, part.crc32c) for part in record.done)


def coverage(record: proto.UploadRecord) -> tuple[Coverage, ...]:
    """What the segment holds of each ledger, in order. All its parts must be recorded as uploaded."""
    return tuple(
        Coverage(ledger_id, plans[0].header.first_entry_id, plans[-1].end_entry_id - 1)
        for ledger_id, plans, _ in _ledgers(record)
    )


def index_of(record: proto.UploadRecord) -> ObjectIndex:
    """The index of the segment's object. All its parts must be recorded as uploaded.

    Raises:
        CorruptMetadata: The record contradicts itself.
    """
    return segment_index(_ledgers(record))


def segment_index(ledgers: Iterable[tuple[int, Sequence[BlockPlan], Sequence[BlockStatistics]]]) -> ObjectIndex:
    """The index of a segment's object, from the blocks of each of its ledgers.

    A ledger is described as far as the segment goes: what else the list says of it by now is not known here.
    """
    return index_v2(
        (
            ManagedLedgerInfo.LedgerInfo(
                ledgerId=ledger_id,
                entries=plans[-1].end_entry_id,
                size=sum(block.payload_bytes for block in blocks),
                timestamp=0,
            ),
            plans,
            blocks,
        )
        for ledger_id, plans, blocks in ledgers
    )


def segment_record(record: proto.UploadRecord, *, instance: str, offloaded_ms: int) -> proto.SegmentRecord:
    """The lasting record of the segment. All its parts must be recorded as uploaded.

    Raises:
        CorruptMetadata: The record contradicts itself.
    """
    blocks = [block for _, _, found in _ledgers(record) for block in found]
    external = not is_built_in(
        record.location.driver
    )  # how long its object is, and in which blocks, only its driver knows
    made = proto.SegmentRecord(
        version=VERSION,
        uuid=record.uuid,
        location=record.location,
        begin=record.begin,
        end=record.end,
        bytes=planned_frame_bytes(record) if external else planned_bytes(record),
        entries=sum(block.entries for block in blocks),
        blocks=0 if external else len(blocks),
        instance=instance,
        assigned_ms=record.assigned_ms,
        offloaded_ms=offloaded_ms,
    )
    for name, choose in (("min", min), ("max", max)):
        for kind in ("broker_time", "publish_time"):
            known = [value for block in blocks if (value := getattr(block, f"{name}_{kind}")) is not None]
            if known:
                setattr(made, f"{name}_{kind}", choose(known))
    return made


def _ledgers(
    record: proto.UploadRecord,
) -> Iterator[tuple[int, Sequence[BlockPlan], Sequence[BlockStatistics]]]:
    """The blocks of each ledger with their statistics, in the order of the object."""
    found: dict[int, tuple[list[BlockPlan], list[BlockStatistics]]] = {}
    offset = 0
    for planned, done in zip(record.planned, record.done, strict=True):
        lengths = iter(planned.block_bytes)
        for ledger_part in done.ledgers:
            plans, blocks = found.setdefault(ledger_part.ledger_id, ([], []))
            mine = [length for _, length in zip(ledger_part.first_entry_id, lengths, strict=False)]
            try:
                measured = statistics.decode_statistics(ledger_part.statistics.SerializeToString(), mine)
            except CorruptIndex as error:
                raise CorruptMetadata(f"upload {record.uuid}, part {planned.number}: {error}") from error
            for first, length, block in zip(ledger_part.first_entry_id, mine, measured, strict=True):
                header = BlockHeader(Format.V2, length, first, ledger_part.ledger_id)
                plans.append(BlockPlan(header, first + block.entries, 0, 0, offset))
                blocks.append(block)
                offset += length
    for ledger_id, (plans, blocks) in found.items():
        yield ledger_id, plans, blocks
