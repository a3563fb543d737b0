"""Policies of a namespace as one JSON object, with Pulsar's fields and defaults. Pure functions.

Only values that were set are stored. Answers add the defaults, since Pulsar's clients expect them. Fields that are null
are omitted in both, as in Pulsar.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import policy_values, values
from afterglow.admin.errors import bad_request, forbidden, precondition_failed
from afterglow.broker.authorization import ACTIONS, AUTH, NAMESPACE_AUTH, SUBSCRIPTION_AUTH, TOPIC_AUTH
from afterglow.config.choices import SchemaCompatibilityStrategy
from afterglow.policy import fields, offload_json
from afterglow.policy.fields import NAMESPACE_OFFLOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.config import BrokerConfig

BUNDLES: Final = "bundles"
CLUSTERS: Final = "replication_clusters"
ALLOWED_CLUSTERS: Final = "allowed_clusters"
OFFLOAD: Final = NAMESPACE_OFFLOAD
PROPERTIES: Final = "properties"

AUTH_WARNING: Final = (
    f"{AUTH} are stored and not enforced: authorizationEnabled is false, so that every client that may connect may use "
    "every topic"
)
"""Deployments written for Pulsar create namespaces with permissions, and work if these are accepted."""

DEFAULT_BUNDLES: Final = 4
"""Number of bundles of a namespace that does not set it."""
_MAX_BUNDLES: Final = 4096
"""Of a namespace. Load is not balanced between brokers; bundles are stored for tools that read them."""

_BOUNDARY: Final = re.compile("0x[0-9a-f]{8}")

_MAPS: Final = (
    "backlog_quota_map",
    "clusterDispatchRate",
    "topicDispatchRate",
    "subscriptionDispatchRate",
    "replicatorDispatchRate",
    "clusterSubscribeRate",
    "publishMaxMessageRate",
    "latency_stats_sample_rate",
    PROPERTIES,
)

_UNENFORCED: Final = (
    "allowed_topic_property_keys_for_metrics",
    "compaction_threshold",
    "deduplicationEnabled",
    "deduplicationSnapshotIntervalSeconds",
    "dispatcherPauseOnAckStatePersistentEnabled",
    "entryFilters",
    "inactive_topic_policies",
    "max_unacked_messages_per_subscription",
    "resource_group_name",
    "subscription_expiration_time_minutes",
)
"""Fields without a default that this broker does not enforce."""

_DERIVED: Final = ("clusterThatCanDeleteNamespace",)
"""Fields that Pulsar's client computes from the others and sends along; they are not stored."""


def defaults(cluster: str) -> dict[str, Any]:
    """Policies of a namespace that sets none."""
    return {
        AUTH: {NAMESPACE_AUTH: {}, TOPIC_AUTH: {}, SUBSCRIPTION_AUTH: {}},
        CLUSTERS: [cluster],
        ALLOWED_CLUSTERS: [],
        BUNDLES: bundles(DEFAULT_BUNDLES),
        **{name: {} for name in _MAPS},
        fields.DELETED: False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        fields.SCHEMA_STRATEGY.namespace: SchemaCompatibilityStrategy.UNDEFINED,
        fields.SCHEMA_UPDATES.namespace: True,
        "is_allow_auto_update_schema_with_replicator": True,
        fields.SCHEMA_VALIDATION.namespace: False,
        "subscription_types_enabled": [],
        "migrated": False,
    }


def shown(stored: dict[str, Any], cluster: str) -> dict[str, Any]:
    """Stored policies as an answer: with defaults, and with masked secrets."""
    whole = {**defaults(cluster), **stored}
    if whole.get(OFFLOAD):
        whole[OFFLOAD] = offload_json.shown(whole[OFFLOAD])
    return {name: value for name, value in whole.items() if value is not None}


def auth(stored: Mapping[str, Any], part: str) -> dict[str, Any]:
    """One kind of a namespace's permissions."""
    found: dict[str, Any] = (stored.get(AUTH) or {}).get(part) or {}
    return found


def created(body: object, config: BrokerConfig) -> dict[str, Any]:
    """From the body of a call that creates a namespace to the policies that are stored.

    Fields that Pulsar 4.0 does not have are refused unless they are empty: newer clients send theirs unset.

    Raises:
        AdminError: A field is unknown or its value is not valid.
        ConfigError: The same of a field of the offload policies.
    """
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise bad_request(f"policies must be an object, not {values.shown(body)}")
    cluster = config.cluster_name
    default = defaults(cluster)
    given: dict[str, Any] = {}
    for name, value in body.items():
        if name in _CHECKS:
            given[name] = None if value is None else _CHECKS[name](value)
        elif name in default or name in _UNENFORCED:
            if not _is_empty(value) and value != default.get(name):
                raise precondition_failed(f"{name} is not enforced by this broker: leave it unset")
        elif name not in _DERIVED and value:
            raise bad_request(f"policies have no field {values.shown(name)}")
    policy_values.check_partitions(config, given.get(fields.AUTO_TOPIC_CREATION.namespace) or {})
    for name in (CLUSTERS, ALLOWED_CLUSTERS):
        if given.pop(name, None) not in (None, [], [cluster]):
            raise forbidden(f"{name} must be {values.shown([cluster])}: topics are not replicated")
    return {name: value for name, value in given.items() if value is not None}


def _is_empty(value: object) -> bool:
    """Whether a policy has no effect: null, false, zero, or an object of such values."""
    return all(_is_empty(item) for item in value.values()) if isinstance(value, dict) else not value


def bundles(count: int) -> dict[str, Any]:
    """The hash range, split into bundles of equal size."""
    step = 2**32 // count
    boundaries = [f"0x{at * step:08x}" for at in range(count)]
    return {"boundaries": [*boundaries, "0xffffffff"], "numBundles": count}


def _auth(body: object) -> dict[str, Any] | None:
    """Permissions by role, by topic and role, and by subscription; None if there are none."""
    given = values.fields(body, AUTH, (NAMESPACE_AUTH, TOPIC_AUTH, SUBSCRIPTION_AUTH))
    found = {
        NAMESPACE_AUTH: _permissions(given.get(NAMESPACE_AUTH, {}), NAMESPACE_AUTH),
        TOPIC_AUTH: {
            topic: _permissions(roles, f"{TOPIC_AUTH}.{topic}")
            for topic, roles in _object(given.get(TOPIC_AUTH, {}), TOPIC_AUTH).items()
        },
        SUBSCRIPTION_AUTH: {
            name: values.texts(roles, f"{SUBSCRIPTION_AUTH}.{name}")
            for name, roles in _object(given.get(SUBSCRIPTION_AUTH, {}), SUBSCRIPTION_AUTH).items()
        },
    }
    return found if any(found.values()) else None


def _permissions(body: object, name: str) -> dict[str, list[str]]:
    return {role: actions(given, f"{name}.{role}") for role, given in sorted(_object(body, name).items())}


def actions(body: object, name: str) -> list[str]:
    """A list of actions, without duplicates.

    Raises:
        AdminError: It is not a list, or an action is unknown.
    """
    found = values.texts(body, name)
    for action in found:
        if action not in ACTIONS:
            raise bad_request(f"{name}: unknown action {values.shown(action)}; expected {', '.join(ACTIONS)}")
    return found


def _object(body: object, name: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise bad_request(f"{name} must be an object, not {values.shown(body)}")
    return body


def _bundles(body: object) -> dict[str, Any]:
    given = values.fields(body, BUNDLES, ("boundaries", "numBundles"))
    count = values.integer(given.get("numBundles", 0), "numBundles", 0, _MAX_BUNDLES)
    if "boundaries" in given:
        boundaries = [text.lower() for text in values.texts(given["boundaries"], "boundaries")]
        if boundaries:
            ends = boundaries[0] == "0x00000000" and boundaries[-1] == "0xffffffff"
            # Hexadecimal numbers of the same length sort like their values.
            if not ends or boundaries != sorted(boundaries) or not all(map(_BOUNDARY.fullmatch, boundaries)):
                raise precondition_failed("boundaries must ascend from 0x00000000 to 0xffffffff, of eight digits each")
            return {"boundaries": boundaries, "numBundles": max(len(boundaries) - 1, 0)}
    return bundles(count or DEFAULT_BUNDLES)


def _offload(body: object) -> dict[str, Any]:
    return offload_json.replaced(_object(body, OFFLOAD), {})


def _legacy(name: str, low: int) -> Callable[[object], int]:
    return lambda body: values.integer(body, name, low, values.LONG_MAX)


def _types(body: object) -> list[str] | None:
    return None if body == [] else policy_values.subscription_types(body)


_CHECKS: Final[Mapping[str, Callable[[object], Any]]] = {
    fields.RETENTION.namespace: policy_values.retention,
    fields.PERSISTENCE.namespace: policy_values.persistence,
    fields.MESSAGE_TTL.namespace: policy_values.message_ttl,
    fields.DELAYED_DELIVERY.namespace: policy_values.delayed_delivery,
    fields.MAX_PRODUCERS.namespace: policy_values.limit("max_producers_per_topic"),
    fields.MAX_CONSUMERS.namespace: policy_values.limit("max_consumers_per_topic"),
    fields.MAX_CONSUMERS_PER_SUBSCRIPTION.namespace: policy_values.limit("max_consumers_per_subscription"),
    fields.MAX_SUBSCRIPTIONS.namespace: policy_values.limit("max_subscriptions_per_topic"),
    fields.MAX_UNACKED_PER_CONSUMER.namespace: policy_values.limit("max_unacked_messages_per_consumer"),
    fields.MAX_TOPICS.namespace: policy_values.limit("max_topics_per_namespace"),
    fields.AUTO_TOPIC_CREATION.namespace: policy_values.auto_topic_creation,
    fields.AUTO_SUBSCRIPTION_CREATION.namespace: policy_values.auto_subscription_creation,
    fields.TYPES_ENABLED.namespace: _types,
    fields.SCHEMA_STRATEGY.namespace: policy_values.schema_strategy,
    fields.SCHEMA_AUTO_UPDATE.namespace: policy_values.schema_auto_update,
    fields.SCHEMA_UPDATES.namespace: policy_values.switch("is_allow_auto_update_schema"),
    fields.SCHEMA_VALIDATION.namespace: policy_values.switch("schema_validation_enforced"),
    PROPERTIES: lambda body: values.text_map(body, PROPERTIES),
    AUTH: _auth,
    CLUSTERS: lambda body: values.texts(body, CLUSTERS),
    ALLOWED_CLUSTERS: lambda body: values.texts(body, ALLOWED_CLUSTERS),
    BUNDLES: _bundles,
    OFFLOAD: _offload,
    "offload_threshold": _legacy("offload_threshold", -1),
    "offload_threshold_in_seconds": _legacy("offload_threshold_in_seconds", -1),
    "offload_deletion_lag_ms": _legacy("offload_deletion_lag_ms", 0),
}
