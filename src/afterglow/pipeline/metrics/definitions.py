"""Every metric that is emitted. The exposition, the page of the docs and the check of the dashboard read this table.

What Pulsar measures has Pulsar's name and labels; what only Afterglow has begins with ``afterglow_``. Each series has
the label ``cluster`` besides those that are named here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

OTHER: Final = "other"
"""Stands for all that has no series of its own."""
TOPIC_LABELS: Final = ("namespace", "topic")
"""The labels that tell topics apart."""


class Kind(StrEnum):
    """What a value means."""

    COUNTER = "counter"
    """Grows from the start of the process, or from when the topic was opened."""
    GAUGE = "gauge"
    """As of now."""
    SUMMARY = "summary"
    """Quantiles of the last minutes; ``_sum`` and ``_count`` grow."""
    HISTOGRAM = "histogram"
    """How many were no larger than each bound; all grow."""


class Merge(StrEnum):
    """How values of several topics become one."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    """As it is emitted; counters end in ``_total``."""
    kind: Kind
    labels: tuple[str, ...]
    """Besides ``cluster``."""
    help: str
    merge: Merge = Merge.SUM
    family: str = ""
    """Name of the summary or the histogram that it is a series of; empty where it stands for itself."""


@dataclass(frozen=True, slots=True)
class Group:
    """Metrics that belong together."""

    title: str
    metrics: tuple[Metric, ...]
    managed_ledgers: bool = False
    """Whether ``exposeManagedLedgerMetricsInPrometheus`` switches them."""


def _counter(name: str, labels: str, text: str) -> Metric:
    return Metric(name, Kind.COUNTER, tuple(labels.split()), text)


def _gauge(name: str, labels: str, text: str, merge: Merge = Merge.SUM) -> Metric:
    return Metric(name, Kind.GAUGE, tuple(labels.split()), text, merge)


def _summary(name: str, labels: str, text: str) -> tuple[Metric, ...]:
    """Quantiles cannot be added up: of several topics the largest is told."""
    plain = tuple(labels.split())
    return (
        Metric(name, Kind.SUMMARY, (*plain, "quantile"), text, Merge.MAX, name),
        Metric(f"{name}_sum", Kind.SUMMARY, plain, text, family=name),
        Metric(f"{name}_count", Kind.SUMMARY, plain, text, family=name),
    )


def _histogram(name: str, labels: str, text: str) -> tuple[Metric, ...]:
    plain = tuple(labels.split())
    return (
        Metric(f"{name}_bucket", Kind.HISTOGRAM, (*plain, "le"), text, family=name),
        Metric(f"{name}_sum", Kind.HISTOGRAM, plain, text, family=name),
        Metric(f"{name}_count", Kind.HISTOGRAM, plain, text, family=name),
    )


_TOPIC: Final = "namespace topic"
_SUBSCRIPTION: Final = "namespace topic subscription"

GROUPS: Final = (
    Group(
        "Topics",
        (
            _gauge("pulsar_topics_count", "namespace", "Topics that are open."),
            _gauge("pulsar_producers_count", _TOPIC, "Producers that are connected."),
            _gauge("pulsar_consumers_count", _TOPIC, "Consumers that are connected."),
            _gauge("pulsar_subscriptions_count", _TOPIC, "Subscriptions, readers included."),
            _gauge("pulsar_rate_in", _TOPIC, "Messages per second from producers."),
            _gauge("pulsar_rate_out", _TOPIC, "Messages per second to consumers."),
            _gauge("pulsar_throughput_in", _TOPIC, "Bytes per second from producers."),
            _gauge("pulsar_throughput_out", _TOPIC, "Bytes per second to consumers."),
            _counter("pulsar_in_messages_total", _TOPIC, "Messages from producers."),
            _counter("pulsar_in_bytes_total", _TOPIC, "Bytes from producers."),
            _counter("pulsar_out_messages_total", _TOPIC, "Messages to consumers."),
            _counter("pulsar_out_bytes_total", _TOPIC, "Bytes to consumers."),
            _gauge("pulsar_msg_backlog", _TOPIC, "Entries that are not acknowledged, summed over subscriptions."),
            _gauge("pulsar_storage_size", _TOPIC, "Bytes of all entries, in whichever tier."),
            _gauge("pulsar_storage_logical_size", _TOPIC, "The same: entries are not replicated here."),
            _gauge("pulsar_storage_backlog_size", _TOPIC, "Bytes behind the slowest subscription, estimated."),
        ),
    ),
    Group(
        "Subscriptions",
        (
            _gauge("pulsar_subscription_back_log", _SUBSCRIPTION, "Entries that are not acknowledged."),
            _gauge("pulsar_subscription_unacked_messages", _SUBSCRIPTION, "Messages sent and not acknowledged."),
            _gauge("pulsar_subscription_delayed", _SUBSCRIPTION, "Messages held back until their delivery time."),
            _gauge("pulsar_subscription_consumers_count", _SUBSCRIPTION, "Consumers that are connected."),
            _gauge("pulsar_subscription_msg_rate_out", _SUBSCRIPTION, "Messages per second to consumers."),
            _gauge("pulsar_subscription_msg_throughput_out", _SUBSCRIPTION, "Bytes per second to consumers."),
        ),
    ),
    Group(
        "Offload",
        (
            _gauge("pulsar_storage_offloaded_size", _TOPIC, "Bytes of entries that are in the tier."),
            _counter(
                "brk_ledgeroffloader_offload_error_total", _TOPIC, "Tries of tasks that failed; each is repeated."
            ),
            _counter(
                "brk_ledgeroffloader_write_storage_error_total",
                _TOPIC,
                "Those of them that the store has failed. Requests of the server itself, as those that begin and "
                "complete an upload, are in afterglow_store_requests_total.",
            ),
            _gauge("brk_ledgeroffloader_offload_rate", _TOPIC, "Bytes per second that tasks have uploaded."),
            *_summary(
                "brk_ledgeroffloader_read_ledger_latency",
                _TOPIC,
                "Microseconds that a task took to read a part from the hot log, and to check and measure it; in "
                "Pulsar, to read a batch of entries.",
            ),
            _counter(
                "brk_ledgeroffloader_delete_offload_ops_total",
                "namespace topic status",
                "Deletions of objects, each with its index: succeed or failed, which is repeated. Those of topics that "
                "are gone have no series.",
            ),
            _gauge(
                "afterglow_offload_lag_bytes",
                _TOPIC,
                "Bytes of entries that are not in the tier yet, whether or not a policy wants them there.",
            ),
            _gauge(
                "afterglow_offload_lag_seconds",
                _TOPIC,
                "Age of the oldest entry that is not in the tier; 0 where all are.",
                Merge.MAX,
            ),
            _gauge(
                "afterglow_segments",
                "namespace topic status",
                "Segments of streaming offload: Assigned, Failed (to be tried again) and Offloaded.",
            ),
            _gauge(
                "afterglow_open_segment_age_seconds",
                _TOPIC,
                "Time since the oldest segment was assigned that is not offloaded yet; 0 where there is none.",
                Merge.MAX,
            ),
            _gauge("afterglow_offload_ledgers_running", _TOPIC, "Whole ledgers that are being offloaded."),
            _gauge(
                "afterglow_offload_ledgers_stalled",
                _TOPIC,
                "Those of them that have not come further for offloadStallWarningSeconds.",
            ),
            _gauge(
                "afterglow_offload_last_success_timestamp_seconds",
                _TOPIC,
                "When an offload last succeeded since the start; 0: none has.",
                Merge.MAX,
            ),
            _gauge(
                "afterglow_offload_last_failure_timestamp_seconds",
                _TOPIC,
                "When one last failed since the start; 0: none has.",
                Merge.MAX,
            ),
            _counter(
                "afterglow_offload_task_bytes_total",
                "namespace topic route",
                "Bytes that tasks have read and uploaded, by where they read them: files or protocol.",
            ),
            _counter(
                "afterglow_offload_read_bytes_total",
                "from",
                "Bytes of entries that offload tasks have read, by where. Over the protocol: buffer (the offload "
                "buffer), cache (the tail cache) or hot (the hot log). On the server's own disk: file (ledger files, "
                "of which the page cache holds the newest). What a task has read counts again where it is retried.",
            ),
        ),
        managed_ledgers=True,
    ),
    Group(
        "Reads",
        (
            _counter("brk_ledgeroffloader_read_bytes_total", _TOPIC, "Bytes of entries that the tier has served."),
            _gauge("brk_ledgeroffloader_read_offload_rate", _TOPIC, "Bytes per second that the tier has served."),
            _counter(
                "brk_ledgeroffloader_read_offload_error_total",
                _TOPIC,
                "Objects that could not be opened, and ranged reads that the store has failed.",
            ),
            *_summary(
                "brk_ledgeroffloader_read_offload_index_latency",
                _TOPIC,
                "Microseconds to open an object: the head of the data object, which Pulsar does not ask for, its "
                "index, and what is made of it. An object that is open is not opened again.",
            ),
            *_summary(
                "brk_ledgeroffloader_read_offload_data_latency",
                _TOPIC,
                "Microseconds of a ranged read of a data object, retries and throttling included.",
            ),
            _counter(
                "afterglow_read_bytes_total",
                "namespace topic tier",
                "Bytes of entries by the tier that served them: hot or tiered. What the cache served is not in it, "
                "nor what a search by time looked at.",
            ),
            _counter("afterglow_read_entries_total", "namespace topic tier", "Entries, likewise."),
            _counter(
                "afterglow_read_fallbacks_total",
                "namespace topic wanted reason",
                "Reads that the wanted tier did not serve, and the other one did.",
            ),
            _counter(
                "afterglow_read_left_out_entries_total",
                "namespace topic reason",
                "Entries that no copy could give and that were left out.",
            ),
            _counter("afterglow_tier_reads_total", _TOPIC, "Ranged reads of data objects."),
            _counter(
                "afterglow_tier_fetched_bytes_total",
                _TOPIC,
                "Bytes that came with them. Divided by brk_ledgeroffloader_read_bytes_total it says how much was "
                "fetched for each byte that was delivered.",
            ),
        ),
        managed_ledgers=True,
    ),
    Group(
        "Tier and Spark",
        (
            _gauge(
                "afterglow_tier_available", "location", "Whether the tier answers: 1, or 0 while it is unavailable."
            ),
            _gauge(
                "afterglow_tier_unavailable_since_timestamp_seconds",
                "location",
                "When the first request failed of an outage that lasts; 0 while the tier is available.",
            ),
            _counter(
                "afterglow_store_requests_total",
                "operation result",
                "Requests of this process to tiers, by operation and result: ok, or the name of the error. Tasks on "
                "Spark's workers make theirs on their own, and are not in it.",
            ),
            _counter("afterglow_store_request_seconds_total", "operation", "Time that they took."),
            _counter("afterglow_store_sent_bytes_total", "operation", "Bytes of objects that went with them."),
            _counter("afterglow_store_received_bytes_total", "operation", "Bytes of objects that came with them."),
            _gauge("afterglow_spark_jobs_running", "", "Jobs of offload that were handed in and have not ended."),
            _counter("afterglow_spark_jobs_total", "result", "Jobs that have ended: succeeded or failed."),
            *_histogram(
                "afterglow_spark_job_seconds",
                "",
                "Time from handing in to the end of those, the start of Spark with the first included.",
            ),
        ),
        managed_ledgers=True,
    ),
    Group(
        "Checks",
        (
            _gauge("afterglow_checks_running", "", "Checks that run: one at most."),
            _counter("afterglow_checks_total", "state", "Checks that have ended: done, failed or cancelled."),
            _gauge(
                "afterglow_check_findings",
                "depth kind",
                "What the last check that was done has found and its sweep has not deleted. The depth is shallow or "
                "deep: a shallow check does not see damage within objects.",
            ),
            _gauge("afterglow_check_last_timestamp_seconds", "depth", "When that check ended."),
            _gauge("afterglow_check_last_duration_seconds", "depth", "How long it took."),
            _counter("afterglow_sweep_deleted_total", "kind", "What sweeps have deleted, by the kind of finding."),
        ),
    ),
    Group(
        "Memory",
        (
            _gauge("pulsar_ml_cache_used_size", "", "Bytes that the tail cache holds, overhead included."),
            _gauge("pulsar_ml_cache_entries", "", "Entries that it holds."),
            _counter("pulsar_ml_cache_evicted_entries_total", "", "Entries that it has dropped for newer ones."),
            _counter("afterglow_cache_hits_total", "", "Entries that were asked of it and there."),
            _counter("afterglow_cache_hit_bytes_total", "", "Bytes of these."),
            _counter("afterglow_cache_misses_total", "", "Reads that it could not begin."),
            _gauge("afterglow_offload_buffer_bytes", "", "Bytes that the offload buffer holds, overhead included."),
            _gauge(
                "afterglow_offload_buffer_budget_bytes",
                "",
                "Bytes that it may hold: offloadBufferMaxBytes, or 0 where tasks read files and there is no buffer.",
            ),
            _gauge("afterglow_offload_buffer_entries", "", "Entries that it holds."),
            _counter(
                "afterglow_offload_buffer_refused_entries_total",
                "",
                "Entries that it has not admitted, for want of room or because one before them was not admitted. "
                "Tasks read them from the hot log.",
            ),
            _counter("afterglow_offload_buffer_refused_bytes_total", "", "Bytes of these."),
            _counter(
                "afterglow_offload_buffer_dropped_entries_total",
                "",
                "Entries that it held and has dropped before they were offloaded: their topic was closed, deleted or "
                "streams no more.",
            ),
            _counter(
                "afterglow_raw_read_bytes_total",
                "origin",
                "Bytes that raw readers, which are offload tasks and readers of sources, were sent over the protocol, "
                "by where they were: cache, buffer or log.",
            ),
            _gauge(
                "afterglow_hot_pending_bytes",
                "",
                "Bytes in memory that wait for the journal, or that it has and the ledgers' own files have not.",
            ),
        ),
        managed_ledgers=True,
    ),
    Group(
        "Broker",
        (
            _gauge("pulsar_active_connections", "", "Connections of clients."),
            _gauge(
                "afterglow_topics_without_series",
                "",
                'Topics whose figures are in the series "other": more are open than metricsMaxTopics.',
            ),
        ),
    ),
)

METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for group in GROUPS for metric in group.metrics}
"""All of them by name."""
