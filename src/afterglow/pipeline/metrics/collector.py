"""Collection of all metrics of a process: state of the event loop in its thread, the rest in another."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from afterglow.broker.traffic import RateMeter
from afterglow.errors import MetadataError, TopicMissing
from afterglow.offload.task_dispatch import JOB_SECONDS
from afterglow.pipeline.metrics.definitions import GROUPS
from afterglow.pipeline.metrics.offload import add_offload, add_reads
from afterglow.pipeline.metrics.samples import Samples
from afterglow.pipeline.verify_runs import VerifyState
from afterglow.read.copies import StorageTier
from afterglow.verify import FindingKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from afterglow.metadata.names import TopicName
    from afterglow.offload.status import OffloadStatistics
    from afterglow.pipeline.metrics.topics import TopicFigures
    from afterglow.pipeline.server_handle import ServerHandle, TopicService
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


class MetricsCollector(ABC):
    """Collects metrics on request, one request at a time. Subclasses add those of their kind of process.

    Args:
        server: The server.
        monotonic: Seconds from any origin.
    """

    def __init__(self, server: ServerHandle[TopicService], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._offload = server.offload
        self._lock = asyncio.Lock()
        config = self._config = server.service.config
        self._tier_rates = RateMeter(monotonic, config.managed_ledger_stats_period_seconds)
        self._hidden = frozenset(
            metric.name
            for group in GROUPS
            if group.managed_ledgers and not config.expose_managed_ledger_metrics_in_prometheus
            for metric in group.metrics
        )

    async def collect(self) -> Samples:
        """All metrics as of now. To be called in the event loop of the server, which it does not block."""
        async with self._lock:
            topics = await self._topics(self._config.metrics_max_topics)
            return await self._server.service.blocking(self._gather, topics, self._begin())

    @abstractmethod
    def open_topics(self) -> AsyncIterator[tuple[TopicName, Callable[..., TopicFigures]]]:
        """All open topics, each with a function of its figures.

        The argument ``own_series`` of the function says whether the metrics of the topic have series of their own.
        """

    @abstractmethod
    def _begin(self) -> Callable[[Samples, Sequence[TopicFigures]], None]:
        """Take state of the event loop's thread; returns a function that adds the metrics of the process in another."""

    async def _topics(self, limit: int) -> list[TopicFigures]:
        """Figures of all open topics; the limit applies to namespaces if series have no topic label."""
        by_topic = self._config.expose_topic_level_metrics_in_prometheus
        with_series: set[object] = set()
        found = []
        async for name, figures in self.open_topics():
            key = name if by_topic else name.namespace
            if len(with_series) < limit:
                with_series.add(key)
            found.append(figures(own_series=key in with_series))
        return found

    def _gather(
        self, topics: Sequence[TopicFigures], add_own: Callable[[Samples, Sequence[TopicFigures]], None]
    ) -> Samples:
        by_topic = self._config.expose_topic_level_metrics_in_prometheus
        samples = Samples(frozenset() if by_topic else _NO_TOPICS, self._hidden)
        add_own(samples, topics)
        self._add_tiers(samples, topics)
        self._add_work(samples)
        if self._server.verify_runs is not None:
            add_verification(samples, self._server.verify_runs.figures())
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
                add_offload(samples, topic, statistics, self._server.service.store)
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


async def own_figures(collector: MetricsCollector) -> list[TopicFigures]:
    """Figures of all open topics, each by its own name. To be called in the event loop of the server."""
    return [figures(own_series=True) async for _, figures in collector.open_topics()]
