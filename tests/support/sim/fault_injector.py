"""Injection of faults: plans of errors, crashes, lost uploads and sessions, and owners that were replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.sim.actor import Actor
from tests.support.sim.fault_plan import NO_FAULTS, draw_fault_plan
from tests.support.sim.promises import MOST_SKEW_S
from tests.support.sim.steps import INTERRUPTIONS

if TYPE_CHECKING:
    from tests.support.sim.steps import Interruption
    from tests.support.sim.world import SimWorld


class FaultInjector(Actor):
    """Starts and ends faults.

    Args:
        world: Where it acts.
        focus: The interruption that is tried for most.
    """

    def __init__(self, world: SimWorld, focus: Interruption) -> None:
        super().__init__(world)
        self._focus = self.world.crashes_at = focus
        self._calm_in = 0

    def pass_by(self) -> None:
        """One step less until the weather clears up."""
        for process in (self.world.owner, *self.world.zombies):
            if not process.session.is_open and self.rng.random() < 0.1:
                process.session.settle()
        if not self.world.fault_plan.is_empty:
            self._calm_in -= 1
            if not self._calm_in:
                self.clear_faults()

    def change_faults(self) -> str:
        """Let other things go wrong, for a while."""
        self.world.change_faults(draw_fault_plan(self.rng))
        self._calm_in = self.rng.choice((5, 15, 40))
        return f"{self.world.fault_plan.name}, {self._calm_in} steps"

    def clear_faults(self) -> str:
        """Let nothing go wrong."""
        self.world.change_faults(NO_FAULTS)
        return ""

    def lose_upload(self) -> str:
        """Have the store forget an upload."""
        return "one" if self.world.lose_upload() else "none is there"

    def crash_soon(self) -> str:
        """Let a process, or a worker, die within the next effects, or at a certain step."""
        if self.world.crashes_at is None and self.rng.random() < 0.7:
            self.world.crashes_at = self.rng.choice((self._focus, self._focus, self.rng.choice(INTERRUPTIONS)))
            return self.world.crashes_at.name
        self.world.crashes_in = self.rng.randint(0, 12)
        return f"after {self.world.crashes_in} effects"

    def jump_clock(self) -> str:
        """Set the time of day of a process, or of all that begin from now on."""
        offset_ms = self.rng.choice((0, 0, -MOST_SKEW_S, -60, -1, 1, 60, 600, MOST_SKEW_S)) * 1000
        if self.rng.random() < 0.3:
            self.world.clock_offset_ms = offset_ms
            return f"to {offset_ms} ms for later processes"
        process = self.process()
        process.clock.offset_ms = offset_ms
        return f"{process} to {offset_ms} ms"

    def restart(self) -> str:
        """End the owner in order, and begin another."""
        self.world.shut_down(self.world.owner)
        return f"{self.world.owner}"

    def take_over(self) -> str:
        """Begin another owner beside the first."""
        if len(self.world.zombies) > 1:
            return "three are enough"
        self.world.take_over()
        return f"{self.world.owner}"

    def lose_session(self) -> str:
        """Have the owner lose its metadata session; mostly another takes over meanwhile."""
        owner = self.world.owner
        owner.session.lose()
        return f"{owner}" + (f", {self.take_over()}" if self.rng.random() < 0.6 else "")

    def restore_session(self) -> str:
        """Let lost sessions return, to processes that go on where they were."""
        lost = [each for each in (self.world.owner, *self.world.zombies) if not each.session.is_open]
        for process in lost:
            process.session.restore()
        return f"{lost}"

    def end_zombie(self) -> str:
        """End the processes that were replaced."""
        self.world.end_zombies()
        return ""
