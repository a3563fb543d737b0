"""The programs of the part on Python in docs/dataframes.md run, each by itself."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from afterglow.testing.homes import EngineHome, batch
from afterglow.testing.ledgers import message

PAGE = (Path(__file__).parents[2] / "docs" / "dataframes.md").read_text()
(PART,) = [text for text in re.split(r"^## ", PAGE, flags=re.MULTILINE) if text.startswith("Python\n")]
PROGRAMS = re.findall(r"```python\n(.*?)```", PART, re.DOTALL)
COMMANDS = re.findall(r"```sh\nafterglow (.*?)\n```", PART, re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a home: five orders of yesterday in the tier, four of now in the hot log."""
    place = tmp_path_factory.mktemp("place")
    home = place / "home"
    home.mkdir()
    now_ms = time.time_ns() // 1_000_000
    with EngineHome(home) as engine:
        engine.clock.set_now_ms(now_ms - 86_400_000)
        old, _ = engine.write("orders", [message(b"old")] * 5, [message(b"")])
        engine.offload("orders", old)
        engine.free("orders", old)
        engine.clock.set_now_ms(now_ms)
        engine.write("orders", [batch([b"1", b"2", b"3"])])
    return place


def run(place: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=place, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(marker: str) -> str:
    found: list[str] = [text for text in PROGRAMS if marker in text]
    assert len(found) == 1
    return found[0]


def test_every_program_is_run_here() -> None:
    assert (len(PROGRAMS), len(COMMANDS)) == (4, 1)


def test_a_scan(place: Path) -> None:
    assert "3 messages of the last four hours" in run(place, "-c", program("for batch in"))


def test_pandas(place: Path) -> None:
    pytest.importorskip("pandas")
    assert re.findall(r"^(\d+) +(\d+)$", run(place, "-c", program("read_pandas")), re.MULTILINE) == [
        ("0", "1"),
        ("1", "3"),
        ("3", "5"),
    ]


def test_polars(place: Path) -> None:
    pytest.importorskip("polars")
    assert re.findall(r"(hot|tiered) +┆ (\d+)", run(place, "-c", program("polars"))) == [("hot", "4"), ("tiered", "5")]


def test_duckdb(place: Path) -> None:
    pytest.importorskip("duckdb")
    found = re.findall(r"(hot|tiered) +│ +(\d+) +│ +(\d+)", run(place, "-c", program("duckdb")))
    assert sorted(found) == [("hot", "4", "3"), ("tiered", "5", "15")]


def test_parquet(place: Path) -> None:
    run(place, "-m", "afterglow", *shlex.split(COMMANDS[0]))
    assert pq.read_table(place / "orders.parquet")["value"].to_pylist() == [b"1", b"2", b"3"]
