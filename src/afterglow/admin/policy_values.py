"""Checks of single policies as they come in calls. Pure functions, each giving what is stored."""

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
    """How long acknowledged messages are kept.

    Raises:
        AdminError: A number is missing or out of range, or only one of both is 0: then nothing would be kept.
    """
    given = values.fields(body, "retention", ("retentionTimeInMinutes", "retentionSizeInMB"))
    minutes = values.integer(given.get("retentionTimeInMinutes", 0), "retentionTimeInMinutes", -1)
    megabytes = values.integer(given.get("retentionSizeInMB", 0), "retentionSizeInMB", -1, values.LONG_MAX)
    if (minutes == 0) != (megabytes == 0):
        raise bad_request(
            f"retentionTimeInMinutes={minutes} with retentionSizeInMB={megabytes} keeps nothing: "
            "give both, -1 for no limit, or 0 and 0"
        )
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def persistence(body: object) -> dict[str, Any]:
    """How many copies BookKeeper would keep, and how often cursors are written.

    The rate is obeyed; the copies are kept for tools that set and read them: the embedded hot log has one.

    Raises:
        AdminError: A number is out of range.
    """
    copies = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    rate, storage = "managedLedgerMaxMarkDeleteRate", "managedLedgerStorageClassName"
    given = values.fields(body, "persistence", (*copies, rate, storage))
    checked: dict[str, Any] = {name: values.integer(given.get(name, 2), name, 1) for name in copies}
    ensemble, write, ack = checked.values()
    if not ensemble >= write >= ack:
        raise bad_request(f"{copies[0]}={ensemble} >= {copies[1]}={write} >= {copies[2]}={ack} does not hold")
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


def delayed_delivery(body: object) -> dict[str, Any]:
    """Whether delivery times of messages are obeyed, and the longest delay that a producer may set.

    Raises:
        AdminError: A field has a value that cannot be taken.
    """
    active, tick, longest = "active", "tickTime", "maxDeliveryDelayInMillis"
    given = values.fields(body, "delayedDelivery", (active, tick, longest))
    return {
        tick: values.integer(given.get(tick, 0), tick, 0, values.LONG_MAX),
        active: values.boolean(given.get(active, False), active),
        longest: values.integer(given.get(longest, 0), longest, 0, values.LONG_MAX),
    }


def limit(name: str) -> Callable[[object], int]:
    """A check of a number of things of which there may be no more; 0: of which there may be any number."""
    return lambda body: values.integer(body, name, 0)


def auto_topic_creation(body: object) -> dict[str, Any]:
    """What is created when a client first names a topic.

    Raises:
        AdminError: A field is missing, or they contradict each other.
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
        raise precondition_failed(f"{count} says nothing with {kind}={checked[kind]}: leave it out")
    return checked


def check_partitions(config: BrokerConfig, creation: dict[str, Any]) -> None:
    """Check that topics may have the partitions with which clients would create them.

    Raises:
        AdminError: They may not.
    """
    count, most = creation.get("defaultNumPartitions", 0), max_partitions(config)
    if count > most:
        raise precondition_failed(f"defaultNumPartitions must be from 1 to {most}, not {count}")


def auto_subscription_creation(body: object) -> dict[str, bool]:
    """Whether a subscription is created when a consumer first names it.

    Raises:
        AdminError: It does not say.
    """
    name = "allowAutoSubscriptionCreation"
    given = values.fields(body, "autoSubscriptionCreation", (name,))
    return {name: values.boolean(given.get(name), name)}


def subscription_types(body: object) -> list[str]:
    """The types of subscriptions that consumers may bring.

    Raises:
        AdminError: One is unknown, or none is left.
    """
    given = values.texts(body, "subscription types")
    unknown = [name for name in given if name not in set(SubscriptionType)]
    if unknown:
        raise bad_request(
            f"there is no subscription type {values.shown(unknown[0])}: give {', '.join(SubscriptionType)}"
        )
    if not set(given) & set(SERVED_TYPES):
        served = " and ".join(SERVED_TYPES)
        raise precondition_failed(f"of {values.shown(given)} none is served: name at least one of {served}")
    return given


def schema_strategy(body: object) -> str | None:
    """How schemas of a topic must be compatible; None where that is left to others.

    Raises:
        AdminError: There is no such strategy.
    """
    given = values.text(body, "the schema compatibility strategy")
    if given not in set(SchemaCompatibilityStrategy):
        words = ", ".join(SchemaCompatibilityStrategy)
        raise bad_request(f"there is no schema compatibility strategy {values.shown(given)}: give {words}")
    return None if given == SchemaCompatibilityStrategy.UNDEFINED else given


def schema_auto_update(body: object) -> str:
    """The same in the older words of Pulsar.

    Raises:
        AdminError: There is no such strategy.
    """
    given = values.text(body, "the strategy of schema updates")
    if given not in AUTO_UPDATE_STRATEGIES:
        words = ", ".join(AUTO_UPDATE_STRATEGIES)
        raise bad_request(f"there is no strategy of schema updates {values.shown(given)}: give {words}")
    return given


def switch(name: str) -> Callable[[object], bool]:
    """A check of what is on or off."""
    return lambda body: values.boolean(body, name)
