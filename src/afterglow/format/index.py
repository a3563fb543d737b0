"""Index objects: offset and first entry of each block of a data object, and the metadata of its ledgers.

V1 (``DE47DE47``) describes one ledger; V2 (``3D1FB0BC``) any number of them, with a group each. The magic distinguishes
them. All integers are big-endian.

| V1                                  | V2                                                      |
|-------------------------------------|---------------------------------------------------------|
| magic:4 · index_len:4               | magic:4 · index_len:4                                   |
| data_object_length:8                | data_object_length:8                                    |
| data_header_length:8                | data_header_length:8                                    |
| count:4 · metadata_len:4            | per ledger: ledger_id:8 · count:4 · metadata_len:4      |
| ``LedgerMetadataFormat``            | ``ManagedLedgerInfo.LedgerInfo``                        |
| count times first_entry_id:8 · part_id:4 · offset:8 | the same                                    |

Statistics of the blocks are stored in the metadata, in a property that stock readers ignore.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptIndex
from afterglow.format import statistics as stats
from afterglow.format.blocks import HEADER_BYTES, Format
from afterglow.format.proto.bookkeeper_pb2 import LedgerMetadataFormat
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Buffer

    from afterglow.format.blocks import BlockPlan
    from afterglow.format.statistics import BlockStatistics


_MAGICS = {Format.V1: 0xDE47DE47, Format.V2: 0x3D1FB0BC}
_FORMATS = {magic: version for version, magic in _MAGICS.items()}
_HEAD = struct.Struct(">Iiqq")
_V1_GROUP = struct.Struct(">ii")
_V2_GROUP = struct.Struct(">qii")
_ENTRY = struct.Struct(">qiq")


@dataclass(frozen=True, slots=True)
class IndexBlock:
    """One block in an index."""

    first_entry_id: int
    part_id: int
    """Ordinal of the block in the object, from 1."""
    offset: int
    """Offset of the block's header in the data object."""


@dataclass(frozen=True, slots=True)
class LedgerGroup:
    """The blocks of one ledger, ascending."""

    ledger_id: int | None
    """None in a V1 index, where only the object's key names it."""
    metadata: bytes
    """As stored: BookKeeper's ``LedgerMetadataFormat`` in V1, the managed ledger's ``LedgerInfo`` in V2."""
    blocks: tuple[IndexBlock, ...]
    last_entry_id: int
    """Last entry of the ledger when the index was written. A V2 object may end before it."""
    statistics: tuple[BlockStatistics, ...] | None = None
    """One per block, in objects that Afterglow wrote."""


@dataclass(frozen=True, slots=True)
class ObjectIndex:
    """The index of one data object."""

    format: Format
    data_bytes: int
    """Length of the data object."""
    groups: tuple[LedgerGroup, ...]
    """One per ledger, in the order of their blocks."""
    header_bytes: int = HEADER_BYTES
    """Header size of each block."""

    def group(self, ledger_id: int | None) -> LedgerGroup | None:
        """Return the blocks of a ledger; the one group of a V1 index for any ledger."""
        if self.format is Format.V1:
            return self.groups[0]
        return next((group for group in self.groups if group.ledger_id == ledger_id), None)

    def extents(self) -> Iterator[tuple[LedgerGroup, int, int, int]]:
        """Yield each block in the order of the object: its group, its number in it, its start and end offset."""
        located = sorted(
            (
                (block.offset, at, number)
                for at, group in enumerate(self.groups)
                for number, block in enumerate(group.blocks)
            )
        )
        for i, (offset, at, number) in enumerate(located):
            end = located[i + 1][0] if i + 1 < len(located) else self.data_bytes
            yield self.groups[at], number, offset, end


def encode_index(index: ObjectIndex) -> bytes:
    """Encode an index object."""
    parts: list[bytes] = []
    for group in index.groups:
        if index.format is Format.V1:
            parts.append(_V1_GROUP.pack(len(group.blocks), len(group.metadata)))
        else:
            assert group.ledger_id is not None
            parts.append(_V2_GROUP.pack(group.ledger_id, len(group.blocks), len(group.metadata)))
        parts.append(group.metadata)
        parts.extend(_ENTRY.pack(block.first_entry_id, block.part_id, block.offset) for block in group.blocks)
    length = _HEAD.size + sum(map(len, parts))
    return _HEAD.pack(_MAGICS[index.format], length, index.data_bytes, index.header_bytes) + b"".join(parts)


def decode_index(data: Buffer) -> ObjectIndex:
    """Decode an index object. Only its structure is checked; ``index_problems`` reports contradictions.

    Raises:
        CorruptIndex: The index is truncated, the magic is unknown, or a ledger's metadata does not parse.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < _HEAD.size:
        raise CorruptIndex(f"the index has only {view.nbytes} bytes")
    magic, length, data_bytes, header_bytes = _HEAD.unpack_from(view)
    version = _FORMATS.get(magic)
    if version is None:
        raise CorruptIndex(f"{magic:08x} is not the magic of an index")
    if data_bytes < 0 or header_bytes < 0:
        raise CorruptIndex(f"the index has an invalid object length {data_bytes} or block header length {header_bytes}")
    if length != view.nbytes:
        raise CorruptIndex(f"the index has {view.nbytes} bytes, its header says {length}")
    groups: list[LedgerGroup] = []
    at = _HEAD.size
    while at < view.nbytes or (version is Format.V1 and not groups):
        group, at = _decode_group(view, at, version, data_bytes)
        groups.append(group)
        if version is Format.V1:
            break
    if at != view.nbytes:
        raise CorruptIndex(f"{view.nbytes - at} bytes follow the end of the index")
    groups.sort(key=lambda group: group.blocks[0].offset if group.blocks else 0)
    return ObjectIndex(version, data_bytes, tuple(groups), header_bytes)


def _decode_group(view: memoryview, at: int, version: Format, data_bytes: int) -> tuple[LedgerGroup, int]:
    head = _V1_GROUP if version is Format.V1 else _V2_GROUP
    if view.nbytes - at < head.size:
        raise CorruptIndex(f"the index is truncated at offset {at}")
    fields = head.unpack_from(view, at)
    ledger_id = fields[0] if version is Format.V2 else None
    count, metadata_bytes = fields[-2:]
    at += head.size
    if count < 0 or metadata_bytes < 0 or metadata_bytes + count * _ENTRY.size > view.nbytes - at:
        raise CorruptIndex(f"{count} blocks and {metadata_bytes} bytes of metadata at offset {at} exceed the index")
    metadata = bytes(view[at : at + metadata_bytes])
    at += metadata_bytes
    end = at + count * _ENTRY.size
    blocks = tuple(IndexBlock(*fields) for fields in _ENTRY.iter_unpack(view[at:end]))
    last_entry_id, statistics = read_metadata(version, metadata, blocks, data_bytes)
    return LedgerGroup(ledger_id, metadata, blocks, last_entry_id, statistics), end


@dataclass(frozen=True, slots=True)
class ClosedLedger:
    """A closed ledger for a V1 index."""

    last_entry_id: int
    length_bytes: int
    """Bytes of all entries, without frame headers."""
    created_ms: int
    managed_ledger: str
    """Name of the managed ledger."""
    bookies: tuple[str, ...] = ("127.0.0.1:3181",)
    """Stock readers require an ensemble; nothing is read from it."""
    custom: Mapping[str, bytes] = field(default_factory=dict)


def ledger_metadata(ledger: ClosedLedger, blocks: Sequence[BlockStatistics] = ()) -> bytes:
    """Return the metadata of a V1 index."""
    quorum = len(ledger.bookies)
    proto = LedgerMetadataFormat(
        quorumSize=quorum,
        ensembleSize=quorum,
        length=ledger.length_bytes,
        lastEntryId=ledger.last_entry_id,
        state=LedgerMetadataFormat.CLOSED,
        segment=[LedgerMetadataFormat.Segment(ensembleMember=ledger.bookies, firstEntryId=0)],
        digestType=LedgerMetadataFormat.CRC32C,
        ackQuorumSize=quorum,
        ctime=ledger.created_ms,
    )
    custom = {
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": ledger.managed_ledger.encode(),
        **ledger.custom,
    }
    if blocks:
        custom[stats.KEY] = stats.encode_statistics(blocks)
    for key, value in custom.items():
        proto.customMetadata.add(key=key, value=value)
    return proto.SerializeToString(deterministic=True)


def ledger_info(info: ManagedLedgerInfo.LedgerInfo, blocks: Sequence[BlockStatistics] = ()) -> bytes:
    """Return the metadata of one ledger in a V2 index: its ``LedgerInfo`` with the block statistics."""
    proto = ManagedLedgerInfo.LedgerInfo()
    proto.CopyFrom(info)
    if blocks:
        proto.properties.add(key=stats.KEY, value=base64.b64encode(stats.encode_statistics(blocks)).decode())
    return proto.SerializeToString(deterministic=True)


def read_metadata(
    version: Format, metadata: bytes, blocks: Sequence[IndexBlock], data_bytes: int
) -> tuple[int, tuple[BlockStatistics, ...] | None]:
    """Return the last entry id and, if present, the block statistics of a group.

    Raises:
        CorruptIndex: The metadata does not parse, or its statistics do not fit the blocks.
    """
    table: bytes | None
    proto: LedgerMetadataFormat | ManagedLedgerInfo.LedgerInfo
    try:
        if version is Format.V1:
            proto = ledger = LedgerMetadataFormat.FromString(metadata)
            last_entry_id = ledger.lastEntryId if ledger.HasField("lastEntryId") else -1
            table = next((pair.value for pair in ledger.customMetadata if pair.key == stats.KEY), None)
        else:
            proto = info = ManagedLedgerInfo.LedgerInfo.FromString(metadata)
            last_entry_id = info.entries - 1
            text = next((pair.value for pair in info.properties if pair.key == stats.KEY), None)
            table = None if text is None else base64.b64decode(text, validate=True)
    except (DecodeError, ValueError) as error:  # ValueError: invalid base64
        raise CorruptIndex(f"the ledger's metadata of {len(metadata)} bytes does not parse: {error}") from error
    if not proto.IsInitialized():  # Python's parser accepts missing required fields, Java's does not
        raise CorruptIndex(f"the ledger's metadata of {len(metadata)} bytes lacks a required field")
    if table is None:
        return last_entry_id, None
    # Only V1 has stripes, and its one ledger has all blocks of the object.
    ends = [block.offset for block in blocks[1:]] + [data_bytes]
    sizes = [max(end - block.offset, 0) for block, end in zip(blocks, ends, strict=bool(blocks))]
    return last_entry_id, stats.decode_statistics(table, sizes)


def index_v1(ledger: ClosedLedger, plans: Sequence[BlockPlan], statistics: Sequence[BlockStatistics]) -> ObjectIndex:
    """Build the index of a closed ledger's object."""
    last = plans[-1]
    group = LedgerGroup(
        None, ledger_metadata(ledger, statistics), _index_blocks(plans, 1), ledger.last_entry_id, tuple(statistics)
    )
    return ObjectIndex(Format.V1, last.offset + last.header.block_bytes, (group,))


def index_v2(
    ledgers: Iterable[tuple[ManagedLedgerInfo.LedgerInfo, Sequence[BlockPlan], Sequence[BlockStatistics]]],
) -> ObjectIndex:
    """Build the index of a segment from each ledger's record, blocks and statistics, in the object's order."""
    groups: list[LedgerGroup] = []
    ordinal = 1
    data_bytes = 0
    for info, plans, statistics in ledgers:
        blocks = _index_blocks(plans, ordinal)
        groups.append(
            LedgerGroup(info.ledgerId, ledger_info(info, statistics), blocks, info.entries - 1, tuple(statistics))
        )
        ordinal += len(plans)
        data_bytes = plans[-1].offset + plans[-1].header.block_bytes
    return ObjectIndex(Format.V2, data_bytes, tuple(groups))


def _index_blocks(plans: Sequence[BlockPlan], ordinal: int) -> tuple[IndexBlock, ...]:
    return tuple(IndexBlock(plan.header.first_entry_id, ordinal + i, plan.offset) for i, plan in enumerate(plans))
