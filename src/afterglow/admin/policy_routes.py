"""Routes of policies: each that this broker enforces has a path below namespaces, and most have one below topics.

GET returns the stored value, or nothing. For a topic, ``applied`` returns the effective value, and ``isGlobal`` selects
the policies for all clusters, which those of the one cluster override. Open topics apply a change at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import policy_values, values
from afterglow.admin.access import Access
from afterglow.admin.policy_levels import NAMESPACE, TOPIC, topic_policies, update_topic_policies
from afterglow.admin.resource import Resources
from afterglow.admin.values import with_field
from afterglow.config.choices import SchemaCompatibilityStrategy
from afterglow.policy import fields
from afterglow.policy.resolver import resolve_stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.admin.call import BrokerCall
    from afterglow.admin.policy_levels import PolicyLevel
    from afterglow.config import BrokerConfig
    from afterglow.policy.fields import PolicyField

NAMESPACES = Resources("/admin/v2/namespaces/{tenant}/{namespace}")
TOPICS = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy and its paths."""

    policy: PolicyField
    check: Callable[[object], Any]
    """From the body to the value that is stored; None removes the policy."""
    namespace: str
    """Path below a namespace."""
    topic: str | None = None
    """Path below a topic; None: topics do not have the policy."""
    unset: Any = None
    """Answer for a namespace that does not set the policy; None: no content."""
    unset_topic: Any = None
    """The same for a topic."""
    method: str = "POST"
    """Method that sets the policy."""
    parameter: str | None = None
    """Query parameter that replaces the body, for a topic."""
    check_settings: Callable[[BrokerConfig, Any], None] = lambda _config, _value: None
    """Checks the value against the broker's settings."""


ROWS: Final = (
    PolicyRow(fields.RETENTION, policy_values.retention, "/retention", "/retention"),
    PolicyRow(fields.PERSISTENCE, policy_values.persistence, "/persistence", "/persistence"),
    PolicyRow(fields.MESSAGE_TTL, policy_values.message_ttl, "/messageTTL", "/messageTTL", parameter="messageTTL"),
    PolicyRow(fields.DELAYED_DELIVERY, policy_values.delayed_delivery, "/delayedDelivery", "/delayedDelivery"),
    PolicyRow(
        fields.MAX_PRODUCERS, policy_values.limit("the number of producers"), "/maxProducersPerTopic", "/maxProducers"
    ),
    PolicyRow(
        fields.MAX_CONSUMERS, policy_values.limit("the number of consumers"), "/maxConsumersPerTopic", "/maxConsumers"
    ),
    PolicyRow(
        fields.MAX_CONSUMERS_PER_SUBSCRIPTION,
        policy_values.limit("the number of consumers"),
        "/maxConsumersPerSubscription",
        "/maxConsumersPerSubscription",
    ),
    PolicyRow(
        fields.MAX_SUBSCRIPTIONS,
        policy_values.limit("the number of subscriptions"),
        "/maxSubscriptionsPerTopic",
        "/maxSubscriptionsPerTopic",
    ),
    PolicyRow(
        fields.MAX_UNACKED_PER_CONSUMER,
        policy_values.limit("the number of messages"),
        "/maxUnackedMessagesPerConsumer",
        "/maxUnackedMessagesOnConsumer",
    ),
    PolicyRow(fields.MAX_TOPICS, policy_values.limit("the number of topics"), "/maxTopicsPerNamespace", unset=0),
    PolicyRow(
        fields.AUTO_TOPIC_CREATION,
        policy_values.auto_topic_creation,
        "/autoTopicCreation",
        check_settings=policy_values.check_partitions,
    ),
    PolicyRow(
        fields.AUTO_SUBSCRIPTION_CREATION,
        policy_values.auto_subscription_creation,
        "/autoSubscriptionCreation",
        "/autoSubscriptionCreation",
    ),
    PolicyRow(
        fields.TYPES_ENABLED,
        policy_values.subscription_types,
        "/subscriptionTypesEnabled",
        "/subscriptionTypesEnabled",
        unset=[],
        unset_topic=[],
    ),
    PolicyRow(
        fields.SCHEMA_STRATEGY,
        policy_values.schema_strategy,
        "/schemaCompatibilityStrategy",
        "/schemaCompatibilityStrategy",
        unset=SchemaCompatibilityStrategy.UNDEFINED,
        method="PUT",
    ),
    PolicyRow(
        fields.SCHEMA_AUTO_UPDATE,
        policy_values.schema_auto_update,
        "/schemaAutoUpdateCompatibilityStrategy",
        method="PUT",
    ),
    PolicyRow(
        fields.SCHEMA_UPDATES, policy_values.switch("isAllowAutoUpdateSchema"), "/isAllowAutoUpdateSchema", unset=True
    ),
    PolicyRow(
        fields.SCHEMA_VALIDATION,
        policy_values.switch("schemaValidationEnforced"),
        "/schemaValidationEnforced",
        "/schemaValidationEnforced",
        unset=False,
        unset_topic=False,
    ),
)


def _serve(resources: Resources, level: PolicyLevel, row: PolicyRow, *, unset: Any) -> None:
    path, field = (row.topic, row.policy.topic) if level is TOPIC else (row.namespace, row.policy.namespace)
    if path is None or field is None:
        return

    async def get(call: BrokerCall) -> Any:
        if level is TOPIC and call.flag("applied"):
            stored, namespace = await topic_policies(call), await call.namespace_policies()
            policy, _ = resolve_stored(call.service.config, namespace, stored)
            return row.policy.applied(policy, namespace, stored)
        found = (await level.stored(call)).get(field)
        return unset if found is None else found

    async def put(call: BrokerCall) -> None:
        given = call.parameter(row.parameter) if row.parameter and level is TOPIC else None
        value = row.check(await call.body() if given is None else values.parse(given.encode()))
        row.check_settings(call.service.config, value)
        await level.update(call, lambda old: with_field(old, field, value))

    async def remove(call: BrokerCall) -> None:
        await level.update(call, lambda old: with_field(old, field, None))

    resources.on("GET", path, Access.READ_TENANT)(get)
    resources.on(row.method, path, Access.TENANT)(put)
    resources.on("DELETE", path, Access.TENANT)(remove)


for _row in ROWS:
    _serve(NAMESPACES, NAMESPACE, _row, unset=_row.unset)
    _serve(TOPICS, TOPIC, _row, unset=_row.unset_topic)


@TOPICS.on("DELETE", "/policies", Access.TENANT)
async def remove_all(call: BrokerCall) -> None:
    """Remove all policies of a topic, of both scopes."""
    await update_topic_policies(call, lambda _old: {})
