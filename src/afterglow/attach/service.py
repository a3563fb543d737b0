"""The attached topics as the admin API and the metrics see them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from afterglow.broker.authorization import Authorizer
from afterglow.broker.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from afterglow.attach.catalog import AttachedCatalog
    from afterglow.attach.follower import Follower
    from afterglow.attach.policies import AttachPolicies
    from afterglow.attach.topic import AttachedTopic
    from afterglow.attach.topics import AttachedTopics
    from afterglow.broker.auth import Authenticator
    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.hot.pulsar.hold_state import HoldState
    from afterglow.hot.pulsar.subscription_hold import SubscriptionHolds

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterLink:
    """The cluster that this process is attached to, for people and tools."""

    name: str
    admin_url: str
    """Its admin API."""
    subscription: str
    """The subscription by which trimming is held back."""


class AttachedService:
    """A :class:`~afterglow.pipeline.server_handle.TopicService` of attached topics.

    Args:
        link: The cluster.
        config: Settings of the process.
        store: The attached topics.
        catalog: Their names.
        policies: Their effective policies.
        holds: Holds their subscriptions.
        follower: Follows them.
        authenticator: Identifies callers.
        pool: Threads for all work that waits.
    """

    def __init__(
        self,
        link: ClusterLink,
        *,
        config: BrokerConfig,
        store: AttachedTopics,
        catalog: AttachedCatalog,
        policies: AttachPolicies,
        holds: SubscriptionHolds,
        follower: Follower,
        authenticator: Authenticator,
        pool: Executor,
    ) -> None:
        self.link = link
        self.config = config
        self.store = store
        self.catalog = catalog
        self.policies = policies
        self.authenticator = authenticator
        self.authorizer = Authorizer(config, catalog)
        self.follower = follower
        self._holds = holds
        self._pool = pool
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[Position, int]] = {}
        self._confirmed: dict[str, Traffic] = {}

    async def blocking(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that waits for metadata, bookies or the tier, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))

    async def run_in_tier_pool(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same: no consumer waits for the threads of this process."""
        return await self.blocking(work, *args, **kwargs)

    def hold(self, topic: AttachedTopic) -> HoldState:
        """State of the subscription of a topic. Never waits."""
        return self._holds.state(str(topic.topic))

    def confirmed(self, topic: AttachedTopic) -> Traffic:
        """Entries, and their bytes, that brokers have confirmed since the first call for the topic. Never waits."""
        last, size_bytes = topic.layout.last, topic.size_bytes
        with self._lock:
            counted = self._confirmed.setdefault(topic.name, Traffic())
            if (seen := self._seen.get(topic.name)) is not None:
                # The size shrinks when the cluster trims ledgers.
                counted.add(topic.layout.entries_between(seen[0], last), max(size_bytes - seen[1], 0))
            self._seen[topic.name] = last, size_bytes
            return Traffic(counted.messages, counted.size_bytes)

    def backlog(self, topic: AttachedTopic) -> int:
        """Number of entries behind the last one up to which all are in committed segments, or left to the cluster."""
        layout, end = topic.layout, topic.committed_end
        return layout.total_entries if end is None else layout.entries_between(end, layout.last)
