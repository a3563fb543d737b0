"""Statistics of the broker as a whole, for tools that collect them or balance load."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from afterglow.admin import bundles, stats
from afterglow.admin.access import Access
from afterglow.admin.resource import Resources
from afterglow.broker.obedience import TOPICS_AT_ONCE
from afterglow.broker.replies import PULSAR_VERSION
from afterglow.errors import NotThere

if TYPE_CHECKING:
    from afterglow.admin.call import Call
    from afterglow.broker.topic import Topic

    Json = dict[str, Any]

RESOURCES = Resources("/admin/v2/broker-stats")


@RESOURCES.on("GET", "/topics", Access.SUPER_USER)
@RESOURCES.on("GET", "/destinations", Access.SUPER_USER)
async def topics(call: Call) -> Json:
    """Statistics of every open topic, by namespace and bundle."""
    found: Json = {}
    for name, bundle, topic in await by_bundle(call):
        place = found.setdefault(name, {}).setdefault(bundle, {}).setdefault("persistent", {})
        place[str(topic.name)] = stats.topic_stats(topic, call.broker_id)
        await asyncio.sleep(0)  # others have their turn
    return found


@RESOURCES.on("GET", "/load-report", Access.SUPER_USER)
async def load_report(call: Call) -> Json:
    """How busy the broker is."""
    service = call.service
    placed = await by_bundle(call)
    open_topics = [topic for _, _, topic in placed]
    owned = sorted({f"{name}/{bundle}" for name, bundle, _ in placed})
    processors = os.cpu_count() or 1
    unknown = {"usage": 0.0, "limit": 0.0}
    return {
        "loadReportType": "LocalBrokerData",
        "webServiceUrlTls" if call.secure else "webServiceUrl": call.web_url,
        "pulsarServiceUrl": service.service_url,
        "pulsarServiceUrlTls": service.service_url_tls,
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": False,
        "cpu": {"usage": 100 * min(os.getloadavg()[0], processors), "limit": 100.0 * processors},
        "memory": unknown,
        "directMemory": unknown,
        "bandwidthIn": unknown,
        "bandwidthOut": unknown,
        "lastUpdate": service.store.clock.now_ms(),
        "numTopics": len(open_topics),
        "numBundles": len(owned),
        "numConsumers": sum(len(found.consumers) for topic in open_topics for found in topic.subscriptions.values()),
        "numProducers": sum(len(topic.producers) for topic in open_topics),
        "bundles": owned,
        "brokerVersionString": PULSAR_VERSION,
        "protocols": {},
    }


@RESOURCES.on("GET", "/metrics", Access.SUPER_USER)
@RESOURCES.on("GET", "/mbeans", Access.SUPER_USER)
async def no_metrics(_call: Call) -> list[Json]:
    """Metrics of a Java process: none. Those of this one are at ``/metrics``."""
    return []


async def by_bundle(call: Call) -> list[tuple[str, str, Topic]]:
    """The open topics, each with its namespace and its bundle; without those whose namespace is gone meanwhile."""
    service = call.service
    open_topics = service.open_topics
    known = {}
    for namespace in {name.namespace for name in open_topics}:
        with suppress(NotThere):
            known[namespace] = bundles.all_of(await service.blocking(service.catalog.policies, namespace))
    placed = []
    for number, (name, topic) in enumerate(open_topics.items()):
        if name.namespace in known:
            placed.append((str(name.namespace), bundles.holder(known[name.namespace], name).name, topic))
        if number % TOPICS_AT_ONCE == TOPICS_AT_ONCE - 1:
            await asyncio.sleep(0)  # others have their turn
    return placed
