"""Upload records of segments, and the index, segment record and coverage that are derived from them.

Pure functions over the protobuf messages of ``afterglow.proto``. Once its end and all its parts are recorded, a segment
can be finished from its record alone, by the steps of :mod:`afterglow.offload.segments.upload`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptBlock, CorruptIndex, CorruptMetadata
from afterglow.format import statistics
from afterglow.format.blocks import HEADER_BYTES, BlockHeader, BlockPlan, Format
from afterglow.format.index import index_v2
from afterglow.format.position import Position
from afterglow.format.proto import afterglow_pb2 as proto
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.offload.segments.part_planner import Sizes
from afterglow.offload.task import LedgerPart
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
    """Entries of one ledger in a segment."""

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
    markers_stripped: bool = False,
) -> proto.UploadRecord:
    """The upload record of a new segment.

    Args:
        uuid: UUID of the segment, and key of its object.
        location: Its tier location.
        begin: Its first entry.
        end: Its last entry; None for a live segment.
        owner_epoch: Epoch of the topic's owner.
        sizes: Sizes of its blocks and parts.
        assigned_ms: Now.
        first_entry_ms: Time of its first entry.
        markers_stripped: Whether its entries are read from brokers of a cluster.
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
        markers_stripped=markers_stripped,
    )


def parse_upload(data: bytes, path: str) -> proto.UploadRecord:
    """Parse an upload record.

    Raises:
        CorruptMetadata: It cannot be parsed, or was written by a newer release.
    """
    return _parse(proto.UploadRecord, data, path)


def parse_segment(data: bytes, path: str) -> proto.SegmentRecord:
    """Parse a segment record.

    Raises:
        CorruptMetadata: It cannot be parsed, or was written by a newer release.
    """
    return _parse(proto.SegmentRecord, data, path)


_R = TypeVar("_R", proto.UploadRecord, proto.SegmentRecord)


def _parse(kind: type[_R], data: bytes, path: str) -> _R:
    try:
        record = kind.FromString(data)
    except DecodeError as error:
        raise CorruptMetadata(f"record {path} cannot be parsed: {error}") from error
    if record.version != VERSION:
        raise CorruptMetadata(
            f"record {path} has version {record.version}, {VERSION} is supported: use a newer release"
        )
    return record


def to_proto(position: Position) -> proto.Position:
    """The message of a position."""
    return proto.Position(ledger_id=position.ledger_id, entry_id=position.entry_id)


def position_of(position: proto.Position) -> Position:
    """The position of a message."""
    return Position(position.ledger_id, position.entry_id)


def end_of(record: proto.UploadRecord) -> Position | None:
    """The last entry of the segment; None while it is live."""
    return position_of(record.end) if record.HasField("end") else None


def sizes_of(record: proto.UploadRecord) -> Sizes:
    """Sizes of the segment's blocks and parts."""
    return Sizes(record.block_bytes, record.part_bytes)


def planned_end(record: proto.UploadRecord) -> Position | None:
    """The last entry of the last planned part; None if none is planned."""
    return position_of(record.planned[-1].end) if record.planned else None


def planned_bytes(record: proto.UploadRecord) -> int:
    """Length of all planned parts, without those whose blocks a task is still to cut."""
    return sum(sum(part.block_bytes) for part in record.planned)


def planned_frame_bytes(record: proto.UploadRecord) -> int:
    """Length of the frames in all planned parts, without the headers of blocks."""
    return sum(
        part.frame_bytes or sum(part.block_bytes) - HEADER_BYTES * len(part.block_bytes) for part in record.planned
    )


def add_planned(record: proto.UploadRecord, parts: Iterable[PlannedPart]) -> None:
    """Record parts before they are uploaded; parts that are recorded already are kept."""
    for part in parts:
        if part.number > len(record.planned):
            record.planned.add(
                number=part.number,
                begin=to_proto(part.begin),
                end=to_proto(part.end),
                block_bytes=part.block_bytes,
                frame_bytes=part.uncut_bytes,
                unsized=not part.is_sized,
            )


def add_done(record: proto.UploadRecord, part: PlannedPart, result: PartResult) -> None:
    """Record an uploaded part; a second upload replaces the first, as in the store.

    Raises:
        CorruptBlock: Its task has cut other blocks than one before.
    """
    assert result.part is not None
    ledgers = result.cut or tuple(found for found in part.ledgers if isinstance(found, LedgerPart))
    planned = record.planned[part.number - 1]
    if result.cut:
        lengths = [plan.header.block_bytes for ledger_part in result.cut for plan in ledger_part.plans]
        if planned.block_bytes and list(planned.block_bytes) != lengths:
            raise CorruptBlock(f"upload {record.uuid}, part {part.number}: its entries gave other blocks before")
        planned.block_bytes[:] = lengths
    done = proto.DonePart(
        number=part.number, tag=result.part.tag, crc32c=result.part.crc32c or 0, bytes=result.part.size_bytes
    )
    for ledger_part, blocks in zip(ledgers, result.statistics, strict=True):
        done.ledgers.add(
            ledger_id=ledger_part.ledger_id,
            first_entry_id=[plan.header.first_entry_id for plan in ledger_part.plans],
            statistics=proto.BlockStatistics.FromString(statistics.encode_statistics(blocks)),
        )
    others = [other for other in record.done if other.number != part.number]
    del record.done[:]
    record.done.extend(sorted([*others, done], key=lambda item: item.number))


def missing_parts(record: proto.UploadRecord) -> tuple[proto.PlannedPart, ...]:
    """Parts that are recorded as planned and not as uploaded."""
    done = {part.number for part in record.done}
    return tuple(part for part in record.planned if part.number not in done)


def is_uploaded(record: proto.UploadRecord) -> bool:
    """Whether the segment has ended and all its parts are uploaded."""
    return record.HasField("end") and planned_end(record) == end_of(record) and not missing_parts(record)


def uploaded_parts(record: proto.UploadRecord) -> tuple[Part, ...]:
    """The uploaded parts, with the tags of the store."""
    return tuple(Part(part.number, part.bytes, part.tag, part.crc32c) for part in record.done)


def coverage(record: proto.UploadRecord) -> tuple[Coverage, ...]:
    """Entries of each ledger in the segment, in order. All its parts must be recorded as uploaded."""
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
    """The index of a segment's object, derived from the blocks of each of its ledgers.

    It describes each ledger up to the end of the segment, whatever the ledger list has by now.
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
    """The segment record of a segment. All its parts must be recorded as uploaded.

    Raises:
        CorruptMetadata: The record contradicts itself.
    """
    blocks = [block for _, _, found in _ledgers(record) for block in found]
    # Only an external driver itself knows the length and the blocks of its object.
    external = not is_built_in(record.location.driver)
    segment = proto.SegmentRecord(
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
        markers_stripped=record.markers_stripped,
        # If no entry has it, a broker strips it, or has never written any: a broker does not say which.
        broker_metadata_stripped=record.markers_stripped
        and any(block.min_broker_time is None and block.entries > block.undelivered for block in blocks),
    )
    for name, choose in (("min", min), ("max", max)):
        for kind in ("broker_time", "publish_time"):
            known = [value for block in blocks if (value := getattr(block, f"{name}_{kind}")) is not None]
            if known:
                setattr(segment, f"{name}_{kind}", choose(known))
    return segment


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
