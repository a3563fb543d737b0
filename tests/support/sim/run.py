"""Running seeds: one with the trace of its failure, or many on several cores."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final

from tests.support.sim.schedule import PromiseBroken, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DEFAULT_STEPS: Final = 200
_SEEDS_PER_PROCESS: Final = 500
"""After so many a process is replaced, since caches of the code under test grow with every seed."""


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What came of one seed."""

    seed: int
    problems: tuple[str, ...]
    """Promises that were broken; empty: none was."""
    cpu_s: float
    """Processor time."""


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


def try_seed(seed: int, steps: int) -> SeedResult:
    """Run one schedule; whatever it fails with is in the result."""
    began = time.process_time()
    problems: tuple[str, ...] = ()
    try:
        Simulation(seed, steps).run()
    except PromiseBroken as error:
        problems = tuple(error.problems)
    except Exception:  # noqa: BLE001  a failure like any other, and no reason to give up the seeds behind it
        problems = (traceback.format_exc(),)
    return SeedResult(seed, problems, time.process_time() - began)


def try_seeds(
    seeds: Iterable[int], steps: int, jobs: int, run: Callable[[int, int], SeedResult] = try_seed
) -> Iterator[SeedResult]:
    """Run many schedules, and give each result as it comes.

    Args:
        seeds: Which ones.
        steps: Of each schedule.
        jobs: Processes at a time. One: this process runs them, in their order.
        run: Runs one; must be importable where there are several processes.
    """
    one = partial(_run_one, run, steps)
    if jobs == 1:
        yield from map(one, seeds)
        return
    # Not forked: threads of libraries would not be there, and their locks might be held for ever.
    with get_context("spawn").Pool(jobs, maxtasksperchild=_SEEDS_PER_PROCESS) as pool:
        yield from pool.imap_unordered(one, seeds)


def _run_one(run: Callable[[int, int], SeedResult], steps: int, seed: int) -> SeedResult:
    return run(seed, steps)
