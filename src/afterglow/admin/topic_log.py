"""A topic's log in one answer: its hot ledgers, what of it is in the tier, and where its subscriptions are."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from afterglow.admin import log_view, targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request
from afterglow.admin.resource import Resources
from afterglow.engine.metrics.offload import oldest_outside_ms
from afterglow.engine.metrics.topics import figures_of

if TYPE_CHECKING:
    from afterglow.admin.call import Call
    from afterglow.broker.topic import Topic

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


@RESOURCES.on("GET", "/log", Access.LOOKUP)
async def get_log(call: Call) -> dict[str, Any]:
    """The log of one topic; with ``from`` only ledgers from that one on, and what holds entries of these."""
    first = _ledger(call)
    topic = await targets.open_one(call.service, call.topic)
    figures = figures_of(topic, own=True)
    cursors = log_view.cursors(topic)
    drawn = await call.service.blocking(_drawn, call, topic, first)
    return {
        "topic": str(topic.name),
        **drawn,
        "cursors": cursors,
        "producers": figures.producers,
        "messages_in": figures.came.messages,
        "bytes_in": figures.came.size_bytes,
        "messages_out": figures.went.messages,
        "bytes_out": figures.went.size_bytes,
    }


def _drawn(call: Call, topic: Topic, first: int) -> dict[str, Any]:
    """What waits for metadata and a disk."""
    ledger, store = topic.ledger, call.service.store
    name = ledger.name
    # Segments before the list: what is committed meanwhile is shown twice over, never not at all.
    segments = call.offload.segments(name) if call.offloads else ()
    told = {found.ledger_id: found for found in call.offload.explain(name)} if call.offloads else {}
    statistics = call.offload.statistics(name) if call.offloads else None
    outage = call.offload.outage(name) if call.offloads else None
    info, layout, size_bytes = ledger.info, ledger.layout, ledger.size_bytes
    offloaded_bytes = min(0 if statistics is None else statistics.offloaded_bytes, size_bytes)
    oldest_ms = oldest_outside_ms(ledger, store)
    now_ms = store.clock.now_ms()
    rows = log_view.ledgers(info, layout, size_bytes=size_bytes, told=told, writing_to=ledger.writing_to, now_ms=now_ms)
    objects = [*log_view.ledger_objects(info, told), *(log_view.segment_object(view) for view in segments)]
    return {
        "now_ms": now_ms,
        "first_ledger_id": rows[0]["ledger_id"] if rows else None,
        "entries": layout.total_entries,
        "size_bytes": size_bytes,
        "offloaded_bytes": offloaded_bytes,
        "lag_bytes": size_bytes - offloaded_bytes,
        "lag_seconds": None if oldest_ms is None else max(now_ms - oldest_ms, 0) / 1000,
        "terminated": ledger.terminated is not None,
        "outages": [] if outage is None else [asdict(outage)],
        "first_ms": log_view.first_ms(rows, objects, store.hot),
        "ledgers": [row for row in rows if row["ledger_id"] >= first],
        "objects": [found for found in objects if found["end"] is None or found["end"]["ledger_id"] >= first],
    }


def _ledger(call: Call) -> int:
    given = call.parameter("from")
    if given is None:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) <= 19):
        raise bad_request(f"the parameter from must be the id of a ledger, not {values.shown(given)}")
    return values.integer(int(given), "from", 0, values.LONG_MAX)
