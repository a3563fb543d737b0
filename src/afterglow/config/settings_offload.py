"""Settings of offload, the tier and reads from it: thresholds, segments (PIP-76), tier location, budgets, Spark.

A driver's own keys win over the general ones; see :func:`driver_keys`.
"""

from __future__ import annotations

from afterglow.config.choices import DamagePolicy, ReadPriority
from afterglow.config.kinds import (
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
from afterglow.config.setting import Scope, section, setting

_READ_PRIORITY = choice(ReadPriority, {"tiered-first": ReadPriority.TIERED_STORAGE_FIRST})


@section
class Offload:
    """Offload."""

    managed_ledger_offload_driver: str | None = setting(
        optional(text()),
        default=None,
        doc="The kind of tier: `filesystem`, `S3`, `aws-s3`, `aliyun-oss`, or the name of another driver from the "
        "entry point group `afterglow.offloaders`; any other is refused. Nothing: the server's own tier.",
        scope=Scope.TOPIC,
    )
    offloaders_directory: str = setting(
        text(),
        default="./offloaders",
        doc="Part of Pulsar's offload policies, kept and returned. Drivers here are Python packages and need no "
        "directory.",
        scope=Scope.TOPIC,
    )
    managed_ledger_offload_threshold_in_bytes: int = setting(
        size(minimum=-1),
        default=-1,
        doc="Bytes that a topic keeps out of the tier; older closed ledgers are offloaded. 0: each ledger when it "
        "closes, -1: not by size.",
        scope=Scope.TOPIC,
        aliases={
            "managedLedgerOffloadAutoTriggerSizeThresholdBytes": size(minimum=-1),
            "offloadSizeInMB": size(plain=MIB, minimum=-1),
        },
    )
    managed_ledger_offload_threshold_in_seconds: int = setting(
        duration(minimum=-1),
        default=-1,
        doc="Seconds after its close at which a ledger is offloaded. 0: at once, -1: not by time.",
        scope=Scope.TOPIC,
        aliases={"offloadTimeInMinutes": duration(SECOND_MS, plain=MINUTE_MS, minimum=-1)},
    )
    managed_ledger_offload_deletion_lag_in_millis: int | None = setting(
        optional(duration(1)),
        default=4 * HOUR_MS,
        doc="Milliseconds after its offload at which the hot copy of a ledger is deleted. Nothing: never.",
        scope=Scope.TOPIC,
        aliases={"managedLedgerOffloadDeletionLagMs": optional(duration(1))},
    )
    managed_ledger_offloaded_read_priority: ReadPriority = setting(
        _READ_PRIORITY,
        default=ReadPriority.TIERED_STORAGE_FIRST,
        doc="Which copy serves a read while both exist (PIP-73); `tiered-first` is accepted too. The other copy "
        "serves where the chosen one is gone. Searches by time (seek, expiry) use the hot copy while it exists.",
        scope=Scope.TOPIC,
        aliases={"managedLedgerDataReadPriority": _READ_PRIORITY},
    )
    trigger_offload_on_topic_load: bool = setting(
        flag(), default=False, doc="Whether opening a topic looks at its thresholds at once."
    )
    managed_ledger_offload_max_threads: int = setting(
        integer(1), default=2, doc="Uploads that one task runs at a time.", scope=Scope.TOPIC
    )
    managed_ledger_offload_read_threads: int = setting(
        integer(1),
        default=2,
        doc="Reads from the tier that serve consumers at a time; uploads never wait for them.",
        scope=Scope.TOPIC,
    )
    managed_ledger_offload_prefetch_rounds: int = setting(
        integer(0), default=1, doc="Read buffers fetched ahead of a reader that reads in order.", scope=Scope.TOPIC
    )
    managed_ledger_extra_configurations: tuple[tuple[str, str], ...] = setting(
        pairs(),
        default=(),
        doc="Further properties for the driver, as `name=value,name=value`; or one key each, "
        "`managedLedgerOffloadExtraConfig` and the property's name, which a value with a comma needs. Levels add to "
        "each other, property by property.",
        scope=Scope.TOPIC,
        prefix="managedLedgerOffloadExtraConfig",
    )
    offload_tick_interval_millis: int = setting(
        duration(1, minimum=1),
        default=1_000,
        doc="Milliseconds between looks for due work; each look starts at most one Spark job.",
    )
    offload_throttling_rate_in_bytes: int = setting(
        size(), default=0, doc="Most bytes per second that go to the tier, all topics together. 0: no limit."
    )
    offload_throttling_rate_in_requests: int = setting(
        integer(0), default=0, doc="Most requests per second to the tier, all topics together. 0: no limit."
    )
    offload_throttling_rate_per_topic_in_bytes: int = setting(
        size(), default=0, doc="Most bytes per second that one topic sends to the tier. 0: no limit.", scope=Scope.TOPIC
    )
    offload_throttling_rate_per_topic_in_requests: int = setting(
        integer(0), default=0, doc="Most requests per second to the tier for one topic. 0: no limit.", scope=Scope.TOPIC
    )
    offload_request_timeout_seconds: int = setting(
        duration(minimum=1),
        default=60,
        doc="Deadline in seconds of one request to the tier, its repetitions included.",
    )
    offload_retry_min_backoff_millis: int = setting(
        duration(1, minimum=1),
        default=1_000,
        doc="Milliseconds before a failed offload is tried again; doubled at each failure.",
    )
    offload_retry_max_backoff_millis: int = setting(
        duration(1, minimum=1),
        default=60_000,
        doc="Longest wait in milliseconds before a failed offload is tried again.",
    )
    offload_stall_warning_seconds: int = setting(
        duration(minimum=1),
        default=300,
        doc="Seconds without progress after which an offload is named in the log and the metrics.",
    )


@section
class Streaming:
    """Streaming offload."""

    streaming_offload_enabled: bool = setting(
        flag(),
        default=False,
        doc="Whether entries stream to the tier while they are written. Otherwise whole ledgers go once they are "
        "closed.",
        scope=Scope.TOPIC,
    )
    max_offload_segment_size_in_bytes: int = setting(
        size(minimum=1),
        default=GIB,
        doc="Size in bytes at which a segment closes.",
        scope=Scope.TOPIC,
        aliases={"maxSizePerOffloadSegmentMbytes": size(plain=MIB, minimum=1)},
    )
    max_offload_segment_rollover_time_in_seconds: int = setting(
        duration(minimum=1),
        default=600,
        doc="Seconds after its first entry at which a segment closes.",
        scope=Scope.TOPIC,
        aliases={"maxOffloadSegmentRolloverTimeMinutes": duration(SECOND_MS, plain=MINUTE_MS, minimum=1)},
    )
    streaming_offload_block_size_in_bytes: int = setting(
        size(minimum=KIB, maximum=2 * GIB - 1),
        default=MIB,
        doc="Size in bytes of a segment's blocks (format V2): the step of its index, of its checksums, and of Spark's "
        "splits. A larger entry gets a block of its own.",
        scope=Scope.TOPIC,
    )
    streaming_offload_part_size_in_bytes: int = setting(
        size(minimum=5 * MIB, maximum=5 * GIB),
        default=8 * MIB,
        doc="Least bytes of whole blocks that are uploaded at a time, more for segments past 1,000 parts. Stores "
        "refuse less than 5 MiB.",
        scope=Scope.TOPIC,
    )
    offload_buffer_max_bytes: int = setting(
        size(),
        default=256 * MIB,
        doc="Memory in bytes for entries that wait for their upload, all topics together, where offload tasks read "
        "over the Pulsar protocol. A topic uses at most as much as it leaves free. What does not fit is read from the "
        "hot log. 0: no buffer.",
    )


_BLOCK = size(minimum=5 * MIB, maximum=2 * GIB - 1)
"""A V1 block is one part of an upload, and stores demand 5 MiB; Pulsar holds its size in a signed 32-bit number."""
_READ_BUFFER = size(minimum=1, maximum=2 * GIB - 1)

_OWN_PREFIX = {"aws-s3": "s3ManagedLedgerOffload", "google-cloud-storage": "gcsManagedLedgerOffload"}
_GENERAL_PREFIX = "managedLedgerOffload"


def driver_keys(driver: str, suffix: str) -> tuple[str, ...]:
    """The keys that hold a property of a driver, the one that wins first.

    Args:
        driver: Name of the driver, in any case. Only ``aws-s3`` and ``google-cloud-storage`` have keys of their own.
        suffix: ``Bucket``, ``Region``, ``ServiceEndpoint``, ``MaxBlockSizeInBytes`` or ``ReadBufferSizeInBytes``.
    """
    own = _OWN_PREFIX.get(driver.lower())
    general = _GENERAL_PREFIX + suffix
    return (general,) if own is None else (own + suffix, general)


@section
class Tier:
    """Tier.

    For the drivers `aws-s3` and `google-cloud-storage` a key that begins with `s3` or `gcs` wins over the general one;
    `S3`, `azureblob` and `aliyun-oss` use the general keys alone.
    """

    managed_ledger_offload_bucket: str | None = setting(
        optional(text()), default=None, doc="Bucket or container.", scope=Scope.TOPIC
    )
    managed_ledger_offload_region: str | None = setting(
        optional(text()), default=None, doc="Region of the bucket.", scope=Scope.TOPIC
    )
    managed_ledger_offload_service_endpoint: str | None = setting(
        optional(text()),
        default=None,
        doc="URL of the store, where it is not the provider's own; buckets are then addressed by path.",
        scope=Scope.TOPIC,
    )
    managed_ledger_offload_max_block_size_in_bytes: int = setting(
        _BLOCK,
        default=64 * MIB,
        doc="Size in bytes of the blocks of an offloaded ledger (format V1).",
        scope=Scope.TOPIC,
    )
    managed_ledger_offload_read_buffer_size_in_bytes: int = setting(
        _READ_BUFFER, default=MIB, doc="Bytes fetched by one request of a reader.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_bucket: str | None = setting(
        optional(text()), default=None, doc="Bucket, for `aws-s3`.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_region: str | None = setting(
        optional(text()), default=None, doc="Region of the bucket, for `aws-s3`.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_service_endpoint: str | None = setting(
        optional(text()), default=None, doc="URL of the store, for `aws-s3`.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_max_block_size_in_bytes: int = setting(
        _BLOCK, default=64 * MIB, doc="Block size in bytes (format V1), for `aws-s3`.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_read_buffer_size_in_bytes: int = setting(
        _READ_BUFFER, default=MIB, doc="Bytes fetched by one request of a reader, for `aws-s3`.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_credential_id: str | None = setting(
        optional(text()), default=None, doc="Access key id for S3. Nothing: the SDK's own chain.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_credential_secret: str | None = setting(
        optional(text()),
        default=None,
        doc="Secret access key for S3. Nothing: the SDK's own chain.",
        scope=Scope.TOPIC,
        secret=True,
    )
    s3_managed_ledger_offload_role: str | None = setting(
        optional(text()),
        default=None,
        doc="Role to assume through STS, where no access key is given.",
        scope=Scope.TOPIC,
    )
    s3_managed_ledger_offload_role_session_name: str = setting(
        text(), default="pulsar-s3-offload", doc="Session name under which the role is assumed.", scope=Scope.TOPIC
    )
    gcs_managed_ledger_offload_bucket: str | None = setting(
        optional(text()), default=None, doc="Bucket, for `google-cloud-storage`.", scope=Scope.TOPIC
    )
    gcs_managed_ledger_offload_region: str | None = setting(
        optional(text()), default=None, doc="Region of the bucket, for `google-cloud-storage`.", scope=Scope.TOPIC
    )
    gcs_managed_ledger_offload_max_block_size_in_bytes: int = setting(
        _BLOCK, default=128 * MIB, doc="Block size in bytes (format V1), for `google-cloud-storage`.", scope=Scope.TOPIC
    )
    gcs_managed_ledger_offload_read_buffer_size_in_bytes: int = setting(
        _READ_BUFFER,
        default=MIB,
        doc="Bytes fetched by one request of a reader, for `google-cloud-storage`.",
        scope=Scope.TOPIC,
    )
    gcs_managed_ledger_offload_service_account_key_file: str | None = setting(
        optional(text()),
        default=None,
        doc="JSON file with the key of a service account. Nothing: the SDK's own chain.",
        scope=Scope.TOPIC,
    )
    file_system_uri: str | None = setting(
        optional(text()),
        default=None,
        doc="Root directory of the tier as `file:///path`, for `filesystem`.",
        key="fileSystemURI",
        scope=Scope.TOPIC,
    )
    file_system_profile_path: str | None = setting(
        optional(text()),
        default=None,
        doc="Hadoop configuration for Pulsar's own `filesystem` driver; kept and returned, and needed only to read "
        "what Pulsar wrote.",
        scope=Scope.TOPIC,
    )


_DAMAGE_POLICY = choice(DamagePolicy)


@section
class Reading:
    """Reading from the tier."""

    offload_index_cache_max_bytes: int = setting(
        size(), default=64 * MIB, doc="Memory in bytes for parsed indexes of objects."
    )
    offload_entry_offset_cache_max_bytes: int = setting(
        size(),
        default=32 * MIB,
        doc="Memory in bytes for positions of entries met on the way, which spare a search in the block.",
    )
    offload_read_max_bytes: int = setting(
        size(minimum=MIB),
        default=256 * MIB,
        doc="Memory in bytes for data on its way from the tier, all readers together.",
    )
    offload_scan_read_buffer_size_in_bytes: int = setting(
        size(minimum=1, maximum=2 * GIB - 1),
        default=8 * MIB,
        doc="Bytes fetched by one request of a scan over many blocks.",
    )
    managed_ledger_inactive_offloaded_ledger_eviction_time_seconds: int = setting(
        duration(),
        default=600,
        doc="Seconds without a read after which what is held for an offloaded ledger is dropped. 0: never.",
    )
    damaged_data_policy: DamagePolicy = setting(
        _DAMAGE_POLICY,
        default=DamagePolicy.FAIL,
        doc="What readers do with damaged or missing data: stop with an error, or leave it out and report it.",
        aliases={
            "autoSkipNonRecoverableData": switch(_DAMAGE_POLICY, on=DamagePolicy.SKIP_AND_REPORT, off=DamagePolicy.FAIL)
        },
    )


@section
class Pipeline:
    """Spark."""

    spark_master: str = setting(
        text(), default="local[*]", doc="Spark master that runs offloads, exports and deep checks."
    )
    spark_properties: tuple[tuple[str, str], ...] = setting(
        pairs(),
        default=(),
        doc="Further properties of Spark, which win over ours. In the file one key each, under Spark's own name, such "
        "as `spark.driver.host` or `spark.pyspark.python`.",
        prefix="spark.",
        secret=True,
    )
    spark_max_concurrent_jobs: int = setting(
        integer(1), default=4, doc="Offload jobs that may run at a time, so that a slow topic never holds up another."
    )
    spark_task_buffer_max_bytes: int = setting(
        size(minimum=5 * MIB),
        default=64 * MIB,
        doc="Memory in bytes that one offload task may hold for entries and parts.",
    )
    offload_tasks_read_files: bool = setting(
        flag(),
        default=True,
        doc="Whether offload tasks read the ledgers' files where they find them. False: they read over the Pulsar "
        "protocol even there.",
    )
