"""The broker: open topics, policies, authorization, and the ports that clients connect to."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from afterglow.broker import requests
from afterglow.broker.authorization import Authorizer, disconnect_unauthorized, remove_topic_grants
from afterglow.broker.commands import Commands
from afterglow.broker.connection import Connection, ConnectionLimits, PublishBudget
from afterglow.broker.connection_limits import ConnectionSlots, over_tls
from afterglow.broker.policy_refresh import TOPICS_AT_ONCE, PolicyRefresher
from afterglow.broker.topic import Topic
from afterglow.broker.topic_creation import TopicCreator
from afterglow.broker.traffic import OriginBytes
from afterglow.errors import AfterglowError, NotFound, NotSupported
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused
from afterglow.policy.changes import PolicyChanges

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Iterable
    from concurrent.futures import Executor

    from afterglow.broker.auth import Authenticator
    from afterglow.catalog.catalog import Catalog
    from afterglow.catalog.schema_registry import SchemaRegistry
    from afterglow.config import BrokerConfig
    from afterglow.ledger.store import LedgerStore
    from afterglow.metadata.names import NamespaceName, TopicName
    from afterglow.policy.allowed_tiers import AllowedTiers
    from afterglow.policy.resolver import Policies

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

assert requests  # the import registers the request handlers


class BrokerService:
    """One broker. Belongs to the event loop's thread, except for work that it runs in its thread pools.

    Args:
        config: The broker's settings.
        store: The managed ledgers.
        catalog: Tenants, namespaces and partitioned topics.
        policies: Effective policies of topics.
        schemas: Schemas of topics.
        authenticator: Identifies clients.
        allowed_tiers: Tiers that policies of roles other than superusers may name.
        pool: Threads for work that waits for disks.
        tier_pool: Threads for work that may wait for a tier, so that it never delays work that waits for disks; None:
            the same threads.
        instance: Makes the producer names that this process generates differ from those of earlier ones.
        hot_instance: Id of the hot log, which raw readers may require.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: LedgerStore,
        catalog: Catalog,
        policies: Policies,
        schemas: SchemaRegistry,
        authenticator: Authenticator,
        allowed_tiers: AllowedTiers,
        pool: Executor,
        instance: str,
        hot_instance: str = "",
        tier_pool: Executor | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.catalog = catalog
        self.policies = policies
        self.authorizer = Authorizer(config, catalog)
        self.topic_creator = TopicCreator(self)
        self.schemas = schemas
        self.instance = instance
        self.hot_instance = hot_instance
        self.connections: set[Connection] = set()
        self.raw_reads = OriginBytes()
        """Bytes sent to all raw readers."""
        self.offload_reads = OriginBytes()
        """Bytes sent to raw readers of offload tasks."""
        self.service_url = ""
        self.service_url_tls = ""
        self.authenticator = authenticator
        self._pool = pool
        self._tier_pool = tier_pool or pool
        self._deleting: set[TopicName] = set()
        self._topics: dict[TopicName, asyncio.Task[Topic]] = {}
        self._servers: list[asyncio.Server] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._commands = Commands(self)
        self.policy_refresher = PolicyRefresher(self)
        self.policy_changes = PolicyChanges(config, catalog)
        self.allowed_tiers = allowed_tiers
        self._changing_policies = asyncio.Lock()
        buffer_bytes = config.max_message_publish_buffer_size_in_mb << 20
        self._slots = ConnectionSlots(
            config.broker_max_connections,
            config.broker_max_connections_per_ip,
            "brokerMaxConnections",
            "brokerMaxConnectionsPerIp",
        )
        self._limits = ConnectionLimits(
            max_message_bytes=config.max_message_size,
            keep_alive_s=config.keep_alive_interval_seconds,
            pending_publish_bytes=buffer_bytes // 8,
            budget=PublishBudget(buffer_bytes),
        )

    # --- serving ---

    async def listen(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Accept clients, over TLS with a context, and advertise the address; returns the port."""
        loop = asyncio.get_running_loop()
        make: Callable[[], asyncio.BaseProtocol] = self._connection
        if tls is not None:
            timeout_s = self.config.tls_handshake_timeout_seconds
            make = over_tls(self._tls_connection, tls, "brokerServicePortTls", self._slots, timeout_s)
        server = await loop.create_server(make, host, port, backlog=1024)
        self._servers.append(server)
        opened: int = server.sockets[0].getsockname()[1]
        address = f"{url_host(self.config.advertised_address or host)}:{opened}"
        if tls is None:
            self.service_url = f"pulsar://{address}"
        else:
            self.service_url_tls = f"pulsar+ssl://{address}"
        return opened

    async def close(self) -> None:
        """Stop accepting, close every topic, then every connection."""
        for server in self._servers:
            server.close()
        for name in list(self._topics):
            await self.unload(name)
        for connection in list(self.connections):
            connection.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _connection(self) -> Connection:
        return Connection(self._commands, self._limits, self.connections.add, self._slots)

    def _tls_connection(self) -> Connection:
        return Connection(self._commands, self._limits, self.connections.add)

    async def blocking(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that waits for a disk, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    async def run_in_tier_pool(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that may wait for a tier, in a thread apart from those that wait for disks."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._tier_pool, lambda: work(*args, **kwargs))

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work without waiting for it; it is cancelled when the broker is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- topics ---

    @property
    def open_topics(self) -> dict[TopicName, Topic]:
        """All open topics, in a new dict; use :meth:`open_topic` for a single one."""
        return {name: task.result() for name, task in self._topics.items() if _is_open(task)}

    def open_topic(self, name: TopicName) -> Topic | None:
        """A topic, or None if it is not open."""
        task = self._topics.get(name)
        return task.result() if task is not None and _is_open(task) else None

    async def topic(self, name: TopicName, *, create: bool) -> Topic:
        """Return a topic; open it if necessary, and create it if it is missing and may be created.

        Raises:
            Refused: The topic does not exist and may not be created, or is being deleted.
            NotSupported: The topic is not persistent.
        """
        if name in self._deleting:
            raise Refused(wire.ServiceNotReady, f"topic {name} is being deleted; retry when that is done")
        task = self._topics.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(name, create=create))
            self._topics[name] = task
            task.add_done_callback(lambda done: self._on_opened(name, done))
        return await asyncio.shield(task)

    def _on_opened(self, name: TopicName, task: asyncio.Task[Topic]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._topics.get(name) is task:
            del self._topics[name]

    async def _open(self, name: TopicName, *, create: bool) -> Topic:
        if not name.is_persistent:
            raise NotSupported(f"{name}: non-persistent topics are not supported; use persistent://")
        ledger = await self.topic_creator.open(name, create=create)
        return Topic(self, name, ledger, await self.policy_refresher.policy_of(name))

    # --- policies ---

    async def update_policies(
        self,
        namespace: NamespaceName,
        change: Callable[[dict[str, Any]], dict[str, Any]],
        allowed: AllowedTiers | None = None,
        role: str | None = None,
    ) -> None:
        """Change the policies of a namespace, and apply them to its open topics.

        Args:
            namespace: The namespace.
            change: Computes the new policies from the stored ones.
            allowed: Tiers that the change may name; None: any.
            role: Role of the caller, for the log.

        Raises:
            ConfigError: The new policies contradict those of a topic of the namespace; nothing was changed.
            TierNotAllowed: The change names a tier that is not allowed; nothing was changed.
            NotFound: The namespace does not exist.
        """
        async with self._changing_policies:
            warnings = await self.blocking(self.policy_changes.change_namespace, namespace, change, allowed, role)
        log_warnings(f"namespace {namespace}", warnings)
        self.policies_changed(namespace)
        await self.policy_refresher.refresh(namespace, lambda name: name.namespace == namespace)
        if self.authorizer.enabled:
            await disconnect_unauthorized(self, namespace)

    async def update_topic_policies(
        self,
        topic: TopicName,
        change: Callable[[dict[str, Any]], dict[str, Any]],
        allowed: AllowedTiers | None = None,
        role: str | None = None,
    ) -> None:
        """Change the policies of a topic, and apply them; a partition has the policies of its partitioned topic.

        See :meth:`update_policies` for the arguments.

        Raises:
            ConfigError: The new policies contradict each other; nothing was changed.
            TierNotAllowed: The change names a tier that is not allowed; nothing was changed.
        """
        async with self._changing_policies:
            warnings = await self.blocking(self.policy_changes.change_topic, topic, change, allowed, role)
        log_warnings(f"topic {topic}", warnings)
        self.policies_changed(topic.namespace)
        await self.policy_refresher.refresh(topic.namespace, lambda name: name.base == topic.base)

    async def delete_topic_metadata(self, name: TopicName) -> None:
        """Delete schemas, policies and grants of a deleted topic; a partition has none of its own."""
        await self.blocking(self.schemas.delete, name)
        await self.blocking(self.catalog.delete_topic_policies, name)
        if self.authorizer.enabled:
            await self.blocking(remove_topic_grants, self.catalog, name)
        self.policies_changed(name.namespace)

    def policies_changed(self, namespace: NamespaceName) -> None:
        """Record that stored policies of a namespace or its topics have changed."""
        self.policy_refresher.count(namespace)
        self.policies.changed(namespace)

    async def expire_messages(self) -> None:
        """Expire the messages of every open topic that are older than its time to live."""
        for topic in list(self.open_topics.values()):
            try:
                await topic.expire_messages()
            except AfterglowError as error:
                log.warning("could not expire messages of %s, will retry: %s", topic.name, error)

    async def sample_rates(self) -> None:
        """Sample the counts of every open topic, for their rates; to be called once per period."""
        for number, topic in enumerate(list(self.open_topics.values()), 1):
            topic.sample()
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def unload(self, name: TopicName) -> None:
        """Close a topic; clients that reconnect open it again."""
        task = self._topics.pop(name, None)
        if task is None:
            return
        try:
            topic = await task
        except AfterglowError:
            return  # opening failed, which was reported to the client that opened it
        await topic.close()

    async def delete_topic(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic with all its data.

        Raises:
            NotFound: The topic does not exist.
            Refused: The topic is in use and ``force`` is not set.
        """
        if name in self._deleting or not await self.blocking(self.store.exists, name.managed_ledger_name):
            raise NotFound(f"topic {name} does not exist")
        topic = self.open_topic(name)
        if topic is not None and topic.in_use and not force:
            raise Refused(wire.NotAllowedError, f"topic {name} has producers or consumers connected; use force")
        self._deleting.add(name)  # its clients reconnect at once, and would open or create it again
        try:
            await self.unload(name)
            await self.blocking(self.store.delete, name.managed_ledger_name)
            await self.delete_topic_metadata(name)
        finally:
            self._deleting.discard(name)


def url_host(host: str) -> str:
    """A host name or address in the form that URLs need: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def log_warnings(owner: str, warnings: Iterable[str]) -> None:
    """Log the warnings about new policies of a namespace or a topic."""
    for warning in warnings:
        log.warning("policies of %s: %s", owner, warning)


def _is_open(opening: asyncio.Task[Topic]) -> bool:
    return opening.done() and not opening.cancelled() and opening.exception() is None
