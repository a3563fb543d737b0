"""Open topics obey what is stored, however changes of policies and the opening of topics fall together.

Every change is counted once it is stored. What was read holds only while the count has not moved since before the
read: a topic that is opened, or told, by what was read earlier is told again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.broker.policies import TopicPolicies
    from afterglow.broker.service import BrokerService
    from afterglow.metadata.names import NamespaceName, TopicName

TOPICS_AT_ONCE: Final = 50
"""Topics that are looked at before others have their turn in the event loop: about a millisecond."""


class Obedience:
    """Of the topics of one broker. All of it belongs to the event loop's thread."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._changes: Counter[NamespaceName] = Counter()

    def count(self, namespace: NamespaceName) -> None:
        """Policies of a namespace or of its topics have changed; to be called as soon as that is stored."""
        self._changes[namespace] += 1

    def changes_of(self, namespace: NamespaceName) -> int:
        """How many changes were counted."""
        return self._changes[namespace]

    async def policies_of(self, name: TopicName) -> TopicPolicies:
        """What holds for a topic now; who opens it by that without waiting in between misses no change.

        Raises:
            NotThere: Its namespace does not exist.
        """
        while True:
            before = self._changes[name.namespace]
            found = await self._service.blocking(self._service.policies.of_topics, [name])
            if self._changes[name.namespace] == before:
                return found[name]

    async def enforce(self, namespace: NamespaceName, concerned: Callable[[TopicName], bool]) -> None:
        """Have the open topics of a namespace that are concerned obey what is stored now.

        Raises:
            NotThere: The namespace does not exist any more.
        """
        while not await self._enforced(namespace, concerned):
            pass

    async def _enforced(self, namespace: NamespaceName, concerned: Callable[[TopicName], bool]) -> bool:
        """Whether all of them were told before the next change."""
        before = self._changes[namespace]
        topics = {name: topic for name, topic in self._service.open_topics.items() if concerned(name)}
        found = await self._service.blocking(self._service.policies.of_topics, topics.keys())
        for number, (name, topic) in enumerate(topics.items(), 1):
            if self._changes[namespace] != before:
                return False
            topic.obey(found[name])
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return True
