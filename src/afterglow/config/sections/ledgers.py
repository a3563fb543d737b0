"""Managed ledgers, their metadata, and the hot log on disk."""

from __future__ import annotations

from afterglow.config.choices import CompressionType
from afterglow.config.kinds import choice, decimal, integer
from afterglow.config.quantities import KIB, MIB, MINUTE_MS, duration, size
from afterglow.config.setting import Scope, section, setting


@section
class Ledgers:
    """Ledgers and retention."""

    managed_ledger_max_entries_per_ledger: int = setting(
        integer(1), default=50_000, doc="Entries at which a ledger is full and the next is opened."
    )
    managed_ledger_max_size_per_ledger_mbytes: int = setting(
        size(MIB, minimum=1), default=2_048, doc="Size in MiB at which a ledger is full."
    )
    managed_ledger_min_ledger_rollover_time_minutes: int = setting(
        duration(MINUTE_MS), default=10, doc="Age in minutes that a ledger must reach before any limit closes it."
    )
    managed_ledger_max_ledger_rollover_time_minutes: int = setting(
        duration(MINUTE_MS),
        default=240,
        doc="Age in minutes at which a ledger with entries is full. 0: age does not matter.",
    )
    managed_ledger_inactive_ledger_rollover_time_seconds: int = setting(
        duration(), default=0, doc="Seconds without an append after which a ledger with entries is closed. 0: never."
    )
    managed_ledger_cache_size_mb: int = setting(
        size(MIB),
        default=64,
        doc="Memory in MiB for the newest entries of all topics, from which tailing consumers are served. Pulsar "
        "takes a fifth of its direct memory.",
        key="managedLedgerCacheSizeMB",
    )
    default_retention_time_in_minutes: int = setting(
        duration(MINUTE_MS, minimum=-1),
        default=0,
        doc="Minutes for which acknowledged messages are kept. 0: not at all, -1: for ever.",
        scope=Scope.TOPIC,
    )
    default_retention_size_in_mb: int = setting(
        size(MIB, minimum=-1),
        default=0,
        doc="MiB of acknowledged messages that are kept. 0: none, -1: all.",
        key="defaultRetentionSizeInMB",
        scope=Scope.TOPIC,
    )
    retention_check_interval_in_seconds: int = setting(
        duration(minimum=1), default=120, doc="Seconds between looks for ledgers that retention no longer holds."
    )
    managed_ledger_default_mark_delete_rate_limit: float = setting(
        decimal(0.0, 1e9),
        default=1.0,
        doc="Most times per second that an acknowledgement position is written for one subscription. 0: no limit.",
    )
    managed_ledger_cursor_position_flush_seconds: int = setting(
        duration(minimum=1), default=60, doc="Seconds after which a position held back by the rate limit is written."
    )
    managed_ledger_max_unacked_ranges_to_persist: int = setting(
        integer(0), default=10_000, doc="Most ranges of individually acknowledged messages that survive a restart."
    )
    managed_ledger_max_batch_deleted_index_to_persist: int = setting(
        integer(0), default=10_000, doc="Most partly acknowledged batches that survive a restart."
    )
    managed_ledger_info_compression_type: CompressionType = setting(
        choice(CompressionType),
        default=CompressionType.NONE,
        doc="Compression of a topic's ledger list in the metadata store.",
    )
    managed_ledger_info_compression_threshold_in_bytes: int = setting(
        size(), default=16 * KIB, doc="Size in bytes above which a topic's ledger list is compressed."
    )
    managed_cursor_info_compression_type: CompressionType = setting(
        choice(CompressionType),
        default=CompressionType.NONE,
        doc="Compression of a subscription's position in the metadata store.",
    )
    managed_cursor_info_compression_threshold_in_bytes: int = setting(
        size(), default=16 * KIB, doc="Size in bytes above which a subscription's position is compressed."
    )
    journal_max_size_mb: int = setting(
        size(MIB, minimum=1),
        default=256,
        doc="Size in MiB at which the journal of the hot log moves to a new file; the old one goes at the next "
        "checkpoint.",
        key="journalMaxSizeMB",
    )
    flush_interval: int = setting(
        duration(1, minimum=1),
        default=60_000,
        doc="Milliseconds between checkpoints of the hot log. A start after a crash replays what came after the last.",
        inert=True,
    )
