"""The simulator: the production code of ledgers, offload and reading, under schedules that a seed decides.

One seed is one schedule: time, chance, threads, crashes and faults all come from it, so that a failure can be seen
again. What is simulated is what is outside the code: disk, metadata store, tier, workers, clock.
"""

from __future__ import annotations

from tests.support.sim.run import DEFAULT_STEPS, run_seed
from tests.support.sim.schedule import PromiseBroken, Simulation

__all__ = ["DEFAULT_STEPS", "PromiseBroken", "Simulation", "run_seed"]
