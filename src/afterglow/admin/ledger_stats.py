"""Ledgers, cursors and metadata of a topic as JSON: Pulsar's, and the view of readers outside the server.

Pure functions over the managed ledger.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from afterglow.format.objects import get_uuid
from afterglow.format.position import Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.ledger_list import is_fully_offloaded
from afterglow.offload.topics import OffloadTopic
from afterglow.tier.locations import driver_metadata, location_of_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from afterglow.format.proto.afterglow_pb2 import ObjectLocation, SegmentRecord
    from afterglow.format.proto.managed_ledger_pb2 import OffloadDriverMetadata
    from afterglow.ledger.cursor import Cursor
    from afterglow.ledger.durable_cursor import DurableCursor
    from afterglow.ledger.layout import Layout
    from afterglow.ledger.ledger_list import LedgerRecord
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.ledger.topic_metadata import Snapshot

    Json = dict[str, Any]


class ListedTopic(OffloadTopic, Protocol):
    """A topic with its ledger list."""

    @property
    def ledgers(self) -> tuple[LedgerRecord, ...]:
        """The ledgers of the list, ascending by id."""
        ...


def internal_stats(ledger: ManagedLedger, cursors: Sequence[tuple[Cursor, bool]], entries_added: int) -> Json:
    """``internalStats`` of a topic with its cursors; see :func:`log_stats`.

    Args:
        ledger: The topic's managed ledger.
        cursors: Cursors of all subscriptions, also of readers, and whether consumers are connected.
        entries_added: Since the topic was opened.
    """
    return {
        **log_stats(ledger, entries_added),
        "waitingCursorsCount": sum(consumed and not cursor.backlog for cursor, consumed in cursors),
        "cursors": {cursor.name: cursor_stats(ledger, cursor, consumed=consumed) for cursor, consumed in cursors},
    }


def log_stats(ledger: ListedTopic, entries_added: int) -> Json:
    """``internalStats`` without cursors: the open ledger is listed with 0 entries; its size is in fields of its own.

    Pulsar always has an open ledger, and its tools assign the current ledger's size to the last one. Here a topic has
    no open ledger until the first append; until then its last ledger counts as the current one.

    Args:
        ledger: The topic.
        entries_added: Since the topic was opened.
    """
    listed = ledger.ledgers
    offloaded = {row.ledgerId: is_fully_offloaded(row) for row in ledger.info.ledgerInfo}
    return {
        "entriesAddedCounter": entries_added,
        "numberOfEntries": ledger.layout.total_entries,
        "totalSize": ledger.size_bytes,
        **_current(ledger),
        "lastLedgerCreatedTimestamp": _time(max((row.closed_ms for row in listed), default=0)),
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "lastConfirmedEntry": str(ledger.layout.last),
        "state": _state(ledger),
        "ledgers": [
            {
                "ledgerId": row.ledger_id,
                "entries": row.entries or 0,
                "size": row.size_bytes or 0,
                "offloaded": offloaded.get(row.ledger_id, False),
                "underReplicated": False,
            }
            for row in listed
        ],
        "cursors": {},
        "schemaLedgers": [],
        "compactedLedger": {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False},
        "properties": _properties(ledger.info),
    }


def cursor_stats(ledger: ManagedLedger, cursor: Cursor, *, consumed: bool) -> Json:
    """One cursor in ``internalStats``."""
    marked = _in_ledger(cursor.mark_delete, ledger)
    return {
        "markDeletePosition": str(marked),
        "readPosition": str(max(cursor.read_position, marked.next())),
        "waitingReadOp": consumed and not cursor.backlog,
        "pendingReadOps": 0,
        "messagesConsumedCounter": ledger.layout.rank(marked) + _count(cursor.individually_acked),
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": _ranges(cursor),
        "lastLedgerSwitchTimestamp": _time(0),
        "state": "Open" if cursor.durable else "NoLedger",
        "active": consumed,
        "numberOfEntriesSinceFirstNotAckedMessage": ledger.layout.entries_between(marked, ledger.layout.last),
        "totalNonContiguousDeletedMessagesRange": len(cursor.individually_acked),
        "subscriptionHavePendingRead": False,
        "subscriptionHavePendingReplayRead": False,
        "properties": cursor.position_properties,
    }


def internal_info(ledger: ManagedLedger, snapshot: Snapshot) -> Json:
    """``internal-info``: the topic's metadata and cursors."""
    info = snapshot.info
    shown: Json = {
        "version": snapshot.version,
        "creationDate": _time(0),
        "modificationDate": _time(0),
        "ledgers": [_ledger_info(row) for row in info.ledgerInfo],
        "cursors": {cursor.name: _cursor_info(ledger, cursor) for cursor in ledger.cursors.durable.values()},
        "properties": _properties(info),
    }
    if (end := ledger.terminated) is not None:
        shown["terminatedPosition"] = _position(end)
    return shown


def _ledger_info(row: ManagedLedgerInfo.LedgerInfo) -> Json:
    shown: Json = {"ledgerId": row.ledgerId}
    if row.HasField("entries"):
        shown |= {"entries": row.entries, "size": row.size, "timestamp": row.timestamp}
    context = row.offloadContext
    shown["isOffloaded"] = is_fully_offloaded(row)
    if context.uidMsb or context.uidLsb:
        shown["offloadedContextUuid"] = _uuid(context.uidMsb, context.uidLsb)
    return shown


def _in_ledger(position: Position, ledger: ManagedLedger) -> Position:
    """The position, or that before the first entry if it is before all ledgers."""
    rows = ledger.ledgers
    return Position(rows[0].ledger_id, -1) if position.ledger_id < 0 and rows else position


def _cursor_info(ledger: ManagedLedger, cursor: DurableCursor) -> Json:
    shown: Json = {
        "version": 0,
        "creationDate": _time(0),
        "modificationDate": _time(0),
        "cursorsLedgerId": -1,
        "markDelete": _position(_in_ledger(cursor.mark_delete, ledger)),
    }
    if cursor.individually_acked:
        shown["individualDeletedMessages"] = [
            {"from": _position(Position(ledger_id, first - 1)), "to": _position(Position(ledger_id, last))}
            for ledger_id, first, last in cursor.individually_acked
        ]
    return shown | {"properties": cursor.position_properties} if cursor.position_properties else shown


def _current(ledger: ListedTopic) -> Json:
    rows = ledger.ledgers
    if ledger.writing_to is None and rows and rows[-1].finished:
        return {"currentLedgerEntries": rows[-1].entries, "currentLedgerSize": rows[-1].size_bytes}
    return {
        "currentLedgerEntries": ledger.layout.total_entries - sum(row.entries or 0 for row in rows),
        "currentLedgerSize": ledger.size_bytes - sum(row.size_bytes or 0 for row in rows),
    }


def _state(ledger: ListedTopic) -> str:
    return "LedgerOpened" if ledger.terminated is None else "Terminated"


def _ranges(cursor: Cursor) -> str:
    """Ranges as Java prints them, with the lower end excluded and the upper included."""
    ranges = (f"({ledger_id}:{first - 1}..{ledger_id}:{last}]" for ledger_id, first, last in cursor.individually_acked)
    return f"[{','.join(ranges)}]"


def _count(ranges: tuple[tuple[int, int, int], ...]) -> int:
    return sum(last - first + 1 for _, first, last in ranges)


def _properties(info: ManagedLedgerInfo) -> dict[str, str]:
    return {pair.key: pair.value for pair in info.properties}


def _position(position: Position) -> Json:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


def _uuid(upper: int, lower: int) -> str:
    """A UUID of Java's two signed halves."""
    return str(UUID(int=(upper & (2**64 - 1)) << 64 | lower & (2**64 - 1)))


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- readers outside the server ---


def reader_view(info: ManagedLedgerInfo, segments: Iterable[SegmentRecord], layout: Layout) -> Json:
    """The stored ledger list with the tier location of every segment, and the segment records, in base64.

    Args:
        info: The topic's ledger list.
        segments: Records of its segments.
        layout: Numbers of entries, read after the ledger list, so that it has every ledger that is open there.
    """
    records = {record.uuid: record for record in segments}
    located = ManagedLedgerInfo()
    located.CopyFrom(info)
    for row in located.ledgerInfo:
        for segment in row.offloadContext.offloadSegment:
            record = records.get(str(get_uuid(segment)))
            if record is not None and not segment.HasField("driverMetadata"):
                _set_driver(segment.driverMetadata, record.location)
    written = [row.ledgerId for row in info.ledgerInfo if not row.HasField("entries")]
    return {
        "info": _base64(located.SerializeToString()),
        "segments": [_base64(record.SerializeToString()) for record in records.values()],
        "written": {str(ledger_id): layout.entries_of(ledger_id) or 0 for ledger_id in written},
    }


def _set_driver(driver: OffloadDriverMetadata, location: ObjectLocation) -> None:
    driver.name = location.driver
    for key, value in driver_metadata(location_of_record(location)).items():
        driver.properties.add(key=key, value=value)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
