"""Settings of topics, subscriptions, managed ledgers, their metadata, and the hot log on disk."""

from __future__ import annotations

from afterglow.config.choices import (
    CompressionType,
    EntryInterceptor,
    SchemaCompatibilityStrategy,
    SubscriptionType,
    TopicType,
)
from afterglow.config.kinds import KIB, MIB, MINUTE_MS, choice, decimal, duration, flag, integer, several, size, switch
from afterglow.config.setting import Scope, section, setting

_INTERCEPTOR_PACKAGE = "org.apache.pulsar.common.intercept"
_INTERCEPTORS = several(
    choice(
        EntryInterceptor,
        {
            f"{_INTERCEPTOR_PACKAGE}.AppendBrokerTimestampMetadataInterceptor": EntryInterceptor.BROKER_TIMESTAMP,
            f"{_INTERCEPTOR_PACKAGE}.AppendIndexMetadataInterceptor": EntryInterceptor.INDEX,
        },
    ),
    "`broker-timestamp` and `index` (also as Pulsar's class names)",
)
_ALL_INTERCEPTORS = tuple(EntryInterceptor)


@section
class Topics:
    """Topics and subscriptions."""

    allow_auto_topic_creation: bool = setting(
        flag(), default=True, doc="Whether a topic is created when a client first names it.", scope=Scope.NAMESPACE
    )
    allow_auto_topic_creation_type: TopicType = setting(
        choice(TopicType), default=TopicType.NON_PARTITIONED, doc="What auto-creation creates.", scope=Scope.NAMESPACE
    )
    default_num_partitions: int = setting(
        integer(1), default=1, doc="Partitions of an automatically created partitioned topic.", scope=Scope.NAMESPACE
    )
    max_num_partitions_per_partitioned_topic: int = setting(
        integer(0), default=0, doc="Most partitions that a topic may have. 0: no limit."
    )
    allow_auto_subscription_creation: bool = setting(
        flag(), default=True, doc="Whether a subscription is created when a consumer first names it.", scope=Scope.TOPIC
    )
    subscription_types_enabled: tuple[SubscriptionType, ...] = setting(
        several(choice(SubscriptionType), "types of subscriptions"),
        default=tuple(SubscriptionType),
        doc="Types of subscriptions that consumers may use. Key_Shared is refused whether it is listed or not.",
        scope=Scope.TOPIC,
    )
    schema_compatibility_strategy: SchemaCompatibilityStrategy = setting(
        choice(SchemaCompatibilityStrategy),
        default=SchemaCompatibilityStrategy.FULL,
        doc="What a producer's schema must be able to read, and be read by, to follow those that a topic has. "
        "UNDEFINED: FULL.",
        scope=Scope.TOPIC,
    )
    is_allow_auto_update_schema_enabled: bool = setting(
        flag(),
        default=True,
        doc="Whether producers and consumers bring new schemas. If not, only those that were uploaded are taken.",
        scope=Scope.NAMESPACE,
    )
    is_schema_validation_enforced: bool = setting(
        flag(),
        default=False,
        doc="Whether a topic that has a schema refuses producers without one.",
        scope=Scope.TOPIC,
    )
    ttl_duration_default_in_seconds: int = setting(
        duration(),
        default=0,
        doc="Seconds after which an unacknowledged message is skipped (TTL). 0: never.",
        scope=Scope.TOPIC,
    )
    message_expiry_check_interval_in_minutes: int = setting(
        duration(MINUTE_MS, minimum=1), default=5, doc="Minutes between looks for messages past their TTL."
    )
    subscription_backlog_scan_max_entries: int = setting(
        integer(1), default=10_000, doc="Most entries that an analysis of a subscription's backlog reads."
    )
    subscription_backlog_scan_max_time_ms: int = setting(
        duration(1, minimum=1), default=120_000, doc="Milliseconds that an analysis of a backlog may take."
    )
    max_topics_per_namespace: int = setting(
        integer(0), default=0, doc="Most topics in a namespace. 0: no limit.", scope=Scope.NAMESPACE
    )
    force_delete_namespace_allowed: bool = setting(
        flag(), default=False, doc="Whether a namespace may be deleted by force, with all its topics."
    )
    force_delete_tenant_allowed: bool = setting(
        flag(), default=False, doc="Whether a tenant may be deleted by force, with all its namespaces."
    )
    max_producers_per_topic: int = setting(
        integer(0), default=0, doc="Most producers on a topic. 0: no limit.", scope=Scope.TOPIC
    )
    max_consumers_per_topic: int = setting(
        integer(0), default=0, doc="Most consumers on a topic. 0: no limit.", scope=Scope.TOPIC
    )
    max_consumers_per_subscription: int = setting(
        integer(0), default=0, doc="Most consumers on a subscription. 0: no limit.", scope=Scope.TOPIC
    )
    max_subscriptions_per_topic: int = setting(
        integer(0), default=0, doc="Most subscriptions on a topic. 0: no limit.", scope=Scope.TOPIC
    )
    max_unacked_messages_per_consumer: int = setting(
        integer(0),
        default=50_000,
        doc="Unacknowledged messages at which a consumer of a shared subscription gets no more. 0: no limit.",
        scope=Scope.TOPIC,
    )
    active_consumer_failover_delay_time_millis: int = setting(
        duration(1),
        default=1000,
        doc="Milliseconds that a new active consumer of a Failover subscription waits for messages, so that the last "
        "one can acknowledge what it has.",
    )
    active_consumer_failover_consistent_hashing: bool = setting(
        flag(),
        default=False,
        doc="Whether the active consumer of a partition is chosen by a hash ring, as that of a topic without "
        "partitions, and not in turn.",
    )
    delayed_delivery_enabled: bool = setting(
        flag(),
        default=True,
        doc="Whether shared subscriptions hold a message back until the delivery time that its producer set. It is "
        "never delivered earlier, whatever isDelayedDeliveryDeliverAtTimeStrict says.",
        scope=Scope.TOPIC,
    )
    delayed_delivery_max_delay_in_millis: int = setting(
        duration(1),
        default=0,
        doc="Longest delay in milliseconds that a producer may set; longer ones are refused. 0: no limit.",
        scope=Scope.TOPIC,
    )
    max_delayed_messages_per_subscription: int = setting(
        integer(1),
        default=500_000,
        doc="Delayed messages that a shared subscription holds back at most, some 150 bytes of memory each. At the "
        "limit it reads no further until some of them are delivered.",
    )
    broker_entry_metadata_interceptors: tuple[EntryInterceptor, ...] = setting(
        _INTERCEPTORS,
        default=_ALL_INTERCEPTORS,
        doc="What the broker writes in front of each entry (PIP-70); seek by time and TTL use it. Pulsar's default is "
        "nothing.",
        aliases={"useBrokerTimestampsForMessageSeek": switch(_INTERCEPTORS, on=_ALL_INTERCEPTORS, off=())},
    )
    exposing_broker_entry_metadata_to_client_enabled: bool = setting(
        flag(), default=False, doc="Whether clients that understand broker entry metadata receive it."
    )


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
