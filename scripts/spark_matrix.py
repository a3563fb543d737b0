"""Run the tests of Spark on every supported release, and other tests on the lowest versions of all requirements.

Each release gets an environment in the cache directory: its newest patch release, and the locked versions of everything
else. The environment ``lowest`` has the lowest version of each requirement in ``pyproject.toml`` and of nothing else.
``AFTERGLOW_SPARK=4.0,lowest`` selects environments. The results are written to ``tests/spark/releases.json``, from
which ``make docs`` makes the table in ``docs/spark-releases.md``; a failed test makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "tests" / "spark" / "releases.json"
RELEASES: Final = ("4.0", "4.1", "4.2", "4.3")
LOWEST: Final = "lowest"
ENVIRONMENTS: Final = (*RELEASES, LOWEST)

SPARK_TESTS: Final = ("tests/spark", "tests/docs/test_dataframes_spark.py")
PACKAGE_TESTS: Final = tuple(
    f"tests/{name}"
    for name in (
        *("format", "storage", "metadata", "config", "catalog", "policy", "tier", "hot", "ledger", "read", "verify"),
        *("offload", "source", "pipeline", "broker", "admin", "server", "cli"),
    )
)
PROCESSES: Final = ("-n", "2", "--dist", "worksteal")
REPORTED: Final = ("pyspark", "pyarrow", "pandas", "numpy", "protobuf")
"""Packages whose versions the page states."""

_LOCKED: Final = re.compile(r"^([\w.-]+)==\S+(?: ;.*)?(?= \\$)", re.MULTILINE)
_SPARK_ITSELF: Final = {"pyspark", "py4j"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the tests in one environment."""

    name: str
    passed: bool
    versions: dict[str, str]
    capabilities: dict[str, str]
    """``yes``, ``no`` or ``failed``, by name."""


def cache_directory() -> Path:
    """The directory for environments, as for other things that tests build."""
    if chosen := os.environ.get("AFTERGLOW_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "afterglow"


def constraints(name: str, file: Path) -> None:
    """Write the versions of an environment's requirements, without PySpark's if a release is selected."""
    if name == LOWEST:
        command = ["pip", "compile", "--quiet", "--resolution", "lowest-direct", "--all-extras", "--no-header"]
        uv(*command, "--no-annotate", "pyproject.toml", "-o", str(file))
        return
    lock = (ROOT / "requirements.lock").read_text()
    file.write_text("".join(f"{found[0]}\n" for found in _LOCKED.finditer(lock) if found[1] not in _SPARK_ITSELF))


def make_environment(name: str) -> Path:
    """Make or update the environment of a release; returns its interpreter."""
    files = [(ROOT / file).read_bytes() for file in ("pyproject.toml", "requirements.lock")]
    digest = sha256(b"".join([*files, str(ROOT).encode(), sys.version.encode()])).hexdigest()[:12]
    parent = cache_directory() / "spark-matrix"
    environment = parent / f"{name}-{digest}"
    python = environment / "bin" / "python"
    if not python.exists():
        for other in parent.glob(f"{name}-*"):
            shutil.rmtree(other)
        parent.mkdir(parents=True, exist_ok=True)
        uv("venv", "--quiet", "--python", sys.executable, str(environment))
    limits = environment / "constraints.txt"
    constraints(name, limits)
    release = ["pyspark"] if name == LOWEST else [f"pyspark~={name}.0", "--upgrade-package", "pyspark"]
    extras = "s3,zookeeper,serve,spark,java,compile,testing"
    target = ["--python", str(python), "--constraint", str(limits), "--editable", f".[{extras}]", "--group", "test"]
    uv("pip", "install", "--quiet", *target, *release)
    return python


def uv(*arguments: str) -> None:
    """Run uv in the project's directory."""
    subprocess.run([str(Path(sys.executable).with_name("uv")), *arguments], cwd=ROOT, check=True)


def run(name: str, more: list[str], marks: str = "not pulsar") -> Outcome:
    """Run the tests with given marks in an environment."""
    print(f"== {name}: preparing the environment", flush=True)
    python = make_environment(name)
    report = python.parent.parent / "report.json"
    report.unlink(missing_ok=True)
    tests = [*SPARK_TESTS, *(PACKAGE_TESTS if name == LOWEST else ())]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *PROCESSES, "-m", marks, *tests]
    print(f"== {name}: running tests", flush=True)
    done = subprocess.run([*command, "--spark-report", str(report), *more], cwd=ROOT, check=False)
    outcomes: dict[str, dict[str, int]] = json.loads(report.read_text()) if report.exists() else {}
    return Outcome(
        name, done.returncode == 0, installed(python), {key: summary(outcomes[key]) for key in sorted(outcomes)}
    )


def summary(outcomes: dict[str, int]) -> str:
    """The result for a capability, from the numbers of its tests by outcome."""
    if outcomes.get("failed"):
        return "failed"
    return "yes" if outcomes.get("passed") else "no"


def installed(python: Path) -> dict[str, str]:
    """Versions of the packages that the page states."""
    program = (
        "import importlib.metadata as m, json, sys; print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run([str(python), "-c", program, *REPORTED], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def record(outcomes: list[Outcome]) -> None:
    """Replace the results of the environments and capabilities that were run."""
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for outcome in outcomes:
        before = known.get(outcome.name, {}).get("capabilities", {})
        known[outcome.name] = {"versions": outcome.versions, "capabilities": {**before, **outcome.capabilities}}
    RESULTS.write_text(json.dumps({name: known[name] for name in ENVIRONMENTS if name in known}, indent=1) + "\n")


def selected() -> list[str]:
    """The environments to run.

    Raises:
        SystemExit: ``AFTERGLOW_SPARK`` names an unknown one.
    """
    names = [name.strip() for name in os.environ.get("AFTERGLOW_SPARK", "").split(",") if name.strip()]
    for name in names:
        if name not in ENVIRONMENTS:
            raise SystemExit(f"unknown release of Spark in AFTERGLOW_SPARK: {name}; give {', '.join(ENVIRONMENTS)}")
    return names or list(ENVIRONMENTS)


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Run the tests of Spark on every supported release.")
    parser.add_argument(
        "--only", metavar="WORDS", help="run tests that match (pytest -k); without --table, record no results"
    )
    parser.add_argument("--table", action="store_true", help="run only the tests from which the table is made")
    arguments = parser.parse_args()
    more = ["-k", arguments.only] if arguments.only else []
    outcomes: list[Outcome] = []
    for name in selected():
        outcomes.append(run(name, more, "spark and not pulsar" if arguments.table else "not pulsar"))
        if arguments.table or not arguments.only:
            record(outcomes)
    for outcome in outcomes:
        versions = ", ".join(f"{name} {version}" for name, version in outcome.versions.items())
        print(f"{outcome.name:8} {'passed' if outcome.passed else 'FAILED'}  ({versions})")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
