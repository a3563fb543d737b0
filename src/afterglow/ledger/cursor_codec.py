"""Encoding of cursors in Pulsar's protobufs: ``PositionInfo`` for states, ``ManagedCursorInfo`` for snapshots.

Both carry two properties of our own. The sequence orders states and snapshots. The cursor id distinguishes a cursor
from a deleted one of the same name: a state with another id does not belong to this cursor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptMetadata
from afterglow.format.metadata_envelope import parse_managed_cursor, serialize_managed_cursor
from afterglow.format.position import EARLIEST, Position
from afterglow.format.proto.managed_ledger_pb2 import (
    BatchedEntryDeletionIndexInfo,
    LongProperty,
    ManagedCursorInfo,
    MessageRange,
    NestedPositionInfo,
    PositionInfo,
    StringProperty,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from afterglow.format.compression import Codec

SEQUENCE: Final = "afterglow.sequence"
CURSOR_ID: Final = "afterglow.cursor-id"

_INLINE: Final = -1
"""``cursorsLedgerId`` of a cursor whose position is in the message itself."""


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """A cursor's state at one moment."""

    mark_delete: Position
    """Everything up to here is acknowledged, inclusive."""
    ranges: tuple[tuple[int, int, int], ...] = ()
    """Acknowledged entries after it: ledger, first and last entry, both inclusive; in order."""
    batches: tuple[tuple[Position, tuple[int, ...]], ...] = ()
    """Partly acknowledged batches with Java's words, 1 = not acknowledged; in order."""
    position_properties: Mapping[str, int] = field(default_factory=dict)
    """Numbers stored with the last cumulative acknowledgement."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties of the subscription; in snapshots only."""
    cursor_id: int = 0
    """Random, chosen at creation; 0 for a cursor that Pulsar created."""
    sequence: int = 0
    """Grows with every state and snapshot."""


def encode_state(record: CursorRecord) -> bytes:
    """Encode a state."""
    return PositionInfo(
        ledgerId=record.mark_delete.ledger_id,
        entryId=record.mark_delete.entry_id,
        individualDeletedMessages=_ranges(record),
        properties=_numbers(record),
        batchedEntryDeletionIndexInfo=_batches(record),
    ).SerializeToString()


def decode_state(value: bytes) -> CursorRecord:
    """Decode a state.

    Raises:
        CorruptMetadata: The value does not parse.
    """
    try:
        info = PositionInfo.FromString(value)
    except DecodeError as error:
        raise CorruptMetadata(f"cursor state of {len(value)} bytes does not parse: {error}") from error
    if not info.IsInitialized():
        raise CorruptMetadata(f"cursor state of {len(value)} bytes lacks a required field")
    return _record(
        Position(info.ledgerId, info.entryId),
        info.individualDeletedMessages,
        info.batchedEntryDeletionIndexInfo,
        info.properties,
    )


def encode_snapshot(record: CursorRecord, codec: Codec, threshold_bytes: int) -> bytes:
    """Encode a snapshot."""
    info = ManagedCursorInfo(
        cursorsLedgerId=_INLINE,
        markDeleteLedgerId=record.mark_delete.ledger_id,
        markDeleteEntryId=record.mark_delete.entry_id,
        individualDeletedMessages=_ranges(record),
        properties=_numbers(record),
        batchedEntryDeletionIndexInfo=_batches(record),
        cursorProperties=[StringProperty(name=name, value=value) for name, value in sorted(record.properties.items())],
    )
    return serialize_managed_cursor(info, codec, threshold_bytes)


def decode_snapshot(value: bytes) -> CursorRecord:
    """Decode a snapshot, ours or Pulsar's.

    If Pulsar keeps the position in a cursor ledger, the value has the last snapshot of it, or no position: the cursor
    then begins at the earliest entry.

    Raises:
        CorruptMetadata: The value does not parse.
    """
    info = parse_managed_cursor(value)
    known = info.HasField("markDeleteLedgerId") and info.HasField("markDeleteEntryId")
    return _record(
        Position(info.markDeleteLedgerId, info.markDeleteEntryId) if known else EARLIEST,
        info.individualDeletedMessages,
        info.batchedEntryDeletionIndexInfo,
        info.properties,
        {pair.name: pair.value for pair in info.cursorProperties},
    )


def _record(
    mark_delete: Position,
    ranges: Iterable[MessageRange],
    batches: Iterable[BatchedEntryDeletionIndexInfo],
    numbers: Iterable[LongProperty],
    properties: Mapping[str, str] | None = None,
) -> CursorRecord:
    by_name = {pair.name: pair.value for pair in numbers}
    cursor_id = by_name.pop(CURSOR_ID, 0)
    sequence = by_name.pop(SEQUENCE, 0)
    return CursorRecord(
        mark_delete,
        tuple(part for found in ranges for part in _split(found)),
        tuple((Position(found.position.ledgerId, found.position.entryId), tuple(found.deleteSet)) for found in batches),
        by_name,
        properties or {},
        cursor_id,
        sequence,
    )


def _ranges(record: CursorRecord) -> list[MessageRange]:
    return [
        MessageRange(
            lowerEndpoint=NestedPositionInfo(ledgerId=ledger_id, entryId=first - 1),
            upperEndpoint=NestedPositionInfo(ledgerId=ledger_id, entryId=last),
        )
        for ledger_id, first, last in record.ranges
    ]


def _split(found: MessageRange) -> list[tuple[int, int, int]]:
    """A stored range, lower end exclusive. Of a range across ledgers only the part in the last ledger is certain."""
    upper = found.upperEndpoint
    same = found.lowerEndpoint.ledgerId == upper.ledgerId
    first = found.lowerEndpoint.entryId + 1 if same else 0
    return [(upper.ledgerId, first, upper.entryId)] if first <= upper.entryId else []


def _batches(record: CursorRecord) -> list[BatchedEntryDeletionIndexInfo]:
    return [
        BatchedEntryDeletionIndexInfo(
            position=NestedPositionInfo(ledgerId=position.ledger_id, entryId=position.entry_id), deleteSet=words
        )
        for position, words in record.batches
    ]


def _numbers(record: CursorRecord) -> list[LongProperty]:
    numbers = {**record.position_properties, CURSOR_ID: record.cursor_id, SEQUENCE: record.sequence}
    return [LongProperty(name=name, value=value) for name, value in numbers.items()]
