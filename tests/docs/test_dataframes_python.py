"""The programs of the part on Python in docs/dataframes.md run, each by itself."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.homes import ServerHome, batch
from tests.support.ledgers import message
from tests.support.pages import Page, run_python

PART = Page.read(Path(__file__).parents[2] / "docs" / "dataframes.md").part("Python")


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a home: five orders of yesterday in the tier, four of now in the hot log."""
    location = tmp_path_factory.mktemp("dataframes")
    home = location / "home"
    home.mkdir()
    now_ms = time.time_ns() // 1_000_000
    with ServerHome(home) as server:
        server.clock.set_now_ms(now_ms - 86_400_000)
        old, _ = server.write("orders", [message(b"old")] * 5, [message(b"")])
        server.offload("orders", old)
        server.free("orders", old)
        server.clock.set_now_ms(now_ms)
        server.write("orders", [batch([b"1", b"2", b"3"])])
    return location


def run(location: Path, marker: str) -> str:
    """What the program with these words prints."""
    return run_python("-c", PART.program(marker), cwd=location)


def test_every_program_is_run_here() -> None:
    assert (len(PART.programs), len(PART.commands)) == (4, 2)


def test_a_scan(location: Path) -> None:
    assert "3 messages of the last four hours" in run(location, "for batch in")


def test_pandas(location: Path) -> None:
    pytest.importorskip("pandas")
    assert re.findall(r"^(\d+) +(\d+)$", run(location, "to_pandas"), re.MULTILINE) == [
        ("0", "1"),
        ("1", "3"),
        ("3", "5"),
    ]


def test_polars(location: Path) -> None:
    pytest.importorskip("polars")
    assert re.findall(r"(hot|tiered) +┆ (\d+)", run(location, "polars")) == [("hot", "4"), ("tiered", "5")]


def test_duckdb(location: Path) -> None:
    pytest.importorskip("duckdb")
    found = re.findall(r"(hot|tiered) +│ +(\d+) +│ +(\d+)", run(location, "duckdb"))
    assert sorted(found) == [("hot", "4", "3"), ("tiered", "5", "15")]


def test_the_template(location: Path) -> None:
    shown = run_python("-m", *shlex.split(PART.commands[0]), cwd=location).splitlines()
    assert [len(line.split(" ")) for line in shown] == [3, 3, 3]


def test_parquet(location: Path) -> None:
    run_python("-m", *shlex.split(PART.commands[1]), cwd=location)
    assert pq.read_table(location / "orders.parquet")["value"].to_pylist() == [b"1", b"2", b"3"]
