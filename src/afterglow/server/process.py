"""A running server: hot log, tier, metadata, topics and broker, in one process and one event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from afterglow.broker.auth import Authenticator
from afterglow.broker.service import BrokerService
from afterglow.broker.tls import server_context
from afterglow.catalog.catalog import Catalog
from afterglow.catalog.schema_registry import SchemaRegistry
from afterglow.errors import ConfigError, HotLogError
from afterglow.hot.local.log import LocalLog
from afterglow.hot.log import call_each
from afterglow.ledger.retention import Retention
from afterglow.ledger.store import LedgerStore
from afterglow.metadata.address import open_metadata
from afterglow.metadata.identity import read_identity, record_identity
from afterglow.metadata.ownership import take_ownership
from afterglow.metadata.paths import AfterglowPaths
from afterglow.pipeline.server_handle import ServerHandle
from afterglow.pipeline.tiering import Tiering
from afterglow.pipeline.upkeep import cancel_task, run_periodically, run_with_timeout
from afterglow.policy import validation
from afterglow.policy.allowed_tiers import AllowedTiers
from afterglow.server.advertised_address import with_advertised_address
from afterglow.source.home_directory import announce, withdraw

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from afterglow.config import BrokerConfig
    from afterglow.hot.log import Completion
    from afterglow.metadata.store import MetadataStore
    from afterglow.tier.locations import TierLocation

    StartAdmin: TypeAlias = Callable[
        [ServerHandle[BrokerService], ssl.SSLContext | None], Awaitable[tuple[str, Callable[[], Awaitable[None]]]]
    ]
    """Starts the admin API; returns its address and a function that stops it."""

log = logging.getLogger(__name__)


def summarize(config: BrokerConfig, target: TierLocation) -> str:
    """Describe tier, offload method and retention in one line.

    Args:
        config: The broker's settings.
        target: The tier of topics without policies.
    """
    return f"tier {target}, offload {_method(config)}, retention {_retention(config)}"


def _method(config: BrokerConfig) -> str:
    if config.streaming_offload_enabled:
        return "while written (streaming)"
    due = []
    if (kept := config.managed_ledger_offload_threshold_in_bytes) >= 0:
        due.append(f"past {kept} bytes" if kept else "on close")
    if (age := config.managed_ledger_offload_threshold_in_seconds) >= 0:
        due.append(f"{age} s after close")
    return f"of closed ledgers {' or '.join(due) or 'on request'}"


def _retention(config: BrokerConfig) -> str:
    """Retention of acknowledged messages; others are always kept."""
    minutes, mebibytes = config.default_retention_time_in_minutes, config.default_retention_size_in_mb
    if 0 in {minutes, mebibytes}:
        return "until acknowledged"
    bounds = [f"{minutes} min"] * (minutes > 0) + [f"{mebibytes} MiB"] * (mebibytes > 0)
    return " and ".join(bounds) or "for ever"


_THREADS: Final = 8
"""Threads for disk and metadata: more than cores, since they mostly wait."""
_TIER_THREADS: Final = 32
"""Threads for reads that may wait for a tier. Separate ones, so that dispatch of hot topics never waits for them."""
_TICK_S: Final = 1.0
_EVICT_INTERVAL_S: Final = 60.0
_GRACE_S: Final = 3.0
"""Wait for reads from the tier at shutdown, after their clients were disconnected."""


class Server:
    """A running server. Created by :meth:`start`."""

    def __init__(self, service: BrokerService, tiering: Tiering, stack: AsyncExitStack, admin_url: str) -> None:
        self.service = service
        self.tiering = tiering
        self.admin_url = admin_url
        """Address of the admin API; empty without one."""
        self._stack = stack

    @classmethod
    async def start(
        cls,
        home: Path,
        config: BrokerConfig,
        admin: StartAdmin | None = None,
        *,
        tier: str | None = None,
        on_shutdown: Callable[[], None] | None = None,
    ) -> Self:
        """Start a server on a home directory, which is created if missing, and wait until clients can connect.

        Args:
            home: The directory of all its data.
            config: The settings.
            admin: Starts the admin API in the same event loop. An argument, since its package is above this one.
            tier: Address of the server's own tier; None: the directory ``tier`` in the home.
            on_shutdown: Starts a clean end of the process when the admin API asks for it; None: it refuses such calls.

        Raises:
            ConfigError: A setting is not valid, or a port cannot be opened.
            MissingDependency: The SDK of the tier, or the package of the driver, is not installed.
            HotLogError: The home is in use, its disk fails, or the metadata belongs to another hot log.
            MetadataError: The metadata cannot be read.
        """
        config = with_advertised_address(config)
        for warning in validation.check(config):
            log.warning("%s", warning)
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="afterglow")
            stack.callback(pool.shutdown)
            hot = await loop.run_in_executor(
                pool,
                partial(LocalLog, home, journal_max_bytes=config.journal_max_size_mb << 20, deliver=_deliver(loop)),
            )
            stack.push_async_callback(loop.run_in_executor, pool, hot.close)
            opened = open_metadata(config.metadata_store_url or f"sqlite:{home / 'metadata.db'}", config)
            stack.callback(opened.close)
            paths = AfterglowPaths(config.cluster_name)
            await loop.run_in_executor(pool, _check_hot_log, opened, paths, hot.instance, home)
            metadata = await loop.run_in_executor(pool, take_ownership, opened, paths.owners, uuid.uuid4())
            await loop.run_in_executor(pool, record_identity, metadata, paths.hot_log, hot.instance)
            catalog = Catalog(metadata, config.cluster_name)
            await loop.run_in_executor(pool, catalog.ensure_defaults)
            tiering = Tiering.open(home, tier, config=config, hot=hot, metadata=metadata, paths=paths, catalog=catalog)
            stack.push_async_callback(loop.run_in_executor, pool, tiering.close)
            store = LedgerStore(
                hot=hot,
                states=hot,
                metadata=metadata,
                config=config,
                executor=pool,
                sources=tiering.sources,
                offloading=tiering.offload,
                buffer=tiering.buffer,
                retention=lambda name: Retention.from_config(tiering.policies.of(name)),
            )
            stack.push_async_callback(loop.run_in_executor, pool, store.close)
            tiering.offload.attach(store)
            stack.push_async_callback(loop.run_in_executor, pool, tiering.offload.close)
            await loop.run_in_executor(pool, store.start)
            tier_pool = ThreadPoolExecutor(_TIER_THREADS, thread_name_prefix="afterglow-tier")
            stack.callback(
                run_with_timeout, _GRACE_S, "stopping reads", partial(tier_pool.shutdown, cancel_futures=True)
            )
            service = BrokerService(
                config=config,
                store=store,
                catalog=catalog,
                policies=tiering.policies,
                schemas=SchemaRegistry(metadata, paths),
                authenticator=Authenticator.from_config(config),
                allowed_tiers=AllowedTiers(config, tiering.location),
                pool=pool,
                tier_pool=tier_pool,
                instance=uuid.uuid4().hex[:8],
                hot_instance=hot.instance,
            )
            stack.push_async_callback(service.close)
            tls = server_context(config)
            await _listen(service, config, tls)
            tiering.task_access.set_broker_urls(service.service_url, service.service_url_tls)
            announce(home, service.service_url or service.service_url_tls)
            stack.callback(withdraw, home)
            admin_url = ""
            if admin is not None:
                handle = ServerHandle(
                    service,
                    tiering.offload,
                    tiering.verify_runs,
                    tiering.sources.counts,
                    tiering.requests,
                    tiering.jobs,
                    on_shutdown,
                )
                admin_url, stop = await admin(handle, tls)
                stack.push_async_callback(stop)
                # Closed before the ports, which would wait for the call of a running verification.
                stack.push_async_callback(loop.run_in_executor, pool, tiering.verify_runs.close)
            tiering.offload.start()
            tiering.check_target()
            for interval_s, what, work in _upkeep(service, tiering, config):
                stack.push_async_callback(cancel_task, loop.create_task(run_periodically(interval_s, what, work)))
            return cls(service, tiering, stack.pop_all(), admin_url)
        raise AssertionError("unreachable: the block returns or raises")

    async def stop(self) -> None:
        """Stop all parts in the reverse order of the start. Acknowledged messages are on disk already."""
        await self._stack.aclose()


def _check_hot_log(metadata: MetadataStore, paths: AfterglowPaths, instance: str, home: Path) -> None:
    """Check that the ledgers of the metadata are those of a hot log. Only reads: a running owner is not disturbed.

    A new hot log numbers its ledgers from 1 again, and they would pass for those that the metadata lists.

    Raises:
        HotLogError: They are another one's.
        MetadataError: The metadata cannot be read.
    """
    recorded = read_identity(metadata, paths.hot_log)
    if recorded and recorded != instance:
        raise HotLogError(
            f"the metadata belongs to hot log {recorded}, and {home / 'hot'} is {instance}: its ledgers would be taken "
            f"for others; restore the former {home / 'hot'}, or start on a new home and metadata, and read what was "
            f"offloaded with: afterglow read {home} TOPIC --hot skip"
        )


def _deliver(loop: asyncio.AbstractEventLoop) -> Callable[[list[Completion], HotLogError | None], None]:
    def deliver(dones: list[Completion], error: HotLogError | None) -> None:
        try:
            loop.call_soon_threadsafe(call_each, dones, error)
        except RuntimeError:  # the loop has ended before the log: no client waits for these any more
            call_each(dones, error)

    return deliver


async def _listen(service: BrokerService, config: BrokerConfig, tls: ssl.SSLContext | None) -> None:
    host = config.bind_address
    for setting, port, context in (
        ("brokerServicePort", config.broker_service_port, None),
        ("brokerServicePortTls", config.broker_service_port_tls, tls),
    ):
        if port is None:
            continue
        try:
            await service.listen(host, port, tls=context)
        except OSError as error:
            # The text of asyncio repeats the address after the reason.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise ConfigError(
                f"{setting}: cannot listen on {host} port {port}: {reason}; choose another port, or 0 for any free one"
            ) from error


def _upkeep(
    service: BrokerService, tiering: Tiering, config: BrokerConfig
) -> Iterator[tuple[float, str, Callable[[], Awaitable[None]]]]:
    """Periodic work: interval in seconds, name, function. Each has its own task, so that none delays another."""
    store, offload = service.store, tiering.offload
    yield _TICK_S, "roll-over by age", partial(service.blocking, store.tick)
    yield config.retention_check_interval_in_seconds, "retention", partial(service.blocking, store.trim)
    yield config.stats_update_frequency_in_secs, "rates", service.sample_rates
    yield 60 * config.message_expiry_check_interval_in_minutes, "expiry", service.expire_messages
    yield config.offload_tick_interval_millis / 1000, "offload", partial(service.blocking, offload.tick)
    yield _EVICT_INTERVAL_S, "cache eviction", partial(service.blocking, tiering.evict_idle)
