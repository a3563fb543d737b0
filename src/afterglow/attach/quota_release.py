"""Release of holds before a backlog quota blocks producers: ``--when-behind release``.

Brokers count the backlog of the slowest subscription, and disconnect producers once it exceeds the quota. At 70 % of
the quota everything up to the last confirmed entry is acknowledged, so that the cluster may trim it by its own
policies. It is streamed nevertheless, for as long as the cluster has it.

1. Record the range in our copy of the topic. *Crash: it is still held; the next check continues with 2.*
2. Acknowledge it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from afterglow.attach.cluster_checks import release_bytes
from afterglow.attach.cluster_settings import SettingsReader
from afterglow.errors import AfterglowError, Fenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.attach.cluster_settings import AdminApi
    from afterglow.attach.topic import AttachedTopic
    from afterglow.attach.topics import AttachedTopics
    from afterglow.hot.pulsar.subscription_hold import SubscriptionHolds
    from afterglow.ledger.environment import Clock
    from afterglow.metadata.names import TopicName

_log = logging.getLogger(__name__)

_REFRESH_S: Final = 60.0
"""Quotas that were read this long ago are read again: one request for each topic with a backlog."""


class QuotaLimits:
    """Backlogs at which holds are given up, by the quotas of the cluster. One thread at a time.

    Args:
        api: The admin API of the cluster.
        clock: The clock.
    """

    def __init__(self, api: AdminApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._reader = SettingsReader(api)
        self._read_at = clock.monotonic()
        self._known: dict[TopicName, int | None] = {}

    def release_bytes(self, topic: TopicName) -> int | None:
        """The backlog of a topic at which its hold is given up; None if it has no quota that can be read.

        Raises:
            MetadataUnavailable: The API does not respond.
            CorruptMetadata: A response is invalid.
        """
        if self._clock.monotonic() >= self._read_at + _REFRESH_S:
            self._reader, self._known = SettingsReader(self._api), {}
            self._read_at = self._clock.monotonic()
        if topic.base not in self._known:
            self._known[topic.base] = release_bytes(self._reader.read_backlog_quotas(topic))
        return self._known[topic.base]


class QuotaRelease:
    """Gives up holds. One thread at a time.

    Args:
        topics: The attached topics.
        holds: Their subscriptions.
        limit: Returns the backlog at which the hold of a topic is given up, in bytes; None: at none.
    """

    def __init__(
        self, topics: AttachedTopics, holds: SubscriptionHolds, limit: Callable[[TopicName], int | None]
    ) -> None:
        self._topics = topics
        self._holds = holds
        self._limit = limit

    def check(self) -> None:
        """Check every topic.

        Raises:
            Fenced: Another process has become the owner.
        """
        for topic in self._topics.all_opened():
            try:
                self.check_topic(topic)
            except Fenced:
                raise
            except AfterglowError as error:
                _log.warning("the backlog quota of %s is checked later: %s", topic.topic, error)

    def check_topic(self, topic: AttachedTopic) -> bool:
        """Steps 1 and 2 for one topic if its backlog is too large; returns whether it was.

        Raises:
            Fenced: Another process has become the owner.
            MetadataError: A store, or the admin API, failed; the next call continues.
            HotLogError: The subscription is not held now; likewise.
        """
        behind = topic.bytes_behind(topic.held_from)
        if not behind:
            return False
        limit = self._limit(topic.topic)
        if limit is None or behind < limit:
            return False
        through = topic.layout.last
        topic.release(through)
        _log.error(
            "%s: the tier is %d bytes behind, near the backlog quota: entries up to %s are not held any more, and may "
            "be lost if the cluster trims them before they are in the tier",
            *(topic.topic, behind, through),
        )
        self._holds.acknowledge(str(topic.topic), through)
        return True
