"""One seed, one schedule: what happens, in which order, and what goes wrong meanwhile."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from tests.support.sim import promises
from tests.support.sim.clients import Clients
from tests.support.sim.fault_injector import FaultInjector
from tests.support.sim.fault_plan import NO_FAULTS
from tests.support.sim.logs import logs_of
from tests.support.sim.operator import Operator
from tests.support.sim.steps import INTERRUPTIONS
from tests.support.sim.upkeep import Upkeep
from tests.support.sim.world import SimWorld

from afterglow.config import BrokerConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Action: TypeAlias = Callable[[], str]


_STREAMS: Final = {"segments": (0.5, 0.9), "ledger_commit": (0.0, 0.5)}
"""How likely topics are to stream in a schedule whose focus is on such steps."""
_NEEDS: Final = {
    "offload.segments.rollback": "roll_back",
    "offload.segments.upload.start_again": "lose_upload",
    "offload.deletion": "trim",
    "ledger.deletion": "delete",
    "ledger.managed_ledger.terminate": "terminate",
}
"""Actions without which a schedule seldom comes to the steps of its focus."""


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
        outcome = "\n".join(f"  * {problem}" for problem in problems)
        super().__init__(
            f"seed {seed} breaks a promise:\n{outcome}\n--- what happened ---\n{shown}\n--- to see it again ---\n"
            f"python -m tests.support.sim --seed {seed} --steps {steps}\n{outcome}"
        )


def settings(rng: Random) -> BrokerConfig:
    """Settings under which much happens in little time."""
    return BrokerConfig(
        managed_ledger_min_ledger_rollover_time_minutes=0,
        managed_ledger_max_entries_per_ledger=rng.choice((2, 5, 9)),
        managed_ledger_default_mark_delete_rate_limit=0.0,
        managed_ledger_offload_prefetch_rounds=0,  # no threads
        managed_ledger_offload_read_buffer_size_in_bytes=rng.choice((1, 300, 1 << 20)),
        default_retention_time_in_minutes=-1,
        default_retention_size_in_mb=-1,
        retention_check_interval_in_seconds=30,
        offload_retry_min_backoff_millis=500,
        offload_retry_max_backoff_millis=8_000,
        offload_buffer_max_bytes=2_500,  # of some entries and not of others
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
        self._rng = rng = Random(seed)
        names = [f"public/default/persistent/t{number}" for number in range(rng.randint(1, 3))]
        self.world = SimWorld(rng, settings(rng), names, verbose=verbose)
        self.world.interleave = rng.choice((0.0, 0.02, 0.1))
        self.focus = INTERRUPTIONS[seed % len(INTERRUPTIONS)]
        """The interruption that is tried for most."""
        self._operator = Operator(
            self.world, rng.choice(_STREAMS.get(self.focus.step.where.split(".")[1], (0.0, 0.5, 0.9)))
        )
        self._clients = Clients(self.world)
        self._upkeep = Upkeep(self.world, self._clients.delete, self._operator.policy)
        self._fault_injector = FaultInjector(self.world, self.focus)
        self.world.between = self._upkeep.between
        self._actions, self._weights = self._weigh()
        self.done: dict[str, int] = {}
        """How often each action was taken."""

    def run(self) -> None:
        """Take all steps.

        Raises:
            PromiseBroken: Something happened that must not.
        """
        with logs_of(self.world if self.world.verbose else None):
            for name in self.world.models:
                self._operator.set_policy(name)
            for step in range(self.steps):
                self._take(step, self._rng.choices(self._actions, cum_weights=self._weights)[0])
                self._judge()
            self._rest()

    def _weigh(self) -> tuple[list[Action], list[float]]:
        """All actions, and how likely each is in this schedule, summed up."""
        clients, upkeep, operator, fault_injector = self._clients, self._upkeep, self._operator, self._fault_injector
        weights: dict[Action, float] = {
            clients.append: 22,
            clients.read: 8,
            clients.roll: 4,
            clients.trim: 4,
            clients.subscribe: 1,
            clients.acknowledge: 3,
            clients.keep_for: 2,
            clients.truncate: 0.7,
            clients.terminate: 0.3,
            clients.delete: 1.2,
            upkeep.busy_spell: 12,
            upkeep.drive: 1.5,
            upkeep.work_item: 12,
            upkeep.task: 10,
            upkeep.tick: 8,
            upkeep.wait: 10,
            operator.policy: 4,
            operator.offload_by_hand: 3,
            operator.roll_back: 1,
            fault_injector.change_faults: 6,
            fault_injector.clear_faults: 1,
            fault_injector.crash_soon: 2.5,
            fault_injector.jump_clock: 1.5,
            fault_injector.restart: 0.7,
            fault_injector.take_over: 0.8,
            fault_injector.lose_session: 0.8,
            fault_injector.restore_session: 2,
            fault_injector.end_zombie: 0.8,
            fault_injector.lose_upload: 1.5,
            self._rest: 0.3,
        }
        total = 0.0
        summed = []
        needed = _NEEDS.get(self.focus.step.where)
        for action, weight in weights.items():
            total += weight * self._rng.choice((0.3, 1.0, 1.0, 2.0)) * (6 if action.__name__ == needed else 1)
            summed.append(total)
        return list(weights), summed

    def _take(self, step: int, action: Action) -> None:
        name = action.__name__.strip("_")
        self.done[name] = self.done.get(name, 0) + 1
        at = len(self.world.trace)
        outcome = action()
        self.world.trace.insert(at, f"{step:4} {name.replace('_', ' ')}: {outcome}")
        self._fault_injector.pass_by()

    def _judge(self) -> None:
        if self.world.invariants.broken:
            raise PromiseBroken(self.seed, self.steps, self.world.invariants.broken, self.world.trace)

    def _rest(self) -> str:
        """Let faults end, and everything come to rest, in this process or another; then look at all promises."""
        world = self.world
        world.note("     at rest:")
        world.change_faults(NO_FAULTS)
        crashes_at = world.crashes_at
        world.crashes_in = world.crashes_at = None
        interleave, world.interleave = world.interleave, 0.0
        self._fault_injector.restore_session()
        contested = world.contested
        world.end_zombies()
        stalled = [worker for worker in world.orphans if worker.stalled and self._rng.random() < 0.5]
        world.orphans = [worker for worker in world.orphans if worker not in stalled]
        while world.orphans:
            world.run_orphan(0)
        world.orphans = stalled  # they go on after all this, or never
        if contested or self._rng.random() < 0.5:
            world.kill(world.owner)
        world.invariants.broken += promises.come_to_rest(world) or promises.check(world)
        self._judge()
        world.interleave, world.crashes_at = interleave, crashes_at
        return ""
