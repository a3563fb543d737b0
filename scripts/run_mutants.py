"""Break the code on purpose, one mutation at a time, and insist that the named test notices each.

The table is ``tests/mutants/*.toml``. A mutation is made in a copy of the source tree, and only the test that is to
kill it runs there. It is killed when that test runs and fails; a test that is not found, is skipped, fails in its
set-up, or fails because the mutated code names something that does not exist, has killed nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = ROOT / "tests" / "mutants"
_COPIED: Final = ("src", "tests", "scripts", "pyproject.toml")
_IGNORED: Final = shutil.ignore_patterns(".hypothesis", ".pytest_cache", "*.nbi", "*.nbc")
_LIMIT_S: Final = 240.0
"""For one test. Killing tests take seconds; the machine may be busy."""
_HANG_S: Final = 20.0
"""For a test whose mutation makes it hang."""
_KEYS: Final = {"name", "promise", "file", "replace", "with", "test", "survives", "hangs", "slow"}


class TableError(Exception):
    """The table does not fit the code."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One row of the table."""

    name: str
    promise: str
    """What does not hold any more with the mutation."""
    file: str
    """Relative to the repository."""
    edits: tuple[tuple[str, str], ...]
    """Texts that stand in the file exactly once, each with what replaces it."""
    test: str
    """Node id of the test that kills it; empty where none can."""
    survives: str = ""
    """The reason why no test can."""
    hangs: bool = False
    """Whether the test, instead of failing, does not end."""
    slow: bool = False
    """Whether the test takes too long for the sample that runs with all tests."""

    def apply(self, text: str) -> str:
        """The file's text with the mutation.

        Raises:
            TableError: The text to be replaced is not there exactly once, or what comes of it is not Python.
        """
        mutated = text
        for old, new in self.edits:
            if (count := text.count(old)) != 1:
                raise TableError(
                    f"mutant {self.name}: its text is found {count} times in {self.file}, not once; "
                    f"a change that moves code moves its mutants: {old.strip().splitlines()[0]}"
                )
            mutated = mutated.replace(old, new)
        try:
            same = ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(text))
        except SyntaxError as error:
            raise TableError(f"mutant {self.name}: {self.file} is not valid Python with it: {error}") from error
        if same:
            raise TableError(f"mutant {self.name}: it changes nothing in {self.file}")
        return mutated


def load(table: Path, root: Path) -> tuple[Mutant, ...]:
    """Read the table, and check it against the code.

    Raises:
        TableError: A row is incomplete, is named twice, or does not fit the code.
    """
    found: dict[str, Mutant] = {}
    for file in sorted(table.glob("*.toml")):
        for row in tomllib.loads(file.read_text()).get("mutant", ()):
            mutant = _parse(file, row)
            if mutant.name in found:
                raise TableError(f"{file.name}: two mutants are called {mutant.name}")
            source = root / mutant.file
            if not source.is_file():
                raise TableError(f"mutant {mutant.name}: {mutant.file} is missing")
            mutant.apply(source.read_text())
            if mutant.test and not (root / mutant.test.partition("::")[0]).is_file():
                raise TableError(f"mutant {mutant.name}: its test {mutant.test} is missing")
            found[mutant.name] = mutant
    if not found:
        raise TableError(f"no mutants found in {table}")
    return tuple(found.values())


def _parse(file: Path, row: dict[str, Any]) -> Mutant:
    name = row.get("name", "")
    if unknown := row.keys() - _KEYS:
        raise TableError(f"{file.name}: mutant {name} has unknown keys {', '.join(sorted(unknown))}")
    if missing := {"name", "promise", "file", "replace", "with"} - row.keys():
        raise TableError(f"{file.name}: mutant {name} lacks {', '.join(sorted(missing))}")
    if bool(row.get("test")) == bool(row.get("survives")):
        raise TableError(f"{file.name}: mutant {name} needs either the test that kills it or why it survives")
    edits = (row["replace"], row["with"])
    if all(isinstance(texts, str) for texts in edits):
        edits = ([row["replace"]], [row["with"]])
    return Mutant(
        name,
        row["promise"],
        row["file"],
        tuple(zip(*edits, strict=True)),
        row.get("test", ""),
        row.get("survives", ""),
        row.get("hangs", False),
        row.get("slow", False),
    )


# --- one run of tests, in a process of its own ------------------------------------------------------------------------


class _Recorder:
    """A pytest plugin that notes how each test ended: by its node id ``passed``, ``failed: …`` or ``broken: …``."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self._called: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Any:  # a wrapper's generator is typed by pluggy alone
        report = yield
        failed, node = call.excinfo is not None, item.nodeid
        if call.when == "call":
            self._called.add(node)
            self.outcomes.setdefault(node, "passed")
        if call.excinfo is not None and failed:
            text = f"{call.excinfo.typename}: {call.excinfo.value}".strip().splitlines()[0][:200]
            genuine = node in self._called and not call.excinfo.errisinstance(
                (NameError, ImportError, SyntaxError, pytest.skip.Exception)
            )
            if not self.outcomes.get(node, "passed").startswith("failed"):
                self.outcomes[node] = f"{'failed' if genuine else 'broken'}: {text}"
        return report


def run_here(tests: Sequence[str], report: Path) -> None:
    """Run tests in this process, and write how each ended, together with the source that was imported."""
    recorder = _Recorder()
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", "--tb=short"]
    code = pytest.main([*options, *tests], plugins=[recorder])
    import afterglow  # noqa: PLC0415 - not before pytest has chosen how to import it

    found = {"source": str(Path(afterglow.__file__).resolve()), "code": int(code), "outcomes": recorder.outcomes}
    report.write_text(json.dumps(found))


class Copy:
    """A copy of the source tree in which tests run."""

    def __init__(self, root: Path, at: Path) -> None:
        self.at = at
        self._reports = 0
        for name in _COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, at / name, ignore=_IGNORED)
            else:
                shutil.copy2(root / name, at / name)

    def outcomes(self, tests: Sequence[str], limit_s: float, *, write_bytecode: bool = False) -> dict[str, str] | None:
        """How tests end in the copy, by their node ids; None where they do not end in time.

        Raises:
            TableError: The process died, or did not import the copy.
        """
        self._reports += 1
        report, output = self.at / f"report-{self._reports}.json", self.at / f"output-{self._reports}.txt"
        temporary = self.at / f"tmp-{self._reports}"
        temporary.mkdir()
        command = [sys.executable, str(self.at / "scripts" / "run_mutants.py"), "--report", str(report), *tests]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
        environment |= {"PYTHONPATH": str(self.at / "src"), "TMPDIR": str(temporary)}
        environment.setdefault("AFTERGLOW_GOLDEN", str(ROOT.parent / "shared" / "golden"))
        if not write_bytecode:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        with output.open("w") as out:
            process = subprocess.Popen(
                command, cwd=self.at, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                # Servers that a failed test has left are of the process's group.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                shutil.rmtree(temporary, ignore_errors=True)
        if not report.exists():
            tail = "\n".join(output.read_text().splitlines()[-15:])
            raise TableError(f"the test process ended with code {process.returncode} and no report:\n{tail}")
        found = json.loads(report.read_text())
        if not Path(found["source"]).is_relative_to(self.at.resolve()):
            raise TableError(f"the tests imported {found['source']}, not the copy in {self.at}")
        outcomes: dict[str, str] = found["outcomes"]
        return outcomes

    def judge(self, mutant: Mutant, source: Path) -> str:
        """``killed``, ``survived``, or what went wrong, for one mutation; the copy is as before afterwards."""
        target = self.at / mutant.file
        target.write_text(mutant.apply(target.read_text()))
        # Bytecode is found by time and size of its source: another time makes sure that none of before is taken.
        os.utime(target, (0, 0))
        try:
            outcomes = self.outcomes([mutant.test], _HANG_S if mutant.hangs else _LIMIT_S)
        except TableError as error:
            return f"error: {error}"
        finally:
            shutil.copy2(source / mutant.file, target)
        if outcomes is None:
            return "killed" if mutant.hangs else "error: its test did not end in time"
        ends = [end for node, end in outcomes.items() if node == mutant.test or node.startswith(f"{mutant.test}[")]
        if any(end.startswith("failed") for end in ends):
            return "killed"
        if broken := [end for end in ends if end != "passed"]:
            return f"error: its test did not run: {broken[0]}"
        return "survived" if ends else "error: its test did not run"


# --- all of them ------------------------------------------------------------------------------------------------------


def run(mutants: Sequence[Mutant], root: Path, jobs: int, report: Callable[[str], None]) -> int:
    """Run mutants, and tell how each ends; returns how many were not killed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as directory:
        first = Copy(root, Path(directory) / "0")
        if wrong := _unhealthy(first, mutants):
            for line in wrong:
                report(line)
            return len(wrong)
        copies: SimpleQueue[Copy] = SimpleQueue()
        copies.put(first)
        for number in range(1, jobs):
            copies.put(Copy(first.at, Path(directory) / str(number)))  # with its bytecode

        def judge(mutant: Mutant) -> tuple[Mutant, str, float]:
            copy = copies.get()
            since = time.monotonic()
            try:
                return mutant, copy.judge(mutant, root), time.monotonic() - since
            finally:
                copies.put(copy)

        left = 0
        with ThreadPoolExecutor(jobs) as pool:
            for mutant, verdict, took_s in pool.map(judge, mutants):
                left += verdict != "killed"
                report(
                    f"{verdict:8} {took_s:5.1f} s  {mutant.name}" + ("" if verdict == "killed" else f" [{mutant.test}]")
                )
    report(f"{len(mutants) - left} of {len(mutants)} mutants killed in {time.monotonic() - began:.0f} s")
    return left


def _unhealthy(copy: Copy, mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with the killing tests by themselves: each must pass while nothing is mutated."""
    tests = sorted({mutant.test for mutant in mutants})
    outcomes = copy.outcomes(tests, _LIMIT_S + 10 * len(tests), write_bytecode=True)
    if outcomes is None:
        return ["error: the killing tests did not end in time without any mutation"]
    wrong = []
    for test in tests:
        ends = [end for node, end in outcomes.items() if node == test or node.startswith(f"{test}[")]
        if not ends:
            wrong.append(f"error: no such test was run: {test}")
        wrong += [f"error: without any mutation, {test} ends with {end}" for end in ends if end != "passed"]
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the process's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="run only mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once")
    parser.add_argument("--sample", type=int, help="run so many of those that are not slow, chosen by the seed")
    parser.add_argument("--seed", type=int, help="of the sample; by default the day's number, so that samples rotate")
    parser.add_argument("--table", type=Path, default=TABLE, help="directory of the table")
    given = parser.parse_args(arguments)
    if given.report is not None:
        run_here(given.tests, given.report)
        return 0
    try:
        mutants = load(given.table, ROOT)
    except TableError as error:
        print(f"error: {error}")
        return 2
    chosen = [mutant for mutant in mutants if mutant.test and given.only in mutant.name]
    if given.sample is not None:
        seed = int(time.time() // 86_400) if given.seed is None else given.seed
        quick = [mutant for mutant in chosen if not mutant.slow]
        chosen = random.Random(seed).sample(quick, min(given.sample, len(quick)))  # noqa: S311 - must be repeatable
        print(f"sample of {len(chosen)} mutants with --seed {seed}")
    for mutant in mutants:
        if mutant.survives and given.only in mutant.name and given.sample is None:
            print(f"survives          {mutant.name}: {mutant.survives}")
    if not chosen:
        print(f"error: no mutant's name contains {given.only!r}")
        return 2
    return 1 if run(chosen, ROOT, given.jobs, lambda line: print(line, flush=True)) else 0


if __name__ == "__main__":
    sys.exit(main())
