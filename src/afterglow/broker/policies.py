"""What policies ask of topics: functions over Pulsar's JSON, with the broker's own settings below it.

By policy the topic wins over its namespace, and that over the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from afterglow.broker.replies import Refused
from afterglow.config.choices import SchemaCompatibilityStrategy, TopicType
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.ledger.retention import Retention
from afterglow.ledger.topic_policies import effective

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from afterglow.config import BrokerConfig
    from afterglow.ledger.catalog import Catalog
    from afterglow.metadata.names import NamespaceName, TopicName

    Stored: TypeAlias = Mapping[str, Any]

DELETED: Final = "deleted"
"""Field of the policies of a namespace that is being deleted, with all it has."""

SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover")
"""The types of subscriptions that are served."""

_MOST_PARTITIONS: Final = 10_000
"""Where maxNumPartitionsPerPartitionedTopic sets no limit: a slip of the finger would else make topics for hours."""


def most_partitions(config: BrokerConfig) -> int:
    """The most partitions with which a topic is made."""
    return config.max_num_partitions_per_partitioned_topic or _MOST_PARTITIONS


@dataclass(frozen=True, slots=True)
class Policy:
    """Where the levels keep one policy. A value has the same form at each."""

    namespace: str
    """Field of a namespace's policies."""
    topic: str | None
    """Field of a topic's own policies; None: topics have none."""
    broker: Callable[[BrokerConfig], Any]
    """What holds where no level sets it."""

    def held(self, config: BrokerConfig, namespace: Stored, topic: Stored) -> Any:
        """What holds for a topic, by what its namespace and it itself have stored."""
        own = None if self.topic is None else effective(topic).get(self.topic)
        value = namespace.get(self.namespace) if own is None else own
        # An empty list of types is how a namespace says that it sets none.
        return self.broker(config) if value is None or value == [] else value


RETENTION: Final = Policy(
    "retention_policies",
    "retentionPolicies",
    lambda config: {
        "retentionTimeInMinutes": config.default_retention_time_in_minutes,
        "retentionSizeInMB": config.default_retention_size_in_mb,
    },
)
PERSISTENCE: Final = Policy(
    "persistence",
    "persistence",
    # The hot log keeps one copy, whatever a policy says of BookKeeper's; only the rate can be obeyed.
    lambda config: {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": config.managed_ledger_default_mark_delete_rate_limit,
    },
)
MESSAGE_TTL: Final = Policy(
    "message_ttl_in_seconds", "messageTTLInSeconds", lambda config: config.ttl_duration_default_in_seconds
)
MAX_PRODUCERS: Final = Policy(
    "max_producers_per_topic", "maxProducerPerTopic", lambda config: config.max_producers_per_topic
)
MAX_CONSUMERS: Final = Policy(
    "max_consumers_per_topic", "maxConsumerPerTopic", lambda config: config.max_consumers_per_topic
)
MAX_CONSUMERS_PER_SUBSCRIPTION: Final = Policy(
    "max_consumers_per_subscription",
    "maxConsumersPerSubscription",
    lambda config: config.max_consumers_per_subscription,
)
MAX_SUBSCRIPTIONS: Final = Policy(
    "max_subscriptions_per_topic", "maxSubscriptionsPerTopic", lambda config: config.max_subscriptions_per_topic
)
MAX_UNACKED_PER_CONSUMER: Final = Policy(
    "max_unacked_messages_per_consumer",
    "maxUnackedMessagesOnConsumer",
    lambda config: config.max_unacked_messages_per_consumer,
)
DELAYED_DELIVERY: Final = Policy(
    "delayed_delivery_policies",
    "delayedDeliveryPolicies",
    # Deliveries are exact: the tick is kept for tools that set and read it.
    lambda config: {
        "tickTime": 1000,
        "active": config.delayed_delivery_enabled,
        "maxDeliveryDelayInMillis": config.delayed_delivery_max_delay_in_millis,
    },
)
AUTO_SUBSCRIPTION_CREATION: Final = Policy(
    "autoSubscriptionCreationOverride",
    "autoSubscriptionCreationOverride",
    lambda config: {"allowAutoSubscriptionCreation": config.allow_auto_subscription_creation},
)
TYPES_ENABLED: Final = Policy(
    "subscription_types_enabled", "subscriptionTypesEnabled", lambda _config: list(SUBSCRIPTION_TYPES)
)
AUTO_TOPIC_CREATION: Final = Policy(
    "autoTopicCreationOverride",
    None,
    lambda config: {
        "allowAutoTopicCreation": config.allow_auto_topic_creation,
        "topicType": str(config.allow_auto_topic_creation_type),
        "defaultNumPartitions": config.default_num_partitions,
    },
)
SCHEMA_VALIDATION: Final = Policy(
    "schema_validation_enforced", "schemaValidationEnforced", lambda config: config.is_schema_validation_enforced
)
SCHEMA_UPDATES: Final = Policy(
    "is_allow_auto_update_schema", None, lambda config: config.is_allow_auto_update_schema_enabled
)
SCHEMA_AUTO_UPDATE: Final = Policy("schema_auto_update_compatibility_strategy", None, lambda _config: None)
AUTO_UPDATE_STRATEGIES: Final = {
    "AutoUpdateDisabled": SchemaCompatibilityStrategy.ALWAYS_INCOMPATIBLE,
    "Backward": SchemaCompatibilityStrategy.BACKWARD,
    "Forward": SchemaCompatibilityStrategy.FORWARD,
    "Full": SchemaCompatibilityStrategy.FULL,
    "AlwaysCompatible": SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE,
    "BackwardTransitive": SchemaCompatibilityStrategy.BACKWARD_TRANSITIVE,
    "ForwardTransitive": SchemaCompatibilityStrategy.FORWARD_TRANSITIVE,
    "FullTransitive": SchemaCompatibilityStrategy.FULL_TRANSITIVE,
}
"""The older words of Pulsar for strategies, which only namespaces have."""


class _SchemaStrategy(Policy):
    """A namespace has two fields for it, of which the older one counts where the newer one says nothing."""

    __slots__ = ()

    def held(self, config: BrokerConfig, namespace: Stored, topic: Stored) -> Any:
        """What holds for a topic, by what its namespace and it itself have stored."""
        older = AUTO_UPDATE_STRATEGIES.get(namespace.get(SCHEMA_AUTO_UPDATE.namespace, ""))
        own = effective(topic).get("schemaCompatibilityStrategy")
        return str(own or namespace.get(self.namespace) or older or self.broker(config))


def _broker_strategy(config: BrokerConfig) -> str:
    given = config.schema_compatibility_strategy
    is_undefined = given is SchemaCompatibilityStrategy.UNDEFINED
    return SchemaCompatibilityStrategy.FULL if is_undefined else given


SCHEMA_STRATEGY: Final[Policy] = _SchemaStrategy(
    "schema_compatibility_strategy", "schemaCompatibilityStrategy", _broker_strategy
)
MAX_TOPICS: Final = Policy("max_topics_per_namespace", None, lambda config: config.max_topics_per_namespace)


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """What holds for one topic. A limit of 0 is none."""

    retention: Retention
    ttl_ms: int
    """Age at which messages count as acknowledged; 0: never."""
    max_producers: int
    max_consumers: int
    max_consumers_per_subscription: int
    max_subscriptions: int
    max_unacked_per_consumer: int
    delayed_delivery: bool
    """Whether shared subscriptions hold messages back until their delivery time."""
    max_delivery_delay_ms: int
    auto_subscription_creation: bool
    """Whether a subscription is created when a consumer first names it."""
    subscription_types: frozenset[str]
    """The types that consumers may bring."""
    mark_delete_rate: float
    """States of a cursor that are persisted per second; 0: as many as come."""
    schemas: SchemaPolicies


@dataclass(frozen=True, slots=True)
class SchemaPolicies:
    """What holds for the schemas of one topic."""

    strategy: SchemaCompatibilityStrategy
    """Never UNDEFINED."""
    updates: bool = True
    """Whether clients bring new schemas."""
    validation: bool = False
    """Whether producers without a schema are refused once the topic has one."""


def resolve(config: BrokerConfig, namespace: Stored, topic: Stored) -> TopicPolicies:
    """What holds for a topic.

    Args:
        config: The broker's settings.
        namespace: What is stored for its namespace.
        topic: What is stored for itself.
    """

    def held(policy: Policy) -> Any:
        return policy.held(config, namespace, topic)

    retention, rate = held(RETENTION), held(PERSISTENCE).get("managedLedgerMaxMarkDeleteRate", -1)
    delayed = held(DELAYED_DELIVERY)
    return TopicPolicies(
        retention=Retention.of(retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]),
        ttl_ms=1000 * held(MESSAGE_TTL),
        max_producers=held(MAX_PRODUCERS),
        max_consumers=held(MAX_CONSUMERS),
        max_consumers_per_subscription=held(MAX_CONSUMERS_PER_SUBSCRIPTION),
        max_subscriptions=held(MAX_SUBSCRIPTIONS),
        max_unacked_per_consumer=held(MAX_UNACKED_PER_CONSUMER),
        delayed_delivery=delayed["active"],
        max_delivery_delay_ms=delayed["maxDeliveryDelayInMillis"],
        auto_subscription_creation=held(AUTO_SUBSCRIPTION_CREATION)["allowAutoSubscriptionCreation"],
        subscription_types=frozenset(held(TYPES_ENABLED)),
        # A policy that is only about copies carries no rate, or a negative one.
        mark_delete_rate=rate if rate >= 0 else config.managed_ledger_default_mark_delete_rate_limit,
        schemas=SchemaPolicies(
            SchemaCompatibilityStrategy(held(SCHEMA_STRATEGY)),
            updates=held(SCHEMA_UPDATES),
            # What the broker enforces no namespace and no topic can switch off.
            validation=held(SCHEMA_VALIDATION) or config.is_schema_validation_enforced,
        ),
    )


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """What holds where topics of a namespace come into being."""

    auto_topic_creation: bool
    """Whether a topic is created when a client first names it."""
    auto_partitions: int
    """Partitions of such a topic; 0: it is not partitioned."""
    max_topics: int
    """Each partition counts; 0: no limit."""
    deleted: bool
    """Whether it is being deleted, so that none may."""


def resolve_namespace(config: BrokerConfig, namespace: Stored) -> NamespacePolicies:
    """What holds for topics that a namespace does not have yet."""
    creation = AUTO_TOPIC_CREATION.held(config, namespace, {})
    partitioned = creation.get("topicType") == TopicType.PARTITIONED
    return NamespacePolicies(
        auto_topic_creation=creation["allowAutoTopicCreation"],
        auto_partitions=creation["defaultNumPartitions"] if partitioned else 0,
        max_topics=MAX_TOPICS.held(config, namespace, {}),
        deleted=bool(namespace.get(DELETED)),
    )


class PolicyReader:
    """What holds by what is stored now. Every method waits for the metadata store; safe to use from any thread."""

    def __init__(self, config: BrokerConfig, catalog: Catalog) -> None:
        self._config = config
        self._catalog = catalog

    def of_topics(self, names: Collection[TopicName]) -> dict[TopicName, TopicPolicies]:
        """What holds for each topic.

        Raises:
            NotThere: A namespace does not exist.
        """
        namespaces = {namespace: self._catalog.policies(namespace) for namespace in {name.namespace for name in names}}
        return {
            name: resolve(self._config, namespaces[name.namespace], self._catalog.topic_policies(name))
            for name in names
        }

    def of_namespace(self, namespace: NamespaceName) -> NamespacePolicies:
        """What holds where topics of a namespace come into being.

        Raises:
            NotThere: There is no such namespace.
        """
        return resolve_namespace(self._config, self._catalog.policies(namespace))

    def for_creation(self, namespace: NamespaceName) -> NamespacePolicies:
        """The same, for who makes a topic.

        Raises:
            NotThere: There is no such namespace.
            Refused: It is being deleted.
        """
        found = self.of_namespace(namespace)
        if found.deleted:
            raise Refused(wire.TopicNotFound, f"namespace {namespace} is being deleted with all it has")
        return found

    def check_room(self, namespace: NamespaceName, more: int) -> None:
        """Check that a namespace may have so many topics more; each partition is one.

        Raises:
            NotThere: There is no such namespace.
            Refused: It may not, or is being deleted.
        """
        most = self.for_creation(namespace).max_topics
        if most and len(self._catalog.topics(namespace)) + more > most:
            raise Refused(
                wire.NotAllowedError,
                f"namespace {namespace} may have {most} topics (maxTopicsPerNamespace): delete some, or allow more",
            )
