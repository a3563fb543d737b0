"""One seed, one schedule: what happens, in which order, and what goes wrong meanwhile."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from afterglow.config import BrokerConfig
from afterglow.config.choices import ReadPriority
from afterglow.errors import Fenced, TopicClosed
from afterglow.format.position import EARLIEST, Position
from afterglow.ledger.catalog import Catalog
from afterglow.ledger.retention import Retention
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import STANDALONE
from afterglow.testing.ledgers import message
from afterglow.testing.sim import promises
from afterglow.testing.sim.model import FOREVER, as_sent
from afterglow.testing.sim.reading import read_by_priority
from afterglow.testing.sim.watchman import DELETING, text_of
from afterglow.testing.sim.weather import CALM, draw_weather
from afterglow.testing.sim.world import SimWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.errors import AfterglowError
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.testing.sim.model import TopicModel
    from afterglow.testing.sim.process import Process

_THREADS: Final = 4
"""Pieces of work that may overtake each other."""
_SUBSCRIPTION: Final = "s"
_MINUTE_MS: Final = 60_000


class PromiseBroken(AssertionError):
    """A schedule ended with something that must never be.

    Args:
        seed: Of the schedule.
        steps: It was to have.
        problems: What was found.
        trace: What had happened.
    """

    def __init__(self, seed: int, steps: int, problems: list[str], trace: list[str]) -> None:
        self.seed = seed
        self.problems = problems
        self.trace = trace
        shown = "\n".join(trace)
        told = "\n".join(f"  * {problem}" for problem in problems)
        super().__init__(
            f"seed {seed} breaks a promise:\n{told}\n--- what happened ---\n{shown}\n--- to see it again ---\n"
            f"python -m afterglow.testing.sim --seed {seed} --steps {steps}\n{told}"
        )


def settings(rng: Random) -> BrokerConfig:
    """Settings under which much happens in little time."""
    return BrokerConfig(
        managed_ledger_min_ledger_rollover_time_minutes=0,
        managed_ledger_max_entries_per_ledger=rng.choice((2, 5, 9)),
        managed_ledger_cache_size_mb=rng.choice((0, 0, 0, 1)),
        managed_ledger_default_mark_delete_rate_limit=0.0,
        managed_ledger_offload_prefetch_rounds=0,  # no threads
        managed_ledger_offload_read_buffer_size_in_bytes=rng.choice((1, 300, 1 << 20)),
        default_retention_time_in_minutes=-1,
        default_retention_size_in_mb=-1,
        retention_check_interval_in_seconds=30,
        offload_retry_min_backoff_millis=500,
        offload_retry_max_backoff_millis=8_000,
        trigger_offload_on_topic_load=rng.random() < 0.3,
    )


class Simulation:
    """A schedule.

    Args:
        seed: Decides everything.
        steps: How many actions.
        verbose: Whether to keep a line of every effect and of every log message.
    """

    def __init__(self, seed: int, steps: int = 200, *, verbose: bool = False) -> None:
        self.seed = seed
        self.steps = steps
        self._rng = rng = Random(seed)  # noqa: S311 - must be repeatable
        names = [f"public/default/persistent/t{number}" for number in range(rng.randint(1, 3))]
        self.world = SimWorld(rng, settings(rng), names, verbose=verbose)
        self._catalog = Catalog(self.world.metadata, STANDALONE)
        self._catalog.ensure_defaults()
        self._policies: dict[str, dict[str, object]] = {name: {} for name in names}
        self._calm_at: int | None = None
        self._streams = rng.choice((0.0, 0.5, 0.9))
        """How likely a topic is to stream after a change of its policy."""
        self._sent = 0
        self.world.interleave = rng.choice((0.0, 0.02, 0.1))
        self.world.between = self._between
        self._actions = self._weigh()
        self.done: dict[str, int] = {}
        """How often each action was taken."""

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take all steps.

        Raises:
            PromiseBroken: Something happened that must not.
        """
        with _logs(self.world if self.world.verbose else None):
            for name in self.world.models:
                self._set_policy(name)
            for step in range(self.steps):
                action = self._rng.choices(self._actions[0], cum_weights=self._actions[1])[0]
                self._take(step, action)
                self._judge()
            self._settle()

    def _take(self, step: int, action: Callable[[], str | None]) -> None:
        name = action.__name__.strip("_")
        self.done[name] = self.done.get(name, 0) + 1
        at = len(self.world.trace)
        told = action()
        self.world.trace.insert(at, f"{step:4} {name.replace('_', ' ')}: {told or ''}")
        if self._calm_at is not None and self.world.clock.now_ms() >= self._calm_at:
            self._clear_up()

    def _judge(self) -> None:
        if self.world.watchman.broken:
            raise PromiseBroken(self.seed, self.steps, self.world.watchman.broken, self.world.trace)

    def _weigh(self) -> tuple[list[Callable[[], str | None]], list[float]]:
        weights: dict[Callable[[], str | None], float] = {
            self._append: 22,
            self._piece: 30,
            self._task: 20,
            self._tick: 16,
            self._wait: 10,
            self._read: 8,
            self._roll: 4,
            self._trim: 4,
            self._subscribe: 1,
            self._acknowledge: 3,
            self._keep_for: 2,
            self._policy: 4,
            self._offload_by_hand: 3,
            self._truncate: 0.7,
            self._terminate: 0.3,
            self._delete: 1.2,
            self._lose_upload: 0.7,
            self._die_soon: 3,
            self._restart: 0.7,
            self._take_over: 0.8,
            self._end_zombie: 0.8,
            self._change_weather: 3,
            self._clear_up: 2,
            self._settle: 0.3,
        }
        total = 0.0
        cumulated = []
        for weight in weights.values():
            total += weight * self._rng.choice((0.3, 1.0, 1.0, 2.0))
            cumulated.append(total)
        return list(weights), cumulated

    # --- who ----------------------------------------------------------------------------------------------------------

    def _topic(self) -> TopicModel:
        return self._rng.choice(tuple(self.world.models.values()))

    def _process(self) -> Process:
        """Mostly the owner, sometimes one that was replaced and does not know it."""
        if self.world.zombies and self._rng.random() < 0.3:
            return self._rng.choice(self.world.zombies)
        return self.world.owner

    def _on(self, process: Process, model: TopicModel, work: Callable[[ManagedLedger], object]) -> str:
        """Open a topic and do something with it; one that turns out to be another's is closed, as a client's is."""

        def open_and_work() -> None:
            work(process.open(model.name))

        error = self.world.act(process, open_and_work)
        if isinstance(error, Fenced):
            self._let_go(process, model)
        return f"{process}, {model.name}" + ("" if error is None else f" -> {type(error).__name__}")

    def _pick(self, process: Process) -> int:
        """A piece of work that a thread of a pool could run next."""
        return self._rng.randrange(min(len(process.executor), _THREADS))

    def _let_go(self, process: Process, model: TopicModel) -> None:
        ledger = process.store.opened(model.name)
        if ledger is not None and process.alive:
            self.world.act(process, ledger.close)

    def _between(self) -> None:
        """Somebody else acts between two effects of whoever acts now."""
        world, rng = self.world, self._rng
        if world.orphans and rng.random() < 0.5:
            world.run_orphan(rng.randrange(len(world.orphans)))
            return
        actor = world.actor
        others = [process for process in (world.owner, *world.zombies) if process is not actor]
        if not others or not isinstance(actor, type(world.owner)):
            return
        other = rng.choice(others)
        if world.verbose:
            world.note(f"    meanwhile {other}")
        if len(other.executor) and rng.random() < 0.6:
            world.act(other, partial(other.executor.run, self._pick(other)))
        elif other.tasks and rng.random() < 0.6:
            world.run_task(other, rng.randrange(len(other.tasks)))
        else:
            world.act(other, other.tick)

    # --- entries ------------------------------------------------------------------------------------------------------

    def _append(self) -> str:
        model, process, rng = self._topic(), self._process(), self._rng
        entries = []
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            self._sent += 1
            text = b"%s %d %d;" % (model.name.encode(), model.life, self._sent)
            entries.append(message(text + rng.randbytes(rng.choice((0, 20, 60, 150, 340)))))
        hold = rng.random() < 0.2

        def append(ledger: ManagedLedger) -> None:
            hot = self.world.hot
            hot.held = hold
            for entry in entries:
                model.send(entry)
                ledger.append((entry,), 1, partial(self._heard, process, model, model.life, entry))
            if hold:
                hot.complete(rng.randint(0, len(hot.queue)))
                if rng.random() < 0.1:
                    self.world.dies_in = 0
                    process.store.hot.ledgers()
                    self.world.effect(process, "the end", changes=True)
                hot.complete()
            hot.held = False

        return f"{len(entries)} " + self._on(process, model, append)

    def _heard(
        self, process: Process, model: TopicModel, life: int, entry: bytes, outcome: Position | AfterglowError
    ) -> None:
        if life != model.life:
            if isinstance(outcome, Position):
                self.world.watchman.broken.append(f"{model.name}: an entry of an earlier life was acknowledged")
            return
        if isinstance(outcome, Position):
            problem = model.acknowledge(entry, outcome)
            if problem is not None:
                self.world.watchman.broken.append(problem)
        else:
            model.refuse(entry)
            if isinstance(outcome, Fenced | TopicClosed):
                self._closing(process, model)

    def _closing(self, process: Process, model: TopicModel) -> None:
        ledger = process.store.opened(model.name)
        if ledger is not None and not process.owns(model.name):
            process.executor.submit(ledger.close)

    def _read(self) -> str:
        model, process, rng = self._topic(), self._process(), self._rng
        if process.store.opened(model.name) is None and model.name not in self.world.watchman.lists:
            return "nothing there"
        known = model.expected(EARLIEST)
        first = rng.choice(known) if known and rng.random() < 0.8 else EARLIEST
        most, size = rng.choice(((1, 1), (3, 500), (1000, 200), (1000, 1 << 20)))
        life = model.life
        found: list[tuple[Position, bytes]] = []
        owned = False

        def read(ledger: ManagedLedger) -> None:
            nonlocal owned
            owned = process.owns(model.name)
            found.extend(as_sent(ledger.read(first, most, size)))

        calm = self.world.weather.calm
        told = self._on(process, model, read)
        error = "->" in told
        owned = owned and process.owns(model.name) and process.alive and life == model.life
        problems = model.wrong_entries(found, current=owned) if life == model.life else []
        if owned and not error and calm:
            problems += model.missing(first, [position for position, _ in found], whole=False)
        if owned and error and calm and not self.world.interleave:
            problems.append(f"{model.name} cannot be read from {first} on: {told}")
        if owned and not error and rng.random() < 0.5:
            priority = rng.choice((None, *ReadPriority))
            self._on(process, model, lambda ledger: problems.extend(read_by_priority(process, ledger, model, priority)))
        self.world.watchman.broken += problems
        return f"{len(found)} from {first}, {told}"

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def _piece(self) -> str:
        process = self._process()
        if not len(process.executor):
            return "none waits"
        self.world.act(
            process, partial(process.executor.run, self._rng.randrange(min(len(process.executor), _THREADS)))
        )
        return f"{process}"

    def _task(self) -> str:
        world = self.world
        if world.orphans and self._rng.random() < 0.3:
            world.run_orphan(self._rng.randrange(len(world.orphans)))
            return "of a process that has ended"
        process = self._process()
        if not process.tasks:
            return "none waits"
        world.run_task(process, self._rng.randrange(len(process.tasks)))
        return f"{process}"

    def _tick(self) -> str:
        process = self._process()
        self.world.act(process, process.tick)
        return f"{process}"

    def _wait(self) -> str:
        seconds = self._rng.choice((0.01, 0.5, 1.0, 5.0, 9.0, 40.0, 600.0, 4000.0))
        self.world.clock.advance(seconds)
        return f"{seconds} s"

    def _roll(self) -> str:
        return self._on(self._process(), self._topic(), lambda ledger: ledger.roll())

    # --- letting go ---------------------------------------------------------------------------------------------------

    def _trim(self) -> str:
        return self._on(self._process(), self._topic(), lambda ledger: ledger.trim())

    def _keep_for(self) -> str:
        model = self._topic()
        model.retention = self._rng.choice(
            (FOREVER, Retention(0, 0), Retention(10 * _MINUTE_MS, -1), Retention(-1, 2000), Retention(_MINUTE_MS, 1000))
        )
        for process in (self.world.owner, *self.world.zombies):
            ledger = process.store.opened(model.name)
            if ledger is not None:
                ledger.retention = model.retention
        return f"{model.name} {model.retention}"

    def _subscribe(self) -> str:
        model, process = self._topic(), self._process()

        def subscribe(ledger: ManagedLedger) -> None:
            ledger.create_cursor(_SUBSCRIPTION, EARLIEST)
            model.subscribed = process.owns(model.name)
            model.consumed = ledger.cursor(_SUBSCRIPTION).mark_delete

        return self._on(process, model, subscribe)

    def _acknowledge(self) -> str:
        model, process = self._topic(), self._process()
        if not model.subscribed:
            return "nobody has subscribed"

        def acknowledge(ledger: ManagedLedger) -> None:
            entries = ledger.read(ledger.cursor(_SUBSCRIPTION).mark_delete, 10, 1 << 20)
            if entries:
                to = self._rng.choice(entries).position
                model.consumed = max(model.consumed, to)
                ledger.cursor(_SUBSCRIPTION).ack_through(to)

        return self._on(process, model, acknowledge)

    def _truncate(self) -> str:
        model = self._topic()

        def truncate(ledger: ManagedLedger) -> None:
            model.truncated = max((row.ledgerId for row in ledger.info.ledgerInfo), default=-1)
            model.consumed = max(model.consumed, Position(model.truncated, 1 << 40))
            ledger.truncate()

        return self._on(self._process(), model, truncate)

    def _terminate(self) -> str:
        model = self._topic()
        return self._on(self._process(), model, lambda ledger: ledger.terminate())

    def _delete(self) -> str:
        # A version tells nothing across two lives of a topic, so that an owner of the first could take the list of the
        # second for its own: an engine's home has one process at a time.
        self._end_zombie()
        model, process = self._topic(), self._process()
        model.deletion_wanted = True
        error = self.world.act(process, lambda: process.store.delete(model.name))
        info = self.world.watchman.lists.get(model.name)
        if info is not None and text_of(info, DELETING) is None:
            model.deletion_wanted = False
        return f"{process}, {model.name} {'' if error is None else type(error).__name__}"

    # --- offload ------------------------------------------------------------------------------------------------------

    def _set_policy(self, name: str) -> None:
        rng = self._rng
        values: dict[str, object] = {
            "managedLedgerOffloadThresholdInBytes": rng.choice((-1, 0, 0, 600, 3000)),
            "managedLedgerOffloadThresholdInSeconds": rng.choice((-1, -1, 0, 30)),
            "managedLedgerOffloadDeletionLagInMillis": rng.choice((0, 1000, 60_000, 3_600_000)),
            "managedLedgerOffloadedReadPriority": rng.choice(("bookkeeper-first", "tiered-storage-first")),
            "streamingOffloadEnabled": rng.random() < self._streams,
            "maxOffloadSegmentSizeInBytes": rng.choice((1, 700, 2500, 10_000)),
            "maxOffloadSegmentRolloverTimeInSeconds": rng.choice((1, 30, 900)),
        }
        self._policies[name] = values
        topic = TopicName.from_managed_ledger_name(name)
        self._catalog.update_topic_policies(topic, lambda _old: {"offloadPolicies": values})
        for process in (self.world.owner, *self.world.zombies):
            process.policies.changed(topic.namespace)

    def _policy(self) -> str:
        model = self._topic()
        self._set_policy(model.name)
        return f"{model.name} {self._policies[model.name]}"

    def _offload_by_hand(self) -> str:
        model, process = self._topic(), self._process()
        info = self.world.watchman.lists.get(model.name)
        ids = [row.ledgerId for row in info.ledgerInfo] if info is not None else []
        if not ids:
            return "nothing there"
        position = Position(self._rng.choice((*ids, max(ids) + 1)), 0)
        error = self.world.act(process, lambda: process.offload.offload_prefix(model.name, position))
        if isinstance(error, Fenced):
            self._let_go(process, model)
        return f"{process}, {model.name} to {position} {'' if error is None else type(error).__name__}"

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _lose_upload(self) -> str:
        return "one" if self.world.lose_upload() else "none is there"

    def _die_soon(self) -> str:
        self.world.dies_in = self._rng.randint(0, 12)
        return f"after {self.world.dies_in} effects"

    def _restart(self) -> str:
        self.world.shut_down(self.world.owner)
        return f"{self.world.owner}"

    def _take_over(self) -> str:
        if self.world.zombies:
            return "two are enough"
        self.world.take_over()
        return f"{self.world.owner}"

    def _end_zombie(self) -> str:
        for zombie in tuple(self.world.zombies):
            self.world.kill(zombie)
        return ""

    def _change_weather(self) -> str:
        self.world.change_weather(draw_weather(self._rng))
        self._calm_at = self.world.clock.now_ms() + self._rng.choice((1_000, 30_000, 600_000))
        return self.world.weather.name

    def _clear_up(self) -> str:
        self._calm_at = None
        self.world.change_weather(CALM)
        return ""

    # --- rest ---------------------------------------------------------------------------------------------------------

    def _settle(self) -> str:
        """Let faults end, and everything come to rest; then look whether all promises hold."""
        world = self.world
        world.note("     rest:")
        self._clear_up()
        world.dies_in = None
        replaced = world.contested
        self._end_zombie()
        while world.orphans:
            world.run_orphan(0)
        if replaced or self._rng.random() < 0.5:
            world.kill(world.owner)
        interleave, world.interleave = world.interleave, 0.0
        problems = promises.come_to_rest(world)
        problems = problems or promises.check(world)
        world.interleave = interleave
        world.watchman.broken += problems
        self._judge()
        return ""


@contextmanager
def _logs(world: SimWorld | None) -> Iterator[None]:
    """Keep what the code logs out of the way, or in the trace."""
    logger = logging.getLogger("afterglow")
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    logger.propagate = False
    if world is None:
        logger.setLevel(logging.CRITICAL + 1)
    else:
        logger.setLevel(logging.INFO)
        logger.handlers = [_TraceHandler(world)]
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers = handlers


class _TraceHandler(logging.Handler):
    def __init__(self, world: SimWorld) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note(f"      log: {record.getMessage()}")
        if record.exc_info:
            self._world.note(f"      log: {record.exc_info[1]!r}")
