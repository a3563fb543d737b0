"""Policies that this broker obeys, each at a path of its own, for namespaces and for single topics.

What is shown is what is set there, or nothing. For a topic ``applied`` shows what holds, and ``isGlobal`` means what is
set for all clusters, over which the policy of the one cluster wins. A change is obeyed by open topics at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import policy_values, values
from afterglow.admin.access import Access
from afterglow.admin.policy_levels import change_own, own_policies
from afterglow.admin.resource import Resources
from afterglow.config.choices import SchemaCompatibilityStrategy
from afterglow.policy import stored as fields
from afterglow.policy.resolver import resolve_stored
from afterglow.policy.stored import of_scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.admin.call import Call
    from afterglow.config import BrokerConfig
    from afterglow.policy.stored import PolicyField

    Json = dict[str, Any]

NAMESPACES = Resources("/admin/v2/namespaces/{tenant}/{namespace}")
TOPICS = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


@dataclass(frozen=True, slots=True)
class Row:
    """One policy and its paths."""

    policy: PolicyField
    check: Callable[[object], Any]
    """Gives what is stored; None: as if it were removed."""
    namespace: str
    """Its path below a namespace."""
    topic: str | None = None
    """Its path below a topic."""
    unset: Any = None
    """What is shown of a namespace that does not set it; None: no content."""
    unset_topic: Any = None
    """The same of a topic."""
    method: str = "POST"
    """That sets it."""
    parameter: str | None = None
    """Of the query, that has the value for a topic in place of the body."""
    fits: Callable[[BrokerConfig, Any], None] = lambda _config, _value: None
    """Checks what is stored for a namespace against the broker's settings."""


ROWS: Final = (
    Row(fields.RETENTION, policy_values.retention, "/retention", "/retention"),
    Row(fields.PERSISTENCE, policy_values.persistence, "/persistence", "/persistence"),
    Row(fields.MESSAGE_TTL, policy_values.message_ttl, "/messageTTL", "/messageTTL", parameter="messageTTL"),
    Row(fields.DELAYED_DELIVERY, policy_values.delayed_delivery, "/delayedDelivery", "/delayedDelivery"),
    Row(
        fields.MAX_PRODUCERS,
        policy_values.limit("the number of producers"),
        "/maxProducersPerTopic",
        "/maxProducers",
    ),
    Row(
        fields.MAX_CONSUMERS,
        policy_values.limit("the number of consumers"),
        "/maxConsumersPerTopic",
        "/maxConsumers",
    ),
    Row(
        fields.MAX_CONSUMERS_PER_SUBSCRIPTION,
        policy_values.limit("the number of consumers"),
        "/maxConsumersPerSubscription",
        "/maxConsumersPerSubscription",
    ),
    Row(
        fields.MAX_SUBSCRIPTIONS,
        policy_values.limit("the number of subscriptions"),
        "/maxSubscriptionsPerTopic",
        "/maxSubscriptionsPerTopic",
    ),
    Row(
        fields.MAX_UNACKED_PER_CONSUMER,
        policy_values.limit("the number of messages"),
        "/maxUnackedMessagesPerConsumer",
        "/maxUnackedMessagesOnConsumer",
    ),
    Row(fields.MAX_TOPICS, policy_values.limit("the number of topics"), "/maxTopicsPerNamespace", unset=0),
    Row(
        fields.AUTO_TOPIC_CREATION,
        policy_values.auto_topic_creation,
        "/autoTopicCreation",
        fits=policy_values.check_partitions,
    ),
    Row(
        fields.AUTO_SUBSCRIPTION_CREATION,
        policy_values.auto_subscription_creation,
        "/autoSubscriptionCreation",
        "/autoSubscriptionCreation",
    ),
    Row(
        fields.TYPES_ENABLED,
        policy_values.subscription_types,
        "/subscriptionTypesEnabled",
        "/subscriptionTypesEnabled",
        unset=[],
        unset_topic=[],
    ),
    Row(
        fields.SCHEMA_STRATEGY,
        policy_values.schema_strategy,
        "/schemaCompatibilityStrategy",
        "/schemaCompatibilityStrategy",
        unset=SchemaCompatibilityStrategy.UNDEFINED,
        method="PUT",
    ),
    Row(
        fields.SCHEMA_AUTO_UPDATE,
        policy_values.schema_auto_update,
        "/schemaAutoUpdateCompatibilityStrategy",
        method="PUT",
    ),
    Row(fields.SCHEMA_UPDATES, policy_values.switch("isAllowAutoUpdateSchema"), "/isAllowAutoUpdateSchema", unset=True),
    Row(
        fields.SCHEMA_VALIDATION,
        policy_values.switch("schemaValidationEnforced"),
        "/schemaValidationEnforced",
        "/schemaValidationEnforced",
        unset=False,
        unset_topic=False,
    ),
)


def _serve_namespaces(row: Row) -> None:
    field = row.policy.namespace

    async def get(call: Call) -> Any:
        found = (await call.namespace_policies()).get(field)
        return row.unset if found is None else found

    async def put(call: Call) -> None:
        value = row.check(await call.body())
        row.fits(call.service.config, value)
        await call.update_policies(call.namespace, partial(_with, field, value))

    async def remove(call: Call) -> None:
        await call.update_policies(call.namespace, partial(_with, field, None))

    NAMESPACES.on("GET", row.namespace, Access.READ_TENANT)(get)
    NAMESPACES.on(row.method, row.namespace, Access.TENANT)(put)
    NAMESPACES.on("DELETE", row.namespace, Access.TENANT)(remove)


def _serve_topics(row: Row, path: str, field: str) -> None:
    async def get(call: Call) -> Any:
        stored = await own_policies(call)
        if call.flag("applied"):
            namespace = await call.namespace_policies()
            policy, _ = resolve_stored(call.service.config, namespace, stored)
            return row.policy.applied(policy, namespace, stored)
        return of_scope(stored, is_global=call.flag("isGlobal")).get(field, row.unset_topic)

    async def put(call: Call) -> None:
        given = None if row.parameter is None else call.parameter(row.parameter)
        value = row.check(await call.body() if given is None else values.parse(given.encode()))
        await change_own(call, partial(_with, field, value))

    async def remove(call: Call) -> None:
        await change_own(call, partial(_with, field, None))

    TOPICS.on("GET", path, Access.READ_TENANT)(get)
    TOPICS.on(row.method, path, Access.TENANT)(put)
    TOPICS.on("DELETE", path, Access.TENANT)(remove)


for _row in ROWS:
    _serve_namespaces(_row)
    if _row.topic is not None and _row.policy.topic is not None:
        _serve_topics(_row, _row.topic, _row.policy.topic)


@TOPICS.on("DELETE", "/policies", Access.TENANT)
async def remove_all(call: Call) -> None:
    """Have nothing set for a topic, whatever the policy and the scope."""
    await change_own(call, lambda _old: {}, whole=True)


def _with(name: str, value: Any, old: Json) -> Json:
    rest = {key: kept for key, kept in old.items() if key != name}
    return rest if value is None else {**rest, name: value}
