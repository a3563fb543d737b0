"""Figures of open topics and subscriptions: plain numbers, taken in the event loop's thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.pipeline.metrics.definitions import OTHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.broker.topic import Topic
    from afterglow.broker.traffic import Rate, Traffic
    from afterglow.pipeline.metrics.samples import Samples


@dataclass(frozen=True, slots=True)
class SubscriptionFigures:
    """One subscription."""

    name: str
    backlog: int
    """Unacknowledged entries."""
    unacknowledged: int
    """Messages sent and not acknowledged."""
    delayed: int
    """Messages that wait for their delivery time."""
    consumers: int
    rate: Rate
    """Messages to its consumers."""


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """One open topic."""

    ledger_name: str
    """The managed-ledger name."""
    namespace: str
    topic: str
    """The full name; like the namespace, ``other`` for a topic without series of its own."""
    producers: int
    traffic_in: Traffic
    rate_in: Rate
    traffic_out: Traffic
    rate_out: Rate
    size_bytes: int
    entries: int
    subscriptions: tuple[SubscriptionFigures, ...]

    @property
    def has_own_series(self) -> bool:
        """Whether its metrics have series of their own."""
        return self.topic != OTHER


def figures_of(topic: Topic, *, own_series: bool) -> TopicFigures:
    """The current figures of a topic.

    Args:
        topic: The topic.
        own_series: Whether its metrics have series of their own.
    """
    subscriptions = tuple(
        SubscriptionFigures(
            name,
            found.cursor.backlog,
            sum(consumer.unacknowledged for consumer in found.consumers),
            found.delayed,
            len(found.consumers),
            found.meter.rate(found.traffic_out),
        )
        for name, found in topic.subscriptions.items()
    )
    traffic_in, traffic_out = topic.traffic_in, topic.traffic_out
    return TopicFigures(
        topic.name.managed_ledger_name,
        str(topic.name.namespace) if own_series else OTHER,
        str(topic.name) if own_series else OTHER,
        len(topic.producers),
        traffic_in,
        topic.meter_in.rate(traffic_in),
        traffic_out,
        topic.meter_out.rate(traffic_out),
        topic.ledger.size_bytes,
        topic.ledger.layout.total_entries,
        subscriptions,
    )


def add_topics(samples: Samples, topics: Sequence[TopicFigures], max_subscriptions: int) -> None:
    """Add the figures of all topics.

    Args:
        samples: Receives the values.
        topics: All open topics, in the order of their opening.
        max_subscriptions: Subscriptions with series of their own; the others of a topic are merged into ``other``.
    """
    left = max_subscriptions
    for topic in topics:
        _add_topic(samples, topic)
        with_series = left if topic.has_own_series else 0
        for index, subscription in enumerate(topic.subscriptions):
            _add_subscription(samples, topic, subscription, subscription.name if index < with_series else OTHER)
        left -= min(with_series, len(topic.subscriptions))


def _add_topic(samples: Samples, topic: TopicFigures) -> None:
    labels = topic.namespace, topic.topic
    slowest = max((found.backlog for found in topic.subscriptions), default=0)
    backlog_bytes = topic.size_bytes * slowest // topic.entries if topic.entries else 0
    samples.add("pulsar_topics_count", 1, topic.namespace)
    samples.add("pulsar_producers_count", topic.producers, *labels)
    samples.add("pulsar_consumers_count", sum(found.consumers for found in topic.subscriptions), *labels)
    samples.add("pulsar_subscriptions_count", len(topic.subscriptions), *labels)
    for way, traffic, rate in (("in", topic.traffic_in, topic.rate_in), ("out", topic.traffic_out, topic.rate_out)):
        samples.add(f"pulsar_rate_{way}", rate.messages, *labels)
        samples.add(f"pulsar_throughput_{way}", rate.size_bytes, *labels)
        samples.add(f"pulsar_{way}_messages_total", traffic.messages, *labels)
        samples.add(f"pulsar_{way}_bytes_total", traffic.size_bytes, *labels)
    samples.add("pulsar_msg_backlog", sum(found.backlog for found in topic.subscriptions), *labels)
    samples.add("pulsar_storage_size", topic.size_bytes, *labels)
    samples.add("pulsar_storage_logical_size", topic.size_bytes, *labels)
    samples.add("pulsar_storage_backlog_size", backlog_bytes, *labels)


def _add_subscription(samples: Samples, topic: TopicFigures, subscription: SubscriptionFigures, label: str) -> None:
    labels = topic.namespace, topic.topic, label
    samples.add("pulsar_subscription_back_log", subscription.backlog, *labels)
    samples.add("pulsar_subscription_unacked_messages", subscription.unacknowledged, *labels)
    samples.add("pulsar_subscription_delayed", subscription.delayed, *labels)
    samples.add("pulsar_subscription_consumers_count", subscription.consumers, *labels)
    samples.add("pulsar_subscription_msg_rate_out", subscription.rate.messages, *labels)
    samples.add("pulsar_subscription_msg_throughput_out", subscription.rate.size_bytes, *labels)
