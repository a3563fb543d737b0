"""Actors of a schedule: each draws the process and the topic that it acts on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.sim.invariants import DELETING, text_of

from afterglow.errors import Fenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.sim.model import TopicModel
    from tests.support.sim.process import Process
    from tests.support.sim.world import SimWorld

    from afterglow.ledger.managed_ledger import ManagedLedger


class Actor:
    """Chooses by lot. What its actions return is for the trace.

    Args:
        world: Where it acts.
    """

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.rng = world.rng

    def topic(self) -> TopicModel:
        """Any topic."""
        return self.rng.choice(tuple(self.world.models.values()))

    def process(self) -> Process:
        """Mostly the owner, sometimes one that was replaced and does not know it.

        Never the one whose action is interrupted by this one: it would wait for its own thread.
        """
        zombies = [process for process in self.world.zombies if process is not self.world.actor]
        if zombies and self.rng.random() < 0.3:
            return self.rng.choice(zombies)
        return self.world.owner

    def on(self, process: Process, model: TopicModel, work: Callable[[ManagedLedger], object]) -> str:
        """Open a topic and do something with it; one that turns out to be another's is closed, as a client's is."""

        def open_and_work() -> None:
            info = self.world.invariants.lists.get(model.name)
            if not self.world.guarded and (info is None or text_of(info, DELETING) is not None):
                self.world.end_zombies()
            work(process.open(model.name))

        error = self.world.act(process, open_and_work)
        if isinstance(error, Fenced):
            self.close_topic(process, model)
        return f"{process}, {model.name}" + ("" if error is None else f" -> {type(error).__name__}")

    def close_topic(self, process: Process, model: TopicModel) -> None:
        """Close a topic where it is open."""
        ledger = process.store.opened(model.name)
        if ledger is not None and process.alive:
            self.world.act(process, ledger.close)
