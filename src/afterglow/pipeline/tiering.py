"""The tier of a process: what copies ledgers there, and what reads them back."""

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
from afterglow.pipeline.upkeep import within
from afterglow.pipeline.verify_runs import VerifyRuns
from afterglow.policy.resolver import Policies
from afterglow.read.counters import ReadCounters
from afterglow.read.ranges import Locator
from afterglow.read.tier_source import TierSource
from afterglow.read.tiered import TieredSource
from afterglow.spark.offload_jobs import SparkRunner
from afterglow.spark.session import spark_properties
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
        policies: Say which copy to read while both exist.
    """

    def __init__(self, hot: HotReader, tiers: TierSource, policies: Policies) -> None:
        self._hot = hot
        self._tiers = tiers
        self._policies = policies
        self._total = ReadCounters()
        self._lock = threading.Lock()
        self._topics: dict[str, ReadCounters] = {}

    def __call__(self, name: str) -> TieredSource:
        """The source of a topic by its managed-ledger name; a topic that is opened again counts on."""
        with self._lock:
            counters = self._topics.setdefault(name, ReadCounters(self._total))
        return TieredSource(name, self._hot, self._tiers, partial(self._policies.of, name), counters)

    def counts(self, name: str) -> ReadCounts | None:
        """What was read of a topic since the start; None where it was not opened yet."""
        with self._lock:
            counters = self._topics.get(name)
        return None if counters is None else counters.counts()

    def total(self) -> ReadCounts:
        """What was read of all topics since the start."""
        return self._total.counts()


_THREADS: Final = 4
"""For what waits for the tier on behalf of offload. Their own, so that a slow tier never holds up the broker's."""
_IDLE_S: Final = 300.0
"""A tier that fails, and that no topic has needed for so long, is not probed any more."""
_GRACE_S: Final = 3.0
"""For requests to the tier that are under way at the end. Metadata knows what they are for; the next start goes on."""


@dataclass(frozen=True, slots=True)
class Tiering:
    """What a server needs for its tier. Made by :meth:`open`."""

    location: TierLocation
    """The server's own tier."""
    target: TierLocation
    """The tier of topics without policies of their own: the one that the broker's settings name, else the own tier."""
    policies: Policies
    sources: TopicSources
    offload: OffloadService
    reach: TaskAccess
    """How tasks come to the hot log; to be told once the broker's ports are open."""
    buffer: OffloadBuffer | None
    """For entries that wait for their upload."""
    jobs: Callable[[], JobCounts]
    """How jobs of tasks went so far."""
    requests: Callable[[], dict[str, OperationCount]]
    """What this process has asked of tiers so far, by operation; tasks ask on their own."""
    verify_runs: VerifyRuns
    """Verify the tiers on request."""
    _tiers: Tiers
    _tier_source: TierSource
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
        """Put it together. Nothing runs yet, and Spark is not even imported.

        Raises:
            ConfigError: A setting or the tier's address cannot be obeyed.
            MissingDependency: The SDK of the tier, or the package of the driver, is not installed.
        """
        location = own_tier(home, tier, config)
        policies = Policies(config, catalog, offloads=True)
        reach = TaskAccess(config, location)
        requests = RequestCounters()
        retry_s = config.offload_retry_max_backoff_millis / 1000
        health = TierHealth(spawn=spawn_thread, idle_s=max(_IDLE_S, 2 * retry_s))
        tiers = Tiers(partial(CountingStore, counters=requests), health)
        # A tier or a driver that can never be used is reported now, not at the first offload.
        tiers.store(location, config)
        target = offloader_of(config, location, tiers).location
        if is_built_in(target.driver):
            tiers.store(target, config)
        with ExitStack() as stack:
            runner = SparkRunner(
                config.spark_master, max_jobs=config.spark_max_concurrent_jobs, properties=spark_properties(config)
            )
            stack.callback(runner.close)
            tier_source = TierSource(tiers, config, Locator(metadata, paths, own=location))
            stack.callback(within, _GRACE_S, "the end of reads from the tier", tier_source.close)
            threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="afterglow-offload")
            stack.callback(
                within, _GRACE_S, "the end of what waits for the tier", partial(threads.shutdown, cancel_futures=True)
            )
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
                remote=reach,
                flush=hot.flush,
            )
            sources = TopicSources(hot, tier_source, policies)

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
                reach,
                reach.buffer,
                runner.counts,
                requests.counts,
                verify_runs,
                tiers,
                tier_source,
                stack.pop_all(),
            )
        raise AssertionError("unreachable: the block returns or raises")

    def check_target(self) -> None:
        """Have the log say at once where the tier is missing or does not answer; does not wait for it.

        An external driver has a store of its own, which nothing here can ask.
        """
        if is_built_in(self.target.driver):
            self._tiers.health.require(str(self.target))

    def drop_idle(self) -> None:
        """Let go of what nobody has read for a while."""
        self._tier_source.drop_idle()

    def close(self) -> None:
        """End all threads and processes, Spark last. To be called once offload and topics are closed."""
        self._stack.close()
