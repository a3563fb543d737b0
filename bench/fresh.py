"""How long ``make demo`` takes in a fresh clone until its first line of output, and the sizes of the two environments.

What pip and uv download is in their caches already: another clone is installed first. The clone has what is committed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from bench.measure import keep

ROOT = Path(__file__).parents[1]
FIRST_LINE = "Afterglow demo"
GOALS = {"make demo to its first line of output, s": 60}


def clone(directory: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(directory)], check=True)
    return directory


def install(directory: Path, target: str) -> float:
    start = time.perf_counter()
    subprocess.run(["make", "--silent", target], cwd=directory, check=True)
    return time.perf_counter() - start


def seconds_to_first_line(directory: Path, environment: dict[str, str]) -> float:
    start = time.perf_counter()
    with subprocess.Popen(
        ["make", "demo"], cwd=directory, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        try:
            for line in demo.stdout:
                if line.startswith(FIRST_LINE):
                    return time.perf_counter() - start
        finally:
            # The demo ends its server and removes its directory when it is interrupted.
            os.killpg(demo.pid, signal.SIGINT)
            demo.stdout.read()
    raise SystemExit("make demo ended without a line of output")


def megabytes(directory: Path) -> int:
    done = subprocess.run(["du", "-sm", str(directory)], check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[0])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="afterglow-fresh-") as scratch:
        install(clone(Path(scratch, "warm")), ".venv/.installed-demo")
        fresh = clone(Path(scratch, "fresh"))
        environment = {**os.environ, "AFTERGLOW_CACHE": str(Path(scratch, "cache"))}
        first_line = seconds_to_first_line(fresh, environment)
        demo = megabytes(fresh / ".venv")
        seconds = install(fresh, "install")
        figures = {
            "make demo to its first line of output, s": round(first_line, 1),
            "environment of the demo, MB": demo,
            "make install after the demo, s": round(seconds, 1),
            "environment with test tools, MB": megabytes(fresh / ".venv"),
        }
    keep("fresh", figures, GOALS)
