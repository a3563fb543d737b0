"""Refresh of the policies of open topics, safe against concurrent changes and openings of topics.

Every change is counted once it is stored. A policy that was read is valid only if the count has not changed since
before the read; otherwise the policy is read again.
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
"""Topics that are handled before the event loop runs other work: about a millisecond."""


class PolicyRefresher:
    """Applies stored policies to the open topics of one broker. Belongs to the event loop's thread."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self.changes: Counter[NamespaceName] = Counter()
        """Changes of policies since the start, of the namespace itself or of its topics."""

    def count(self, namespace: NamespaceName) -> None:
        """Count a change of policies of a namespace or its topics; to be called as soon as it is stored."""
        self.changes[namespace] += 1

    async def policy_of(self, name: TopicName) -> BrokerConfig:
        """The effective policy of a topic, current if the caller applies it before its next await."""
        while True:
            before = self.changes[name.namespace]
            found = await self._service.blocking(self._read, [name])
            if self.changes[name.namespace] == before:
                return found[name]

    async def refresh(self, namespace: NamespaceName, is_affected: Callable[[TopicName], bool]) -> None:
        """Apply the stored policies to the open topics of a namespace that a change affects."""
        while not await self._refresh_once(namespace, is_affected):
            pass

    async def _refresh_once(self, namespace: NamespaceName, is_affected: Callable[[TopicName], bool]) -> bool:
        """Returns False if another change came before all topics were refreshed."""
        before = self.changes[namespace]
        topics = {name: topic for name, topic in self._service.open_topics.items() if is_affected(name)}
        found = await self._service.blocking(self._read, topics.keys())
        for number, (name, topic) in enumerate(topics.items(), 1):
            if self.changes[namespace] != before:
                return False
            topic.apply_policy(found[name])
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return True

    def _read(self, names: Collection[TopicName]) -> dict[TopicName, BrokerConfig]:
        return {name: self._service.policies.of(name.managed_ledger_name) for name in names}
