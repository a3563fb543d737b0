"""How topics come into being: by a call, or when a client first names them, where policies allow it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from afterglow.broker.policies import DELETED, most_partitions
from afterglow.broker.replies import Refused
from afterglow.errors import NotThere
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.broker.service import BrokerService
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.metadata.names import NamespaceName, TopicName


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
            NotThere: Its namespace does not exist.
            Refused: The namespace is being deleted.
        """
        service = self._service
        with self._making(name.namespace):
            await service.blocking(service.policies.for_creation, name.namespace)
            return await service.blocking(service.store.open, name.managed_ledger_name)

    async def make_partitioned(
        self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic a partitioned one; its partitions are made by themselves.

        Raises:
            NotThere: Its namespace does not exist.
            AlreadyThere: It is one.
            Refused: The namespace has no room for the partitions, or is being deleted.
        """
        service = self._service
        with self._making(name.namespace):
            await service.blocking(service.policies.check_room, name.namespace, partitions)
            await service.blocking(service.catalog.create_partitioned, name, partitions, properties)

    async def end(self, namespace: NamespaceName) -> None:
        """Have no topic made in a namespace any more, since it is about to be deleted. There is no way back.

        Raises:
            NotThere: There is no such namespace.
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
            policies = await service.blocking(service.policies.for_creation, name.namespace)
        except NotThere as error:
            raise Refused(wire.TopicNotFound, f"{error}; create it first") from error
        if name.partition_index is None:
            if await service.blocking(service.catalog.partitions, name):
                raise Refused(wire.NotAllowedError, f"{name} is partitioned; ask for one of its partitions")
        elif name.partition_index < await service.blocking(service.catalog.partitions, name.base):
            return  # the partitioned topic was made, its partitions come with their first use
        if not create or not policies.auto_topic_creation:
            raise Refused(wire.TopicNotFound, f"{name} does not exist and allowAutoTopicCreation does not apply")
        await service.blocking(service.policies.check_room, name.namespace, 1)

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """How many partitions a topic has, 0 if it is none; a new one may be made partitioned.

        Raises:
            NotThere: Its namespace does not exist.
            Refused: A topic may not have as many, or the namespace has no room for them, or is being deleted.
        """
        service = self._service
        found = await service.blocking(service.catalog.partitions, name)
        if found or not create or name.partition_index is not None:
            return found
        policies = await service.blocking(service.policies.for_creation, name.namespace)
        count, most = policies.auto_partitions, most_partitions(service.config)
        if not policies.auto_topic_creation or not count:
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
