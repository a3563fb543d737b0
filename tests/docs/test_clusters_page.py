"""The program of docs/clusters.md runs."""

from __future__ import annotations

from pathlib import Path

from tests.support.pages import Page, run_python
from tests.support.sample import sample_objects

from afterglow.storage import open_store

PAGE = Page.read(Path(__file__).parents[2] / "docs" / "clusters.md")


def test_the_program_that_reads_one_object(tmp_path: Path) -> None:
    (program,) = PAGE.programs
    key, _ = sample_objects(open_store(tmp_path.as_uri()), 30, 1)
    program = program.replace("file:///var/tier", tmp_path.as_uri())
    program = program.replace("457d7db4-cd64-462a-8bf4-884af839cf0a-ledger-4", key)
    assert run_python("-c", program) == "30 messages all readable\n"
