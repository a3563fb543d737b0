"""All topics of all namespaces at a glance: what the console shows first."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request
from afterglow.admin.resource import Resources
from afterglow.engine.metrics.overview import in_turns, totals

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.admin.call import Call
    from afterglow.engine.metrics.overview import Look, Overview, TopicRow

_MOST: Final = 1000
"""Rows of one answer: some 400 KB."""
_USUAL: Final = 100
_DOMAIN: Final = "persistent://"
"""Of every topic here, so that looking for it finds nothing."""


def _by_name(row: TopicRow) -> tuple[str, int]:
    """Partitions by their number, which names alone would not give."""
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


def resources(overview: Overview) -> Resources:
    """The resource that gives what an overview finds."""
    found = Resources("/admin/v2/afterglow")

    @found.on("GET", "/topics", Access.READ_SERVER)
    async def list_topics(call: Call) -> dict[str, Any]:
        """Topics with their figures, a partitioned one as a whole; with ``partitionsOf`` its partitions.

        ``filter`` holds words that must all be in a name; ``sort`` is one of the columns, ``descending`` turns it
        round; ``offset`` and ``limit`` give a page.
        """
        wanted = _wanted(call)
        look = await overview.look()
        # Sorting tens of thousands of rows takes longer than the event loop may wait.
        page = await call.service.blocking(_page, look, wanted)
        return {**page, "outages": [row for row in _tiers(call) if not row["available"]]}

    @found.on("GET", "/tiers", Access.READ_SERVER)
    async def list_tiers(call: Call) -> list[dict[str, Any]]:
        """Tiers that this broker uses, and since when one is unavailable."""
        return _tiers(call)

    return found


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
class _Wanted:
    """Which rows are asked for."""

    whole: str | None
    """The topic whose partitions are; None: all topics."""
    words: tuple[str, ...]
    column: str
    descending: bool
    offset: int
    limit: int


def _wanted(call: Call) -> _Wanted:
    column = call.parameter("sort") or "topic"
    if column not in _SORTS:
        raise bad_request(f"sort must be one of {', '.join(_SORTS)}, not {values.shown(column)}")
    return _Wanted(
        whole=call.parameter("partitionsOf"),
        words=tuple(word.removeprefix(_DOMAIN) for word in (call.parameter("filter") or "").lower().split()),
        column=column,
        descending=call.flag("descending"),
        offset=_number(call, "offset", 0, values.INT_MAX),
        limit=_number(call, "limit", _USUAL, _MOST),
    )


def _page(look: Look, wanted: _Wanted) -> dict[str, Any]:
    rows = look.grouped if wanted.whole is None else look.of(wanted.whole)
    matching = [
        row for row in in_turns(rows) if all(word in row.topic.lower().removeprefix(_DOMAIN) for word in wanted.words)
    ]
    matching.sort(key=_by_name)
    matching.sort(key=_SORTS[wanted.column], reverse=wanted.descending)
    return {
        "now_ms": look.now_ms,
        "total": len(rows),
        "matching": len(matching),
        "failing": sum(row.failing for row in rows),
        "totals": totals(rows),
        "topics": [asdict(row) for row in matching[wanted.offset : wanted.offset + wanted.limit]],
    }


def _number(call: Call, name: str, usual: int, most: int) -> int:
    given = call.parameter(name)
    if given is None:
        return usual
    if not (given.isascii() and given.isdigit() and len(given) <= 10):
        raise bad_request(f"the parameter {name} must be a whole number, not {values.shown(given)}")
    return values.integer(int(given), name, 0, most)
