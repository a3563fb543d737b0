"""All topics at a glance, open or not: one row each, computed without opening any."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from afterglow.broker.traffic import RateMeter
from afterglow.errors import MetadataError, TopicMissing
from afterglow.ledger import ledger_list
from afterglow.offload import planner
from afterglow.pipeline.metrics.collector import all_topic_figures
from afterglow.pipeline.metrics.offload import oldest_unoffloaded_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.metadata.names import TopicName
    from afterglow.pipeline.metrics.topics import TopicFigures
    from afterglow.pipeline.server_handle import ServerHandle

T = TypeVar("T")

_AT_ONCE: Final = 50
"""Rows between two turns of the event loop."""
_FRESH_S: Final = 1.0
"""Who asks again within this gets what was found before."""
_SHARE: Final = 10
"""A look that took a second is not repeated within ten: whatever is asked, a tenth of one thread goes into looks."""
_RATES_S: Final = 5.0
"""A person who watches wants to see a change within seconds; the rates that the broker keeps are over a minute."""


class OffloadMode(StrEnum):
    """How a topic goes to the tier."""

    STREAMING = "streaming"
    LEDGERS = "ledgers"
    """Whole ledgers, by a threshold."""
    MANUAL = "manual"
    """Whole ledgers, by hand only."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic, or all partitions of one together."""

    topic: str
    """The full name."""
    partitions: int
    """How many were added up; 0: it is not partitioned, or is a partition itself."""
    offload: OffloadMode
    failing: bool
    """Whether an offload of it failed and has not succeeded since."""
    open: bool
    """Whether it is open here; else there are no clients, and nothing is counted of them."""
    entries: int
    size_bytes: int
    """Of all entries, wherever they are."""
    offloaded_bytes: int
    lag_bytes: int
    """Not in the tier."""
    lag_seconds: float | None
    """Age of the oldest entry outside the tier; None where it is not known. Of a topic that is not open, the age of
    the last entry of its ledger."""
    backlog: int
    """Entries that subscriptions have not acknowledged, all together."""
    subscriptions: int
    producers: int
    consumers: int
    messages_in_per_second: float
    bytes_in_per_second: float
    messages_out_per_second: float
    bytes_out_per_second: float


@dataclass(frozen=True, slots=True)
class Look:
    """All topics as of one moment."""

    now_ms: int
    topics: tuple[TopicRow, ...]
    """Each partition by itself, in no order."""
    partitions: Mapping[str, str]
    """From the names of partitions to that of their topic."""
    grouped: tuple[TopicRow, ...]
    """The same with partitioned topics instead of their partitions."""

    def of(self, topic: str) -> tuple[TopicRow, ...]:
        """The partitions of a topic."""
        return tuple(row for row in yielding_gil(self.topics) if self.partitions.get(row.topic) == topic)


def yielding_gil(items: Iterable[T]) -> Iterator[T]:
    """The same, on a thread, with turns for the event loop: it would wait for one five milliseconds, at each step."""
    for number, item in enumerate(items):
        if number % _AT_ONCE == 0:
            time.sleep(0)
        yield item


class Overview:
    """Looks at all topics on request, not more often than is good.

    Args:
        server: The server.
        monotonic: Seconds from any origin.
    """

    def __init__(self, server: ServerHandle, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._service = server.service
        self._offload = server.offload
        self._monotonic = monotonic
        self._alone = asyncio.Lock()
        self._rates = RateMeter(monotonic, _RATES_S)
        self._oldest: dict[str, tuple[Position, int]] = {}
        self._last: Look | None = None
        self._until_s = 0.0

    async def look(self) -> Look:
        """All topics as of now, or a moment ago. To be called in the broker's event loop, which it never holds up."""
        async with self._alone:
            begun_s = self._monotonic()
            if self._last is None or begun_s >= self._until_s:
                figures = {found.ledger_name: found for found in await all_topic_figures(self._service)}
                self._last = await self._service.blocking(self._look, figures)
                ended_s = self._monotonic()
                self._until_s = ended_s + max(_FRESH_S, _SHARE * (ended_s - begun_s))
            return self._last

    def _look(self, figures: Mapping[str, TopicFigures]) -> Look:
        per_second = self._rates.measure(
            {
                (name, way, unit): count
                for name, found in figures.items()
                for way, traffic in (("in", found.traffic_in), ("out", found.traffic_out))
                for unit, count in (("messages", traffic.messages), ("bytes", traffic.size_bytes))
            }
        )
        now_ms = self._service.store.clock.now_ms()
        rows: list[TopicRow] = []
        partitions: dict[str, str] = {}
        partitioned: dict[object, frozenset[TopicName]] = {}
        for topic in self._service.store.all_topics():
            time.sleep(0)  # as between the items of in_turns; a row may cost as much as many of those
            try:
                rows.append(self._row(topic, figures.get(topic.managed_ledger_name), per_second, now_ms))
            except (TopicMissing, MetadataError):  # gone since, or not to be had: it has no row then
                continue
            if topic.partition_index is not None:
                known = partitioned.get(topic.namespace)
                if known is None:
                    known = frozenset(self._service.catalog.partitioned_topics(topic.namespace))
                    partitioned[topic.namespace] = known
                if topic.base in known:
                    partitions[str(topic)] = str(topic.base)
        self._oldest = {name: kept for name, kept in self._oldest.items() if name in figures}
        return Look(now_ms, tuple(rows), partitions, _grouped(rows, partitions))

    def _row(
        self, topic: TopicName, figures: TopicFigures | None, per_second: Mapping[object, float], now_ms: int
    ) -> TopicRow:
        name = topic.managed_ledger_name
        info = self._service.store.info(name)
        opened = self._service.store.opened(name)
        size_bytes = sum(row.size for row in info.ledgerInfo) if opened is None else opened.size_bytes
        statistics = None if self._offload is None else self._offload.statistics(name)
        offloaded_bytes = min(0 if statistics is None else statistics.offloaded_bytes, size_bytes)
        oldest_ms = _oldest_listed_ms(info, now_ms) if opened is None else self._oldest_ms(opened)
        return TopicRow(
            str(topic),
            partitions=0,
            offload=self._mode(topic),
            failing=statistics is not None and statistics.failing,
            open=figures is not None,
            entries=sum(row.entries for row in info.ledgerInfo) if opened is None else opened.layout.total_entries,
            size_bytes=size_bytes,
            offloaded_bytes=offloaded_bytes,
            lag_bytes=size_bytes - offloaded_bytes,
            lag_seconds=None if oldest_ms is None else max(now_ms - oldest_ms, 0) / 1000,
            backlog=0 if figures is None else sum(found.backlog for found in figures.subscriptions),
            subscriptions=0 if figures is None else len(figures.subscriptions),
            producers=0 if figures is None else figures.producers,
            consumers=0 if figures is None else sum(found.consumers for found in figures.subscriptions),
            messages_in_per_second=per_second.get((name, "in", "messages"), 0.0),
            bytes_in_per_second=per_second.get((name, "in", "bytes"), 0.0),
            messages_out_per_second=per_second.get((name, "out", "messages"), 0.0),
            bytes_out_per_second=per_second.get((name, "out", "bytes"), 0.0),
        )

    def _mode(self, topic: TopicName) -> OffloadMode:
        if self._offload is None or planner.is_system_topic(topic):
            return OffloadMode.NONE
        policy = self._service.policies.of(topic.managed_ledger_name)
        if policy.streaming_offload_enabled:
            return OffloadMode.STREAMING
        return OffloadMode.LEDGERS if planner.is_triggered(policy) else OffloadMode.MANUAL

    def _oldest_ms(self, ledger: ManagedLedger) -> int | None:
        """When the oldest entry outside the tier was written. Its place says when: it is read once."""
        position = ledger_list.first_unoffloaded(ledger.info)
        known = self._oldest.get(ledger.name)
        if known is not None and known[0] == position:
            return known[1]
        found = oldest_unoffloaded_ms(ledger, self._service.store)
        if found is not None and ledger.layout.contains(position):
            self._oldest[ledger.name] = position, found
        return found


def _grouped(rows: Iterable[TopicRow], partitions: Mapping[str, str]) -> tuple[TopicRow, ...]:
    groups: dict[str, list[TopicRow]] = {}
    for row in yielding_gil(rows):
        groups.setdefault(partitions.get(row.topic, row.topic), []).append(row)
    return tuple(
        found[0] if len(found) == 1 and found[0].topic == name else sum_rows(name, found)
        for name, found in yielding_gil(groups.items())
    )


def sum_rows(topic: str, rows: Sequence[TopicRow]) -> TopicRow:
    """All partitions of a topic as one row; of the lag in seconds the longest."""
    lags = [row.lag_seconds for row in rows if row.lag_seconds is not None]
    return TopicRow(
        topic,
        partitions=len(rows),
        offload=rows[0].offload,  # partitions have the policies of their topic
        failing=any(row.failing for row in rows),
        open=any(row.open for row in rows),
        lag_seconds=max(lags, default=None),
        subscriptions=max(row.subscriptions for row in rows),
        **{name: sum(getattr(row, name) for row in rows) for name in SUMMED},
    )


def totals(rows: Iterable[TopicRow]) -> dict[str, float]:
    """What all topics have together."""
    summed = dict.fromkeys(SUMMED, 0.0)
    for row in yielding_gil(rows):
        for name in SUMMED:
            summed[name] += getattr(row, name)
    return summed


SUMMED: Final = tuple(
    field.name
    for field in fields(TopicRow)
    if field.name not in {"topic", "partitions", "offload", "failing", "open", "lag_seconds", "subscriptions"}
)
"""What of several topics adds up."""


def _oldest_listed_ms(info: ManagedLedgerInfo, now_ms: int) -> int | None:
    """As far as the list alone tells: when the first ledger that is not whole in the tier got its last entry."""
    outside = ledger_list.first_unoffloaded(info)
    for row in ledger_list.records(info):
        if row.ledger_id == outside.ledger_id and row.entries and outside.entry_id < row.entries:
            return row.last_broker_time_ms or row.closed_ms or None
    return now_ms
