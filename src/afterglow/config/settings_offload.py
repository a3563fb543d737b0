"""Settings of offload and tier reads: thresholds, segments (PIP-76), tier location, memory budgets, Spark.

Keys of a specific driver take precedence over the general ones; see :func:`driver_keys`.
"""

from __future__ import annotations

from afterglow.config.choices import DamagePolicy, ReadPriority
from afterglow.config.setting import Scope, section, setting
from afterglow.config.value_types import (
    GIB,
    HOUR_MS,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    choice,
    duration,
    flag,
    integer,
    optional,
    pairs,
    size,
    switch,
    text,
)

_READ_PRIORITY = choice(ReadPriority, {"tiered-first": ReadPriority.TIERED_STORAGE_FIRST})


@section
class OffloadSettings:
    """Offload."""

    # fmt: off
    managed_ledger_offload_driver: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC,
        doc="Offload driver: `filesystem`, `S3`, `aws-s3`, `aliyun-oss`, or a driver that a package registers in the "
        "entry point group `afterglow.offloaders`; any other is refused. Empty: the server's own tier.",
    )
    offloaders_directory: str = setting(
        text(), default="./offloaders", scope=Scope.TOPIC,
        doc="Part of Pulsar's offload policies; stored and returned, without effect. Drivers are Python packages and "
        "need no directory.",
    )
    managed_ledger_offload_threshold_in_bytes: int = setting(
        size(minimum=-1), default=-1, scope=Scope.TOPIC,
        doc="Size in bytes of a topic's newest data that is not offloaded; older closed ledgers are. 0: offload each "
        "ledger when it closes, -1: no size threshold.",
        aliases={
            "managedLedgerOffloadAutoTriggerSizeThresholdBytes": size(minimum=-1),
            "offloadSizeInMB": size(plain=MIB, minimum=-1),
        },
    )
    managed_ledger_offload_threshold_in_seconds: int = setting(
        duration(minimum=-1), default=-1, scope=Scope.TOPIC,
        doc="Seconds from the closing of a ledger to its offload. 0: immediately, -1: no time threshold.",
        aliases={"offloadTimeInMinutes": duration(SECOND_MS, plain=MINUTE_MS, minimum=-1)},
    )
    managed_ledger_offload_deletion_lag_in_millis: int | None = setting(
        optional(duration(1)), default=4 * HOUR_MS, scope=Scope.TOPIC,
        doc="Milliseconds from the offload of a ledger to the deletion of its hot copy. Empty: never.",
        aliases={"managedLedgerOffloadDeletionLagMs": optional(duration(1))},
    )
    managed_ledger_offloaded_read_priority: ReadPriority = setting(
        _READ_PRIORITY, default=ReadPriority.TIERED_STORAGE_FIRST, scope=Scope.TOPIC,
        doc="The copy that serves a read while both exist (PIP-73); `tiered-first` is accepted too. Reads fall back to "
        "the other copy if this one cannot be read. Searches by time (seek, expiry) use the hot copy while it exists.",
        aliases={"managedLedgerDataReadPriority": _READ_PRIORITY},
    )
    trigger_offload_on_topic_load: bool = setting(
        flag(), default=False, doc="Whether the offload thresholds of a topic are checked as soon as it is opened."
    )
    managed_ledger_offload_max_threads: int = setting(
        integer(1), default=2, scope=Scope.TOPIC, doc="Concurrent uploads of one task."
    )
    managed_ledger_offload_read_threads: int = setting(
        integer(1), default=2, scope=Scope.TOPIC,
        doc="Concurrent reads from the tier for consumers; uploads never wait for them.",
    )
    managed_ledger_offload_prefetch_rounds: int = setting(
        integer(0), default=1, scope=Scope.TOPIC, doc="Read buffers to prefetch for a sequential reader."
    )
    managed_ledger_extra_configurations: tuple[tuple[str, str], ...] = setting(
        pairs(), default=(), scope=Scope.TOPIC, prefix="managedLedgerOffloadExtraConfig",
        doc="Additional properties of the driver, as `name=value,name=value`, or one key for each: "
        "`managedLedgerOffloadExtraConfig` and the property's name, as required for a value with a comma. Levels are "
        "merged by property.",
    )
    offload_tick_interval_millis: int = setting(
        duration(1, minimum=1), default=1_000,
        doc="Milliseconds between checks for due offloads; each check starts at most one Spark job.",
    )
    offload_throttling_rate_in_bytes: int = setting(
        size(), default=0, doc="Upload limit in bytes per second for all topics together. 0: no limit."
    )
    offload_throttling_rate_in_requests: int = setting(
        integer(0), default=0, doc="Limit on upload requests per second for all topics together. 0: no limit."
    )
    offload_throttling_rate_per_topic_in_bytes: int = setting(
        size(), default=0, scope=Scope.TOPIC, doc="Upload limit in bytes per second for one topic. 0: no limit."
    )
    offload_throttling_rate_per_topic_in_requests: int = setting(
        integer(0), default=0, scope=Scope.TOPIC, doc="Limit on upload requests per second for one topic. 0: no limit."
    )
    # At most 300 s: pending deletes of unfinished objects are kept for 600 s, which must outlast any request under way.
    offload_request_timeout_seconds: int = setting(
        duration(minimum=1, maximum=300), default=60,
        doc="Deadline in seconds of one request to the tier, including its retries; at most 300.",
    )
    offload_retry_min_backoff_millis: int = setting(
        duration(1, minimum=1), default=1_000,
        doc="Milliseconds before the first retry of a failed offload; doubled with each failure.",
    )
    offload_retry_max_backoff_millis: int = setting(
        duration(1, minimum=1), default=60_000, doc="Maximum milliseconds between retries of a failed offload."
    )
    offload_stall_warning_seconds: int = setting(
        duration(minimum=1), default=300,
        doc="Seconds without progress after which an offload is reported in the log and the metrics.",
    )
    # fmt: on


@section
class StreamingSettings:
    """Streaming offload."""

    # fmt: off
    streaming_offload_enabled: bool = setting(
        flag(), default=False, scope=Scope.TOPIC,
        doc="Whether entries are streamed to the tier in segments while they are written. Otherwise ledgers are "
        "offloaded after they are closed.",
    )
    max_offload_segment_size_in_bytes: int = setting(
        size(minimum=1), default=GIB, scope=Scope.TOPIC,
        doc="Size in bytes at which a segment closes.",
        aliases={"maxSizePerOffloadSegmentMbytes": size(plain=MIB, minimum=1)},
    )
    max_offload_segment_rollover_time_in_seconds: int = setting(
        duration(minimum=1), default=600, scope=Scope.TOPIC,
        doc="Seconds from the first entry of a segment to its closing.",
        aliases={"maxOffloadSegmentRolloverTimeMinutes": duration(SECOND_MS, plain=MINUTE_MS, minimum=1)},
    )
    streaming_offload_block_size_in_bytes: int = setting(
        size(minimum=KIB, maximum=2 * GIB - 1), default=MIB, scope=Scope.TOPIC,
        doc="Size in bytes of a segment's blocks (format V2): the granularity of its index, its checksums and Spark's "
        "splits. A larger entry is stored in a block of its own.",
    )
    streaming_offload_part_size_in_bytes: int = setting(
        size(minimum=5 * MIB, maximum=5 * GIB), default=8 * MIB, scope=Scope.TOPIC,
        doc="Minimum size in bytes of an upload part, which holds whole blocks; larger for segments that would exceed "
        "1,000 parts. Object stores require at least 5 MiB.",
    )
    tier_retention_time_in_minutes: int = setting(
        duration(MINUTE_MS, minimum=-1), default=-1, scope=Scope.TOPIC,
        doc="For `afterglow attach`: minutes from the closing of a ledger for which the tier keeps it, also after the "
        "cluster has trimmed it. 0: no longer than the cluster, -1: unlimited. Topics of `afterglow serve` have one "
        "retention for both copies.",
    )
    tier_retention_size_in_mb: int = setting(
        size(MIB, minimum=-1), default=-1, key="tierRetentionSizeInMB", scope=Scope.TOPIC,
        doc="For `afterglow attach`: size in MiB of the newest ledgers of a topic that the tier keeps, including those "
        "that the cluster still has. 0: only these, -1: unlimited.",
    )
    offload_buffer_max_bytes: int = setting(
        size(), default=256 * MIB,
        doc="Memory in bytes for entries that wait for upload, for all topics together; for offload tasks that read "
        "over the Pulsar protocol. A topic may use at most as much as it leaves free. Other entries are read from the "
        "hot log. 0: no buffer.",
    )
    # fmt: on


_BLOCK = size(minimum=5 * MIB, maximum=2 * GIB - 1)
"""A V1 block is one upload part, for which stores require 5 MiB; Pulsar stores its size as a signed 32-bit number."""
_READ_BUFFER = size(minimum=1, maximum=2 * GIB - 1)

_OWN_PREFIX = {"aws-s3": "s3ManagedLedgerOffload", "google-cloud-storage": "gcsManagedLedgerOffload"}
_GENERAL_PREFIX = "managedLedgerOffload"


def driver_keys(driver: str, suffix: str) -> tuple[str, ...]:
    """Return the keys that hold a property of a driver, highest precedence first.

    Args:
        driver: Name of the driver, in any case. Only ``aws-s3`` and ``google-cloud-storage`` have specific keys.
        suffix: ``Bucket``, ``Region``, ``ServiceEndpoint``, ``MaxBlockSizeInBytes`` or ``ReadBufferSizeInBytes``.
    """
    own = _OWN_PREFIX.get(driver.lower())
    general = _GENERAL_PREFIX + suffix
    return (general,) if own is None else (own + suffix, general)


@section
class TierSettings:
    """Tier.

    For the drivers `aws-s3` and `google-cloud-storage`, keys that begin with `s3` or `gcs` take precedence over the
    general ones; `S3`, `azureblob` and `aliyun-oss` use only the general keys.
    """

    # fmt: off
    managed_ledger_offload_bucket: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC, doc="Bucket or container."
    )
    managed_ledger_offload_region: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC, doc="Region of the bucket."
    )
    managed_ledger_offload_service_endpoint: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC,
        doc="URL of the object store, if it is not the provider's default; buckets are then addressed by path.",
    )
    managed_ledger_offload_max_block_size_in_bytes: int = setting(
        _BLOCK, default=64 * MIB, scope=Scope.TOPIC,
        doc="Size in bytes of the blocks of an offloaded ledger (format V1).",
    )
    managed_ledger_offload_read_buffer_size_in_bytes: int = setting(
        _READ_BUFFER, default=MIB, scope=Scope.TOPIC, doc="Bytes per read request."
    )
    s3_managed_ledger_offload_bucket: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC, doc="Bucket, for `aws-s3`."
    )
    s3_managed_ledger_offload_region: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC, doc="Region of the bucket, for `aws-s3`."
    )
    s3_managed_ledger_offload_service_endpoint: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC, doc="URL of the object store, for `aws-s3`."
    )
    s3_managed_ledger_offload_max_block_size_in_bytes: int = setting(
        _BLOCK, default=64 * MIB, scope=Scope.TOPIC, doc="Block size in bytes (format V1), for `aws-s3`."
    )
    s3_managed_ledger_offload_read_buffer_size_in_bytes: int = setting(
        _READ_BUFFER, default=MIB, scope=Scope.TOPIC, doc="Bytes per read request, for `aws-s3`."
    )
    s3_managed_ledger_offload_credential_id: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC,
        doc="Access key ID for S3. Empty: the SDK's credential chain.",
    )
    s3_managed_ledger_offload_credential_secret: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC, secret=True,
        doc="Secret access key for S3. Empty: the SDK's credential chain.",
    )
    s3_managed_ledger_offload_role: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC, doc="Role to assume through STS if no access key is given."
    )
    s3_managed_ledger_offload_role_session_name: str = setting(
        text(), default="pulsar-s3-offload", scope=Scope.TOPIC, doc="Session name of the assumed role."
    )
    gcs_managed_ledger_offload_bucket: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC, doc="Bucket, for `google-cloud-storage`."
    )
    gcs_managed_ledger_offload_region: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC, doc="Region of the bucket, for `google-cloud-storage`."
    )
    gcs_managed_ledger_offload_max_block_size_in_bytes: int = setting(
        _BLOCK, default=128 * MIB, scope=Scope.TOPIC, doc="Block size in bytes (format V1), for `google-cloud-storage`."
    )
    gcs_managed_ledger_offload_read_buffer_size_in_bytes: int = setting(
        _READ_BUFFER, default=MIB, scope=Scope.TOPIC, doc="Bytes per read request, for `google-cloud-storage`."
    )
    gcs_managed_ledger_offload_service_account_key_file: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC,
        doc="JSON key file of a service account. Empty: the SDK's credential chain.",
    )
    file_system_uri: str | None = setting(
        optional(text()), default=None, key="fileSystemURI", scope=Scope.TOPIC,
        doc="Root directory of the tier as `file:///path`, for `filesystem`.",
    )
    file_system_profile_path: str | None = setting(
        optional(text()), default=None, scope=Scope.TOPIC,
        doc="Hadoop configuration of Pulsar's `filesystem` driver; stored and returned, and needed only to read "
        "objects that Pulsar wrote.",
    )
    # fmt: on


_DAMAGE_POLICY = choice(DamagePolicy)


@section
class ReadSettings:
    """Reading from the tier."""

    # fmt: off
    offload_index_cache_max_bytes: int = setting(
        size(), default=64 * MIB, doc="Memory in bytes for cached object indexes."
    )
    offload_entry_offset_cache_max_bytes: int = setting(
        size(), default=32 * MIB, doc="Memory in bytes for cached offsets of entries, which save a scan of the block."
    )
    offload_read_max_bytes: int = setting(
        size(minimum=MIB), default=256 * MIB,
        doc="Memory in bytes for tier reads in progress, for all readers together.",
    )
    offload_scan_read_buffer_size_in_bytes: int = setting(
        size(minimum=1, maximum=2 * GIB - 1), default=8 * MIB, doc="Bytes per read request of a scan over many blocks."
    )
    managed_ledger_inactive_offloaded_ledger_eviction_time_seconds: int = setting(
        duration(), default=600,
        doc="Seconds without a read after which the cached state of an offloaded ledger is evicted. 0: never.",
    )
    damaged_data_policy: DamagePolicy = setting(
        _DAMAGE_POLICY, default=DamagePolicy.FAIL,
        doc="Reaction of readers to damaged or missing data: stop with an error, or skip it and report it.",
        aliases={
            "autoSkipNonRecoverableData":
                switch(_DAMAGE_POLICY, on=DamagePolicy.SKIP_AND_REPORT, off=DamagePolicy.FAIL),
        },
    )
    # fmt: on


@section
class SparkSettings:
    """Spark."""

    # fmt: off
    spark_master: str = setting(
        text(), default="local[*]", doc="Spark master that runs offload and verify jobs and exports."
    )
    spark_properties: tuple[tuple[str, str], ...] = setting(
        pairs(), default=(), prefix="spark.", secret=True,
        doc="Additional Spark properties, which override ours. In the file one key for each, under Spark's own name, "
        "such as `spark.driver.host` or `spark.pyspark.python`.",
    )
    spark_max_concurrent_jobs: int = setting(
        integer(1), default=4,
        doc="Maximum number of concurrent offload jobs, so that a slow topic does not block others.",
    )
    spark_idle_priority: bool = setting(
        flag(), default=True,
        doc="Whether a local Spark that `afterglow serve` starts runs at idle priority, so that producers do not wait "
        "for processors that offload uses. A Spark that would starve gets normal priority for ten minutes.",
    )
    spark_task_buffer_max_bytes: int = setting(
        size(minimum=5 * MIB), default=64 * MIB,
        doc="Memory in bytes that one offload task may use for entries and parts.",
    )
    offload_tasks_read_files: bool = setting(
        flag(), default=True,
        doc="Whether offload tasks read ledger files that are on their own disk. False: they always read over the "
        "Pulsar protocol.",
    )
    # fmt: on
