"""Table of policy fields: where namespaces and topics store each policy, and which settings it overrides.

Every policy overrides settings of the broker, so that one table defines where a value is stored, how it is read, and
how it is shown. Pulsar's JSON is stored unchanged; values that this release cannot read are ignored.

A topic's policies have two scopes, as in Pulsar: those of this cluster, and those of all clusters (``global``). If both
set a field, that of this cluster takes precedence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from afterglow.catalog.schema_registry import SchemaPolicies
from afterglow.config import SETTINGS
from afterglow.config.choices import SchemaCompatibilityStrategy, SubscriptionType, TopicType
from afterglow.policy import offload_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from afterglow.config import BrokerConfig

    Json: TypeAlias = dict[str, Any]
    Stored: TypeAlias = Mapping[str, Any]

DELETED: Final = "deleted"
"""Field of a namespace that is being deleted with its topics."""
NAMESPACE_OFFLOAD: Final = "offload_policies"
"""Field of a namespace with its offload policies."""
TOPIC_OFFLOAD: Final = "offloadPolicies"
"""Field of a topic with its offload policies."""
LEGACY_OFFLOAD_FIELDS: Final = {
    "offload_threshold": "managedLedgerOffloadThresholdInBytes",
    "offload_threshold_in_seconds": "managedLedgerOffloadThresholdInSeconds",
    "offload_deletion_lag_ms": "managedLedgerOffloadDeletionLagInMillis",
}
"""Fields of a namespace that preceded offload policies; -1 and null mean unset."""

SERVED_TYPES: Final = tuple(kind for kind in SubscriptionType if kind is not SubscriptionType.KEY_SHARED)
"""Types of subscriptions that this broker serves."""

_GLOBAL: Final = "global"
"""Field of a topic with its policies for all clusters."""

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
"""Strategies by Pulsar's older names, which only namespaces use."""


# --- scopes of a topic's policies ---


def merged_scopes(stored: Stored) -> Json:
    """A topic's policies of both scopes; fields of this cluster override those of all clusters."""
    return {**of_scope(stored, is_global=True), **of_scope(stored, is_global=False)}


def of_scope(stored: Stored, *, is_global: bool) -> Json:
    """A topic's policies of one scope."""
    if is_global:
        return dict(stored.get(_GLOBAL) or {})
    return {name: value for name, value in stored.items() if name != _GLOBAL}


def with_scope(stored: Stored, part: Json, *, is_global: bool) -> Json:
    """A topic's policies with one scope replaced."""
    other = of_scope(stored, is_global=not is_global)
    local, everywhere = (other, part) if is_global else (part, other)
    return {**local, _GLOBAL: everywhere} if everywhere else local


# --- the table ---


@dataclass(frozen=True, slots=True)
class PolicyField:
    """One policy: its field at each level, and the settings it overrides. Values have the same form at each level."""

    namespace: str
    """Field of a namespace's policies."""
    topic: str | None
    """Field of a topic's own policies; None: topics have none."""
    read: Callable[[Any], Mapping[str, Any]]
    """From a stored value to settings by key; settings that the value does not set are omitted."""
    show: Callable[[BrokerConfig], Any]
    """From settings to the value of the field."""

    def applied(self, policy: BrokerConfig, namespace: Stored, topic: Stored) -> Any:
        """The stored value of the narrowest level that sets the field; else the value of the effective policy."""
        own = None if self.topic is None else merged_scopes(topic).get(self.topic)
        value = namespace.get(self.namespace) if own is None else own
        # A namespace stores an empty list of subscription types to unset the policy.
        return self.show(policy) if value is None or value == [] else value


def _single(namespace: str, topic: str | None, key: str) -> PolicyField:
    """A policy whose value is that of one setting."""
    attribute = SETTINGS[key].attribute
    return PolicyField(namespace, topic, lambda value: {key: value}, lambda config: getattr(config, attribute))


def _object(namespace: str, topic: str | None, keys: Mapping[str, str], fixed: Stored | None = None) -> PolicyField:
    """A policy that is an object of settings.

    Args:
        namespace: Field of a namespace.
        topic: Field of a topic.
        keys: Settings by field of the object.
        fixed: Fields that are only shown.
    """
    attributes = {name: SETTINGS[key].attribute for name, key in keys.items()}
    return PolicyField(
        namespace,
        topic,
        lambda value: {key: value[name] for name, key in keys.items() if value.get(name) is not None},
        lambda config: {**(fixed or {}), **{name: getattr(config, found) for name, found in attributes.items()}},
    )


def _read_persistence(value: Stored) -> dict[str, Any]:
    # A policy that only sets numbers of copies has no rate, or a negative one.
    rate = value.get("managedLedgerMaxMarkDeleteRate", -1)
    return {"managedLedgerDefaultMarkDeleteRateLimit": float(rate)} if rate >= 0 else {}


def _read_types(value: list[str]) -> dict[str, Any]:
    known = tuple(SubscriptionType(name) for name in value if name in set(SubscriptionType))
    return {"subscriptionTypesEnabled": known} if known else {}


def _read_auto_topic_creation(value: Stored) -> dict[str, Any]:
    # As in Pulsar, an override without a type means non-partitioned topics, regardless of the broker's type.
    found = {
        "allowAutoTopicCreation": value["allowAutoTopicCreation"],
        "allowAutoTopicCreationType": TopicType(value.get("topicType") or TopicType.NON_PARTITIONED),
    }
    count = value.get("defaultNumPartitions")
    return found if count is None else {**found, "defaultNumPartitions": count}


def _read_strategy(value: str) -> dict[str, Any]:
    is_set = value != SchemaCompatibilityStrategy.UNDEFINED
    return {"schemaCompatibilityStrategy": SchemaCompatibilityStrategy(value)} if is_set else {}


RETENTION: Final = _object(
    "retention_policies",
    "retentionPolicies",
    {"retentionTimeInMinutes": "defaultRetentionTimeInMinutes", "retentionSizeInMB": "defaultRetentionSizeInMB"},
)
PERSISTENCE: Final = PolicyField(
    "persistence",
    "persistence",
    _read_persistence,
    # The hot log has one copy, regardless of the policy; only the rate takes effect.
    lambda config: {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": config.managed_ledger_default_mark_delete_rate_limit,
    },
)
MESSAGE_TTL: Final = _single("message_ttl_in_seconds", "messageTTLInSeconds", "ttlDurationDefaultInSeconds")
MAX_PRODUCERS: Final = _single("max_producers_per_topic", "maxProducerPerTopic", "maxProducersPerTopic")
MAX_CONSUMERS: Final = _single("max_consumers_per_topic", "maxConsumerPerTopic", "maxConsumersPerTopic")
MAX_CONSUMERS_PER_SUBSCRIPTION: Final = _single(
    "max_consumers_per_subscription", "maxConsumersPerSubscription", "maxConsumersPerSubscription"
)
MAX_SUBSCRIPTIONS: Final = _single(
    "max_subscriptions_per_topic", "maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic"
)
MAX_UNACKED_PER_CONSUMER: Final = _single(
    "max_unacked_messages_per_consumer", "maxUnackedMessagesOnConsumer", "maxUnackedMessagesPerConsumer"
)
DELAYED_DELIVERY: Final = _object(
    "delayed_delivery_policies",
    "delayedDeliveryPolicies",
    {"active": "delayedDeliveryEnabled", "maxDeliveryDelayInMillis": "delayedDeliveryMaxDelayInMillis"},
    # Delivery times are exact: the tick time is stored for tools.
    {"tickTime": 1000},
)
AUTO_SUBSCRIPTION_CREATION: Final = _object(
    "autoSubscriptionCreationOverride",
    "autoSubscriptionCreationOverride",
    {"allowAutoSubscriptionCreation": "allowAutoSubscriptionCreation"},
)
TYPES_ENABLED: Final = PolicyField(
    "subscription_types_enabled",
    "subscriptionTypesEnabled",
    _read_types,
    lambda config: [str(kind) for kind in config.subscription_types_enabled if kind in SERVED_TYPES],
)
AUTO_TOPIC_CREATION: Final = PolicyField(
    "autoTopicCreationOverride",
    None,
    _read_auto_topic_creation,
    lambda config: {
        "allowAutoTopicCreation": config.allow_auto_topic_creation,
        "topicType": str(config.allow_auto_topic_creation_type),
        "defaultNumPartitions": config.default_num_partitions,
    },
)
MAX_TOPICS: Final = _single("max_topics_per_namespace", None, "maxTopicsPerNamespace")
SCHEMA_VALIDATION: Final = _single(
    "schema_validation_enforced", "schemaValidationEnforced", "isSchemaValidationEnforced"
)
SCHEMA_UPDATES: Final = _single("is_allow_auto_update_schema", None, "isAllowAutoUpdateSchemaEnabled")
SCHEMA_AUTO_UPDATE: Final = PolicyField(
    "schema_auto_update_compatibility_strategy",
    None,
    lambda value: {"schemaCompatibilityStrategy": AUTO_UPDATE_STRATEGIES[value]},
    lambda _config: None,
)
SCHEMA_STRATEGY: Final = PolicyField(
    "schema_compatibility_strategy",
    "schemaCompatibilityStrategy",
    _read_strategy,
    lambda config: str(SchemaPolicies.of(config).strategy),
)

FIELDS: Final = (
    RETENTION,
    PERSISTENCE,
    MESSAGE_TTL,
    MAX_PRODUCERS,
    MAX_CONSUMERS,
    MAX_CONSUMERS_PER_SUBSCRIPTION,
    MAX_SUBSCRIPTIONS,
    MAX_UNACKED_PER_CONSUMER,
    DELAYED_DELIVERY,
    AUTO_SUBSCRIPTION_CREATION,
    TYPES_ENABLED,
    AUTO_TOPIC_CREATION,
    MAX_TOPICS,
    SCHEMA_VALIDATION,
    SCHEMA_UPDATES,
    SCHEMA_AUTO_UPDATE,  # before its successor, which takes precedence
    SCHEMA_STRATEGY,
)
"""Every policy that overrides settings, except offload policies."""


# --- from stored fields to settings ---


@dataclass(frozen=True, slots=True)
class LevelSettings:
    """Settings that one level overrides, by key."""

    plain: Mapping[str, Any]
    """By policies other than offload: retention, message TTL, limits."""
    offload: Mapping[str, Any]
    """By offload policies and the fields that preceded them."""
    problems: tuple[str, ...]
    """Reasons why stored values are ignored; each names its field."""

    @property
    def life_cycle(self) -> dict[str, Any]:
        """The settings that decide when an entry is offloaded and when it is deleted."""
        kept = {key: value for key, value in self.plain.items() if key in offload_json.RETENTION_SETTINGS}
        return {**kept, **self.offload}

    @property
    def all(self) -> dict[str, Any]:
        """Both kinds."""
        return {**self.plain, **self.offload}


def namespace_settings(namespace: Stored) -> LevelSettings:
    """The settings that a namespace's policies override."""
    legacy = {
        key: namespace[name]
        for name, key in LEGACY_OFFLOAD_FIELDS.items()
        if namespace.get(name) not in {None, -1} and SETTINGS[key].value_type.accepts(namespace[name])
    }
    plain, problems = _read_fields(((field.namespace, field) for field in FIELDS), namespace)
    offload = offload_json.read(namespace.get(NAMESPACE_OFFLOAD) or {})
    return LevelSettings(plain, {**legacy, **offload.values}, (*problems, *offload.problems))


def topic_settings(topic: Stored) -> LevelSettings:
    """The settings that a topic's own policies override, by both scopes."""
    own = merged_scopes(topic)
    plain, problems = _read_fields(((field.topic, field) for field in FIELDS if field.topic), own)
    offload = offload_json.read(own.get(TOPIC_OFFLOAD) or {})
    return LevelSettings(plain, offload.values, (*problems, *offload.problems))


def _read_fields(fields: Iterable[tuple[str, PolicyField]], stored: Stored) -> tuple[dict[str, Any], list[str]]:
    """Settings by key, and reasons why values are ignored."""
    settings: dict[str, Any] = {}
    problems: list[str] = []
    for name, field in fields:
        value = stored.get(name)
        if value is None:
            continue
        try:
            found = field.read(value)
        except (AttributeError, LookupError, TypeError, ValueError):
            problems.append(f"{name}: {value!r} is not a valid value")
            continue
        for key, setting in found.items():
            if SETTINGS[key].value_type.accepts(setting):
                settings[key] = setting
            else:
                problems.append(f"{name}: {setting!r} is not {SETTINGS[key].value_type.description}")
    return settings, problems
