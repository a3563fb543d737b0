"""What outlives processes: hot log, metadata, tier, time; and who acts, who dies, and what goes wrong meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from tests.support.clock import ManualClock
from tests.support.crash_points import Crashed
from tests.support.faults import FaultyMetadataStore, FaultyStore
from tests.support.sim.fault_plan import NO_FAULTS
from tests.support.sim.invariants import OWNER_EPOCH, CheckedMetadata, CheckedTier, InvariantChecker, text_of
from tests.support.sim.model import TopicModel
from tests.support.sim.process import LOCATIONS, Process
from tests.support.sim.steps import Effect, Interruption, steps_of
from tests.support.sim.tier import SimTier

from afterglow.errors import AfterglowError
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.testing.memory_hot import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.support.sim.fault_plan import FaultPlan
    from tests.support.sim.steps import Step

    from afterglow.config import BrokerConfig
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.task import PartResult, Task
    from afterglow.storage.store import ObjectStore

_FOREIGN_OBJECT: Final = "foreign-object"
_FOREIGN_UPLOAD: Final = "foreign-upload"


@dataclass(frozen=True, slots=True)
class Worker:
    """Runs a task, also after the process that handed it out has ended."""

    process: Process
    task: Task
    stalled: bool = False
    """Whether it goes on after its retry: everything that it writes may be over and done with."""


class SimWorld:
    """Everything that processes share.

    Args:
        rng: All chance comes from it.
        config: The broker's settings.
        topics: Managed-ledger names.
        verbose: Whether to keep a line of every effect in the trace.
    """

    def __init__(self, rng: Random, config: BrokerConfig, topics: Sequence[str], *, verbose: bool = False) -> None:
        self.rng = rng
        self.config = config
        self.verbose = verbose
        self.trace: list[str] = []
        self.clock = ManualClock()
        self.models = {name: TopicModel(name) for name in topics}
        self.hot = MemoryLog()
        self.hot.before, self.hot.after = self._hot_effect, self._after_hot_effect
        self._hot_ends: tuple[str, str] | None = None
        self.writers: dict[int, Process] = {}
        """Which process writes a ledger."""
        self.guarded = rng.random() < 0.5
        """Whether processes write under a guard that their successor deletes, as all servers do. Otherwise only owner
        epochs stop replaced processes; then none may live when a topic is created that was deleted before, since
        versions start at 0 again."""
        self.metadata = MemoryMetadataStore(now_ms=self.clock.now_ms)
        self.cache_bytes = rng.choice((0, 0, 900, 1 << 20))
        """Of the tail cache of each process: what it does not hold goes to the offload buffer."""
        self.lag_s = rng.choice((0.0, 0.0, 5.0, 60.0))
        """By how much listings of the tier lag behind at most."""
        self.tiers = {
            location.url: SimTier(
                location.url,
                self.clock,
                new_id=lambda: f"upload-{rng.getrandbits(64):016x}",
                lag_s=lambda: self.lag_s * rng.random(),
                most_lag_s=self.lag_s,
            )
            for location in LOCATIONS
        }
        for tier in self.tiers.values():
            tier.put(_FOREIGN_OBJECT, b"not ours")
            tier.create_upload(_FOREIGN_UPLOAD)
        self.invariants = InvariantChecker(
            self.metadata, tuple(self.tiers.values()), self.now_ms, self.models, self._is_stale
        )
        self.watched_metadata = CheckedMetadata(self.metadata, self.invariants)
        self._watched_tiers = {url: CheckedTier(tier, self.invariants) for url, tier in self.tiers.items()}
        self.fault_plan = NO_FAULTS
        self.change_faults(NO_FAULTS)
        self.zombies: list[Process] = []
        self.orphans: list[Worker] = []
        """Whom nobody waits for."""
        self.processes = 0
        self.clock_offset_ms = 0
        """How far the clock of the machine is ahead on which the next process begins."""
        self.crashes_in: int | None = None
        """Effects until the acting process crashes; None: it does not."""
        self.crashes_at: Interruption | None = None
        """The step at which the process that reaches it crashes."""
        self.interrupted: Counter[str] = Counter()
        """How often each step was interrupted, by the name of the interruption."""
        self._ending: list[Step] = []
        self.stalls = rng.choice((0.0, 0.05, 0.2))
        """How likely a task is to be retried while its first attempt stands still."""
        self.interleave = 0.0
        """How likely it is that others act between two effects of one process."""
        self.between: Callable[[], None] = lambda: None
        """What others do then."""
        self.actor: Process | Worker | None = None
        self._nested = False
        self.contested = False
        """Whether another process has acted since the owner began."""
        self.owner = self._boot()

    # --- time and chance ----------------------------------------------------------------------------------------------

    def new_uuid(self) -> UUID:
        """A UUID by lot."""
        return UUID(int=self.rng.getrandbits(128), version=4)

    def now_ms(self) -> int:
        """The time of day by the clock of the acting process."""
        actor = self.actor.process if isinstance(self.actor, Worker) else self.actor
        return self.clock.now_ms() if actor is None else actor.clock.now_ms()

    def note(self, line: str) -> None:
        """Add a line to the trace, which a failure prints."""
        self.trace.append(line)

    # --- faults -------------------------------------------------------------------------------------------------------

    def change_faults(self, fault_plan: FaultPlan, *, spare_one: bool = True) -> None:
        """Let other things go wrong from now on.

        Args:
            weather: What goes wrong.
            spare_one: Whether one of the tier locations, by lot, may be spared.
        """
        self.fault_plan = fault_plan
        seed, metadata_seed = self.rng.getrandbits(32), self.rng.getrandbits(32)
        metadata = self.watched_metadata
        self.tier_fronts: dict[str, ObjectStore] = {}
        spared = self.rng.choice((None, None, *self.tiers))
        for url, tier in self._watched_tiers.items():
            faulty = fault_plan.tier and not (spare_one and url == spared)
            self.tier_fronts[url] = FaultyStore(tier, fault_plan.tier, seed=seed) if faulty else tier
        self.metadata_front: MetadataStore = metadata
        if fault_plan.metadata:
            self.metadata_front = FaultyMetadataStore(metadata, fault_plan.metadata, seed=metadata_seed)

    def disturb(self, path: str) -> None:
        """Another process may write a topic's ledger list at this moment, without a change."""
        if (
            self.fault_plan.conflicts
            and path.startswith("/managed-ledgers/")
            and self.rng.random() < self.fault_plan.conflicts
        ):
            node = self.metadata.get(path)
            if node is not None:
                self.metadata.put(path, node.value, node.version)

    def lose_upload(self) -> bool:
        """The store forgets an unfinished upload of ours; returns whether there was one."""
        uploads = [
            (tier, upload) for tier in self.tiers.values() for upload in tier.uploads() if upload.key != _FOREIGN_UPLOAD
        ]
        if not uploads:
            return False
        tier, upload = self.rng.choice(uploads)
        tier.abort_upload(upload)
        return True

    def foreign_intact(self) -> bool:
        """Whether what is not ours is as it was."""
        return all(
            any(upload.key == _FOREIGN_UPLOAD for upload in tier.uploads())
            and bytes(tier.get(_FOREIGN_OBJECT)) == b"not ours"
            for tier in self.tiers.values()
        )

    # --- who acts -----------------------------------------------------------------------------------------------------

    def effect(self, process: Process, operation: str, target: str, value: bytes | None = None) -> bool:
        """Something is about to be changed by a process.

        Returns:
            Whether the process dies of it: then :meth:`end_after` is to be called once it has happened.

        Raises:
            Crashed: It does not come to that.
        """
        dies = False
        if (self.crashes_in is not None or self.crashes_at is not None) and not self._nested:
            dies = self._dies(process, operation, target, value)
        self.pause(process, operation, target)
        return dies

    def _dies(self, process: Process, operation: str, target: str, value: bytes | None) -> bool:
        """Whether a process dies after an effect.

        Raises:
            Crashed: It dies before.
        """
        by_writer = operation.startswith("hot") and self.writers.get(int(target)) is process
        effect = Effect(operation, target, value, self.metadata, by_writer=by_writer)
        after = None
        if self.crashes_at is not None and self.crashes_at.step.matches(effect):
            after, self.crashes_at = self.crashes_at.after, None
        elif self.crashes_in is not None:
            self.crashes_in -= 1
            if self.crashes_in < 0:
                after, self.crashes_in = self.rng.random() < 0.3, None
        if after is None:
            return False
        self._ending = steps_of(effect)
        if after:
            return True
        self._interrupted(after=False)
        raise Crashed(f"{process} before {operation} {target}")

    def end_after(self, process: Process, operation: str, target: str) -> None:
        """End a process right after an effect.

        Raises:
            Crashed: Always.
        """
        self._interrupted(after=True)
        raise Crashed(f"{process} after {operation} {target}")

    def _interrupted(self, *, after: bool) -> None:
        self.interrupted.update(Interruption(step, after).name for step in self._ending)

    def pause(self, process: Process, operation: str, target: str) -> None:
        """A request of a process is on its way: others may act before it arrives.

        Raises:
            Crashed: The process has ended.
        """
        if process is self.actor and not process.alive:
            # It was killed while others acted. The request that it had sent by then has come; nothing else does.
            raise Crashed(f"{process} had ended before {operation} {target}")
        if self.verbose:
            self.note(f"      {process} {operation} {target}")
        # A worker holds no lock of its process, so that anybody may act while it is at work.
        likely = 3 * self.interleave if isinstance(self.actor, Worker) else self.interleave
        if likely and not self._nested and not self.hot.held and self.rng.random() < likely:
            self._nested = True
            try:
                self.between()
            finally:
                self._nested = False

    def act(self, actor: Process, work: Callable[[], object]) -> AfterglowError | None:
        """Let a process do something; it may die of it. Returns the error that came of it, as it may."""
        before, self.actor = self.actor, actor
        self.clock.advance(0.001)  # nothing takes no time
        try:
            work()
        except Crashed as crashed:
            self.note(f"    crash: {crashed}")
            self.kill(actor)
        except AfterglowError as error:
            if self.verbose:
                self.note(f"    {type(error).__name__}: {error}")
            return error
        finally:
            self.actor = before
        return None

    def epoch(self, name: str) -> int | None:
        """Of the owner of a topic."""
        info = self.invariants.lists.get(name)
        found = None if info is None else text_of(info, OWNER_EPOCH)
        return None if found is None else int(found)

    def run_task(self, process: Process, index: int) -> None:
        """Run a task of a process, and tell it; a worker that dies is replaced, and the task done over."""
        task, done = process.tasks.pop(index)
        if self.rng.random() < self.stalls:
            # The first attempt stands still, a second is made, and the first goes on when nobody waits for it.
            self.orphans.append(Worker(process, task, stalled=True))
        result = self._run(Worker(process, task))
        if result is None and process.alive:
            process.tasks.append((task, done))
        elif result is not None and process.alive:
            self.act(process, lambda: done(task, result))

    def run_orphan(self, index: int) -> None:
        """Run a task that nobody waits for."""
        self._run(self.orphans.pop(index))

    def _run(self, worker: Worker) -> PartResult | None:
        before, self.actor = self.actor, worker
        try:
            result = worker.process.run_task(worker.task)
        except Crashed:
            self.note("    a worker dies")
            return None
        finally:
            self.actor = before
        if self.verbose and result.error is not None:
            self.note(f"    task {worker.task.task_id}: {result.error!r}")
        return result

    def _is_stale(self) -> bool:
        actor = self.actor
        if isinstance(actor, Worker) and actor.stalled:
            return True
        process = actor.process if isinstance(actor, Worker) else actor
        return process is not self.owner or self.contested

    def _hot_effect(self, name: str) -> None:
        if isinstance(self.actor, Process):
            subject = str(self.hot.subject)
            if self.effect(self.actor, f"hot {name}", subject):
                self._hot_ends = name, subject

    def _after_hot_effect(self, name: str) -> None:
        # Deleting a ledger closes it first, which does not count as an effect of its own.
        if self._hot_ends is not None and self._hot_ends[0] == name and isinstance(self.actor, Process):
            (_, subject), self._hot_ends = self._hot_ends, None
            self.end_after(self.actor, f"hot {name}", subject)

    # --- who lives ----------------------------------------------------------------------------------------------------

    def _boot(self) -> Process:
        self.processes += 1
        process = Process(self, self.config, self.processes)
        process.clock.offset_ms = self.clock_offset_ms
        return process

    def kill(self, process: Process) -> None:
        """End a process where it stands; its workers may go on for a while. The owner is replaced."""
        process.alive = False
        process.session.settle()
        self._end_appends(process)
        self.orphans += [Worker(process, task) for task, _ in process.tasks if self.rng.random() < 0.5]
        process.tasks.clear()
        process.executor.pieces.clear()
        if process in self.zombies:
            self.zombies.remove(process)
        if process is self.owner:
            self.contested = bool(self.zombies)
            self.owner = self._boot()

    def shut_down(self, process: Process) -> None:
        """End a process in order."""
        self.act(process, process.offload.close)
        if process.alive:
            self.act(process, process.store.close)
        if process.alive:
            self.kill(process)

    def end_zombies(self) -> None:
        """End every process but the owner."""
        for zombie in tuple(self.zombies):
            self.kill(zombie)

    def take_over(self) -> None:
        """Another process takes the owner's place, which does not know it yet."""
        self.zombies.append(self.owner)
        self.contested = True
        self.owner = self._boot()

    def _end_appends(self, process: Process) -> None:
        """Of what was being appended, some may have become durable without anybody hearing of it."""
        hot = self.hot
        hot.held = False
        for ledger_id, writer in list(self.writers.items()):
            if writer is not process:
                continue
            del self.writers[ledger_id]
            ledger = hot.ledgers_by_id.get(ledger_id)
            if ledger is None:
                continue
            survivors = self.rng.randint(0, len(ledger.pending)) if ledger.pending else 0
            ledger.entries += [data for entries, _ in list(ledger.pending)[:survivors] for data in entries]
            ledger.pending.clear()
            ledger.closed = True
        hot.queue.clear()
