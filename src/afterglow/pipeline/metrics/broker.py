"""Metrics of an embedded broker: its topics, connections and memory."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from afterglow.broker.policy_refresh import TOPICS_AT_ONCE
from afterglow.ledger.offload_buffer import BufferStatistics
from afterglow.ledger.reader import ReadOrigin
from afterglow.pipeline.metrics.collector import MetricsCollector
from afterglow.pipeline.metrics.topics import add_topics, figures_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from afterglow.broker.service import BrokerService
    from afterglow.metadata.names import TopicName
    from afterglow.pipeline.metrics.samples import Samples
    from afterglow.pipeline.metrics.topics import TopicFigures
    from afterglow.pipeline.server_handle import ServerHandle


class BrokerMetrics(MetricsCollector):
    """Metrics of a server with a broker; see the base class for the arguments."""

    def __init__(self, server: ServerHandle[BrokerService], monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(server, monotonic)
        self._service = server.service

    async def open_topics(self) -> AsyncIterator[tuple[TopicName, Callable[..., TopicFigures]]]:
        """All open topics; the event loop runs other work after every few of them."""
        for number, (name, topic) in enumerate(self._service.open_topics.items()):
            yield name, partial(figures_of, topic)
            if number % TOPICS_AT_ONCE == TOPICS_AT_ONCE - 1:
                await asyncio.sleep(0)

    def _begin(self) -> Callable[[Samples, Sequence[TopicFigures]], None]:
        return partial(self._add_own, len(self._service.connections))

    def _add_own(self, connections: int, samples: Samples, topics: Sequence[TopicFigures]) -> None:
        add_topics(samples, topics, self._config.metrics_max_topics)
        self._add_memory(samples)
        samples.add("pulsar_active_connections", connections)

    def _add_memory(self, samples: Samples) -> None:
        store = self._service.store
        cache = store.cache.statistics
        samples.add("pulsar_ml_cache_used_size", cache.bytes_held)
        samples.add("pulsar_ml_cache_entries", cache.entries)
        samples.add("pulsar_ml_cache_evicted_entries_total", cache.evictions)
        samples.add("afterglow_cache_hits_total", cache.hits)
        samples.add("afterglow_cache_hit_bytes_total", cache.hit_bytes)
        samples.add("afterglow_cache_misses_total", cache.misses)
        raw_reads, offload_reads = self._service.raw_reads, self._service.offload_reads
        log_bytes = raw_reads[ReadOrigin.HOT] + raw_reads[ReadOrigin.TIER]
        samples.add("afterglow_raw_read_bytes_total", raw_reads[ReadOrigin.CACHE], "cache")
        samples.add("afterglow_raw_read_bytes_total", raw_reads[ReadOrigin.BUFFER], "buffer")
        samples.add("afterglow_raw_read_bytes_total", log_bytes, "log")
        for origin in (ReadOrigin.BUFFER, ReadOrigin.CACHE, ReadOrigin.HOT):
            samples.add("afterglow_offload_read_bytes_total", offload_reads[origin], origin)
        file_bytes = 0 if self._offload is None else self._offload.file_bytes
        samples.add("afterglow_offload_read_bytes_total", file_bytes, "file")
        samples.add("afterglow_hot_pending_bytes", store.hot.pending_bytes)
        buffer = store.cache.buffer
        held = BufferStatistics() if buffer is None else buffer.statistics
        samples.add("afterglow_offload_buffer_bytes", held.bytes_held)
        samples.add("afterglow_offload_buffer_budget_bytes", 0 if buffer is None else buffer.budget_bytes)
        samples.add("afterglow_offload_buffer_entries", held.entries)
        samples.add("afterglow_offload_buffer_refused_entries_total", held.refused)
        samples.add("afterglow_offload_buffer_refused_bytes_total", held.refused_bytes)
        samples.add("afterglow_offload_buffer_dropped_entries_total", held.dropped)
