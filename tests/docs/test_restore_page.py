"""docs/restore.md: what its commands restore after the hot log, or the whole home, is deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message
from tests.support.pages import Page

from afterglow.cli.app import main

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Page.read(Path(__file__).parents[2] / "docs" / "restore.md")
BACKUP, READ, INSPECT = PAGE.commands
VALUES = [b"first", b"second", b"third"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str]]:
    """Runs a command of the page; returns its exit code and output."""

    def run(command: str) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(command.split()[1:])
        return int(ended.value.code or 0), capsys.readouterr().out

    return run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a server that has offloaded two of three ledgers."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    with ServerHome(home) as server:
        ledgers = server.write("orders", *([message(value)] * 5 for value in VALUES))
        for ledger_id in ledgers[:2]:
            server.offload("orders", ledger_id)
    return home


def test_offloaded_data_is_read_from_a_copy_of_the_metadata(home: Path, run: Callable[[str], tuple[int, str]]) -> None:
    program = BACKUP.partition(" -c ")[2].strip('"')
    exec(program, {})
    shutil.rmtree(home / "hot")
    (home / "metadata.db").unlink()
    (home.parent / "metadata-copy.db").rename(home / "metadata.db")

    assert run(READ)[0] == 0
    assert pq.read_table(home.parent / "orders.parquet")["value"].to_pylist() == [VALUES[0]] * 5 + [VALUES[1]] * 5


def test_objects_are_read_without_any_metadata(home: Path, run: Callable[[str], tuple[int, str]]) -> None:
    tier = home / "tier"
    shutil.rmtree(home / "hot")
    (home / "metadata.db").unlink()
    keys = sorted((path.name for path in tier.glob("*-ledger-*") if path.name[-1].isdigit()), key=lambda key: key[-1])
    values = []
    for key in keys:
        code, lines = run(INSPECT.replace("file:///mnt/tier", tier.as_uri()).replace("KEY", key))
        assert code == 0
        values += [json.loads(line)["value_base64"] for line in lines.splitlines()]
    assert len(keys) == 2
    assert len(values) == 10
