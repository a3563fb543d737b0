"""The page on reliability names mutations that exist, with the tests that kill them."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d) \|.*\| `([a-z0-9-]+)` \| `(tests/[^`]+)` \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str]]:
    return ROW.findall((ROOT / "docs" / "reliability.md").read_text())


def mutants() -> dict[str, dict[str, str]]:
    tables = (tomllib.loads(page.read_text())["mutant"] for page in sorted((ROOT / "tests" / "mutants").glob("*.toml")))
    return {row["name"]: row for table in tables for row in table}


def test_every_promise_has_a_mutation_and_the_test_that_kills_it() -> None:
    assert [number for number, _, _ in rows()] == list("123456789")
    table = mutants()
    for number, name, test in rows():
        assert table[name]["promise"].startswith(f"{number}:"), name
        assert table[name]["test"].partition("[")[0] == test


def test_every_named_test_exists() -> None:
    for _, _, test in rows():
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
