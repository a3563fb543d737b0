"""Statistics of topics, partitioned topics, subscriptions, producers and consumers as Pulsar's JSON.

Pure functions over the broker's objects, to be called in the event loop's thread.

Every field that Pulsar's clients read is present, with its type. Fields that the broker does not count are 0; features
that it does not have are shown as Pulsar shows disabled ones.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.offload.task import Route
from afterglow.read.copies import StorageTier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from afterglow.broker.consumer import Consumer
    from afterglow.broker.producer import Producer
    from afterglow.broker.subscription import Subscription
    from afterglow.broker.topic import Topic
    from afterglow.broker.traffic import Rate
    from afterglow.offload.status import OffloadStatistics
    from afterglow.read.counters import ReadCounts

    Json = dict[str, Any]

TOPIC_ZEROS: Final[Mapping[str, Any]] = {
    "systemTopicBytesInCounter": 0,
    "bytesOutInternalCounter": 0,
    "msgChunkPublished": False,
    "backlogQuotaLimitSize": -1,
    "backlogQuotaLimitTime": -1,
    "oldestBacklogMessageAgeSeconds": -1,
    "publishRateLimitedTimes": 0,
    "earliestMsgPublishTimeInBacklogs": 0,
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
    "ongoingTxnCount": 0,
    "abortedTxnCount": 0,
    "committedTxnCount": 0,
    "delayedMessageIndexSizeInBytes": 0,
    "topicCreationTimeStamp": 0,
    "deduplicationStatus": "Disabled",
}
"""Fields of a topic that the broker does not count."""

SUBSCRIPTION_ZEROS: Final[Mapping[str, Any]] = {
    "msgRateRedeliver": 0.0,
    "messageAckRate": 0.0,
    "chunkedMessageRate": 0,
    "earliestMsgPublishTimeInBacklog": 0,
    "msgInReplay": 0,
    "msgRateExpired": 0.0,
    "totalMsgExpired": 0,
    "lastExpireTimestamp": 0,
    "isReplicated": False,
    "allowOutOfOrderDelivery": False,
    "drainingHashesCount": 0,
    "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "delayedMessageIndexSizeInBytes": 0,
    "filterProcessedMsgCount": 0,
    "filterAcceptedMsgCount": 0,
    "filterRejectedMsgCount": 0,
    "filterRescheduledMsgCount": 0,
}

_CONSUMER_ZEROS: Final[Mapping[str, Any]] = {
    "msgRateRedeliver": 0.0,
    "messageAckRate": 0.0,
    "chunkedMessageRate": 0.0,
    "drainingHashesCount": 0,
    "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0,
}

_PUBLISHER_ZEROS: Final[Mapping[str, Any]] = {
    "chunkedMessageRate": 0.0,
    "supportsPartialProducer": False,
}

_SUMMED: Final = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "bytesInCounter",
    "msgInCounter",
    "bytesOutCounter",
    "msgOutCounter",
    "storageSize",
    "offloadedStorageSize",
    "backlogSize",
    "waitingPublishers",
    "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize",
)
_LATEST: Final = (
    "lastOffloadLedgerId",
    "lastOffloadSuccessTimeStamp",
    "lastOffloadFailureTimeStamp",
    "lastPublishTimeStamp",
)

_SUMMED_OF_SUBSCRIPTIONS: Final = (
    "msgRateOut",
    "msgThroughputOut",
    "bytesOutCounter",
    "msgOutCounter",
    "msgBacklog",
    "msgBacklogNoDelayed",
    "backlogSize",
    "unackedMessages",
    "nonContiguousDeletedMessagesRanges",
)

_LATEST_OF_SUBSCRIPTIONS: Final = (
    "lastConsumedFlowTimestamp",
    "lastConsumedTimestamp",
    "lastAckedTimestamp",
    "lastMarkDeleteAdvancedTimestamp",
)


def oldest_backlog(oldest: tuple[str, int] | None, now_ms: int) -> Json:
    """Age and subscription of the oldest unacknowledged message; empty if all are acknowledged."""
    if oldest is None:
        return {}
    name, time_ms = oldest
    return {
        "oldestBacklogMessageAgeSeconds": max(now_ms - time_ms, 0) // 1000,
        "oldestBacklogMessageSubscriptionName": name,
    }


def topic_stats(topic: Topic, owner: str) -> Json:
    """Statistics of a topic."""
    subscriptions = {name: subscription_stats(found) for name, found in sorted(topic.subscriptions.items())}
    producers = sorted(topic.producers.values(), key=lambda producer: producer.name)
    traffic_in, traffic_out = topic.traffic_in, topic.traffic_out
    return {
        **TOPIC_ZEROS,
        **_rate_in(topic.meter_in.rate(traffic_in)),
        **_rate_out(topic.meter_out.rate(traffic_out)),
        "bytesInCounter": traffic_in.size_bytes,
        "msgInCounter": traffic_in.messages,
        "bytesOutCounter": traffic_out.size_bytes,
        "msgOutCounter": traffic_out.messages,
        "lastPublishTimeStamp": topic.ledger.last_stamp.broker_time_ms or 0,
        "storageSize": topic.ledger.size_bytes,
        "backlogSize": max((found["backlogSize"] for found in subscriptions.values()), default=0),
        "publishers": [publisher_stats(producer) for producer in producers],
        "waitingPublishers": topic.access.waiting,
        **({} if (epoch := topic.access.epoch) is None else {"topicEpoch": epoch}),
        "subscriptions": subscriptions,
        "replication": {},
        "nonContiguousDeletedMessagesRanges": _total(subscriptions.values(), "nonContiguousDeletedMessagesRanges"),
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "compaction": {
            "lastCompactionRemovedEventCount": 0,
            "lastCompactionSucceedTimestamp": 0,
            "lastCompactionFailedTimestamp": 0,
            "lastCompactionDurationTimeInMills": 0,
        },
        "ownerBroker": owner,
    }


def partitioned_stats(partitions: Mapping[str, Json], count: int, *, each: bool) -> Json:
    """Statistics of a partitioned topic: the sum of its partitions, and with ``each`` also those of each."""
    summed: Json = {**TOPIC_ZEROS, "compaction": {}, "replication": {}}
    del summed["deduplicationStatus"]  # a field of single partitions
    rows = list(partitions.values())
    for name in _SUMMED:
        summed[name] = sum(row[name] for row in rows)
    for name in _LATEST:
        summed[name] = max((row[name] for row in rows), default=0)
    earliest = [row["earliestMsgPublishTimeInBacklogs"] for row in rows if row["earliestMsgPublishTimeInBacklogs"]]
    summed["earliestMsgPublishTimeInBacklogs"] = min(earliest, default=0)
    rate = summed["msgRateIn"]
    summed["averageMsgSize"] = summed["msgThroughputIn"] / rate if rate else 0.0
    summed["publishers"] = [publisher for row in rows for publisher in row["publishers"]]
    summed["subscriptions"] = _sum_subscriptions(row["subscriptions"] for row in rows)
    return {**summed, "metadata": {"partitions": count, "deleted": False}, "partitions": partitions if each else {}}


def _sum_subscriptions(partitions: Iterable[Mapping[str, Json]]) -> Json:
    summed: dict[str, Json] = {}
    for subscriptions in partitions:
        for name, stats in subscriptions.items():
            known = summed.get(name)
            if known is None:
                summed[name] = {**stats, "consumers": list(stats["consumers"])}
                continue
            for key in _SUMMED_OF_SUBSCRIPTIONS:
                known[key] += stats[key]
            known["consumers"] += stats["consumers"]
            for key in _LATEST_OF_SUBSCRIPTIONS:
                known[key] = max(known[key], stats[key])
            known["isDurable"] = known["isDurable"] or stats["isDurable"]
            known["subscriptionProperties"] = {**known["subscriptionProperties"], **stats["subscriptionProperties"]}
    return summed


def offload_stats(statistics: OffloadStatistics) -> Json:
    """Offload statistics of a topic; beyond Pulsar's fields, the bytes that tasks read, by route."""
    return {
        "afterglowOffloadReads": {str(route): getattr(statistics.read_bytes, route) for route in Route},
        "offloadedStorageSize": statistics.offloaded_bytes,
        "lastOffloadLedgerId": statistics.last_ledger_id,
        "lastOffloadSuccessTimeStamp": statistics.last_success_ms,
        "lastOffloadFailureTimeStamp": statistics.last_failure_ms,
    }


def read_stats(counts: ReadCounts | None) -> Json:
    """Reads since the start by serving tier, beyond Pulsar's fields; empty if only the hot log can serve them.

    Reads from the cache of the newest entries are not counted.
    """
    if counts is None:
        return {}
    shown: Json = {
        str(tier): {"entries": counts.entries.get(tier, 0), "bytes": counts.bytes.get(tier, 0)} for tier in StorageTier
    }
    fallbacks = [
        {"wanted": str(wanted), "reason": reason, "reads": reads}
        for (wanted, reason), reads in sorted(counts.fallbacks.items())
    ]
    return {"afterglowReads": {**shown, "fallbacks": fallbacks, "leftOut": dict(counts.skipped)}}


def publisher_stats(producer: Producer) -> Json:
    """Statistics of a producer."""
    return {
        **_PUBLISHER_ZEROS,
        **_rate_in(producer.meter.rate(producer.traffic_in)),
        "accessMode": wire.ProducerAccessMode.Name(producer.access_mode),
        "producerId": producer.producer_id,
        "producerName": producer.name,
        **_peer(producer),
    }


def subscription_stats(subscription: Subscription) -> Json:
    """Statistics of a subscription. The backlog counts entries, as in Pulsar."""
    cursor = subscription.cursor
    consumers = [consumer_stats(consumer) for consumer in subscription.consumers]
    backlog = cursor.backlog
    out, times = subscription.traffic_out, subscription.times
    active = subscription.active
    shared = subscription.kind == wire.CommandSubscribe.Shared
    stats: Json = {
        **SUBSCRIPTION_ZEROS,
        **_rate_out(subscription.meter.rate(out)),
        "lastConsumedFlowTimestamp": times.last_flow_ms,
        "lastConsumedTimestamp": times.last_sent_ms,
        "lastAckedTimestamp": times.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": subscription.last_advanced_ms,
        "bytesOutCounter": out.size_bytes,
        "msgOutCounter": out.messages,
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": max(backlog - subscription.delayed, 0),
        "msgDelayed": subscription.delayed,
        "backlogSize": _backlog_bytes(subscription.topic, backlog),
        "blockedSubscriptionOnUnackedMsgs": False,
        "type": _type(subscription),
        "unackedMessages": _total(consumers, "unackedMessages"),
        "consumers": consumers,
        "isDurable": subscription.durable,
        "consumersAfterMarkDeletePosition": {},
        "nonContiguousDeletedMessagesRanges": len(cursor.individually_acked),
        "subscriptionProperties": cursor.properties,
    }
    if active is not None and not shared:
        stats["activeConsumerName"] = active.name
    return stats


def consumer_stats(consumer: Consumer) -> Json:
    """Statistics of a consumer."""
    limit = consumer.subscription.max_unacknowledged
    times = consumer.times
    return {
        **_CONSUMER_ZEROS,
        **_rate_out(consumer.meter.rate(consumer.traffic_out)),
        "firstConsumedFlowTimestamp": times.first_flow_ms,
        "lastConsumedFlowTimestamp": times.last_flow_ms,
        "firstMessagesSentTimestamp": times.first_sent_ms,
        "lastConsumedTimestamp": times.last_sent_ms,
        "lastConsumedTime": _time(times.last_sent_ms),
        "lastAckedTimestamp": times.last_acked_ms,
        "lastAckedTime": _time(times.last_acked_ms),
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.messages_out,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacknowledged,
        "blockedConsumerOnUnackedMsgs": bool(limit) and consumer.unacknowledged >= limit,
        "avgMessagesPerEntry": round(consumer.messages_out / consumer.entries_out) if consumer.entries_out else 0,
        **_peer(consumer),
    }


def _type(subscription: Subscription) -> str:
    """Type of the last consumers; ``None`` if no consumer has subscribed since the topic was opened."""
    if subscription.consumers or subscription.times.last_flow_ms:
        return wire.CommandSubscribe.SubType.Name(subscription.kind)
    return "None"


def _peer(of: Producer | Consumer) -> Json:
    described = {"metadata": dict(of.properties), "connectedSince": _time(of.since_ms)}
    peer = of.connection.peer
    if peer is None:
        return described
    described |= {"address": peer.address, "clientVersion": peer.client_version}
    return {**described, "appId": peer.role} if peer.role is not None else described


def _backlog_bytes(topic: Topic, backlog: int) -> int:
    """An estimate, as in Pulsar: entries of the backlog times the average size of the topic's entries."""
    entries = topic.ledger.layout.total_entries
    return topic.ledger.size_bytes * backlog // entries if entries else 0


def _total(rows: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(row[name] for row in rows)


def _rate_in(rate: Rate) -> Json:
    return {"msgRateIn": rate.messages, "msgThroughputIn": rate.size_bytes, "averageMsgSize": rate.message_bytes}


def _rate_out(rate: Rate) -> Json:
    return {"msgRateOut": rate.messages, "msgThroughputOut": rate.size_bytes}


def _time(epoch_ms: int) -> str:
    """A time as Java prints it: without milliseconds if they are 0."""
    moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds" if epoch_ms % 1000 else "seconds").replace("+00:00", "Z")
