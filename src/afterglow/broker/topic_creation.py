"""Creation of topics: by the admin API, or automatically when a client first names them and policies allow it."""

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


def max_partitions(config: BrokerConfig) -> int:
    """The largest number of partitions that a topic may be created with."""
    return config.max_num_partitions_per_partitioned_topic or _MAX_PARTITIONS


class TopicCreator:
    """Creates the topics of one broker. Belongs to the event loop's thread."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._running: dict[asyncio.Future[None], NamespaceName] = {}

    async def open(self, name: TopicName, *, create: bool) -> ManagedLedger:
        """Open the managed ledger of a topic, and create it if it is missing and may be created.

        Raises:
            Refused: The topic does not exist and may not be created.
        """
        service = self._service
        with self._creating(name.namespace):
            exists = await service.blocking(service.store.exists, name.managed_ledger_name)
            if not exists:
                await self._check(name, create=create)
            return await service.blocking(service.store.open, name.managed_ledger_name, create=not exists)

    async def create(self, name: TopicName) -> ManagedLedger:
        """Create a topic, or a partition, regardless of auto-creation policies; an existing one stays as it is.

        Raises:
            NotFound: The namespace does not exist.
            Refused: The namespace is being deleted.
        """
        service = self._service
        with self._creating(name.namespace):
            await service.blocking(self._policy_for, name.namespace)
            return await service.blocking(service.store.open, name.managed_ledger_name)

    async def create_partitioned(
        self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a partitioned topic. Its partitions are created separately, or on first use.

        Raises:
            NotFound: The namespace does not exist.
            AlreadyExists: The topic is partitioned already.
            Refused: The partitions exceed the topic limit of the namespace, or the namespace is being deleted.
        """
        service = self._service
        with self._creating(name.namespace):
            await service.blocking(self.check_topic_limit, name.namespace, partitions)
            await service.blocking(service.catalog.create_partitioned, name, partitions, properties)

    async def stop(self, namespace: NamespaceName) -> None:
        """Stop creation of topics in a namespace that is about to be deleted, for good; waits for those under way.

        Raises:
            NotFound: The namespace does not exist.
        """
        await self._service.update_policies(namespace, lambda old: {**old, DELETED: True})
        # Creations that read the policies before the mark was set may still succeed; later ones see the mark.
        await asyncio.gather(*(created for created, where in self._running.items() if where == namespace))

    @contextmanager
    def _creating(self, namespace: NamespaceName) -> Iterator[None]:
        created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running[created] = namespace
        try:
            yield
        finally:
            del self._running[created]
            created.set_result(None)

    async def _check(self, name: TopicName, *, create: bool) -> None:
        service = self._service
        try:
            policy = await service.blocking(self._policy_for, name.namespace)
        except NotFound as error:
            raise Refused(wire.TopicNotFound, f"{error}; create it first") from error
        if name.partition_index is None:
            if await service.blocking(service.catalog.partitions, name):
                raise Refused(wire.NotAllowedError, f"{name} is partitioned; use one of its partitions")
        elif name.partition_index < await service.blocking(service.catalog.partitions, name.base):
            return  # the partitioned topic exists, and its partitions are created on first use
        if not create or not policy.allow_auto_topic_creation:
            raise Refused(wire.TopicNotFound, f"{name} does not exist and allowAutoTopicCreation does not apply")
        await service.blocking(self.check_topic_limit, name.namespace, 1)

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """Number of partitions of a topic, 0 if it is not partitioned; a missing topic may be created partitioned.

        Raises:
            NotFound: The namespace does not exist.
            Refused: The default number of partitions exceeds a limit, or the namespace is being deleted.
        """
        service = self._service
        found = await service.blocking(service.catalog.partitions, name)
        if found or not create or name.partition_index is not None:
            return found
        policy = await service.blocking(self._policy_for, name.namespace)
        count, limit = policy.default_num_partitions, max_partitions(service.config)
        if not policy.allow_auto_topic_creation or policy.allow_auto_topic_creation_type is not TopicType.PARTITIONED:
            return 0
        if await service.blocking(service.store.exists, name.managed_ledger_name):
            return 0
        if count > limit:
            raise Refused(
                wire.NotAllowedError,
                f"{name} was not created: defaultNumPartitions of namespace {name.namespace} is {count}, and a topic "
                f"may have {limit} partitions; lower it",
            )
        await self.create_partitioned(name, count)
        return count

    def check_topic_limit(self, namespace: NamespaceName, added: int) -> None:
        """Check that topics, each partition counted, can be added to a namespace. Waits for the metadata store.

        Raises:
            NotFound: The namespace does not exist.
            Refused: They would exceed maxTopicsPerNamespace, or the namespace is being deleted.
        """
        limit = self._policy_for(namespace).max_topics_per_namespace
        if limit and len(self._service.catalog.topics(namespace)) + added > limit:
            raise Refused(
                wire.NotAllowedError,
                f"namespace {namespace} may have {limit} topics (maxTopicsPerNamespace); delete some, or raise it",
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
