"""Definitions of all metrics: the table behind the exposition, its page in the docs, and the check of the dashboard.

Metrics of Pulsar have Pulsar's names and labels; those of Afterglow alone start with ``afterglow_``. Every series has
the label ``cluster`` besides those defined here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

OTHER: Final = "other"
"""Label of topics and subscriptions without series of their own."""


class MetricType(StrEnum):
    """Type of a metric in the Prometheus exposition."""

    COUNTER = "counter"
    """Counts from the start of the process, or from the opening of the topic."""
    GAUGE = "gauge"
    SUMMARY = "summary"
    """Quantiles over the last minutes; ``_sum`` and ``_count`` are counters."""
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """Rule that merges values of several topics."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    """The emitted name; counters end in ``_total``."""
    type: MetricType
    labels: tuple[str, ...]
    """Labels besides ``cluster``."""
    help: str
    merge: Merge = Merge.SUM
    family: str = ""
    """Name of the summary or histogram of this series; empty for other types."""


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """A group of related metrics."""

    title: str
    metrics: tuple[Metric, ...]
    managed_ledgers: bool = False
    """Whether ``exposeManagedLedgerMetricsInPrometheus`` controls them."""
    attached: bool = False
    """Whether only ``afterglow attach`` has them; else only, or also, an embedded server."""


def _counter(name: str, labels: str, text: str) -> Metric:
    return Metric(name, MetricType.COUNTER, tuple(labels.split()), text)


def _gauge(name: str, labels: str, text: str, merge: Merge = Merge.SUM) -> Metric:
    return Metric(name, MetricType.GAUGE, tuple(labels.split()), text, merge)


def _summary(name: str, labels: str, text: str) -> tuple[Metric, ...]:
    """Quantiles cannot be summed: of several topics the largest is reported."""
    plain = tuple(labels.split())
    return (
        Metric(name, MetricType.SUMMARY, (*plain, "quantile"), text, Merge.MAX, name),
        Metric(f"{name}_sum", MetricType.SUMMARY, plain, text, family=name),
        Metric(f"{name}_count", MetricType.SUMMARY, plain, text, family=name),
    )


def _histogram(name: str, labels: str, text: str) -> tuple[Metric, ...]:
    plain = tuple(labels.split())
    return (
        Metric(f"{name}_bucket", MetricType.HISTOGRAM, (*plain, "le"), text, family=name),
        Metric(f"{name}_sum", MetricType.HISTOGRAM, plain, text, family=name),
        Metric(f"{name}_count", MetricType.HISTOGRAM, plain, text, family=name),
    )


_TOPIC: Final = "namespace topic"
_SUBSCRIPTION: Final = "namespace topic subscription"

GROUPS: Final = (
    MetricGroup(
        "Topics",
        (
            _gauge("pulsar_topics_count", "namespace", "Open topics."),
            _gauge("pulsar_producers_count", _TOPIC, "Connected producers."),
            _gauge("pulsar_consumers_count", _TOPIC, "Connected consumers."),
            _gauge("pulsar_subscriptions_count", _TOPIC, "Subscriptions, including readers."),
            _gauge("pulsar_rate_in", _TOPIC, "Messages per second from producers."),
            _gauge("pulsar_rate_out", _TOPIC, "Messages per second to consumers."),
            _gauge("pulsar_throughput_in", _TOPIC, "Bytes per second from producers."),
            _gauge("pulsar_throughput_out", _TOPIC, "Bytes per second to consumers."),
            _counter("pulsar_in_messages_total", _TOPIC, "Messages from producers."),
            _counter("pulsar_in_bytes_total", _TOPIC, "Bytes from producers."),
            _counter("pulsar_out_messages_total", _TOPIC, "Messages to consumers."),
            _counter("pulsar_out_bytes_total", _TOPIC, "Bytes to consumers."),
            _gauge("pulsar_msg_backlog", _TOPIC, "Unacknowledged entries, summed over subscriptions."),
            _gauge("pulsar_storage_size", _TOPIC, "Bytes of all entries, hot and offloaded."),
            _gauge(
                "pulsar_storage_logical_size", _TOPIC, "The same as pulsar_storage_size: entries are not replicated."
            ),
            _gauge("pulsar_storage_backlog_size", _TOPIC, "Estimated backlog of the slowest subscription in bytes."),
        ),
    ),
    MetricGroup(
        "Subscriptions",
        (
            _gauge("pulsar_subscription_back_log", _SUBSCRIPTION, "Unacknowledged entries."),
            _gauge("pulsar_subscription_unacked_messages", _SUBSCRIPTION, "Messages sent and not acknowledged."),
            _gauge("pulsar_subscription_delayed", _SUBSCRIPTION, "Messages that wait for their delivery time."),
            _gauge("pulsar_subscription_consumers_count", _SUBSCRIPTION, "Connected consumers."),
            _gauge("pulsar_subscription_msg_rate_out", _SUBSCRIPTION, "Messages per second to consumers."),
            _gauge("pulsar_subscription_msg_throughput_out", _SUBSCRIPTION, "Bytes per second to consumers."),
        ),
    ),
    MetricGroup(
        "Offload",
        (
            _gauge("pulsar_storage_offloaded_size", _TOPIC, "Bytes of offloaded entries."),
            _counter("brk_ledgeroffloader_offload_error_total", _TOPIC, "Failed attempts of tasks; each is retried."),
            _counter(
                "brk_ledgeroffloader_write_storage_error_total",
                _TOPIC,
                "Failed attempts of tasks that were caused by the store. Requests of the server itself, such as those "
                "that create and complete an upload, are in afterglow_store_requests_total.",
            ),
            _gauge("brk_ledgeroffloader_offload_rate", _TOPIC, "Bytes per second uploaded by tasks."),
            *_summary(
                "brk_ledgeroffloader_read_ledger_latency",
                _TOPIC,
                "Microseconds in which a task read and verified a part from the hot log; in Pulsar, a batch of "
                "entries.",
            ),
            _counter(
                "brk_ledgeroffloader_delete_offload_ops_total",
                "namespace topic status",
                "Deletions of objects with their index, by status: succeed, or failed, which is retried. Deletions for "
                "deleted topics have no series.",
            ),
            _gauge(
                "afterglow_offload_lag_bytes",
                _TOPIC,
                "Bytes of entries that are not offloaded yet, regardless of policies.",
            ),
            _gauge(
                "afterglow_offload_lag_seconds",
                _TOPIC,
                "Age of the oldest entry that is not offloaded; 0 if all are.",
                Merge.MAX,
            ),
            _gauge(
                "afterglow_segments",
                "namespace topic status",
                "Segments of streaming offload by status: Assigned, Failed (will be retried) and Offloaded.",
            ),
            _gauge(
                "afterglow_open_segment_age_seconds",
                _TOPIC,
                "Time since the assignment of the oldest segment that is not offloaded; 0 without such a segment.",
                Merge.MAX,
            ),
            _gauge("afterglow_offload_ledgers_running", _TOPIC, "Ledgers that are being offloaded."),
            _gauge(
                "afterglow_offload_ledgers_stalled",
                _TOPIC,
                "Ledgers being offloaded that have made no progress for offloadStallWarningSeconds.",
            ),
            _gauge(
                "afterglow_offload_last_success_timestamp_seconds",
                _TOPIC,
                "Time of the last successful offload since the start; 0 without one.",
                Merge.MAX,
            ),
            _gauge(
                "afterglow_offload_last_failure_timestamp_seconds",
                _TOPIC,
                "Time of the last failed offload since the start; 0 without one.",
                Merge.MAX,
            ),
            _counter(
                "afterglow_offload_task_bytes_total",
                "namespace topic route",
                "Bytes that tasks have read and uploaded, by route: files or protocol.",
            ),
            _counter(
                "afterglow_offload_read_bytes_total",
                "from",
                "Bytes of entries that offload tasks have read, by origin. Over the protocol: buffer (the offload "
                "buffer), cache (the tail cache) or hot (the hot log). On the server's own disk: file (ledger files, "
                "of which the page cache holds the newest). Retries of a task count again.",
            ),
        ),
        managed_ledgers=True,
    ),
    MetricGroup(
        "Reads",
        (
            _counter("brk_ledgeroffloader_read_bytes_total", _TOPIC, "Bytes of entries served by the tier."),
            _gauge("brk_ledgeroffloader_read_offload_rate", _TOPIC, "Bytes per second served by the tier."),
            _counter(
                "brk_ledgeroffloader_read_offload_error_total",
                _TOPIC,
                "Objects that could not be opened, and failed ranged reads.",
            ),
            *_summary(
                "brk_ledgeroffloader_read_offload_index_latency",
                _TOPIC,
                "Microseconds to open an object: the head of the data object, which Pulsar does not request, and the "
                "parsed index. Open objects are cached.",
            ),
            *_summary(
                "brk_ledgeroffloader_read_offload_data_latency",
                _TOPIC,
                "Microseconds of a ranged read of a data object, including retries and throttling.",
            ),
            _counter(
                "afterglow_read_bytes_total",
                "namespace topic tier",
                "Bytes of entries by serving tier: hot or tiered. Reads from the cache and by searches by time are not "
                "counted.",
            ),
            _counter("afterglow_read_entries_total", "namespace topic tier", "Entries by serving tier."),
            _counter(
                "afterglow_read_fallbacks_total",
                "namespace topic wanted reason",
                "Reads that the preferred tier failed to serve and the other one served, by reason.",
            ),
            _counter(
                "afterglow_read_left_out_entries_total",
                "namespace topic reason",
                "Entries that no copy could serve and that were skipped, by reason.",
            ),
            _counter("afterglow_tier_reads_total", _TOPIC, "Ranged reads of data objects."),
            _counter(
                "afterglow_tier_fetched_bytes_total",
                _TOPIC,
                "Bytes of ranged reads of data objects. The quotient by brk_ledgeroffloader_read_bytes_total is the "
                "read amplification.",
            ),
        ),
        managed_ledgers=True,
    ),
    MetricGroup(
        "Tier and Spark",
        (
            _gauge(
                "afterglow_tier_available", "location", "Availability of the tier: 1, or 0 while it is unavailable."
            ),
            _gauge(
                "afterglow_tier_unavailable_since_timestamp_seconds",
                "location",
                "Time of the first failed request of the current outage; 0 while the tier is available.",
            ),
            _counter(
                "afterglow_store_requests_total",
                "operation result",
                "Requests of this process to tiers, by operation and result: ok, or the name of the error. Requests of "
                "tasks in Spark's workers are not counted.",
            ),
            _counter("afterglow_store_request_seconds_total", "operation", "Duration of these requests."),
            _counter("afterglow_store_sent_bytes_total", "operation", "Bytes of objects sent by these requests."),
            _counter(
                "afterglow_store_received_bytes_total", "operation", "Bytes of objects received by these requests."
            ),
            _gauge("afterglow_spark_jobs_running", "", "Offload jobs that were submitted and have not ended."),
            _counter("afterglow_spark_jobs_total", "result", "Ended offload jobs by result: succeeded or failed."),
            *_histogram(
                "afterglow_spark_job_seconds",
                "",
                "Time from submission to end of offload jobs; the first includes the start of Spark.",
            ),
        ),
        managed_ledgers=True,
    ),
    MetricGroup(
        "Verification",
        (
            _gauge("afterglow_checks_running", "", "Running verifications, at most one."),
            _counter("afterglow_checks_total", "state", "Ended verifications by state: done, failed or cancelled."),
            _gauge(
                "afterglow_check_findings",
                "depth kind",
                "Findings of the last completed verification that its sweep has not deleted. The depth is shallow or "
                "deep: a shallow verification does not detect damage within objects.",
            ),
            _gauge(
                "afterglow_check_last_timestamp_seconds", "depth", "Time of the end of the last completed verification."
            ),
            _gauge("afterglow_check_last_duration_seconds", "depth", "Duration of the last completed verification."),
            _counter("afterglow_sweep_deleted_total", "kind", "Objects deleted by sweeps, by kind of finding."),
        ),
    ),
    MetricGroup(
        "Memory",
        (
            _gauge("pulsar_ml_cache_used_size", "", "Bytes in the tail cache, including overhead."),
            _gauge("pulsar_ml_cache_entries", "", "Entries in the tail cache."),
            _counter("pulsar_ml_cache_evicted_entries_total", "", "Entries evicted from the tail cache."),
            _counter("afterglow_cache_hits_total", "", "Entries read from the tail cache."),
            _counter("afterglow_cache_hit_bytes_total", "", "Bytes of entries read from the tail cache."),
            _counter("afterglow_cache_misses_total", "", "Reads that did not start in the tail cache."),
            _gauge("afterglow_offload_buffer_bytes", "", "Bytes in the offload buffer, including overhead."),
            _gauge(
                "afterglow_offload_buffer_budget_bytes",
                "",
                "Limit of the offload buffer: offloadBufferMaxBytes, or 0 without a buffer, if tasks read files.",
            ),
            _gauge("afterglow_offload_buffer_entries", "", "Entries in the offload buffer."),
            _counter(
                "afterglow_offload_buffer_refused_entries_total",
                "",
                "Entries that the offload buffer refused, since it was full or had refused an earlier one. Tasks read "
                "them from the hot log.",
            ),
            _counter("afterglow_offload_buffer_refused_bytes_total", "", "Bytes of refused entries."),
            _counter(
                "afterglow_offload_buffer_dropped_entries_total",
                "",
                "Entries that were dropped from the offload buffer before they were offloaded, since their topic was "
                "closed or deleted or its streaming was turned off.",
            ),
            _counter(
                "afterglow_raw_read_bytes_total",
                "origin",
                "Bytes sent over the protocol to raw readers (offload tasks and readers of sources), by origin: cache, "
                "buffer or log.",
            ),
            _gauge(
                "afterglow_hot_pending_bytes",
                "",
                "Bytes in memory that are not yet written to the journal, or not yet to the ledger files.",
            ),
        ),
        managed_ledgers=True,
    ),
    MetricGroup(
        "Broker",
        (
            _gauge("pulsar_active_connections", "", "Client connections."),
            _gauge(
                "afterglow_topics_without_series",
                "",
                'Topics beyond metricsMaxTopics, which are merged into the series "other".',
            ),
        ),
    ),
    MetricGroup(
        "Attach",
        (
            _gauge("afterglow_attach_topics", "namespace", "Attached topics; each partition is one."),
            _counter(
                "afterglow_attach_confirmed_entries_total",
                _TOPIC,
                "Entries that brokers of the cluster have confirmed while the topic was attached.",
            ),
            _counter("afterglow_attach_confirmed_bytes_total", _TOPIC, "Bytes of these entries."),
            _gauge(
                "afterglow_attach_lag_entries",
                _TOPIC,
                "Entries behind the last committed segment, which the subscription keeps the cluster from trimming. "
                "Bytes and age of the lag are in afterglow_offload_lag_bytes and afterglow_offload_lag_seconds.",
            ),
            _gauge(
                "afterglow_attach_held",
                _TOPIC,
                "1 while the subscription that holds back trimming has its consumer connected, else 0.",
            ),
            _gauge(
                "afterglow_attach_may_be_lost",
                _TOPIC,
                "1 if the cluster may have trimmed entries that are not in the tier: --when-behind release has given "
                "up their hold, or the subscription was found ahead of what was acknowledged, since others have moved "
                "or deleted it. Alert if it is not 0.",
            ),
            _gauge(
                "afterglow_attach_lost_entries",
                _TOPIC,
                "Entries that the cluster has trimmed before they were in the tier. Alert if it rises.",
            ),
            _gauge(
                "afterglow_attach_follow_failing",
                _TOPIC,
                "1 if the last poll of the topic failed, which is repeated within ten seconds.",
            ),
            _counter(
                "afterglow_attach_polls_total",
                "result",
                "Polls of topics: read (one request to a broker for statistics and one to ZooKeeper), unchanged (one "
                "request for the last message of an idle topic), failed.",
            ),
            _counter(
                "afterglow_attach_read_bytes_total",
                "route",
                "Bytes that tasks have read from the cluster and uploaded, by route: bookies, or protocol (a broker).",
            ),
        ),
        attached=True,
    ),
)

METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for group in GROUPS for metric in group.metrics}
"""All of them by name."""
