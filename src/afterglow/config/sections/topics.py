"""Topics, subscriptions and dispatch."""

from __future__ import annotations

from afterglow.config.choices import (
    EntryInterceptor,
    InactiveTopicDeleteMode,
    SchemaCompatibilityStrategy,
    TopicType,
)
from afterglow.config.kinds import choice, decimal, flag, integer, optional, several, switch
from afterglow.config.quantities import MIB, MINUTE_MS, duration, size
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
    broker_delete_inactive_topics_enabled: bool = setting(
        flag(),
        default=True,
        doc="Whether unused topics are deleted.",
        scope=Scope.TOPIC,
        inert=True,
    )
    broker_delete_inactive_topics_frequency_seconds: int = setting(
        duration(minimum=1),
        default=60,
        doc="Seconds between looks for unused topics.",
        inert=True,
    )
    broker_delete_inactive_topics_mode: InactiveTopicDeleteMode = setting(
        choice(InactiveTopicDeleteMode),
        default=InactiveTopicDeleteMode.DELETE_WHEN_NO_SUBSCRIPTIONS,
        doc="When a topic counts as unused.",
        scope=Scope.TOPIC,
        inert=True,
    )
    broker_delete_inactive_topics_max_inactive_duration_seconds: int | None = setting(
        optional(duration(minimum=1)),
        default=None,
        doc="Seconds that a topic must be unused before it is deleted. Nothing: the time between looks.",
        scope=Scope.TOPIC,
        inert=True,
    )
    broker_delete_inactive_partitioned_topic_metadata_enabled: bool = setting(
        flag(),
        default=False,
        doc="Whether the partition count of a topic goes when all its partitions have gone.",
        inert=True,
    )
    subscription_expiration_time_minutes: int = setting(
        duration(MINUTE_MS),
        default=0,
        doc="Minutes after its last use at which a subscription is deleted. 0: never.",
        scope=Scope.NAMESPACE,
        inert=True,
    )
    subscription_expiry_check_interval_in_minutes: int = setting(
        duration(MINUTE_MS, minimum=1),
        default=5,
        doc="Minutes between looks for unused subscriptions.",
        inert=True,
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
    max_unacked_messages_per_subscription: int = setting(
        integer(0),
        default=200_000,
        doc="Unacknowledged messages at which a shared subscription stops, until half are acknowledged. 0: no limit.",
        scope=Scope.TOPIC,
        inert=True,
    )
    max_unacked_messages_per_broker: int = setting(
        integer(0),
        default=0,
        doc="Unacknowledged messages of all shared subscriptions, past which the largest stop. 0: no limit.",
        inert=True,
    )
    max_unacked_messages_per_subscription_on_broker_blocked: float = setting(
        decimal(0.0, 1.0),
        default=0.16,
        doc="Share of the broker's limit past which a subscription is stopped once that limit is reached.",
        inert=True,
    )
    subscription_redelivery_tracker_enabled: bool = setting(
        flag(),
        default=True,
        doc="Whether consumers are told how often a message was delivered before.",
        inert=True,
    )
    acknowledgment_at_batch_index_level_enabled: bool = setting(
        flag(),
        default=False,
        doc="Whether single messages of a batch are acknowledged, and the rest of it delivered again.",
        inert=True,
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
    dispatcher_max_read_batch_size: int = setting(
        integer(1),
        default=100,
        doc="Most entries that dispatch reads at once.",
        inert=True,
    )
    dispatcher_max_read_size_bytes: int = setting(
        size(minimum=1),
        default=5 * MIB,
        doc="Most bytes that dispatch reads at once; one entry always passes.",
        inert=True,
    )
    dispatcher_max_round_robin_batch_size: int = setting(
        integer(1),
        default=20,
        doc="Most entries that one consumer of a shared subscription gets before the next has its turn.",
        inert=True,
    )
