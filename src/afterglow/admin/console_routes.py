"""Routes of the console: all topics with their statistics, the tiers, and the log of a topic.

The log of a topic is one answer: its ledgers in the hot log, its objects in the tier, and its cursors.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from afterglow import __version__
from afterglow.admin import targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request
from afterglow.admin.resource import Resources, SharedResources
from afterglow.errors import AfterglowError, MetadataError
from afterglow.format.objects import ObjectKey, ledger_uuid
from afterglow.format.position import Position
from afterglow.ledger import ledger_list
from afterglow.ledger.time_search import entry_time
from afterglow.offload.explain import LedgerState
from afterglow.offload.segments.listing import SegmentStatus
from afterglow.pipeline.metrics.offload import oldest_unoffloaded_ms
from afterglow.pipeline.metrics.overview import totals, yielding_gil
from afterglow.pipeline.metrics.topics import figures_of
from afterglow.tier.locations import location_of_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from afterglow.admin.call import BrokerCall, Call
    from afterglow.broker.service import BrokerService
    from afterglow.broker.topic import Topic
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.layout import Layout
    from afterglow.offload.explain import Explanation
    from afterglow.offload.segments.listing import SegmentView
    from afterglow.offload.topics import HotLedgers, OffloadTopic
    from afterglow.pipeline.metrics.history import RateHistory
    from afterglow.pipeline.metrics.overview import Overview, TopicRow, TopicsSnapshot

    Json = dict[str, Any]

TOPIC_LOG = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

_MAX_LIMIT: Final = 1000
"""Rows of one answer: some 400 KB."""
_DEFAULT_LIMIT: Final = 100
_DOMAIN: Final = "persistent://"
"""Prefix of every topic name, ignored by the filter."""
_SEGMENT_FIELDS: Final = (
    *("entries", "bytes", "assigned_ms", "offloaded_ms", "first_ms", "last_ms"),
    *("driver", "bucket", "key", "error"),
)
_IN_PROGRESS: Final = {LedgerState.OFFLOADING: SegmentStatus.ASSIGNED, LedgerState.FAILED: SegmentStatus.FAILED}


# --- overview ---


def _by_name(row: TopicRow) -> tuple[str, int]:
    """Sort key that orders partitions by their number."""
    base, _, index = row.topic.rpartition("-partition-")
    return (base, int(index)) if base and index.isdecimal() else (row.topic, -1)


_SORTS: Final[dict[str, Callable[[TopicRow], Any]]] = {
    "topic": _by_name,
    "state": lambda row: (row.failing, row.offload),
    "size": lambda row: row.size_bytes,
    "tier": lambda row: row.offloaded_bytes,
    "lag": lambda row: (row.lag_bytes, row.lag_seconds or 0),
    "in": lambda row: (row.bytes_in_per_second, row.messages_in_per_second),
    "out": lambda row: (row.bytes_out_per_second, row.messages_out_per_second),
    "backlog": lambda row: row.backlog,
}


_METADATA_S: Final = 5.0
"""Time limit of the metadata store's answer in a report about health."""


def overview_resources(
    overview: Overview,
    memory: Callable[[], Mapping[str, int]],
    started_ms: int,
    attached_to: Mapping[str, str] | None = None,
) -> SharedResources:
    """Resources of the topics, health and tiers of a server.

    Args:
        overview: Its topics.
        memory: Its connections and the use of its memory, by names of the answer; empty if it has no broker.
        started_ms: The time of its start.
        attached_to: Name, admin API and subscription of the cluster that it is attached to; None: it is a broker.
    """
    found = SharedResources("/admin/v2/afterglow")

    @found.on("GET", "/topics", Access.READ_SERVER)
    async def list_topics(call: Call) -> dict[str, Any]:
        """Topics with their statistics, partitioned topics as a whole; with ``partitionsOf`` the partitions of one.

        ``filter`` has words that a name must contain; ``sort`` names a column, ``descending`` reverses the order;
        ``offset`` and ``limit`` select a page.
        """
        query = _query(call)
        snapshot = await overview.snapshot()
        # Sorting tens of thousands of rows would block the event loop for too long.
        page = await call.blocking(_page, snapshot, query)
        return {**page, "outages": [row for row in _tiers(call) if not row["available"]]}

    @found.on("GET", "/process", Access.KNOWN)
    async def get_process(_call: Call) -> dict[str, Any]:
        """The cluster whose topics these are, and which alone can change them; null if they are this broker's."""
        return {"attachedTo": attached_to}

    @found.on("GET", "/health", Access.READ_SERVER)
    async def get_health(call: Call) -> dict[str, Any]:
        """Version, uptime, answer time of metadata, connections and memory of this process."""
        snapshot = await overview.snapshot()
        begun_s = time.monotonic()
        error = None
        try:
            async with asyncio.timeout(_METADATA_S):
                await call.blocking(call.catalog.tenants)
        except (MetadataError, TimeoutError) as failure:
            error = str(failure) or f"the metadata store did not answer within {_METADATA_S:.0f} s"
        return {
            "version": __version__,
            "cluster": call.service.config.cluster_name,
            "attachedTo": attached_to,
            "now_ms": call.service.store.clock.now_ms(),
            "started_ms": started_ms,
            "metadata_seconds": time.monotonic() - begun_s,
            "metadata_error": error,
            "topics": len(snapshot.topics),
            "open_topics": sum(row.open for row in snapshot.topics),
            **memory(),
        }

    @found.on("GET", "/tiers", Access.READ_SERVER)
    async def list_tiers(call: Call) -> list[dict[str, Any]]:
        """Tiers that this broker uses, with their outages."""
        return _tiers(call)

    return found


def broker_memory(service: BrokerService) -> dict[str, int]:
    """Connections of a broker and the use of its memory."""
    cache = service.store.cache
    return {
        "connections": len(service.connections),
        "cache_bytes": cache.statistics.bytes_held,
        "cache_budget_bytes": cache.budget_bytes,
        "buffer_bytes": 0 if cache.buffer is None else cache.buffer.statistics.bytes_held,
        "buffer_budget_bytes": 0 if cache.buffer is None else cache.buffer.budget_bytes,
    }


def history_resources(history: RateHistory) -> tuple[SharedResources, SharedResources]:
    """Resources of the history of rates: of all topics together, and of one."""
    server = SharedResources("/admin/v2/afterglow")
    topics = SharedResources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

    @server.on("GET", "/history", Access.READ_SERVER)
    async def get_history(_call: Call) -> list[dict[str, float | None]]:
        """Rates and lag of all topics together over the last minutes, oldest first."""
        return history.samples()

    @topics.on("GET", "/history", Access.LOOKUP)
    async def get_topic_history(call: Call) -> list[dict[str, float | None]]:
        """Rates and lag of one topic over the last minutes, oldest first; empty if it was not open."""
        return history.samples(str(call.topic))

    return server, topics


def _tiers(call: Call) -> list[dict[str, Any]]:
    return [
        {
            "location": location,
            "available": outage is None,
            "since_ms": None if outage is None else outage.since_ms,
            "error": None if outage is None else outage.error,
            "cure": None if outage is None else outage.cure,
        }
        for location, outage in (call.offload.tiers() if call.offloads else {}).items()
    ]


@dataclass(frozen=True, slots=True)
class _TopicsQuery:
    """Filter, order and page of a request."""

    partitions_of: str | None
    """The topic whose partitions are listed; None: all topics."""
    words: tuple[str, ...]
    column: str
    descending: bool
    offset: int
    limit: int


def _query(call: Call) -> _TopicsQuery:
    column = call.parameter("sort") or "topic"
    if column not in _SORTS:
        raise bad_request(f"sort must be one of {', '.join(_SORTS)}, not {values.shown(column)}")
    return _TopicsQuery(
        partitions_of=call.parameter("partitionsOf"),
        words=tuple(word.removeprefix(_DOMAIN) for word in (call.parameter("filter") or "").lower().split()),
        column=column,
        descending=call.flag("descending"),
        offset=_natural(call, "offset", 0, values.INT_MAX),
        limit=_natural(call, "limit", _DEFAULT_LIMIT, _MAX_LIMIT),
    )


def _page(snapshot: TopicsSnapshot, query: _TopicsQuery) -> dict[str, Any]:
    rows = snapshot.grouped if query.partitions_of is None else snapshot.of(query.partitions_of)
    matching = [
        row
        for row in yielding_gil(rows)
        if all(word in row.topic.lower().removeprefix(_DOMAIN) for word in query.words)
    ]
    matching.sort(key=_by_name)
    matching.sort(key=_SORTS[query.column], reverse=query.descending)
    return {
        "now_ms": snapshot.now_ms,
        "total": len(rows),
        "matching": len(matching),
        "failing": sum(row.failing for row in rows),
        "totals": totals(rows),
        "topics": [asdict(row) for row in matching[query.offset : query.offset + query.limit]],
    }


def _natural(call: Call, name: str, default: int, high: int) -> int:
    if (call.parameter(name) or "").startswith("-"):
        raise bad_request(f"the parameter {name} must not be negative")
    return call.integer_parameter(name, default=default, high=high)


# --- log of a topic ---


@TOPIC_LOG.on("GET", "/log", Access.LOOKUP)
async def get_log(call: BrokerCall) -> dict[str, Any]:
    """The log of one topic; with ``from`` only the ledgers from that id on, and the objects of their entries."""
    first = first_ledger(call)
    topic = await targets.open_one(call.service, call.topic)
    figures = figures_of(topic, own_series=True)
    cursors = _cursors(topic)
    stored = await call.blocking(stored_log, call, topic.ledger, first)
    return {
        "topic": str(topic.name),
        **stored,
        "cursors": cursors,
        "producers": figures.producers,
        "messages_in": figures.traffic_in.messages,
        "bytes_in": figures.traffic_in.size_bytes,
        "messages_out": figures.traffic_out.messages,
        "bytes_out": figures.traffic_out.size_bytes,
    }


def first_ledger(call: Call) -> int:
    """The first ledger that a call for the log asks for.

    Raises:
        AdminError: The parameter is malformed.
    """
    return _natural(call, "from", 0, values.LONG_MAX)


def stored_log(call: Call, ledger: OffloadTopic, first: int) -> Json:
    """The part of the log that needs metadata and a disk; runs on a thread."""
    store, name = call.service.store, ledger.name
    # Segments are read before the ledger list: one that is committed meanwhile appears twice rather than not at all.
    segments = call.offload.segments(name) if call.offloads else ()
    explained = {found.ledger_id: found for found in call.offload.explain(name)} if call.offloads else {}
    statistics = call.offload.statistics(name) if call.offloads else None
    outage = call.offload.outage(name) if call.offloads else None
    info, layout, size_bytes = ledger.info, ledger.layout, ledger.size_bytes
    offloaded_bytes = min(0 if statistics is None else statistics.offloaded_bytes, size_bytes)
    oldest_ms = oldest_unoffloaded_ms(ledger, store)
    now_ms = store.clock.now_ms()
    rows = _ledgers(
        info, layout, size_bytes=size_bytes, explained=explained, writing_to=ledger.writing_to, now_ms=now_ms
    )
    objects = [*_ledger_objects(info, explained), *(_segment_object(view) for view in segments)]
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
        "first_ms": _first_ms(rows, objects, store.hot),
        "ledgers": [row for row in rows if row["ledger_id"] >= first],
        "objects": [found for found in objects if found["end"] is None or found["end"]["ledger_id"] >= first],
    }


def _ledgers(
    info: ManagedLedgerInfo,
    layout: Layout,
    *,
    size_bytes: int,
    explained: Mapping[int, Explanation],
    writing_to: int | None,
    now_ms: int,
) -> list[Json]:
    """The ledgers of a topic, oldest first. The layout must be read after the ledger list."""
    records = ledger_list.records(info)
    indexes = {ledger_id: index for index, ledger_id in enumerate(layout.ids)}
    closed_bytes = sum(record.size_bytes or 0 for record in records)
    rows = []
    for record in records:
        index = indexes.get(record.ledger_id)
        found = explained.get(record.ledger_id)
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


def _ledger_objects(info: ManagedLedgerInfo, explained: Mapping[int, Explanation]) -> Iterator[Json]:
    """Objects of whole ledgers, finished or in progress."""
    for row in sorted(info.ledgerInfo, key=lambda row: row.ledgerId):
        context, found = row.offloadContext, explained.get(row.ledgerId)
        uuid = ledger_uuid(row)
        status = SegmentStatus.OFFLOADED if context.complete else _IN_PROGRESS.get(found.state) if found else None
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
            **_tier_location(row),
            "key": None if uuid is None else str(ObjectKey(uuid, row.ledgerId)),
            "error": None if found is None else found.error,
        }


def _segment_object(view: SegmentView) -> Json:
    return {
        "kind": "segment",
        "id": view.id,
        "status": str(view.status),
        "begin": _position(view.begin),
        "end": None if view.end is None else _position(view.end),
        **{name: getattr(view, name) for name in _SEGMENT_FIELDS},
    }


def _cursors(topic: Topic) -> list[Json]:
    """Cursors of a topic; called in the event loop's thread."""
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


def _first_ms(rows: Sequence[Json], objects: Sequence[Json], hot: HotLedgers) -> int | None:
    """Time of the first entry; None if neither the segment records nor the hot log have it."""
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
    except (AfterglowError, ValueError):  # the hot copy is deleted, or the entry is not a Pulsar message
        return None


def _position(position: Position) -> Json:
    return {"ledger_id": position.ledger_id, "entry_id": position.entry_id}


def _tier_location(row: ManagedLedgerInfo.LedgerInfo) -> Json:
    """Driver and bucket of an object; the bucket is None for a driver that this release does not know."""
    driver = row.offloadContext.driverMetadata
    try:
        location = location_of_driver(driver)
    except AfterglowError:
        return {"driver": driver.name or None, "bucket": None}
    return {"driver": location.driver, "bucket": location.bucket}
