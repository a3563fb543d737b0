"""SECURITY.md: every line names tests, and these exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_line_of_a_table_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.endswith("| test |")]
    assert len(rows) > 30
    assert [row for row in rows if not TEST.search(row.rpartition(" | ")[2])] == []


def test_every_named_test_exists() -> None:
    named = TEST.findall(PAGE)
    assert len(named) == PAGE.count("::")
    assert [f"{file}::{name}" for file, name in named if name not in functions(file)] == []


def test_the_readme_and_the_page_on_security_lead_to_it() -> None:
    assert "](SECURITY.md)" in (ROOT / "README.md").read_text()
    assert "](../SECURITY.md)" in (ROOT / "docs" / "security.md").read_text()
