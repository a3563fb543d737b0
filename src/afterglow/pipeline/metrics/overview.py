"""Overview of all topics, open or not: one row each, computed without opening any."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from afterglow.broker.policy_refresh import TOPICS_AT_ONCE
from afterglow.broker.traffic import RateMeter
from afterglow.errors import MetadataError, TopicMissing
from afterglow.ledger import ledger_list
from afterglow.metadata.names import TopicName
from afterglow.offload import planner
from afterglow.pipeline.metrics.offload import oldest_unoffloaded_ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.offload.topics import OffloadTopic
    from afterglow.pipeline.metrics.topics import TopicFigures
    from afterglow.pipeline.server_handle import ServerHandle, TopicService

T = TypeVar("T")

_MIN_AGE_S: Final = 1.0
"""A snapshot is reused for at least this time."""
_AGE_PER_COST: Final = 10
"""A snapshot that took one second is reused for ten, so that snapshots take at most a tenth of one thread."""
_RATES_S: Final = 5.0
"""Period of the rates. The console shall show a change within seconds; the broker's own rates cover a minute."""


class OffloadMode(StrEnum):
    """Method of offload of a topic."""

    STREAMING = "streaming"
    LEDGERS = "ledgers"
    """Whole ledgers, triggered by a threshold."""
    MANUAL = "manual"
    """Whole ledgers, on request only."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic, or the sum of all partitions of one."""

    topic: str
    """The full name."""
    partitions: int
    """Number of partitions in the sum; 0: the topic is not partitioned, or is a partition."""
    offload: OffloadMode
    failing: bool
    """Whether its last offload has failed."""
    open: bool
    """Whether it is open; otherwise it has no clients, and their figures are 0."""
    entries: int
    size_bytes: int
    """Size of all entries, hot and offloaded."""
    offloaded_bytes: int
    lag_bytes: int
    """Size of entries that are not in the tier."""
    lag_seconds: float | None
    """Age of the oldest entry outside the tier, None if unknown; for a closed topic that of the last entry of the
    ledger."""
    backlog: int
    """Unacknowledged entries, summed over subscriptions."""
    subscriptions: int
    producers: int
    consumers: int
    messages_in_per_second: float
    bytes_in_per_second: float
    messages_out_per_second: float
    bytes_out_per_second: float


@dataclass(frozen=True, slots=True)
class TopicsSnapshot:
    """All topics at one time."""

    now_ms: int
    topics: tuple[TopicRow, ...]
    """All topics and partitions, in no order."""
    partitions: Mapping[str, str]
    """Names of partitioned topics by names of their partitions."""
    grouped: tuple[TopicRow, ...]
    """All topics, with partitioned topics instead of their partitions."""

    def of(self, topic: str) -> tuple[TopicRow, ...]:
        """The partitions of a topic."""
        return tuple(row for row in yielding_gil(self.topics) if self.partitions.get(row.topic) == topic)


def yielding_gil(items: Iterable[T]) -> Iterator[T]:
    """Iterate in a thread and yield the GIL after every few items: the event loop would wait 5 ms for it otherwise."""
    for number, item in enumerate(items):
        if number % TOPICS_AT_ONCE == 0:
            time.sleep(0)
        yield item


class Overview:
    """Takes snapshots of all topics on request, at a limited rate.

    Args:
        server: The server.
        figures: Takes the figures of all open topics, in the event loop of the server.
        monotonic: Seconds from any origin.
    """

    def __init__(
        self,
        server: ServerHandle[TopicService],
        figures: Callable[[], Awaitable[Sequence[TopicFigures]]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = server.service
        self._figures = figures
        self._offload = server.offload
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._rates = RateMeter(monotonic, _RATES_S)
        self._oldest: dict[str, tuple[Position, int]] = {}
        self._last: TopicsSnapshot | None = None
        self._expires_s = 0.0

    async def snapshot(self) -> TopicsSnapshot:
        """All topics as of now or seconds ago. Called in the event loop of the server, which it does not block."""
        async with self._lock:
            started_s = self._monotonic()
            if self._last is None or started_s >= self._expires_s:
                figures = {found.ledger_name: found for found in await self._figures()}
                self._last = await self._service.blocking(self._take_snapshot, figures)
                ended_s = self._monotonic()
                self._expires_s = ended_s + max(_MIN_AGE_S, _AGE_PER_COST * (ended_s - started_s))
            return self._last

    async def open_topics(self) -> tuple[int, tuple[TopicRow, ...]]:
        """The time, and the rows of the open topics as of now: without the metadata of closed ones, which costs more.

        Called in the event loop of the server, which it does not block.
        """
        async with self._lock:
            figures = {found.ledger_name: found for found in await self._figures()}
            return await self._service.blocking(self._open_rows, figures)

    def _open_rows(self, figures: Mapping[str, TopicFigures]) -> tuple[int, tuple[TopicRow, ...]]:
        per_second = self._measure(figures)
        now_ms = self._service.store.clock.now_ms()
        rows: list[TopicRow] = []
        for name, found in figures.items():
            time.sleep(0)  # yields the GIL, as in a snapshot
            try:
                rows.append(self._row(TopicName.from_managed_ledger_name(name), found, per_second, now_ms))
            except (TopicMissing, MetadataError):  # deleted meanwhile, or unavailable
                continue
        return now_ms, tuple(rows)

    def _measure(self, figures: Mapping[str, TopicFigures]) -> Mapping[object, float]:
        return self._rates.measure(
            {
                (name, way, unit): count
                for name, found in figures.items()
                for way, traffic in (("in", found.traffic_in), ("out", found.traffic_out))
                for unit, count in (("messages", traffic.messages), ("bytes", traffic.size_bytes))
            }
        )

    def _take_snapshot(self, figures: Mapping[str, TopicFigures]) -> TopicsSnapshot:
        per_second = self._measure(figures)
        now_ms = self._service.store.clock.now_ms()
        rows: list[TopicRow] = []
        partitions: dict[str, str] = {}
        partitioned: dict[object, frozenset[TopicName]] = {}
        for topic in self._service.store.all_topics():
            time.sleep(0)  # yields the GIL after each row, which may cost as much as many items of yielding_gil
            try:
                rows.append(self._row(topic, figures.get(topic.managed_ledger_name), per_second, now_ms))
            except (TopicMissing, MetadataError):  # deleted meanwhile, or unavailable: the topic gets no row
                continue
            if topic.partition_index is not None:
                known = partitioned.get(topic.namespace)
                if known is None:
                    known = frozenset(self._service.catalog.partitioned_topics(topic.namespace))
                    partitioned[topic.namespace] = known
                if topic.base in known:
                    partitions[str(topic)] = str(topic.base)
        self._oldest = {name: kept for name, kept in self._oldest.items() if name in figures}
        return TopicsSnapshot(now_ms, tuple(rows), partitions, _grouped(rows, partitions))

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

    def _oldest_ms(self, ledger: OffloadTopic) -> int | None:
        """When the oldest entry outside the tier was written; an entry of a known position is not read again."""
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
    """The sum of all partitions of a topic as one row, with the longest lag in seconds."""
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
    """Sums over all topics."""
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
"""Fields that are summed over topics."""


def _oldest_listed_ms(info: ManagedLedgerInfo, now_ms: int) -> int | None:
    """When the first ledger that is not fully offloaded got its last entry, from the ledger list alone."""
    outside = ledger_list.first_unoffloaded(info)
    for row in ledger_list.records(info):
        if row.ledger_id == outside.ledger_id and row.entries and outside.entry_id < row.entries:
            return row.last_broker_time_ms or row.closed_ms or None
    return now_ms
