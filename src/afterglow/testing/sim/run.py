"""Running seeds, and telling of those that fail."""

from __future__ import annotations

from typing import Final

from afterglow.testing.sim.schedule import PromiseBroken, Simulation

DEFAULT_STEPS: Final = 200


def run_seed(seed: int, steps: int = DEFAULT_STEPS) -> Simulation:
    """Run one schedule.

    Returns:
        The simulation, at rest.

    Raises:
        PromiseBroken: The schedule breaks a promise; the error has the trace of a second run, with every effect.
    """
    simulation = Simulation(seed, steps)
    try:
        simulation.run()
    except PromiseBroken as first:
        Simulation(seed, steps, verbose=True).run()
        raise AssertionError(f"seed {seed} is not repeatable: {first}") from first
    return simulation
