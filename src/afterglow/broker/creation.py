"""Creation of topics: by a call, or when a client first names them, where policies allow it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from afterglow.config.choices import TopicType
from afterglow.errors import NotFound
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused
from afterglow.policy.fields import DELETED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.broker.service import BrokerService
    from afterglow.config import BrokerConfig
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.metadata.names import NamespaceName, TopicName

_MAX_PARTITIONS: Final = 10_000
"""Limit where maxNumPartitionsPerPartitionedTopic sets none: a typing error would create topics for hours."""


def most_partitions(config: BrokerConfig) -> int:
    """The most partitions that a topic may be created with."""
    return config.max_num_partitions_per_partitioned_topic or _MAX_PARTITIONS


class Creation:
    """Of the topics of one broker. All of it belongs to the event loop's thread."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._under_way: dict[asyncio.Future[None], NamespaceName] = {}

    async def open(self, name: TopicName, *, create: bool) -> ManagedLedger:
        """A topic's log; a new one where it does not exist and may be made.

        Args:
            name: The topic.
            create: Whether the client wants it made.

        Raises:
            Refused: It does not exist and may not be made.
        """
        service = self._service
        with self._making(name.namespace):
            exists = await service.blocking(service.store.exists, name.managed_ledger_name)
            if not exists:
                await self._check(name, create=create)
            return await service.blocking(service.store.open, name.managed_ledger_name, create=not exists)

    async def make(self, name: TopicName) -> ManagedLedger:
        """Make a topic, or a partition, whatever clients may; one that exists stays as it is.

        Raises:
            NotFound: Its namespace does not exist.
            Refused: The namespace is being deleted.
        """
        service = self._service
        with self._making(name.namespace):
            await service.blocking(self._policy_for, name.namespace)
            return await service.blocking(service.store.open, name.managed_ledger_name)

    async def make_partitioned(
        self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic a partitioned one; its partitions are made by themselves.

        Raises:
            NotFound: Its namespace does not exist.
            AlreadyExists: It is one.
            Refused: The namespace has no room for the partitions, or is being deleted.
        """
        service = self._service
        with self._making(name.namespace):
            await service.blocking(self.check_room, name.namespace, partitions)
            await service.blocking(service.catalog.create_partitioned, name, partitions, properties)

    async def end(self, namespace: NamespaceName) -> None:
        """Have no topic made in a namespace any more, since it is about to be deleted. There is no way back.

        Raises:
            NotFound: There is no such namespace.
        """
        await self._service.update_policies(namespace, lambda old: {**old, DELETED: True})
        # Who has looked at the policies before makes what it came for; whoever comes now sees the mark.
        await asyncio.gather(*(made for made, where in self._under_way.items() if where == namespace))

    @contextmanager
    def _making(self, namespace: NamespaceName) -> Iterator[None]:
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[made] = namespace
        try:
            yield
        finally:
            del self._under_way[made]
            made.set_result(None)

    async def _check(self, name: TopicName, *, create: bool) -> None:
        service = self._service
        try:
            policy = await service.blocking(self._policy_for, name.namespace)
        except NotFound as error:
            raise Refused(wire.TopicNotFound, f"{error}; create it first") from error
        if name.partition_index is None:
            if await service.blocking(service.catalog.partitions, name):
                raise Refused(wire.NotAllowedError, f"{name} is partitioned; ask for one of its partitions")
        elif name.partition_index < await service.blocking(service.catalog.partitions, name.base):
            return  # the partitioned topic was made, its partitions come with their first use
        if not create or not policy.allow_auto_topic_creation:
            raise Refused(wire.TopicNotFound, f"{name} does not exist and allowAutoTopicCreation does not apply")
        await service.blocking(self.check_room, name.namespace, 1)

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """How many partitions a topic has, 0 if it is none; a new one may be made partitioned.

        Raises:
            NotFound: Its namespace does not exist.
            Refused: A topic may not have as many, or the namespace has no room for them, or is being deleted.
        """
        service = self._service
        found = await service.blocking(service.catalog.partitions, name)
        if found or not create or name.partition_index is not None:
            return found
        policy = await service.blocking(self._policy_for, name.namespace)
        count, most = policy.default_num_partitions, most_partitions(service.config)
        if not policy.allow_auto_topic_creation or policy.allow_auto_topic_creation_type is not TopicType.PARTITIONED:
            return 0
        if await service.blocking(service.store.exists, name.managed_ledger_name):
            return 0
        if count > most:
            raise Refused(
                wire.NotAllowedError,
                f"{name} is not made with the {count} partitions that defaultNumPartitions of namespace "
                f"{name.namespace} asks for: a topic may have {most}",
            )
        await self.make_partitioned(name, count)
        return count

    def check_room(self, namespace: NamespaceName, more: int) -> None:
        """Check that a namespace may have some topics more, each partition being one. Waits for the metadata store.

        Raises:
            NotFound: The namespace does not exist.
            Refused: It may not, or is being deleted.
        """
        limit = self._policy_for(namespace).max_topics_per_namespace
        if limit and len(self._service.catalog.topics(namespace)) + more > limit:
            raise Refused(
                wire.NotAllowedError,
                f"namespace {namespace} may have {limit} topics (maxTopicsPerNamespace): delete some, or raise it",
            )

    def _policy_for(self, namespace: NamespaceName) -> BrokerConfig:
        """The effective policy of a namespace in which a topic is to be created. Waits for the metadata store.

        Raises:
            NotFound: The namespace does not exist.
            Refused: It is being deleted.
        """
        policy, is_deleted = self._service.policies.of_namespace(namespace)
        if is_deleted:
            raise Refused(wire.TopicNotFound, f"namespace {namespace} is being deleted with all its topics")
        return policy
