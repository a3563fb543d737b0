"""Metrics of attached topics: lag behind the cluster, subscriptions, lost entries, and load on brokers and bookies.

Those of offload, verification and tiers are collected as for an embedded server. Pulsar's own metrics of topics are
left to the cluster's brokers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.broker.traffic import Rate
from afterglow.offload.task import Route
from afterglow.pipeline.metrics.collector import MetricsCollector
from afterglow.pipeline.metrics.definitions import OTHER
from afterglow.pipeline.metrics.topics import SubscriptionFigures, TopicFigures

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from afterglow.attach.service import AttachedService
    from afterglow.attach.topic import AttachedTopic
    from afterglow.metadata.names import TopicName
    from afterglow.pipeline.metrics.samples import Samples
    from afterglow.pipeline.server_handle import ServerHandle

_TOPICS_AT_ONCE: Final = 50
"""Topics that are handled before the event loop runs other work."""
_UNKNOWN: Final = Rate()
"""Rates are measured from the counts by the overview."""


class AttachMetrics(MetricsCollector):
    """Metrics of a process that is attached to a cluster; see the base class for the arguments."""

    def __init__(self, server: ServerHandle[AttachedService]) -> None:
        super().__init__(server)
        self._service = server.service

    async def open_topics(self) -> AsyncIterator[tuple[TopicName, Callable[..., TopicFigures]]]:
        """All attached topics; the event loop runs other work after every few of them."""
        for number, topic in enumerate(self._service.store.all_opened(), 1):
            yield topic.topic, partial(figures_of, self._service, topic)
            if number % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _begin(self) -> Callable[[Samples, Sequence[TopicFigures]], None]:
        return self._add_own

    def _add_own(self, samples: Samples, topics: Sequence[TopicFigures]) -> None:
        for figures in topics:
            topic = self._service.store.opened(figures.ledger_name)
            if topic is not None:
                self._add_topic(samples, figures, topic)
        for result, count in self._service.follower.polls().items():
            samples.add("afterglow_attach_polls_total", count, result)
        if self._offload is not None:
            read = self._offload.read_bytes
            samples.add("afterglow_attach_read_bytes_total", read.bookies, Route.BOOKIES)
            samples.add("afterglow_attach_read_bytes_total", read.protocol, Route.PROTOCOL)

    def _add_topic(self, samples: Samples, figures: TopicFigures, topic: AttachedTopic) -> None:
        labels = figures.namespace, figures.topic
        hold = self._service.hold(topic)
        samples.add("afterglow_attach_topics", 1, figures.namespace)
        samples.add("afterglow_attach_confirmed_entries_total", figures.traffic_in.messages, *labels)
        samples.add("afterglow_attach_confirmed_bytes_total", figures.traffic_in.size_bytes, *labels)
        samples.add("afterglow_attach_lag_entries", self._service.backlog(topic), *labels)
        samples.add("afterglow_attach_held", int(hold.held), *labels)
        samples.add("afterglow_attach_may_be_lost", int(bool(hold.may_be_lost or topic.released)), *labels)
        samples.add("afterglow_attach_lost_entries", sum(lost.last - lost.first + 1 for lost in topic.lost), *labels)
        samples.add("afterglow_attach_follow_failing", int(bool(self._service.follower.problem(topic.name))), *labels)


def figures_of(service: AttachedService, topic: AttachedTopic, *, own_series: bool) -> TopicFigures:
    """The current figures of an attached topic. What arrives counts entries, since nothing decodes their messages here.

    Args:
        service: The attached topics.
        topic: The topic.
        own_series: Whether its metrics have series of their own.
    """
    confirmed = service.confirmed(topic)
    hold = service.hold(topic)
    subscription = SubscriptionFigures(
        service.link.subscription, service.backlog(topic), 0, 0, int(hold.held), _UNKNOWN
    )
    return TopicFigures(
        topic.name,
        str(topic.topic.namespace) if own_series else OTHER,
        str(topic.topic) if own_series else OTHER,
        producers=0,
        traffic_in=confirmed,
        rate_in=_UNKNOWN,
        traffic_out=type(confirmed)(),
        rate_out=_UNKNOWN,
        size_bytes=topic.size_bytes,
        entries=topic.layout.total_entries,
        subscriptions=(subscription,),
    )
