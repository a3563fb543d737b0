from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sample import sample_objects

import afterglow
from afterglow.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path


def run(*args: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "afterglow", *args],
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == expect, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a V1 and a V2 object of the same messages."""
    home = tmp_path_factory.mktemp("home")
    sample_objects(open_store(home.as_uri(), create=True), 50, 1)
    return home


def json_lines(*args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*args).stdout.splitlines()]


def keys(home: Path) -> list[str]:
    return [info.key for info in open_store(home.as_uri()).list() if not info.key.endswith("-index")]


def test_version_is_printed() -> None:
    assert run("--version").stdout.strip() == f"afterglow {afterglow.__version__}"


def test_no_arguments_show_the_help_and_exit_2() -> None:
    assert "inspect" in run(expect=2).stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("inspect",), "Missing argument 'tier'"),
        (("inspekt",), "no such command 'inspekt'; did you mean 'inspect'?"),
        (("inspect", "fil:///x", "k"), "file://"),
        (("inspect", "file:///x", "k", "--blocks", "--entries"), "exclude each other"),
        (("doctor", "--tier", "s3://b", "-o", "endpont=x"), "endpoint"),
        (("doctor", "--tier", "s3://b", "-o", "endpoint"), "NAME=VALUE"),
    ],
)
def test_wrong_usage_is_one_line_with_the_remedy_and_exit_2(args: tuple[str, ...], words: str) -> None:
    result = run(*args, expect=2)
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert not result.stdout


def test_a_missing_object_is_one_line_and_exit_1(tmp_path: Path) -> None:
    result = run("inspect", tmp_path.as_uri(), "no-such-object", expect=1)
    assert result.stderr.count("\n") == 1
    assert "no-such-object" in result.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in run("--debug", "inspect", tmp_path.as_uri(), "no-such-object", expect=1).stderr


def test_inspect_shows_both_formats_with_the_same_messages(home: Path) -> None:
    seen = []
    for key in keys(home):
        rows = json_lines("inspect", home.as_uri(), key, "--messages", "--format", "jsonl")
        assert len(rows) == 50
        assert {row["tier"] for row in rows} == {"tiered"}
        assert {row["topic"] for row in rows} == {None}
        seen.append(rows)
    assert seen[0] == seen[1]
    blocks = json_lines("inspect", home.as_uri(), keys(home)[0], "--blocks", "--format", "jsonl")
    assert set(blocks[0]) == {
        "ledger_id", "first_entry_id", "last_entry_id", "entries", "offset", "length", "crc32c",
        "min_broker_time", "max_broker_time", "min_publish_time", "max_publish_time",
    }  # fmt: skip


def test_inspect_of_a_damaged_object_exits_1_and_names_the_position(home: Path, tmp_path: Path) -> None:
    key = next(key for key in keys(home) if "-ledger-" not in key)
    store, copy = open_store(home.as_uri()), open_store(tmp_path.as_uri())
    data = bytearray(store.get(key))
    data[-1] ^= 1
    copy.put(key, data)
    copy.put(f"{key}-index", bytes(store.get(f"{key}-index")))
    result = run("inspect", tmp_path.as_uri(), key, "--messages", "--format", "jsonl", expect=1)
    assert "entry 1:0" in result.stderr
    assert "CRC32C" in result.stderr


def test_doctor_passes_on_a_directory_and_leaves_nothing(tmp_path: Path) -> None:
    rows = json_lines("doctor", "--tier", tmp_path.as_uri(), "--json")
    assert {row["outcome"] for row in rows} <= {"ok", "skipped"}
    assert "ok" in {row["outcome"] for row in rows}
    assert list(open_store(tmp_path.as_uri()).list()) == []


def test_doctor_on_a_missing_directory_exits_1_with_a_remedy(tmp_path: Path) -> None:
    rows = run("doctor", "--tier", (tmp_path / "absent").as_uri(), "--json", expect=1).stdout.splitlines()
    assert any(json.loads(row)["cure"] for row in rows)
