"""Routes of statistics: of topics and partitioned topics, and of their ledgers, cursors and metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import ledger_stats, targets, topic_stats
from afterglow.admin.access import Access
from afterglow.admin.errors import not_found
from afterglow.admin.resource import Resources
from afterglow.admin.topic_routes import partitioned_metadata

if TYPE_CHECKING:
    from afterglow.admin.call import BrokerCall
    from afterglow.admin.targets import Target
    from afterglow.broker.topic import Topic

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


@RESOURCES.on("GET", "/stats", Access.LOOKUP)
async def get_stats(call: BrokerCall) -> dict[str, Any]:
    """Statistics of one topic."""
    return await _stats(call, await targets.open_one(call.service, call.topic))


@RESOURCES.on("GET", "/partitioned-stats", Access.LOOKUP)
async def get_partitioned_stats(call: BrokerCall) -> dict[str, Any]:
    """Statistics of a partitioned topic, and with ``perPartition`` of each partition."""
    target = await _partitioned(call)
    each = call.flag("perPartition", default=True)
    found = {str(topic.name): await _stats(call, topic) async for topic in targets.each(call.service, target)}
    return topic_stats.partitioned_stats(found, target.partitions, each=each)


@RESOURCES.on("GET", "/internalStats", Access.LOOKUP)
async def get_internal_stats(call: BrokerCall) -> dict[str, Any]:
    """Ledgers and cursors of one topic."""
    call.flag("metadata")  # metadata of BookKeeper ledgers, which do not exist here
    return _internal_stats(await targets.open_one(call.service, call.topic))


@RESOURCES.on("GET", "/partitioned-internalStats", Access.LOOKUP)
async def get_partitioned_internal_stats(call: BrokerCall) -> dict[str, Any]:
    """Ledgers and cursors of each partition."""
    target = await _partitioned(call)
    found = {str(topic.name): _internal_stats(topic) async for topic in targets.each(call.service, target)}
    return {"metadata": partitioned_metadata(target.partitions), "partitions": found}


@RESOURCES.on("GET", "/internal-info", Access.LOOKUP)
async def get_internal_info(call: BrokerCall) -> dict[str, Any]:
    """Metadata of a topic, or of each partition; with ``afterglow`` also what readers in other processes need."""
    for_readers = call.flag("afterglow")
    target = await targets.find(call.service, call.topic)
    found = {
        str(topic.name): await _metadata(call, topic, for_readers=for_readers)
        async for topic in targets.each(call.service, target)
    }
    return {"version": 0, "partitions": found} if target.partitioned else found[str(target.name)]


async def _stats(call: BrokerCall, topic: Topic) -> dict[str, Any]:
    oldest = await topic.oldest_backlog()
    name = topic.name.managed_ledger_name
    statistics = await call.blocking(call.offload.statistics, name) if call.offloads else None
    shown = topic_stats.topic_stats(topic, call.broker_id)
    if call.flag("getEarliestTimeInBacklog"):
        await _add_earliest(topic, shown)
    if not call.flag("subscriptionBacklogSize", default=True):
        for subscription in shown["subscriptions"].values():
            subscription["backlogSize"] = -1
    if call.flag("excludePublishers"):
        shown["publishers"] = []
    if call.flag("excludeConsumers"):
        for subscription in shown["subscriptions"].values():
            subscription["consumers"] = []
    return (
        shown
        | topic_stats.oldest_backlog(oldest, call.service.store.clock.now_ms())
        | ({} if statistics is None else topic_stats.offload_stats(statistics))
        | topic_stats.read_stats(call.server.read_counts(name))
    )


async def _add_earliest(topic: Topic, shown: dict[str, Any]) -> None:
    """Add the time of the oldest unacknowledged message of each subscription; 0 if it has none."""
    found = []
    for name, row in shown["subscriptions"].items():
        subscription = topic.subscriptions.get(name)
        since_ms = None if subscription is None else await topic.first_unacked_ms(subscription.cursor)
        if since_ms is not None:
            row["earliestMsgPublishTimeInBacklog"] = since_ms
            found.append(since_ms)
    shown["earliestMsgPublishTimeInBacklogs"] = min(found, default=0)


def _internal_stats(topic: Topic) -> dict[str, Any]:
    subscriptions = [subscription for _, subscription in sorted(topic.subscriptions.items())]
    cursors = [(subscription.cursor, bool(subscription.consumers)) for subscription in subscriptions]
    return ledger_stats.internal_stats(topic.ledger, cursors, topic.entries_added)


async def _metadata(call: BrokerCall, topic: Topic, *, for_readers: bool) -> dict[str, Any]:
    # The newest metadata: an update that changes nothing writes nothing.
    snapshot = await call.blocking(topic.ledger.update, lambda _info: None)
    shown = ledger_stats.internal_info(topic.ledger, snapshot)
    if for_readers:
        name = topic.name.managed_ledger_name
        records = await call.blocking(call.offload.segment_records, name) if call.offloads else ()
        shown["afterglow"] = ledger_stats.reader_view(snapshot.info, records, topic.ledger.layout)
    return shown


async def _partitioned(call: BrokerCall) -> Target:
    target = await targets.find(call.service, call.topic)
    if not target.partitioned:
        raise not_found(f"{target.name} is not a partitioned topic")
    return target
