"""When ledgers move to the tier, and when their hot copies go."""

from __future__ import annotations

from afterglow.config.choices import ReadPriority
from afterglow.config.kinds import choice, flag, integer, optional, pairs, text
from afterglow.config.quantities import HOUR_MS, MIB, MINUTE_MS, SECOND_MS, duration, size
from afterglow.config.setting import Scope, section, setting

_READ_PRIORITY = choice(ReadPriority, {"tiered-first": ReadPriority.TIERED_STORAGE_FIRST})


@section
class Offload:
    """Offload."""

    managed_ledger_offload_driver: str | None = setting(
        optional(text()),
        default=None,
        doc="The kind of tier: `filesystem`, `S3`, `aws-s3`, `aliyun-oss`, or the name of another driver from the "
        "entry point group `afterglow.offloaders`; any other is refused. Nothing: the engine's own tier.",
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
