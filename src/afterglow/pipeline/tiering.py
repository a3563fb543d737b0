"""The tier of a process: the offload service, the sources that read offloaded data, and their shared parts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.ledger.environment import SystemClock
from afterglow.offload.drivers import offloader_of
from afterglow.offload.service import OffloadService
from afterglow.pipeline.task_access import TaskAccess
from afterglow.pipeline.tier_verifier import TierStores, TierVerifier
from afterglow.pipeline.upkeep import run_with_timeout
from afterglow.pipeline.verify_runs import VerifyRuns
from afterglow.policy.resolver import Policies
from afterglow.read.counters import ReadCounters
from afterglow.read.entry_source import TieredEntrySource
from afterglow.read.ranges import ObjectLocator
from afterglow.read.tier_reader import TierReader
from afterglow.spark.offload_jobs import SparkRunner
from afterglow.spark.session import spark_log, spark_properties
from afterglow.storage.health import TierHealth, spawn_thread
from afterglow.storage.wrapper import CountingStore, RequestCounters
from afterglow.tier.locations import Tiers, is_built_in, own_tier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from afterglow.catalog.catalog import Catalog
    from afterglow.config import BrokerConfig
    from afterglow.hot.local.log import LocalLog
    from afterglow.ledger.offload_buffer import OffloadBuffer
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.task_dispatch import JobCounts
    from afterglow.pipeline.tier_verifier import VerifyControl
    from afterglow.read.copies import HotReader
    from afterglow.read.counters import ReadCounts
    from afterglow.storage.wrapper import OperationCount
    from afterglow.tier.locations import TierLocation


class TopicSources:
    """Sources of all topics; see :data:`~afterglow.ledger.entry_source.Sources`. Thread-safe.

    Args:
        hot: The hot log.
        tiers: Reads objects.
        policies: Effective policies, with the read priority.
    """

    def __init__(self, hot: HotReader, tiers: TierReader, policies: Policies) -> None:
        self._hot = hot
        self._tiers = tiers
        self._policies = policies
        self._total = ReadCounters()
        self._lock = threading.Lock()
        self._topics: dict[str, ReadCounters] = {}

    def __call__(self, name: str) -> TieredEntrySource:
        """The source of a topic by its managed-ledger name; counters continue when a topic is opened again."""
        with self._lock:
            counters = self._topics.setdefault(name, ReadCounters(self._total))
        return TieredEntrySource(name, self._hot, self._tiers, partial(self._policies.of, name), counters)

    def counts(self, name: str) -> ReadCounts | None:
        """Reads of a topic since the start; None if it was not opened yet."""
        with self._lock:
            counters = self._topics.get(name)
        return None if counters is None else counters.counts()

    def total(self) -> ReadCounts:
        """Reads of all topics since the start."""
        return self._total.counts()


_THREADS: Final = 4
"""Threads of offload that wait for the tier. Separate ones, so that a slow tier never blocks those of the broker."""
_IDLE_S: Final = 300.0
"""A failing tier that no topic has used for this time is not probed any more."""
_GRACE_S: Final = 3.0
"""Wait for requests to the tier at shutdown. Metadata records their purpose, and the next start continues them."""


@dataclass(frozen=True, slots=True)
class Tiering:
    """The parts of a server that use its tier. Created by :meth:`open`."""

    location: TierLocation
    """The server's own tier."""
    target: TierLocation
    """The tier of topics without policies: that of the broker's settings, else the server's own tier."""
    policies: Policies
    sources: TopicSources
    offload: OffloadService
    task_access: TaskAccess
    """Access of tasks to the hot log; needs the addresses of the broker's ports."""
    buffer: OffloadBuffer | None
    """Memory for entries that wait for their upload; None if tasks read files."""
    jobs: Callable[[], JobCounts]
    """Counts of offload jobs since the start."""
    requests: Callable[[], dict[str, OperationCount]]
    """Requests of this process to tiers since the start, by operation; tasks make theirs on their own."""
    verify_runs: VerifyRuns
    """Verification of the tiers on request."""
    _tiers: Tiers
    _tier_reader: TierReader
    _stack: ExitStack

    @classmethod
    def open(
        cls,
        home: Path,
        tier: str | None,
        *,
        config: BrokerConfig,
        hot: LocalLog,
        metadata: MetadataStore,
        paths: AfterglowPaths,
        catalog: Catalog,
    ) -> Tiering:
        """Create all parts. Nothing runs yet, and Spark is not imported.

        Raises:
            ConfigError: A setting or the tier's address is not valid.
            MissingDependency: The SDK of the tier, or the package of the driver, is not installed.
        """
        location = own_tier(home, tier, config)
        policies = Policies(config, catalog, offloads=True)
        task_access = TaskAccess(config, location)
        requests = RequestCounters()
        retry_s = config.offload_retry_max_backoff_millis / 1000
        health = TierHealth(spawn=spawn_thread, idle_s=max(_IDLE_S, 2 * retry_s))
        tiers = Tiers(partial(CountingStore, counters=requests), health)
        # An unusable tier or driver is reported now, not at the first offload.
        tiers.store(location, config)
        target = offloader_of(config, location, tiers).location
        if is_built_in(target.driver):
            tiers.store(target, config)
        with ExitStack() as stack:
            runner = SparkRunner(
                config.spark_master,
                max_jobs=config.spark_max_concurrent_jobs,
                properties=spark_properties(config),
                log_file=spark_log(home),
                idle_priority=config.spark_idle_priority,
            )
            stack.callback(runner.close)
            tier_reader = TierReader(tiers, config, ObjectLocator(metadata, paths, server_tier=location))
            stack.callback(run_with_timeout, _GRACE_S, "closing readers of the tier", tier_reader.close)
            threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="afterglow-offload")
            stop_threads = partial(threads.shutdown, cancel_futures=True)
            stack.callback(run_with_timeout, _GRACE_S, "stopping threads of offload", stop_threads)
            offload = OffloadService(
                metadata=metadata,
                paths=paths,
                policies=policies,
                tiers=tiers,
                own=location,
                runner=runner,
                executor=threads,
                clock=SystemClock(),
                instance=hot.instance,
                home=str(home.absolute()) if config.offload_tasks_read_files else "",
                remote=task_access,
                flush=hot.flush,
            )
            sources = TopicSources(hot, tier_reader, policies)

            def open_verifier(control: VerifyControl) -> TierVerifier:
                stores = TierStores(tiers.store(location, config), config, tiers=tiers, control=control)
                return TierVerifier(home, hot.instance, metadata, stores, config, quiet=False)

            verify_runs = VerifyRuns(open_verifier)
            return cls(
                location,
                target,
                policies,
                sources,
                offload,
                task_access,
                task_access.buffer,
                runner.counts,
                requests.counts,
                verify_runs,
                tiers,
                tier_reader,
                stack.pop_all(),
            )
        raise AssertionError("unreachable: the block returns or raises")

    def check_target(self) -> None:
        """Start a probe that logs at once if the tier is missing or does not respond; does not wait for it.

        The store of an external driver cannot be probed.
        """
        if is_built_in(self.target.driver):
            self._tiers.health.require(str(self.target))

    def evict_idle(self) -> None:
        """Evict objects that were not read for some time."""
        self._tier_reader.evict_idle()

    def close(self) -> None:
        """Stop all threads and processes, Spark last. To be called after offload and topics are closed."""
        self._stack.close()
