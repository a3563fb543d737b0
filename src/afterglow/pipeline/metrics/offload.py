"""Metrics of offload and of reads by tier. Waits for disks: to be called outside the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError
from afterglow.ledger.ledger_list import first_unoffloaded
from afterglow.ledger.time_search import entry_time
from afterglow.offload.segments.listing import SegmentStatus
from afterglow.offload.task import Route
from afterglow.read.copies import StorageTier

if TYPE_CHECKING:
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.offload.status import OffloadStatistics
    from afterglow.offload.topics import OffloadTopic
    from afterglow.pipeline.metrics.samples import Samples
    from afterglow.pipeline.metrics.topics import TopicFigures
    from afterglow.pipeline.server_handle import TopicStore
    from afterglow.read.counters import ReadCounts


def add_offload(samples: Samples, topic: TopicFigures, statistics: OffloadStatistics, store: TopicStore) -> None:
    """Add the offload state of a topic."""
    labels = topic.namespace, topic.topic
    samples.add("pulsar_storage_offloaded_size", statistics.offloaded_bytes, *labels)
    samples.add("brk_ledgeroffloader_offload_error_total", statistics.failed_tasks, *labels)
    samples.add("brk_ledgeroffloader_write_storage_error_total", statistics.failed_writes, *labels)
    samples.add("brk_ledgeroffloader_delete_offload_ops_total", statistics.deletions_done, *labels, "succeed")
    samples.add("brk_ledgeroffloader_delete_offload_ops_total", statistics.deletions_failed, *labels, "failed")
    samples.add_summary("brk_ledgeroffloader_read_ledger_latency", statistics.read_latency, *labels)
    samples.add("afterglow_offload_ledgers_running", len(statistics.running), *labels)
    samples.add("afterglow_offload_ledgers_stalled", len(statistics.stalled), *labels)
    samples.add("afterglow_offload_last_success_timestamp_seconds", statistics.last_success_ms / 1000, *labels)
    samples.add("afterglow_offload_last_failure_timestamp_seconds", statistics.last_failure_ms / 1000, *labels)
    for route in Route:
        samples.add("afterglow_offload_task_bytes_total", getattr(statistics.read_bytes, route), *labels, route)
    ledger = store.opened(topic.ledger_name)
    if ledger is None:  # closed meanwhile
        return
    now_ms = store.clock.now_ms()
    samples.add("afterglow_offload_lag_bytes", max(ledger.size_bytes - statistics.offloaded_bytes, 0), *labels)
    oldest_ms = oldest_unoffloaded_ms(ledger, store)
    if oldest_ms is not None:
        samples.add("afterglow_offload_lag_seconds", max(now_ms - oldest_ms, 0) / 1000, *labels)
    _add_segments(samples, labels, ledger.info, statistics.failed_segments, now_ms)


def add_reads(samples: Samples, topic: TopicFigures, counts: ReadCounts) -> None:
    """Add the reads of a topic by serving tier."""
    labels = topic.namespace, topic.topic
    samples.add("brk_ledgeroffloader_read_bytes_total", counts.bytes.get(StorageTier.TIERED, 0), *labels)
    samples.add("brk_ledgeroffloader_read_offload_error_total", counts.failed, *labels)
    samples.add_summary("brk_ledgeroffloader_read_offload_index_latency", counts.index_latency, *labels)
    samples.add_summary("brk_ledgeroffloader_read_offload_data_latency", counts.data_latency, *labels)
    for tier in StorageTier:
        samples.add("afterglow_read_bytes_total", counts.bytes.get(tier, 0), *labels, tier)
        samples.add("afterglow_read_entries_total", counts.entries.get(tier, 0), *labels, tier)
    for (wanted, reason), reads in counts.fallbacks.items():
        samples.add("afterglow_read_fallbacks_total", reads, *labels, wanted, reason)
    for reason, entries in counts.skipped.items():
        samples.add("afterglow_read_left_out_entries_total", entries, *labels, reason)
    samples.add("afterglow_tier_reads_total", counts.requests, *labels)
    samples.add("afterglow_tier_fetched_bytes_total", counts.fetched_bytes, *labels)


def oldest_unoffloaded_ms(ledger: OffloadTopic, store: TopicStore) -> int | None:
    """When the oldest entry outside the tier was written; now if all are offloaded, None if it cannot be read."""
    oldest = ledger.layout.at_or_after(first_unoffloaded(ledger.info))
    if oldest is None:
        return store.clock.now_ms()
    try:
        (entry,) = store.hot.open(oldest.ledger_id).read(oldest.entry_id, oldest.entry_id)
        return entry_time(entry).time_ms
    except (AfterglowError, ValueError):  # deleted meanwhile, or not a valid entry
        return None


def _add_segments(samples: Samples, labels: tuple[str, str], info: ManagedLedgerInfo, failed: int, now_ms: int) -> None:
    """Add the segments of the ledger list, in which a segment of several ledgers is repeated."""
    found = {
        (segment.uidMsb, segment.uidLsb): segment
        for row in info.ledgerInfo
        for segment in row.offloadContext.offloadSegment
    }
    unfinished = [segment for segment in found.values() if not segment.complete]
    failed = min(failed, len(unfinished))
    samples.add("afterglow_segments", len(found) - len(unfinished), *labels, SegmentStatus.OFFLOADED)
    samples.add("afterglow_segments", len(unfinished) - failed, *labels, SegmentStatus.ASSIGNED)
    samples.add("afterglow_segments", failed, *labels, SegmentStatus.FAILED)
    since_ms = min((segment.assignedTimestamp for segment in unfinished), default=now_ms)
    samples.add("afterglow_open_segment_age_seconds", max(now_ms - since_ms, 0) / 1000, *labels)
