"""Statistics of a partitioned topic: the sum of those of its partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from afterglow.admin.stats import TOPIC_ZEROS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Json = dict[str, Any]

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


def partitioned_stats(partitions: Mapping[str, Json], count: int, *, each: bool) -> Json:
    """The statistics of a partitioned topic: the sum of its partitions, and each where asked for."""
    summed: Json = {**TOPIC_ZEROS, "compaction": {}, "replication": {}}
    del summed["deduplicationStatus"]  # is of each partition
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
