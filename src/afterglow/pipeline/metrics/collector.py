"""Collection of all metrics of a process: state of the event loop in its thread, the rest in another."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from afterglow.broker.policy_refresh import TOPICS_AT_ONCE
from afterglow.broker.traffic import RateMeter
from afterglow.errors import MetadataError, TopicMissing
from afterglow.ledger.offload_buffer import BufferStatistics
from afterglow.ledger.reader import ReadOrigin
from afterglow.offload.task_dispatch import JOB_SECONDS
from afterglow.pipeline.metrics.definitions import GROUPS
from afterglow.pipeline.metrics.offload import add_offload, add_reads
from afterglow.pipeline.metrics.samples import Samples
from afterglow.pipeline.metrics.topics import add_topics, figures_of
from afterglow.pipeline.verify_runs import VerifyState
from afterglow.read.copies import StorageTier
from afterglow.verify import FindingKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from afterglow.broker.service import BrokerService
    from afterglow.broker.topic import Topic
    from afterglow.metadata.names import TopicName
    from afterglow.offload.status import OffloadStatistics
    from afterglow.pipeline.metrics.topics import TopicFigures
    from afterglow.pipeline.server_handle import ServerHandle
    from afterglow.pipeline.verify_runs import VerifyFigures
    from afterglow.read.counters import ReadCounts


def add_verification(samples: Samples, figures: VerifyFigures) -> None:
    """Add findings of verification, and deletions of sweeps."""
    samples.add("afterglow_checks_running", figures.running)
    for state in (VerifyState.DONE, VerifyState.FAILED, VerifyState.CANCELLED):
        samples.add("afterglow_checks_total", figures.ended.get(state, 0), state)
    for kind in (FindingKind.ORPHAN_OBJECT, FindingKind.LEAKED_UPLOAD):
        samples.add("afterglow_sweep_deleted_total", figures.deleted.get(kind, 0), kind)
    for deep, result in figures.last.items():
        depth = "deep" if deep else "shallow"
        samples.add("afterglow_check_last_timestamp_seconds", result.ended_ms / 1000, depth)
        samples.add("afterglow_check_last_duration_seconds", (result.ended_ms - result.started_ms) / 1000, depth)
        for kind in FindingKind:
            left = result.counts.get(kind, 0) - result.deleted.get(kind, 0)
            samples.add("afterglow_check_findings", left, depth, kind)


_NO_TOPICS: Final = frozenset({"topic", "subscription"})


async def _open_topics(service: BrokerService) -> AsyncIterator[tuple[TopicName, Topic]]:
    """All open topics; the event loop runs other work after every few of them."""
    for number, found in enumerate(service.open_topics.items()):
        yield found
        if number % TOPICS_AT_ONCE == TOPICS_AT_ONCE - 1:
            await asyncio.sleep(0)


async def all_topic_figures(service: BrokerService) -> list[TopicFigures]:
    """Figures of all open topics, each by its own name. To be called in the broker's event loop."""
    return [figures_of(topic, own_series=True) async for _, topic in _open_topics(service)]


class MetricsCollector:
    """Collects metrics on request, one request at a time.

    Args:
        server: The server.
        monotonic: Seconds from any origin.
    """

    def __init__(self, server: ServerHandle, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._service = server.service
        self._offload = server.offload
        self._lock = asyncio.Lock()
        config = server.service.config
        self._tier_rates = RateMeter(monotonic, config.managed_ledger_stats_period_seconds)
        self._hidden = frozenset(
            metric.name
            for group in GROUPS
            if group.managed_ledgers and not config.expose_managed_ledger_metrics_in_prometheus
            for metric in group.metrics
        )

    async def collect(self) -> Samples:
        """All metrics as of now. To be called in the broker's event loop, which it does not block."""
        async with self._lock:
            topics = await self._topics(self._service.config.metrics_max_topics)
            connections = len(self._service.connections)
            return await self._service.blocking(self._gather, topics, connections)

    async def _topics(self, limit: int) -> list[TopicFigures]:
        """Figures of all open topics; the limit applies to namespaces if series have no topic label."""
        by_topic = self._service.config.expose_topic_level_metrics_in_prometheus
        with_series: set[object] = set()
        found = []
        async for name, topic in _open_topics(self._service):
            key = name if by_topic else name.namespace
            if len(with_series) < limit:
                with_series.add(key)
            found.append(figures_of(topic, own_series=key in with_series))
        return found

    def _gather(self, topics: Sequence[TopicFigures], connections: int) -> Samples:
        config = self._service.config
        by_topic = config.expose_topic_level_metrics_in_prometheus
        samples = Samples(frozenset() if by_topic else _NO_TOPICS, self._hidden)
        add_topics(samples, topics, config.metrics_max_topics)
        self._add_tiers(samples, topics)
        self._add_work(samples)
        self._add_memory(samples)
        if self._server.verify_runs is not None:
            add_verification(samples, self._server.verify_runs.figures())
        samples.add("pulsar_active_connections", connections)
        samples.add("afterglow_topics_without_series", sum(not topic.has_own_series for topic in topics))
        return samples

    def _add_tiers(self, samples: Samples, topics: Sequence[TopicFigures]) -> None:
        counts: dict[object, int] = {}
        collected: list[tuple[TopicFigures, OffloadStatistics | None, ReadCounts | None]] = []
        for topic in topics:
            time.sleep(0)  # yields the GIL: the event loop would wait five milliseconds for it otherwise
            statistics, reads = self._statistics(topic), self._server.read_counts(topic.ledger_name)
            collected.append((topic, statistics, reads))
            if statistics is not None:
                counts[topic.ledger_name, "offload"] = statistics.read_bytes.total
            if reads is not None:
                counts[topic.ledger_name, "read"] = reads.bytes.get(StorageTier.TIERED, 0)
        per_second = self._tier_rates.measure(counts)
        for topic, statistics, reads in collected:
            labels = topic.namespace, topic.topic
            if statistics is not None:
                add_offload(samples, topic, statistics, self._service.store)
                rate = per_second[topic.ledger_name, "offload"]
                samples.add("brk_ledgeroffloader_offload_rate", rate, *labels)
            if reads is not None:
                add_reads(samples, topic, reads)
                samples.add("brk_ledgeroffloader_read_offload_rate", per_second[topic.ledger_name, "read"], *labels)

    def _statistics(self, topic: TopicFigures) -> OffloadStatistics | None:
        if self._offload is None or self._hidden:
            return None
        try:
            return self._offload.statistics(topic.ledger_name)
        except (TopicMissing, MetadataError):  # deleted meanwhile, or unavailable: the topic gets no series
            return None

    def _add_work(self, samples: Samples) -> None:
        for location, outage in ({} if self._offload is None else self._offload.tiers()).items():
            samples.add("afterglow_tier_available", int(outage is None), location)
            since_s = 0 if outage is None else outage.since_ms / 1000
            samples.add("afterglow_tier_unavailable_since_timestamp_seconds", since_s, location)
        for operation, count in self._server.tier_requests().items():
            succeeded = count.requests - sum(count.errors.values())
            for result, requests in (("ok", succeeded), *count.errors.items()):
                samples.add("afterglow_store_requests_total", requests, operation, result)
            samples.add("afterglow_store_request_seconds_total", count.seconds, operation)
            samples.add("afterglow_store_sent_bytes_total", count.sent_bytes, operation)
            samples.add("afterglow_store_received_bytes_total", count.received_bytes, operation)
        jobs = self._server.offload_jobs()
        samples.add("afterglow_spark_jobs_running", jobs.running)
        samples.add("afterglow_spark_jobs_total", jobs.succeeded, "succeeded")
        samples.add("afterglow_spark_jobs_total", jobs.failed, "failed")
        ended = jobs.succeeded + jobs.failed
        for most, within in (*zip(JOB_SECONDS, jobs.within, strict=True), ("+Inf", ended)):
            samples.add("afterglow_spark_job_seconds_bucket", within, str(most))
        samples.add("afterglow_spark_job_seconds_sum", jobs.seconds)
        samples.add("afterglow_spark_job_seconds_count", ended)

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
