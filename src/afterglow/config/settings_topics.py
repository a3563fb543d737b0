"""Settings of topics, subscriptions, managed ledgers, their metadata, and the local hot log."""

from __future__ import annotations

from afterglow.config.choices import (
    CompressionType,
    EntryInterceptor,
    SchemaCompatibilityStrategy,
    SubscriptionType,
    TopicType,
)
from afterglow.config.setting import Scope, section, setting
from afterglow.config.value_types import (
    KIB,
    MIB,
    MINUTE_MS,
    choice,
    decimal,
    duration,
    flag,
    integer,
    several,
    size,
    switch,
)

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
class TopicSettings:
    """Topics and subscriptions."""

    # fmt: off
    allow_auto_topic_creation: bool = setting(
        flag(), default=True, scope=Scope.NAMESPACE, doc="Whether a topic is created when a client first uses it."
    )
    allow_auto_topic_creation_type: TopicType = setting(
        choice(TopicType), default=TopicType.NON_PARTITIONED, scope=Scope.NAMESPACE,
        doc="Type of automatically created topics.",
    )
    default_num_partitions: int = setting(
        integer(1), default=1, scope=Scope.NAMESPACE,
        doc="Number of partitions of automatically created partitioned topics.",
    )
    max_num_partitions_per_partitioned_topic: int = setting(
        integer(0), default=0, doc="Maximum number of partitions of a topic. 0: no limit."
    )
    allow_auto_subscription_creation: bool = setting(
        flag(), default=True, scope=Scope.TOPIC, doc="Whether a subscription is created when a consumer first uses it."
    )
    subscription_types_enabled: tuple[SubscriptionType, ...] = setting(
        several(choice(SubscriptionType), "subscription types"), default=tuple(SubscriptionType), scope=Scope.TOPIC,
        doc="Subscription types that consumers may use. Key_Shared is refused even if it is listed.",
    )
    schema_compatibility_strategy: SchemaCompatibilityStrategy = setting(
        choice(SchemaCompatibilityStrategy), default=SchemaCompatibilityStrategy.FULL, scope=Scope.TOPIC,
        doc="Rule that a producer's schema must satisfy with respect to the existing versions of the topic. UNDEFINED "
        "means FULL.",
    )
    is_allow_auto_update_schema_enabled: bool = setting(
        flag(), default=True, scope=Scope.NAMESPACE,
        doc="Whether producers and consumers may register new schema versions. Otherwise only uploaded ones are "
        "accepted.",
    )
    is_schema_validation_enforced: bool = setting(
        flag(), default=False, scope=Scope.TOPIC, doc="Whether a topic that has a schema refuses producers without one."
    )
    ttl_duration_default_in_seconds: int = setting(
        duration(), default=0, scope=Scope.TOPIC,
        doc="Seconds after which unacknowledged messages expire (TTL). 0: never.",
    )
    message_expiry_check_interval_in_minutes: int = setting(
        duration(MINUTE_MS, minimum=1), default=5, doc="Minutes between checks for expired messages."
    )
    subscription_backlog_scan_max_entries: int = setting(
        integer(1), default=10_000, doc="Maximum number of entries that a backlog analysis reads."
    )
    subscription_backlog_scan_max_time_ms: int = setting(
        duration(1, minimum=1), default=120_000, doc="Maximum duration of a backlog analysis in milliseconds."
    )
    max_topics_per_namespace: int = setting(
        integer(0), default=0, scope=Scope.NAMESPACE, doc="Maximum number of topics in a namespace. 0: no limit."
    )
    force_delete_namespace_allowed: bool = setting(
        flag(), default=False, doc="Whether a namespace may be force-deleted with all its topics."
    )
    force_delete_tenant_allowed: bool = setting(
        flag(), default=False, doc="Whether a tenant may be force-deleted with all its namespaces."
    )
    max_producers_per_topic: int = setting(
        integer(0), default=0, scope=Scope.TOPIC, doc="Maximum number of producers of a topic. 0: no limit."
    )
    max_consumers_per_topic: int = setting(
        integer(0), default=0, scope=Scope.TOPIC, doc="Maximum number of consumers of a topic. 0: no limit."
    )
    max_consumers_per_subscription: int = setting(
        integer(0), default=0, scope=Scope.TOPIC, doc="Maximum number of consumers of a subscription. 0: no limit."
    )
    max_subscriptions_per_topic: int = setting(
        integer(0), default=0, scope=Scope.TOPIC, doc="Maximum number of subscriptions of a topic. 0: no limit."
    )
    max_unacked_messages_per_consumer: int = setting(
        integer(0), default=50_000, scope=Scope.TOPIC,
        doc="Unacknowledged messages at which dispatch to a consumer of a shared subscription pauses. 0: no limit.",
    )
    active_consumer_failover_delay_time_millis: int = setting(
        duration(1), default=1000,
        doc="Milliseconds before a new active consumer of a Failover subscription receives messages, so that the "
        "previous one can acknowledge those that it has.",
    )
    active_consumer_failover_consistent_hashing: bool = setting(
        flag(), default=False,
        doc="Whether the active consumer of a partition is selected by consistent hashing, as for topics without "
        "partitions, instead of round-robin.",
    )
    delayed_delivery_enabled: bool = setting(
        flag(), default=True, scope=Scope.TOPIC,
        doc="Whether shared subscriptions delay a message until the delivery time that its producer set. It is never "
        "delivered earlier: isDelayedDeliveryDeliverAtTimeStrict has no effect.",
    )
    delayed_delivery_max_delay_in_millis: int = setting(
        duration(1), default=0, scope=Scope.TOPIC,
        doc="Maximum delay in milliseconds; messages with a longer one are refused. 0: no limit.",
    )
    max_delayed_messages_per_subscription: int = setting(
        integer(1), default=500_000,
        doc="Maximum number of delayed messages of a shared subscription, about 150 bytes of memory each. At the limit "
        "the subscription stops reading until some of them are delivered.",
    )
    broker_entry_metadata_interceptors: tuple[EntryInterceptor, ...] = setting(
        _INTERCEPTORS, default=_ALL_INTERCEPTORS,
        doc="Broker entry metadata that precedes each entry (PIP-70); seek by time and TTL use it. Pulsar's default is "
        "empty.",
        aliases={"useBrokerTimestampsForMessageSeek": switch(_INTERCEPTORS, on=_ALL_INTERCEPTORS, off=())},
    )
    exposing_broker_entry_metadata_to_client_enabled: bool = setting(
        flag(), default=False, doc="Whether broker entry metadata is sent to clients that support it."
    )
    # fmt: on


@section
class LedgerSettings:
    """Ledgers and retention."""

    # fmt: off
    managed_ledger_max_entries_per_ledger: int = setting(
        integer(1), default=50_000, doc="Number of entries at which a ledger is full and the next one is opened."
    )
    managed_ledger_max_size_per_ledger_mbytes: int = setting(
        size(MIB, minimum=1), default=2_048, doc="Size in MiB at which a ledger is full."
    )
    managed_ledger_min_ledger_rollover_time_minutes: int = setting(
        duration(MINUTE_MS), default=10, doc="Minimum age in minutes at which a full ledger is closed."
    )
    managed_ledger_max_ledger_rollover_time_minutes: int = setting(
        duration(MINUTE_MS), default=240, doc="Age in minutes at which a ledger with entries is full. 0: no age limit."
    )
    managed_ledger_inactive_ledger_rollover_time_seconds: int = setting(
        duration(), default=0, doc="Seconds without an append after which a ledger with entries is closed. 0: never."
    )
    managed_ledger_cache_size_mb: int = setting(
        size(MIB), default=64, key="managedLedgerCacheSizeMB",
        doc="Memory in MiB of the tail cache: the newest entries of all topics, for tailing consumers. Pulsar's "
        "default is a fifth of its direct memory.",
    )
    default_retention_time_in_minutes: int = setting(
        duration(MINUTE_MS, minimum=-1), default=0, scope=Scope.TOPIC,
        doc="Retention time of acknowledged messages in minutes. 0: none, -1: unlimited.",
    )
    default_retention_size_in_mb: int = setting(
        size(MIB, minimum=-1), default=0, key="defaultRetentionSizeInMB", scope=Scope.TOPIC,
        doc="Retention size of acknowledged messages in MiB. 0: none, -1: unlimited.",
    )
    retention_check_interval_in_seconds: int = setting(
        duration(minimum=1), default=120, doc="Seconds between checks for ledgers whose retention has expired."
    )
    managed_ledger_default_mark_delete_rate_limit: float = setting(
        decimal(0.0, 1e9), default=1.0,
        doc="Maximum rate per second at which the mark-delete position of a subscription is persisted. 0: no limit.",
    )
    managed_ledger_cursor_position_flush_seconds: int = setting(
        duration(minimum=1), default=60,
        doc="Seconds after which a position that the rate limit has delayed is persisted.",
    )
    managed_ledger_max_unacked_ranges_to_persist: int = setting(
        integer(0), default=10_000,
        doc="Maximum number of ranges of individually acknowledged messages that are persisted.",
    )
    managed_ledger_max_batch_deleted_index_to_persist: int = setting(
        integer(0), default=10_000, doc="Maximum number of partly acknowledged batches that are persisted."
    )
    managed_ledger_info_compression_type: CompressionType = setting(
        choice(CompressionType), default=CompressionType.NONE,
        doc="Compression of a topic's ledger list in the metadata store.",
    )
    managed_ledger_info_compression_threshold_in_bytes: int = setting(
        size(), default=16 * KIB, doc="Size in bytes above which a topic's ledger list is compressed."
    )
    managed_cursor_info_compression_type: CompressionType = setting(
        choice(CompressionType), default=CompressionType.NONE,
        doc="Compression of a subscription's position in the metadata store.",
    )
    managed_cursor_info_compression_threshold_in_bytes: int = setting(
        size(), default=16 * KIB, doc="Size in bytes above which a subscription's position is compressed."
    )
    journal_max_size_mb: int = setting(
        size(MIB, minimum=1), default=256, key="journalMaxSizeMB",
        doc="Size in MiB at which the journal of the hot log rolls over to a new file; the old one is deleted at the "
        "next checkpoint.",
    )
    # fmt: on
