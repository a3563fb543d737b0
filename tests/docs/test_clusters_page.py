"""The programs of docs/clusters.md run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.homes import ServerHome
from tests.support.ledgers import message
from tests.support.pages import Page, run_python
from tests.support.sample import sample_objects

from afterglow.storage import open_store

if TYPE_CHECKING:
    import pytest

PAGE = Page.read(Path(__file__).parents[2] / "docs" / "clusters.md")


def test_the_program_that_reads_one_object(tmp_path: Path) -> None:
    (program,) = PAGE.part("Single objects").programs
    key, _ = sample_objects(open_store(tmp_path.as_uri()), 30, 1)
    program = program.replace("file:///var/tier", tmp_path.as_uri())
    program = program.replace("457d7db4-cd64-462a-8bf4-884af839cf0a-ledger-4", key)
    assert run_python("-c", program) == "30 messages all readable\n"


def test_the_program_and_the_command_that_read_a_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERGLOW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "home").mkdir()
    with ServerHome(tmp_path / "home") as home:
        (ledger,) = home.write("orders", [message(b"%d" % number) for number in range(12)])
        home.offload_segment("orders", (ledger, 0, 11))
        tier = (home.path / "tier").as_uri()
    part = PAGE.part("A tier as the source")
    (program,) = part.programs
    out = run_python("-c", program.replace("file:///var/tier", tier))
    assert out == "('persistent://public/default/orders',)\n12 messages in the tier\n"
    (command,) = [each.text for each in part.listings() if each.language == "bash"]
    assert command == "afterglow read s3://bucket/prefix orders --limit 10\n"
    shown = run_python("-m", *command.replace("s3://bucket/prefix", tier).split()).splitlines()
    assert len(shown) == 11
    assert shown[0].split()[0] == "position"
