"""Refresh of the policies of open topics, whatever the order in which changes and openings of topics happen.

Every change is counted once it is stored. A policy that was read is valid only while the count has not moved since
before the read: a topic that was opened or refreshed by an earlier read is refreshed again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from afterglow.broker.service import BrokerService
    from afterglow.config import BrokerConfig
    from afterglow.metadata.names import NamespaceName, TopicName

TOPICS_AT_ONCE: Final = 50
"""Topics that are visited before other work has its turn in the event loop: about a millisecond."""


class PolicyRefresher:
    """Keeps the open topics of one broker in step with stored policies. Belongs to the event loop's thread."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._changes: Counter[NamespaceName] = Counter()

    def count(self, namespace: NamespaceName) -> None:
        """Count a change of policies of a namespace or its topics; to be called as soon as it is stored."""
        self._changes[namespace] += 1

    def changes_of(self, namespace: NamespaceName) -> int:
        """How many changes were counted."""
        return self._changes[namespace]

    async def policy_of(self, name: TopicName) -> BrokerConfig:
        """The effective policy of a topic. A caller that uses it without waiting in between misses no change."""
        while True:
            before = self._changes[name.namespace]
            found = await self._service.blocking(self._read, [name])
            if self._changes[name.namespace] == before:
                return found[name]

    async def refresh(self, namespace: NamespaceName, concerns: Callable[[TopicName], bool]) -> None:
        """Apply the stored policies to the open topics of a namespace that a change concerns."""
        while not await self._refresh_once(namespace, concerns):
            pass

    async def _refresh_once(self, namespace: NamespaceName, concerns: Callable[[TopicName], bool]) -> bool:
        """Whether all of them were refreshed before the next change."""
        before = self._changes[namespace]
        topics = {name: topic for name, topic in self._service.open_topics.items() if concerns(name)}
        found = await self._service.blocking(self._read, topics.keys())
        for number, (name, topic) in enumerate(topics.items(), 1):
            if self._changes[namespace] != before:
                return False
            topic.apply_policy(found[name])
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return True

    def _read(self, names: Collection[TopicName]) -> dict[TopicName, BrokerConfig]:
        return {name: self._service.policies.of(name.managed_ledger_name) for name in names}
