"""What goes on inside of processes, and time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from tests.support.sim.actor import Actor

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.sim.process import Process
    from tests.support.sim.world import SimWorld

_THREADS: Final = 4
"""Pieces of work that may overtake each other."""


class Upkeep(Actor):
    """Ticks, pieces of work, tasks.

    Args:
        world: Where it acts.
        disturb: What may happen to the owner while others are at work.
        change_policy: What people may do at any time.
    """

    def __init__(self, world: SimWorld, disturb: Callable[[], object], change_policy: Callable[[], object]) -> None:
        super().__init__(world)
        self._disturb = disturb
        self._change_policy = change_policy

    def work_item(self) -> str:
        """Run a piece of work that waits."""
        process = self.process()
        if not len(process.executor):
            return "none waits, tick: " + self.tick()
        self.world.act(process, partial(process.executor.run, self._pick(process)))
        return f"{process}"

    def task(self) -> str:
        """Run a task, of a living process or of one that has ended."""
        world = self.world
        if world.orphans and self.rng.random() < 0.3:
            world.run_orphan(self.rng.randrange(len(world.orphans)))
            return "of a process that has ended"
        process = self.process()
        if not process.tasks:
            return "none waits, piece: " + self.work_item()
        world.run_task(process, self.rng.randrange(len(process.tasks)))
        return f"{process}"

    def busy_spell(self) -> str:
        """Do much at a time."""
        world, times = self.world, self.rng.randint(3, 12)
        for time in range(times):
            self.task()
            # Another tick right after one that found nothing to do would find nothing either.
            if not any(len(each.executor) or each.tasks for each in (world.owner, *world.zombies)):
                return f"{time + 1} pieces of work"
        return f"{times} pieces of work"

    def drive(self) -> str:
        """Let the owner do all that is due for a while, as long as it lives, and time pass meanwhile."""
        owner = self.world.owner
        for seconds in self.rng.choice(((0.5, 1, 9), (31, 1, 31), (1, 601, 31))):
            self.world.clock.advance(seconds)
            self.world.act(owner, owner.tick)
            for _ in range(40):
                if not owner.alive or not (len(owner.executor) or owner.tasks):
                    break
                if len(owner.executor):
                    self.world.act(owner, partial(owner.executor.run, self._pick(owner)))
                else:
                    self.world.run_task(owner, self.rng.randrange(len(owner.tasks)))
        return f"{owner}"

    def tick(self) -> str:
        """Do what the server does every second."""
        process = self.process()
        self.world.act(process, process.tick)
        return f"{process}"

    def wait(self) -> str:
        """Let time pass."""
        seconds = self.rng.choice((0.01, 0.5, 1.0, 5.0, 9.0, 40.0, 600.0, 4000.0))
        self.world.clock.advance(seconds)
        return f"{seconds} s"

    def between(self) -> None:
        """Another process, or a worker of any process, acts between two effects of the acting one."""
        world, rng = self.world, self.rng
        if world.orphans and rng.random() < 0.5:
            world.run_orphan(rng.randrange(len(world.orphans)))
            return
        if rng.random() < 0.1:
            self._change_policy()
        others = [process for process in (world.owner, *world.zombies) if process is not world.actor]
        if not others:
            return
        other = rng.choice(others)
        if world.verbose:
            world.note(f"    meanwhile {other}")
        if other is world.owner and rng.random() < 0.1:
            self._disturb()
        for _ in range(rng.choice((1, 1, 3))):
            if len(other.executor) and rng.random() < 0.6:
                world.act(other, partial(other.executor.run, self._pick(other)))
            elif other.tasks and rng.random() < 0.6:
                world.run_task(other, rng.randrange(len(other.tasks)))
            else:
                world.act(other, other.tick)
            if not other.alive:
                return

    def _pick(self, process: Process) -> int:
        """A piece of work that a thread of a pool could run next."""
        return self.rng.randrange(min(len(process.executor), _THREADS))
