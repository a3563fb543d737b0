"""``python -m afterglow.testing.sim``: run seeds, and print what the failing ones have done."""

from __future__ import annotations

import argparse
import sys
import time

from afterglow.testing.sim.run import DEFAULT_STEPS, run_seed
from afterglow.testing.sim.schedule import PromiseBroken


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m afterglow.testing.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, from the first on")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="actions of each schedule")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first seed that fails")
    given = parser.parse_args(arguments)
    failed = []
    began = time.perf_counter()
    for seed in range(given.seed, given.seed + given.count):
        try:
            run_seed(seed, given.steps)
        except PromiseBroken as error:
            failed.append(seed)
            print(f"seed {seed}: {'; '.join(error.problems)}" if given.go_on else error)  # noqa: T201
            if not given.go_on:
                return 1
    seconds = time.perf_counter() - began
    told = f"{given.count} seeds from {given.seed} on, {given.steps} steps each, {seconds:.1f} s"
    print(f"{told}; failed: {failed or 'none'}")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
