"""Topics that come into being when a client first names them, where policies allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.broker.policies import most_partitions
from afterglow.broker.replies import Refused
from afterglow.errors import NotThere
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from afterglow.broker.service import BrokerService
    from afterglow.metadata.names import TopicName


class Creation:
    """Of the topics of one broker. All of it belongs to the event loop's thread."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    async def check(self, name: TopicName, *, create: bool) -> None:
        """Check that a topic that does not exist may be made.

        Args:
            name: The topic.
            create: Whether the client wants it made.

        Raises:
            Refused: It may not.
        """
        service = self._service
        try:
            policies = await service.blocking(service.policies.of_namespace, name.namespace)
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
            Refused: A topic may not have as many, or the namespace has no room for them.
        """
        service = self._service
        found = await service.blocking(service.catalog.partitions, name)
        if found or not create or name.partition_index is not None:
            return found
        policies = await service.blocking(service.policies.of_namespace, name.namespace)
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
        await service.blocking(service.policies.check_room, name.namespace, count)
        await service.blocking(service.catalog.create_partitioned, name, count)
        return count
