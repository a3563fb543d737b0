"""``python -m tests.support.sim``: run one seed with its trace, or many on several cores."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from tests.support.sim.run import DEFAULT_STEPS, run_seed, try_seeds
from tests.support.sim.schedule import PromiseBroken

if TYPE_CHECKING:
    from tests.support.sim.run import SeedResult

_PROGRESS_S: Final = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, from the first on")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="actions of each schedule")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; 0: one for each core")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first seed that fails")
    given = parser.parse_args(arguments)
    if given.count == 1:
        return _run_one(given.seed, given.steps)
    jobs = given.jobs or len(os.sched_getaffinity(0))
    return _run_many(range(given.seed, given.seed + given.count), given.steps, jobs, go_on=given.go_on)


def _run_one(seed: int, steps: int) -> int:
    try:
        run_seed(seed, steps)
    except PromiseBroken as error:
        _say(str(error))
        return 1
    _say(f"seed {seed}, {steps} steps: no promise was broken")
    return 0


def _run_many(seeds: range, steps: int, jobs: int, *, go_on: bool) -> int:
    _say(f"{len(seeds)} seeds from {seeds.start} on, {steps} steps each, {jobs} at a time")
    began = outcome = time.monotonic()
    done = failed = 0
    cpu_s = 0.0
    for result in try_seeds(seeds, steps, jobs):
        done += 1
        cpu_s += result.cpu_s
        if result.problems:
            failed += 1
            _say(_failure(result, steps))
            if not go_on:
                break
        now = time.monotonic()
        if now - outcome >= _PROGRESS_S:
            outcome = now
            left_s = (now - began) / done * (len(seeds) - done)
            _say(f"{done} of {len(seeds)} seeds, {failed} failed, {cpu_s / done:.2f} s CPU each, {left_s:.0f} s left")
    _say(f"{done} seeds in {time.monotonic() - began:.0f} s, {cpu_s / done:.2f} s CPU each; {failed or 'none'} failed")
    return 1 if failed else 0


def _failure(result: SeedResult, steps: int) -> str:
    problems = "\n".join(f"  * {problem}" for problem in result.problems)
    again = f"python -m tests.support.sim --seed {result.seed} --steps {steps}"
    return f"seed {result.seed} fails:\n{problems}\n  to see it again, with its trace: {again}"


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  the output of a command


if __name__ == "__main__":
    sys.exit(main())
