"""How a workload is timed, and how its result is kept."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESULTS = Path(os.environ.get("BENCH_RESULTS") or Path(__file__).with_name("results"))
ROUNDS = 9


def best_seconds(work: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Least seconds of each piece of work, taken in turns so that noise falls on all of them alike."""
    for piece in work.values():
        piece()
    best = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, piece in work.items():
            start = time.perf_counter()
            piece()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def copy_fresh(data: bytes) -> Callable[[], object]:
    """The yardstick: memcpy of the same bytes into fresh pages."""
    array = np.frombuffer(data, np.uint8)
    return array.copy


def keep(workload: str, figures: Mapping[str, Any], goals: Mapping[str, float]) -> None:
    """Write the result file of a workload and print it."""
    result = {
        "workload": workload,
        "command": f"make bench WORKLOAD={workload}",
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "figures": figures,
        "goals": goals,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{workload}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{workload}:")
    for name, value in figures.items():
        goal = goals.get(name)
        print(f"  {name:48} {value!s:>12}" + (f"   goal {goal}" if goal is not None else ""))
