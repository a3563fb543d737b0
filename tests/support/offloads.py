"""A small world that offloads: ledgers, a tier in memory, and tasks that run when a test says so.

Everything moves on the caller's thread, so that one schedule of calls is one course of events.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from tests.support.ledgers import TOPIC, World, settings

from afterglow.catalog.catalog import Catalog
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.paths import STANDALONE, AfterglowPaths, managed_ledger_path
from afterglow.metadata.store import wall_clock_ms
from afterglow.offload.block_offloader import BlockOffloader
from afterglow.offload.drivers import offloader_of
from afterglow.offload.segments.part_planner import Sizes
from afterglow.offload.service import OffloadService
from afterglow.offload.task import failed, run_task
from afterglow.pipeline.tier_verifier import ExternalCopies
from afterglow.policy.resolver import Policies
from afterglow.read.counters import ReadCounters
from afterglow.read.entry_source import TieredEntrySource
from afterglow.read.ranges import ObjectLocator
from afterglow.read.tier_reader import TierReader
from afterglow.storage.health import TierHealth
from afterglow.storage.memory import MemoryStore
from afterglow.tier.locations import MEMORY, TierLocation, Tiers, external_location, is_built_in
from afterglow.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.errors import AfterglowError
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.task import OpenLedger, OpenStore, PartResult, Task
    from afterglow.storage.store import ObjectStore
    from afterglow.verify import Finding

INSTANCE: Final = "offload-world"


class ManualRunner:
    """A :class:`~afterglow.offload.task_dispatch.TaskRunner` that runs a task when a test asks for it, in this process.

    Args:
        open_ledger: Where tasks read entries.
        open_store: Where they write.
    """

    def __init__(self, open_ledger: OpenLedger, open_store: OpenStore | None = None) -> None:
        self._open_ledger = open_ledger
        self._open_store = open_store
        self.jobs: list[tuple[Task, ...]] = []
        """What was submitted, job by job."""
        self.waiting: deque[tuple[Task, Callable[[Task, PartResult], None]]] = deque()
        """What has not run yet."""
        self.prepared = 0
        """How often tasks were announced."""

    def prepare(self) -> None:
        """Count the announcement."""
        self.prepared += 1

    def submit(self, tasks: Sequence[Task], done: Callable[[Task, PartResult], None]) -> None:
        """Keep tasks for later."""
        self.jobs.append(tuple(tasks))
        self.waiting.extend((task, done) for task in tasks)

    def close(self) -> None:
        """Forget every task."""
        self.waiting.clear()

    def run_one(self, index: int = 0) -> bool:
        """Run one of the waiting tasks, by default the oldest; returns whether there was one."""
        if index >= len(self.waiting):
            return False
        task, done = self._take(index)
        done(task, run_task(task, open_ledger=self._open_ledger, open_store=self._open_store))
        return True

    def run_all(self) -> int:
        """Run tasks until none is left; returns how many."""
        count = 0
        while self.run_one():
            count += 1
        return count

    def fail_one(self, error: AfterglowError, index: int = 0) -> None:
        """End a waiting task with an error, without running it."""
        task, done = self._take(index)
        done(task, failed(task, error))

    def _take(self, index: int) -> tuple[Task, Callable[[Task, PartResult], None]]:
        self.waiting.rotate(-index)
        found = self.waiting.popleft()
        self.waiting.rotate(index)
        return found


class OffloadWorld(World):
    """Ledgers and their offload, on manual parts. Blocks and parts are small.

    Args:
        config: The broker's settings; by default those of :func:`~tests.support.ledgers.settings`.
        metadata: By default in memory.
        wrap: Put around the tier's store, for the server and for tasks.
        block_bytes: Size of blocks in the server's own tier.
        part_bytes: Most bytes of a part there; of a segment the least of all parts but the last.
        new_uuid: Names attempts; by default at random.
    """

    def __init__(
        self,
        config: BrokerConfig | None = None,
        metadata: MetadataStore | None = None,
        *,
        wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
        block_bytes: int = 400,
        part_bytes: int = 800,
        new_uuid: Callable[[], UUID] = uuid4,
    ) -> None:
        self.tier = MemoryStore()
        """The tier itself, without anything around it."""
        self.own = TierLocation(MEMORY, self.tier.url.removeprefix("memory://"))
        self._wrap = wrap
        self.flushes = 0
        """How often the hot log was to be written back."""
        self._sizes = (block_bytes, part_bytes)
        self._new_uuid = new_uuid
        super().__init__(config or settings(), metadata or MemoryMetadataStore())

    def prepare(self) -> None:
        """Make the offload that the ledgers are given, and let them read from the tier."""
        clock, spawn = self.clock, self.executor.submit
        health = TierHealth(now_ms=clock.now_ms, monotonic=clock.monotonic, spawn=spawn)
        self.tiers = Tiers(self._wrap, health)
        self.catalog = Catalog(self.metadata, STANDALONE)
        self.policies = Policies(self.config, self.catalog)
        locator = ObjectLocator(self.metadata, AfterglowPaths(), server_tier=self.own)
        reading = TierReader(self.tiers, self.config, locator, clock=self.clock)
        self.sources = lambda name: TieredEntrySource(
            name, self.hot, reading, lambda: self.policies.of(name), ReadCounters()
        )
        self.runner = ManualRunner(
            lambda ledger_id: nullcontext(self.hot.open(ledger_id)),
            lambda _url, _options: self.tiers.store(self.own, self.config),
        )
        self.offloading = self.service = OffloadService(
            metadata=self.metadata,
            paths=AfterglowPaths(),
            policies=self.policies,
            tiers=self.tiers,
            own=self.own,
            runner=self.runner,
            executor=self.executor,
            clock=self.clock,
            instance=INSTANCE,
            home="",
            flush=self._flush,
            offloaders=self._offloader,
            new_uuid=self._new_uuid,
            segment_sizes=lambda _policy: Sizes(*self._sizes),
        )

    def boot(self) -> None:
        """Start a process over what is there: ledgers, and their offload."""
        super().boot()
        self.service.attach(self.store)
        self.service.start()

    def run(self, rounds: int = 20) -> None:
        """Tick, and let everything happen that follows, until a tick brings nothing more.

        Raises:
            AssertionError: There is no end to it.
        """
        for _ in range(rounds):
            self.settle()
            while self.runner.run_all():
                self.settle()
            jobs = len(self.runner.jobs)
            self.service.tick()
            if not self.executor and len(self.runner.jobs) == jobs:
                return
        raise AssertionError(f"still busy after {rounds} ticks")

    def run_late(self) -> None:
        """Run once more when no request of before can be under way: until then unfinished objects stay on record."""
        self.clock.advance(900)
        self.run()

    def topic(self, *ledgers: int, name: str = TOPIC, size_bytes: int = 50) -> ManagedLedger:
        """A topic with closed ledgers of so many entries each, and one that takes appends behind them."""
        ledger = self.open(name)
        for number, entries in enumerate(ledgers):
            self.append(ledger, *(b"%d:%d;" % (number, entry) * (size_bytes // 4) for entry in range(entries)))
            ledger.roll()
            self.settle()
        return ledger

    def info(self, name: str = TOPIC) -> ManagedLedgerInfo:
        """The topic's list as it is stored."""
        found = self.metadata.get(managed_ledger_path(name))
        return ManagedLedgerInfo() if found is None else parse_managed_ledger(found.value)

    def offloaded(self, name: str = TOPIC) -> list[int]:
        """Ledgers that the list says are in the tier."""
        return [row.ledgerId for row in self.info(name).ledgerInfo if row.offloadContext.complete]

    def objects(self) -> list[str]:
        """Keys of all objects in the tier."""
        return [found.key for found in self.tier.list()]

    def intents(self, name: str = TOPIC) -> tuple[str, ...]:
        """UUIDs that are on record as to be deleted."""
        return self.metadata.children(AfterglowPaths().deletes(name))

    def findings(self) -> list[Finding]:
        """Findings of the verifier in metadata and tier, without a grace period."""
        return list(
            verify(
                self.metadata,
                lambda location: (
                    self.tier
                    if is_built_in(location.driver)
                    else ExternalCopies(external_location(location.driver, dict(location.properties)), self.config)
                ),
                tiers=[self.tier],
                instance=INSTANCE,
                now_ms=wall_clock_ms() + 1000,  # by the store's clock
                grace_ms=0,
                deep=True,
                hot=lambda ledger_id: ledger_id in self.hot.ledgers(),
            )
        )

    def check(self) -> None:
        """Assert that the verifier finds no fault.

        Raises:
            AssertionError: It does.
        """
        faults = [str(found) for found in self.findings() if found.kind.is_fault]
        if faults:
            raise AssertionError("\n".join(faults))

    def _flush(self) -> None:
        self.flushes += 1

    def _offloader(self, policy: BrokerConfig, own: TierLocation | None, tiers: Tiers) -> LedgerOffloader:
        if policy.managed_ledger_offload_driver is None and own is not None:
            return BlockOffloader(own, policy, tiers, block_bytes=self._sizes[0], part_bytes=self._sizes[1])
        return offloader_of(policy, own, tiers)
