"""Statistics of attached topics as Pulsar's JSON. Pure functions.

They show what this process knows: the log, the tier, and its own subscription. Producers, consumers and rates are those
of the cluster's brokers, whose admin API has them; here they are empty or 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import ledger_stats
from afterglow.admin.topic_stats import SUBSCRIPTION_ZEROS, TOPIC_ZEROS
from afterglow.format.position import Position

if TYPE_CHECKING:
    from afterglow.attach.service import AttachedService
    from afterglow.attach.topic import AttachedTopic

    Json = dict[str, Any]

_RATES_OUT = {"msgRateOut": 0.0, "msgThroughputOut": 0.0, "bytesOutCounter": 0, "msgOutCounter": 0}


def topic_stats(service: AttachedService, topic: AttachedTopic) -> Json:
    """``stats`` of a topic."""
    confirmed = service.confirmed(topic)
    subscription = _subscription(service, topic)
    return {
        **TOPIC_ZEROS,
        **_RATES_OUT,
        "msgRateIn": 0.0,
        "msgThroughputIn": 0.0,
        "averageMsgSize": 0.0,
        "bytesInCounter": confirmed.size_bytes,
        "msgInCounter": confirmed.messages,
        "lastPublishTimeStamp": 0,
        "storageSize": topic.size_bytes,
        "backlogSize": subscription["backlogSize"],
        "publishers": [],
        "waitingPublishers": 0,
        "subscriptions": {service.link.subscription: subscription},
        "replication": {},
        "nonContiguousDeletedMessagesRanges": 0,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "compaction": {},
        "ownerBroker": service.link.admin_url,
    }


def internal_stats(service: AttachedService, topic: AttachedTopic) -> Json:
    """``internalStats`` of a topic: its ledgers, and the subscription of this process."""
    shown = ledger_stats.log_stats(topic, service.confirmed(topic).messages)
    marked = mark_delete(service, topic)
    cursor = {
        "markDeletePosition": str(marked),
        "readPosition": str(marked.next()),
        "state": "Open",
        "active": service.hold(topic).held,
        "numberOfEntriesSinceFirstNotAckedMessage": service.backlog(topic),
    }
    return {**shown, "cursors": {service.link.subscription: cursor}}


def cursor(service: AttachedService, topic: AttachedTopic) -> Json:
    """The subscription of this process in the log of a topic, for the console."""
    marked = mark_delete(service, topic)
    return {
        "name": service.link.subscription,
        "mark_delete": str(marked),
        "index": topic.layout.rank(marked),
        "backlog": service.backlog(topic),
        "consumers": int(service.hold(topic).held),
        "unacknowledged": 0,
        "durable": True,
    }


def mark_delete(service: AttachedService, topic: AttachedTopic) -> Position:
    """The position up to which the subscription is acknowledged, or that before the first entry."""
    acknowledged = service.hold(topic).acknowledged
    first = topic.layout.first
    return Position(first.ledger_id, first.entry_id - 1) if acknowledged is None else acknowledged


def _subscription(service: AttachedService, topic: AttachedTopic) -> Json:
    hold, backlog, entries = service.hold(topic), service.backlog(topic), topic.layout.total_entries
    return {
        **SUBSCRIPTION_ZEROS,
        **_RATES_OUT,
        "lastConsumedFlowTimestamp": 0,
        "lastConsumedTimestamp": 0,
        "lastAckedTimestamp": 0,
        "lastMarkDeleteAdvancedTimestamp": 0,
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": backlog,
        "msgDelayed": 0,
        "backlogSize": topic.size_bytes * backlog // entries if entries else 0,
        "blockedSubscriptionOnUnackedMsgs": False,
        "type": "Exclusive",
        "unackedMessages": 0,
        "consumers": [{"consumerName": "afterglow attach"}] if hold.held else [],
        "isDurable": True,
        "consumersAfterMarkDeletePosition": {},
        "nonContiguousDeletedMessagesRanges": 0,
        "subscriptionProperties": {},
    }
