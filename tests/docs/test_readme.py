"""The README's program runs without Java on the path; promises have tests; figures match the files of results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.support.pages import Page, run_python

README = Path(__file__).parents[2] / "README.md"
DOCS = README.parent / "docs"
PAGE = Page.read(README)


def rows(page: str) -> list[list[str]]:
    """The cells of the table of a page, without its first two lines."""
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_program_writes_a_topic_and_reads_it_in_spark(tmp_path: Path) -> None:
    pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
    pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
    from tests.support.serving import serving

    (program,) = PAGE.programs
    assert len(program.splitlines()) <= 15
    with serving(tmp_path) as served:
        program = program.replace("pulsar://127.0.0.1:6650", served.service_url).replace("./home", str(tmp_path))
        output = run_python("-c", program)
    counted = re.findall(r"\|(customer-\d)\|\s*(\w+)\|\s*(\d+)\|", output)
    assert sorted(counted) == [(f"customer-{number}", "hot", "2000") for number in range(5)]


def test_every_command_is_run_elsewhere_or_is_this_test() -> None:
    """``make demo`` is typed into a fresh clone by test_quick_start; ``make test`` runs what you read."""
    *made, installed = [line.partition("#")[0].strip() for line in PAGE.commands]
    assert made == ["make demo", "make test"]
    assert "make demo" in Page.read(DOCS / "quick-start.md").commands
    assert installed.removesuffix(" pulsar-client") in Page.read(DOCS / "installation.md").commands


def test_each_of_the_nine_promises_has_tests() -> None:
    promises = rows("reliability.md")
    assert [number for number, *_ in promises] == [str(number) for number in range(1, 10)]
    for _, _, held_by, *_ in promises:
        assert re.findall(r"\]\(\.\./(tests/[^)]+)\)", held_by)


def test_every_figure_and_every_goal_is_what_its_file_says() -> None:
    figures = rows("figures.md")
    assert len(figures) > 8
    for name, goal, measured, command, result in figures:
        (file,) = re.findall(r"\]\(([^)]+)\)", result)
        found = json.loads((DOCS / file).read_text())
        wanted, got = found["goals"][name], found["figures"][name]
        sign, number = goal.split()
        assert (command.strip("`"), float(number), float(measured.strip("*"))) == (found["command"], wanted, got), name
        reached = got <= wanted if sign == "≤" else got >= wanted
        assert measured.startswith("**") == (not reached), f"{name}: what misses its goal is bold, and nothing else"
