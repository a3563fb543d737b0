"""Checks of single policies: pure functions from the body of a call to the value that is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import values
from afterglow.admin.errors import bad_request, precondition_failed
from afterglow.broker.topic_creation import max_partitions
from afterglow.config.choices import SchemaCompatibilityStrategy, SubscriptionType, TopicType
from afterglow.policy.fields import AUTO_UPDATE_STRATEGIES, SERVED_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig


def retention(body: object) -> dict[str, int]:
    """Retention of acknowledged messages.

    Raises:
        AdminError: A number is out of range, or only one of them is 0, so that nothing would be retained.
    """
    given = values.fields(body, "retention", ("retentionTimeInMinutes", "retentionSizeInMB"))
    minutes = values.integer(given.get("retentionTimeInMinutes", 0), "retentionTimeInMinutes", -1)
    megabytes = values.integer(given.get("retentionSizeInMB", 0), "retentionSizeInMB", -1, values.LONG_MAX)
    if (minutes == 0) != (megabytes == 0):
        raise bad_request(
            f"retentionTimeInMinutes={minutes} with retentionSizeInMB={megabytes} retains nothing: "
            "set both, -1 for no limit, or 0 and 0"
        )
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def persistence(body: object) -> dict[str, Any]:
    """Replication of BookKeeper ledgers, and the rate of cursor writes.

    Only the rate takes effect: the embedded hot log has one copy. The numbers of copies are stored for tools.

    Raises:
        AdminError: A number is out of range.
    """
    copies = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    rate, storage = "managedLedgerMaxMarkDeleteRate", "managedLedgerStorageClassName"
    given = values.fields(body, "persistence", (*copies, rate, storage))
    checked: dict[str, Any] = {name: values.integer(given.get(name, 2), name, 1) for name in copies}
    ensemble, write, ack = checked.values()
    if not ensemble >= write >= ack:
        raise bad_request(f"{copies[0]}={ensemble} >= {copies[1]}={write} >= {copies[2]}={ack} is not satisfied")
    checked[rate] = values.number(given.get(rate, -1), rate)
    if storage in given:
        checked[storage] = values.text(given[storage], storage)
    return checked


def message_ttl(body: object) -> int:
    """Message TTL in seconds; 0: messages do not expire.

    Raises:
        AdminError: It is not an integer from 0.
    """
    return values.integer(body, "the message TTL in seconds", 0)


def delayed_delivery(body: object) -> dict[str, Any]:
    """Whether messages are delivered at their delivery time, and the longest delay.

    Raises:
        AdminError: A field is not valid.
    """
    active, tick, longest = "active", "tickTime", "maxDeliveryDelayInMillis"
    given = values.fields(body, "delayedDelivery", (active, tick, longest))
    return {
        tick: values.integer(given.get(tick, 0), tick, 0, values.LONG_MAX),
        active: values.boolean(given.get(active, False), active),
        longest: values.integer(given.get(longest, 0), longest, 0, values.LONG_MAX),
    }


def limit(name: str) -> Callable[[object], int]:
    """A check of a limit; 0: no limit."""
    return lambda body: values.integer(body, name, 0)


def auto_topic_creation(body: object) -> dict[str, Any]:
    """Automatic creation of topics.

    Raises:
        AdminError: A field is missing, or fields contradict each other.
    """
    allow, kind, count = "allowAutoTopicCreation", "topicType", "defaultNumPartitions"
    given = values.fields(body, "autoTopicCreation", (allow, kind, count))
    checked: dict[str, Any] = {allow: values.boolean(given.get(allow), allow)}
    if not checked[allow] and count not in given and kind not in given:
        return checked
    checked[kind] = values.text(given.get(kind, TopicType.NON_PARTITIONED), kind)
    if checked[kind] not in set(TopicType):
        raise precondition_failed(f"{kind} must be {' or '.join(TopicType)}, not {values.shown(checked[kind])}")
    if checked[kind] == TopicType.PARTITIONED:
        checked[count] = values.integer(given.get(count), count, 1)
    elif count in given:
        raise precondition_failed(f"{count} has no effect with {kind}={checked[kind]}: leave it out")
    return checked


def check_partitions(config: BrokerConfig, creation: dict[str, Any]) -> None:
    """Check the number of partitions of topics that clients create.

    Raises:
        AdminError: It is above the limit of the settings.
    """
    count, limit = creation.get("defaultNumPartitions", 0), max_partitions(config)
    if count > limit:
        raise precondition_failed(f"defaultNumPartitions must be from 1 to {limit}, not {count}")


def auto_subscription_creation(body: object) -> dict[str, bool]:
    """Automatic creation of subscriptions.

    Raises:
        AdminError: The field is missing.
    """
    name = "allowAutoSubscriptionCreation"
    given = values.fields(body, "autoSubscriptionCreation", (name,))
    return {name: values.boolean(given.get(name), name)}


def subscription_types(body: object) -> list[str]:
    """Types of subscriptions that consumers may use.

    Raises:
        AdminError: A type is unknown, or none of them is supported.
    """
    given = values.texts(body, "subscription types")
    unknown = [name for name in given if name not in set(SubscriptionType)]
    if unknown:
        raise bad_request(
            f"unknown subscription type {values.shown(unknown[0])}; expected {', '.join(SubscriptionType)}"
        )
    if not set(given) & set(SERVED_TYPES):
        served = " and ".join(SERVED_TYPES)
        raise precondition_failed(f"none of {values.shown(given)} is supported: name at least one of {served}")
    return given


def schema_strategy(body: object) -> str | None:
    """Schema compatibility strategy; None for UNDEFINED, which removes the policy.

    Raises:
        AdminError: The strategy is unknown.
    """
    given = values.text(body, "the schema compatibility strategy")
    if given not in set(SchemaCompatibilityStrategy):
        words = ", ".join(SchemaCompatibilityStrategy)
        raise bad_request(f"unknown schema compatibility strategy {values.shown(given)}; expected {words}")
    return None if given == SchemaCompatibilityStrategy.UNDEFINED else given


def schema_auto_update(body: object) -> str:
    """Schema compatibility strategy by Pulsar's older names.

    Raises:
        AdminError: The strategy is unknown.
    """
    given = values.text(body, "the strategy of schema updates")
    if given not in AUTO_UPDATE_STRATEGIES:
        words = ", ".join(AUTO_UPDATE_STRATEGIES)
        raise bad_request(f"unknown strategy of schema updates {values.shown(given)}; expected {words}")
    return given


def switch(name: str) -> Callable[[object], bool]:
    """A check of a Boolean."""
    return lambda body: values.boolean(body, name)
