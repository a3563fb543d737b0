"""One process of a server: the production code, on parts that can die between any two effects."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.support.sim.session import Session

from afterglow.catalog.catalog import Catalog
from afterglow.errors import HotLogError
from afterglow.format.frames import frame_entries
from afterglow.format.position import Position
from afterglow.ledger.offload_buffer import OffloadBuffer
from afterglow.ledger.store import LedgerStore
from afterglow.metadata.ownership import OwnedMetadataStore, take_ownership
from afterglow.metadata.paths import STANDALONE, AfterglowPaths
from afterglow.offload.block_offloader import BlockOffloader
from afterglow.offload.segments.part_planner import Sizes
from afterglow.offload.service import OffloadService
from afterglow.offload.task import run_task
from afterglow.pipeline.tiering import TopicSources
from afterglow.policy.resolver import Policies
from afterglow.read.ranges import ObjectLocator
from afterglow.read.tier_reader import TierReader
from afterglow.storage.health import TierHealth
from afterglow.storage.wrapper import StoreWrapper
from afterglow.tier.locations import MEMORY, TierLocation, Tiers, location_of_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray
    from tests.support.sim.world import SimWorld

    from afterglow.config import BrokerConfig
    from afterglow.hot.log import Completion
    from afterglow.ledger.environment import Clock
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.task import PartResult, Task
    from afterglow.storage.store import ObjectStore
    from afterglow.storage.wrapper import StoreRequest
    from afterglow.testing.memory_hot import MemoryLedger

    Done: TypeAlias = Callable[[Task, PartResult], None]

T = TypeVar("T")

INSTANCE: Final = "simulated"
LOCATIONS: Final = (TierLocation(MEMORY, "simulated"), TierLocation(MEMORY, "elsewhere"))
"""Tier locations; the first is the server's own."""
BLOCK_BYTES: Final = 600
PART_BYTES: Final = 1300
SEGMENT_SIZES: Final = Sizes(300, 600)
"""Small, so that some entries make several blocks and parts."""


class Process:
    """A server without threads: pieces of work and tasks run when the schedule says so.

    Args:
        world: What outlives the process.
        config: The broker's settings.
        number: For the trace.
    """

    def __init__(self, world: SimWorld, config: BrokerConfig, number: int) -> None:
        self.number = number
        self.alive = True
        self.started = False
        self.offload_started = False
        self.executor = PickExecutor()
        self.buffer = OffloadBuffer(config.offload_buffer_max_bytes)
        self.tasks: list[tuple[Task, Done]] = []
        """Handed to the runner and not run yet."""
        self._world = world
        self.session = Session(world, self)
        # Ownership is taken without faults: a process begins with it.
        self._metadata: MetadataStore = self.session
        if world.guarded:
            guard = take_ownership(world.metadata, AfterglowPaths().owners, world.new_uuid()).guard
            self._metadata = OwnedMetadataStore(self.session, guard)
        self._stores = {location.url: ProcessStore(world, self, location.url) for location in LOCATIONS}
        self._hot = ProcessHot(world, self)
        self.clock = clock = ProcessClock(world.clock)
        # Without probes: what a process asks of the tier is part of the schedule.
        health = TierHealth(now_ms=clock.now_ms, monotonic=clock.monotonic)
        monitored = {
            location.url: health.monitored(str(location), self._stores[location.url]) for location in LOCATIONS
        }
        tiers = Tiers(lambda store: monitored[store.url], health)
        self.catalog = Catalog(self._metadata, STANDALONE)
        self.policies = Policies(config, self.catalog)
        locator = ObjectLocator(self._metadata, AfterglowPaths(), server_tier=LOCATIONS[0])
        self._tier_reader = TierReader(tiers, config, locator, clock=clock)
        self.sources = TopicSources(self._hot, self._tier_reader, self.policies)
        self.offload = OffloadService(
            metadata=self._metadata,
            paths=AfterglowPaths(),
            policies=self.policies,
            tiers=tiers,
            own=LOCATIONS[0],
            runner=self,
            executor=self.executor,
            clock=clock,
            instance=INSTANCE,
            home="",
            offloaders=_offloader,
            new_uuid=world.new_uuid,
            segment_sizes=lambda _policy: SEGMENT_SIZES,
        )
        self.store = LedgerStore(
            hot=self._hot,
            states=self._hot,
            metadata=self._metadata,
            config=config,
            executor=self.executor,
            clock=clock,
            sources=self.sources,
            offloading=self.offload,
            buffer=self.buffer,
        )
        self.store.cache.budget_bytes = world.cache_bytes
        self.offload.attach(self.store)

    def __repr__(self) -> str:
        return f"process {self.number}"

    def prepare(self) -> None:
        """Nothing has to start, as the runner."""

    def submit(self, tasks: Sequence[Task], done: Done) -> None:
        """Take tasks, as the runner."""
        self.tasks.extend((task, done) for task in tasks)

    def close(self) -> None:
        """Run no further task, as the runner."""
        self.tasks.clear()

    def run_task(self, task: Task) -> PartResult:
        """Do a task, as a worker of this process does."""
        return run_task(
            task,
            open_ledger=lambda ledger_id: nullcontext(ServedLedger(self, task.topic, self._hot.open_any(ledger_id))),
            open_store=lambda url, _options: self._stores[url],
        )

    def open(self, name: str, *, create: bool = True) -> ManagedLedger:
        """Open a topic, with the retention that holds."""
        ledger = self.store.open(name, create=create)
        ledger.retention = self._world.models[name].retention
        return ledger

    def owns(self, name: str) -> bool:
        """Whether it has a topic open, and nobody has taken it over."""
        ledger = self.store.opened(name)
        return ledger is not None and self._world.epoch(name) == ledger.owner_epoch

    def tick(self) -> None:
        """Upkeep, as the server does it at intervals.

        Raises:
            AfterglowError: Something must be done again later.
        """
        if not self.offload_started:
            self.offload.start()
            self.offload_started = True
        self.offload.tick()
        self.store.tick()
        self._tier_reader.evict_idle()
        if not self.started and not self._world.zombies:
            # Cleaning the hot log presumes that its earlier writer has ended.
            self.store.start()
            self.started = True


class ProcessClock:
    """The clocks of one machine: its time of day may be wrong, and jump.

    Args:
        inner: True time.
    """

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self.monotonic = inner.monotonic
        self.offset_ms = 0
        """How far the time of day is ahead of the true one."""

    def now_ms(self) -> int:
        """The time of day in epoch milliseconds."""
        return self._inner.now_ms() + self.offset_ms


def _offloader(policy: BrokerConfig, own: TierLocation | None, tiers: Tiers) -> LedgerOffloader:
    return BlockOffloader(
        location_of_policy(policy, own), policy, tiers, block_bytes=BLOCK_BYTES, part_bytes=PART_BYTES
    )


class ServedLedger:
    """A hot ledger as its broker serves it to tasks: from the tail cache, the offload buffer or the hot log.

    A task goes on reading after its process has ended, or has closed the topic, then from the hot log alone. It is not
    served from a tier: a read of the process during which the task acts would have to end before.
    """

    def __init__(self, process: Process, topic: str, ledger: MemoryLedger | TornLedger) -> None:
        self._process = process
        self._topic = topic
        self._ledger = ledger
        self.ledger_id = ledger.ledger_id

    @property
    def confirmed(self) -> int:
        """Id of the last confirmed entry."""
        return self._ledger.confirmed

    @property
    def size_bytes(self) -> int:
        """Bytes of all confirmed entries."""
        return self._ledger.size_bytes

    def read(self, first: int, last: int) -> list[bytes | memoryview]:
        """The confirmed entries ``first`` to ``last``."""
        return self._ledger.read(first, last)

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as frames, and how many."""
        opened = self._process.store.opened(self._topic) if self._process.alive else None
        held = None if opened is None else opened.reader.read_memory(Position(self.ledger_id, first), 3, max_bytes)
        found = [] if held is None else [entry.data for entry in held.entries]
        if held is not None and found and held.entries[0].position == Position(self.ledger_id, first):
            return memoryview(frame_entries(found, first)), len(found)
        return self._ledger.read_frames(first, max_bytes)

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Offset of each frame, and behind the last."""
        return self._ledger.offsets(first, last)


class TornLedger:
    """A hot ledger whose reads may end early. Entries are covered by no checksum there: they come whole, or not."""

    def __init__(self, world: SimWorld, ledger: MemoryLedger) -> None:
        self._world = world
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def read(self, first: int, last: int) -> list[bytes | memoryview]:
        """The confirmed entries ``first`` to ``last``."""
        if self._world.rng.random() < self._world.fault_plan.torn:
            raise HotLogError(f"the read of ledger {self._ledger.ledger_id} from entry {first} on was torn")
        return self._ledger.read(first, last)

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as frames, and how many there should be."""
        frames, count = self._ledger.read_frames(first, max_bytes)
        if self._world.rng.random() < self._world.fault_plan.torn:
            frames = frames[: self._world.rng.randint(0, frames.nbytes)]
        return frames, count


class PickExecutor:
    """Pieces of work that wait; the schedule picks which one runs, as threads of a pool would."""

    def __init__(self) -> None:
        self.pieces: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self.pieces)

    def submit(self, task: Callable[[], None], /) -> None:
        """Keep a piece."""
        self.pieces.append(task)

    def run(self, index: int = 0) -> None:
        """Run one."""
        self.pieces.pop(index)()


class ProcessStore(StoreWrapper):
    """A tier as one process sees it."""

    def __init__(self, world: SimWorld, process: Process, url: str) -> None:
        self._world = world
        self._url = url
        self._process = process

    @property
    def inner(self) -> ObjectStore:  # type: ignore[override]  # another one with every change of weather
        """The tier, with the faults of today."""
        return self._world.tier_fronts[self._url]

    def _call(self, request: StoreRequest, perform: Callable[[], T]) -> T:
        world, process = self._world, self._process
        if request.operation in _READS:
            world.pause(process, request.operation, request.key)
            return perform()
        dies = world.effect(process, request.operation, request.key)
        result = perform()
        if dies:
            world.end_after(process, request.operation, request.key)
        return result


_READS: Final = frozenset({"get", "head", "list_page", "list_parts", "list_uploads"})


class ProcessHot:
    """The hot log as one process sees it: others may write to it too, each to ledgers of its own."""

    def __init__(self, world: SimWorld, process: Process) -> None:
        self._world = world
        self._process = process

    @property
    def pending_bytes(self) -> int:
        """Bytes under way."""
        return self._world.hot.pending_bytes

    def create(self) -> MemoryLedger:
        """A new ledger."""
        self._check()
        ledger = self._world.hot.create()
        self._world.writers[ledger.ledger_id] = self._process
        return ledger

    def open(self, ledger_id: int) -> MemoryLedger | TornLedger:
        """An existing ledger."""
        self._check()
        return self.open_any(ledger_id)

    def open_any(self, ledger_id: int) -> MemoryLedger | TornLedger:
        """An existing ledger, as a task opens it, which may outlive the process."""
        ledger = self._world.hot.open(ledger_id)
        return TornLedger(self._world, ledger) if self._world.fault_plan.torn else ledger

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger."""
        self._check()
        self._world.invariants.freed(ledger_id)
        self._world.hot.delete(ledger_id)

    def ledgers(self) -> tuple[int, ...]:
        """Ids of all ledgers."""
        return self._world.hot.ledgers()

    def put_state(self, key: bytes, value: bytes | None, done: Completion) -> None:
        """Set or remove a value; only the owner's count."""
        self._check()
        if self._process is not self._world.owner:
            raise HotLogError("another process has the log of states")
        self._world.hot.put_state(key, value, done)

    def state(self) -> Mapping[bytes, bytes]:
        """All values."""
        return self._world.hot.state()

    def close(self) -> None:
        """The log outlives the process."""

    def _check(self) -> None:
        if not self._process.alive:
            raise HotLogError("this process has ended")
