"""The table of mutants fits the code, the runner judges rightly, and a sample of the mutants is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "scripts" / "run_mutants.py"

PLANNER = "src/afterglow/offload/planner.py"
PLANNER_TEST = "tests/offload/test_planner.py::test_the_lag_of_a_ledger_in_segments_counts_from_the_newest_of_them"
LAG = "return max(context.timestamp, newest) + lag_ms"


def run_mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([sys.executable, RUNNER, *arguments], capture_output=True, text=True, check=False)
    sys.stdout.write(result.stdout + result.stderr)
    return result


def row(
    name: str, old: str = LAG, new: str = "return 0", *, file: str = PLANNER, test: str = PLANNER_TEST, more: str = ""
) -> str:
    given = {"name": name, "promise": "for a test", "file": file, "replace": old, "with": new, "test": test}
    return "[[mutant]]\n" + "".join(f"{key} = '''{value}'''\n" for key, value in given.items() if value) + more


def judged(directory: Path, *rows: str) -> tuple[int, str]:
    """The exit code and the output of a run with a table of its own."""
    (directory / "table.toml").write_text("\n".join(rows))
    result = run_mutants("--table", str(directory))
    return result.returncode, result.stdout


def test_only_a_test_that_runs_and_fails_has_killed_a_mutant(tmp_path: Path) -> None:
    code, output = judged(
        tmp_path,
        row("wrong", new="return max(context.timestamp, newest)"),
        row("equivalent", new="return lag_ms + max(context.timestamp, newest)"),
        row("unknown-name", new="return nobody_knows_this"),
        row("endless", new='__import__("time").sleep(3600)', more="hangs = true\n"),
        # The test runs the command line in a process of its own, where alone the mutation shows.
        row(
            "in-another-process",
            'f"afterglow {__version__}"',
            'f"afterglow"',
            file="src/afterglow/cli/app.py",
            test="tests/cli/test_cli.py::test_version_is_printed",
        ),
    )
    verdicts = {
        line.split(" s  ")[1].split(" ")[0]: line.split(" ")[0] for line in output.splitlines() if " s  " in line
    }
    assert verdicts["wrong"] == verdicts["in-another-process"] == verdicts["endless"] == "killed"
    assert verdicts["equivalent"] == "survived"
    assert verdicts["unknown-name"] == "error:"
    assert "NameError" in output
    assert (code, output.splitlines()[-1][:21]) == (1, "3 of 5 mutants killed")


def test_a_test_that_is_not_there_or_fails_by_itself_kills_nothing(tmp_path: Path) -> None:
    code, output = judged(tmp_path, row("missing-test", test=f"{PLANNER_TEST}_nobody_wrote"))
    assert code == 1
    assert "no such test was run" in output


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (row("a", "text that was moved"), "is found 0 times"),
        (row("a", "return"), "times in src/afterglow/offload/planner.py, not once"),
        (row("a", new=LAG), "changes nothing"),
        (row("a", new="return ("), "not valid Python"),
        (row("a", file="src/afterglow/nothing.py"), "is missing"),
        (row("a", test="tests/nothing.py::test_nothing"), "is missing"),
        (row("a", test=""), "either the test that kills it or why it survives"),
        (row("a", more="survives = 'as well'"), "either the test that kills it or why it survives"),
        (row("a", more="reason = 'x'"), "unknown keys reason"),
        (row("a") + row("a"), "two mutants are called a"),
        ("", "no mutants found"),
    ],
)
def test_a_table_that_does_not_fit_the_code_is_an_error(tmp_path: Path, wrong: str, says: str) -> None:
    code, output = judged(tmp_path, wrong)
    assert code == 2
    assert says in output


def test_a_sample_of_the_mutants_is_killed() -> None:
    """Twenty that another seed chooses every day; the whole table is checked against the code with them."""
    result = run_mutants("--sample", "20")
    assert result.returncode == 0, result.stdout
    assert "20 of 20 mutants killed" in result.stdout
