"""A namespace's policies as JSON: Pulsar's fields and defaults, and checks of those that hold here. Pure functions.

Stored is what was set. Shown is that together with the defaults, since Pulsar's clients expect every field that is no
object. A field that is null is left out either way, as Pulsar leaves it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import values
from afterglow.admin.errors import bad_request, precondition_failed
from afterglow.offload import policy_json
from afterglow.offload.policies import NAMESPACE_FIELD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RETENTION: Final = "retention_policies"
PERSISTENCE: Final = "persistence"
MESSAGE_TTL: Final = "message_ttl_in_seconds"
BUNDLES: Final = "bundles"
CLUSTERS: Final = "replication_clusters"
OFFLOAD: Final = NAMESPACE_FIELD

_MOST_BUNDLES: Final = 4096
"""Nothing is balanced between brokers here; bundles are kept for tools that ask for them."""

_MAPS: Final = (
    "backlog_quota_map",
    "clusterDispatchRate",
    "topicDispatchRate",
    "subscriptionDispatchRate",
    "replicatorDispatchRate",
    "clusterSubscribeRate",
    "publishMaxMessageRate",
    "latency_stats_sample_rate",
    "properties",
)

_NULL: Final = (
    PERSISTENCE,
    RETENTION,
    MESSAGE_TTL,
    "allowed_topic_property_keys_for_metrics",
    "autoSubscriptionCreationOverride",
    "autoTopicCreationOverride",
    "compaction_threshold",
    "deduplicationEnabled",
    "deduplicationSnapshotIntervalSeconds",
    "delayed_delivery_policies",
    "dispatcherPauseOnAckStatePersistentEnabled",
    "entryFilters",
    "inactive_topic_policies",
    "is_allow_auto_update_schema",
    "max_consumers_per_subscription",
    "max_consumers_per_topic",
    "max_producers_per_topic",
    "max_subscriptions_per_topic",
    "max_topics_per_namespace",
    "max_unacked_messages_per_consumer",
    "max_unacked_messages_per_subscription",
    "offload_deletion_lag_ms",
    OFFLOAD,
    "resource_group_name",
    "schema_auto_update_compatibility_strategy",
    "subscription_expiration_time_minutes",
)
"""Fields without a default."""

_DERIVED: Final = ("clusterThatCanDeleteNamespace",)
"""What Pulsar's client works out from the other fields and sends with them; it says nothing more, and is not kept."""


def defaults(cluster: str) -> dict[str, Any]:
    """The policies of a namespace for which nothing was set."""
    return {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        CLUSTERS: [cluster],
        "allowed_clusters": [],
        BUNDLES: bundles(4),
        **{name: {} for name in _MAPS},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "is_allow_auto_update_schema_with_replicator": True,
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "migrated": False,
    }


def shown(stored: dict[str, Any], cluster: str) -> dict[str, Any]:
    """Policies for those who ask: what was set, and the defaults for the rest."""
    whole = {**defaults(cluster), **stored}
    if whole.get(OFFLOAD):
        whole[OFFLOAD] = policy_json.shown(whole[OFFLOAD])
    return {name: value for name, value in whole.items() if value is not None}


def created(body: object, cluster: str) -> dict[str, Any]:
    """What is stored of the policies with which a namespace is created.

    A field that Pulsar 4.0 does not have is refused where it says something; newer clients send theirs unset.

    Raises:
        AdminError: A field is unknown or has a value that cannot be taken.
        ConfigError: The same of a field of the offload policies.
    """
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise bad_request(f"policies must be an object, not {values.shown(body)}")
    known = {*defaults(cluster), *_NULL}
    for name, value in body.items():
        if name not in known and name not in _DERIVED and value:
            raise bad_request(f"policies have no field {values.shown(name)}")
    given = {name: value for name, value in body.items() if name in known and value is not None}
    for name, check in _CHECKS.items():
        if name in given:
            given[name] = check(given[name])
    if given.get(CLUSTERS, [cluster]) not in ([], [cluster]):
        raise precondition_failed(f"{CLUSTERS} must be {values.shown([cluster])}: topics are not replicated")
    given.pop(CLUSTERS, None)
    return given


def retention(body: object) -> dict[str, int]:
    """How long acknowledged messages are kept.

    Raises:
        AdminError: A number is missing or out of range, or only one of both is 0: then nothing would be kept.
    """
    given = values.fields(body, "retention", ("retentionTimeInMinutes", "retentionSizeInMB"))
    minutes = values.integer(given.get("retentionTimeInMinutes", 0), "retentionTimeInMinutes", -1)
    megabytes = values.integer(given.get("retentionSizeInMB", 0), "retentionSizeInMB", -1, values.LONG_MAX)
    if (minutes == 0) != (megabytes == 0):
        raise precondition_failed(
            f"retentionTimeInMinutes={minutes} with retentionSizeInMB={megabytes} keeps nothing: "
            "give both, -1 for no limit, or 0 and 0"
        )
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def persistence(body: object) -> dict[str, Any]:
    """How many copies BookKeeper would keep, and how often cursors are written.

    Kept for tools that set and read it: the embedded hot log has one copy.

    Raises:
        AdminError: A number is out of range.
    """
    copies = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    rate, storage = "managedLedgerMaxMarkDeleteRate", "managedLedgerStorageClassName"
    given = values.fields(body, "persistence", (*copies, rate, storage))
    checked: dict[str, Any] = {name: values.integer(given.get(name, 2), name, 1) for name in copies}
    ensemble, write, ack = checked.values()
    if not ensemble >= write >= ack:
        raise precondition_failed(f"{copies[0]}={ensemble} >= {copies[1]}={write} >= {copies[2]}={ack} does not hold")
    checked[rate] = values.number(given.get(rate, -1), rate)
    if storage in given:
        checked[storage] = values.text(given[storage], storage)
    return checked


def message_ttl(body: object) -> int:
    """Seconds after which a message that was not acknowledged is skipped; 0: never.

    Raises:
        AdminError: It is no number from 0.
    """
    return values.integer(body, "the message TTL in seconds", 0)


def bundles(count: int) -> dict[str, Any]:
    """The hash range cut into so many pieces."""
    step = 2**32 // count
    boundaries = [f"0x{at * step:08x}" for at in range(count)]
    return {"boundaries": [*boundaries, "0xffffffff"], "numBundles": count}


def _bundles(body: object) -> dict[str, Any]:
    given = values.fields(body, BUNDLES, ("boundaries", "numBundles"))
    count = values.integer(given.get("numBundles", 0), "numBundles", 0, _MOST_BUNDLES)
    if "boundaries" in given:
        boundaries = values.texts(given["boundaries"], "boundaries")
        if boundaries:
            return {"boundaries": boundaries, "numBundles": max(len(boundaries) - 1, 0)}
    return bundles(count or 4)


def _offload(body: object) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise bad_request(f"{OFFLOAD} must be an object, not {values.shown(body)}")
    return policy_json.replaced(body, {})


def _legacy(name: str, low: int) -> Callable[[object], int]:
    return lambda body: values.integer(body, name, low, values.LONG_MAX)


_CHECKS: Final[Mapping[str, Callable[[object], Any]]] = {
    RETENTION: retention,
    PERSISTENCE: persistence,
    MESSAGE_TTL: message_ttl,
    BUNDLES: _bundles,
    OFFLOAD: _offload,
    "offload_threshold": _legacy("offload_threshold", -1),
    "offload_threshold_in_seconds": _legacy("offload_threshold_in_seconds", -1),
    "offload_deletion_lag_ms": _legacy("offload_deletion_lag_ms", 0),
}
