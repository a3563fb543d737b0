"""What of a topic's log is drawn: ledgers, objects in the tier, cursors. Pure functions, but for the first entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import AfterglowError
from afterglow.format.objects import ObjectKey
from afterglow.format.offload_context import ledger_uuid
from afterglow.format.position import Position
from afterglow.ledger import ledger_list
from afterglow.ledger.timestamps import entry_time
from afterglow.offload.explain import LedgerState
from afterglow.offload.segments.listing import SegmentStatus
from afterglow.read.places import place_of_driver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from afterglow.broker.topic import Topic
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog
    from afterglow.ledger.layout import Layout
    from afterglow.offload.explain import Explanation
    from afterglow.offload.segments.listing import SegmentView

    Json = dict[str, Any]

_AS_THEY_ARE: Final = (
    *("entries", "bytes", "assigned_ms", "offloaded_ms", "first_ms", "last_ms"),
    *("driver", "bucket", "key", "error"),
)
_UNDER_WAY: Final = {LedgerState.OFFLOADING: SegmentStatus.ASSIGNED, LedgerState.FAILED: SegmentStatus.FAILED}


def ledgers(
    info: ManagedLedgerInfo,
    layout: Layout,
    *,
    size_bytes: int,
    told: Mapping[int, Explanation],
    writing_to: int | None,
    now_ms: int,
) -> list[Json]:
    """The ledgers of a topic, oldest first.

    Args:
        info: The topic's list.
        layout: Where its entries stand; looked at after the list.
        size_bytes: Of all entries.
        told: Why each ledger is where it is.
        writing_to: The ledger that takes appends.
        now_ms: Epoch milliseconds.
    """
    records = ledger_list.records(info)
    places = {ledger_id: index for index, ledger_id in enumerate(layout.ids)}
    closed_bytes = sum(record.size_bytes or 0 for record in records)
    rows = []
    for record in records:
        index = places.get(record.ledger_id)
        found = told.get(record.ledger_id)
        open_ = record.ledger_id == writing_to or not record.finished
        rows.append(
            {
                "ledger_id": record.ledger_id,
                "status": "open" if open_ else "gone" if record.hot_deleted else "closed",
                "first_index": 0 if index is None else layout.before[index],
                "entries": (record.entries or 0) if index is None else layout.entries_at(index),
                "bytes": max(size_bytes - closed_bytes, 0) if record.size_bytes is None else record.size_bytes,
                "closed_ms": record.closed_ms or None,
                "last_ms": now_ms if open_ else record.last_broker_time_ms or record.closed_ms or None,
                "state": None if found is None else str(found.state),
                "sentence": None if found is None else found.sentence,
                "next_ms": None if found is None else found.next_ms,
                "error": None if found is None else found.error,
            }
        )
    return rows


def ledger_objects(info: ManagedLedgerInfo, told: Mapping[int, Explanation]) -> Iterator[Json]:
    """Ledgers that are in the tier as a whole, or are being copied there."""
    for row in sorted(info.ledgerInfo, key=lambda row: row.ledgerId):
        context, found = row.offloadContext, told.get(row.ledgerId)
        uuid = ledger_uuid(row)
        status = SegmentStatus.OFFLOADED if context.complete else _UNDER_WAY.get(found.state) if found else None
        if status is None or (uuid is None and context.offloadSegment):
            continue
        done = status is SegmentStatus.OFFLOADED
        yield {
            "kind": "ledger",
            "id": f"ledger-{row.ledgerId}" if uuid is None else str(uuid),
            "status": str(status),
            "begin": _position(Position(row.ledgerId, 0)),
            "end": _position(Position(row.ledgerId, max(row.entries - 1, 0))),
            "entries": row.entries if done else 0,
            "bytes": row.size if done else 0,
            "assigned_ms": None,
            "offloaded_ms": (context.timestamp or None) if done else None,
            "first_ms": None,
            "last_ms": None,
            **_place(row),
            "key": None if uuid is None else str(ObjectKey(uuid, row.ledgerId)),
            "error": None if found is None else found.error,
        }


def segment_object(view: SegmentView) -> Json:
    """A segment of streaming offload."""
    return {
        "kind": "segment",
        "id": view.id,
        "status": str(view.status),
        "begin": _position(view.begin),
        "end": None if view.end is None else _position(view.end),
        **{name: getattr(view, name) for name in _AS_THEY_ARE},
    }


def cursors(topic: Topic) -> list[Json]:
    """Where the subscriptions of a topic are. In the event loop's thread."""
    layout = topic.ledger.layout
    return [
        {
            "name": name,
            "mark_delete": str(found.cursor.mark_delete),
            "index": layout.rank(found.cursor.mark_delete),
            "backlog": found.cursor.backlog,
            "consumers": len(found.consumers),
            "unacknowledged": sum(consumer.unacknowledged for consumer in found.consumers),
            "durable": found.durable,
        }
        for name, found in sorted(topic.subscriptions.items())
    ]


def first_ms(rows: Sequence[Json], objects: Sequence[Json], hot: HotLog) -> int | None:
    """When the first entry was written; None where neither the tier's records nor the hot log tell."""
    first = next((row for row in rows if row["entries"]), None)
    if first is None:
        return None
    begin = _position(Position(first["ledger_id"], 0))
    known = [found["first_ms"] for found in objects if found["begin"] == begin]
    if known and known[0] is not None:
        return int(known[0])
    try:
        (entry,) = hot.open(first["ledger_id"]).read(0, 0)
        return entry_time(entry).time_ms
    except (AfterglowError, ValueError):  # its hot copy is gone, or it is no entry of Pulsar's
        return None


def _position(position: Position) -> Json:
    return {"ledger_id": position.ledger_id, "entry_id": position.entry_id}


def _place(row: ManagedLedgerInfo.LedgerInfo) -> Json:
    """Where the object was put, as far as this release can tell."""
    driver = row.offloadContext.driverMetadata
    try:
        place = place_of_driver(driver)
    except AfterglowError:
        return {"driver": driver.name or None, "bucket": None}
    return {"driver": place.driver, "bucket": place.bucket}
