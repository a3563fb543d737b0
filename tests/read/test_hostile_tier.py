"""Attacks on readers with write access to a tier, as SECURITY.md describes them."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.homes import ServerHome
from tests.support.ledgers import message

import afterglow

if TYPE_CHECKING:
    from collections.abc import Iterator

FROM_BYTES = ("format", "hot", "ledger", "metadata", "read", "storage", "verify")
"""Packages that read what is stored."""
RUNS_CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "eval", "exec", "compile"}


def home(path: Path, value: bytes) -> Path:
    """A home with one ledger in the tier alone; returns its data object."""
    path.mkdir()
    with ServerHome(path) as server:
        (ledger_id, _) = server.write("t", [message(value)], [message(b"open")])
        key = server.offload("t", ledger_id)
        server.free("t", ledger_id)
    return path / "tier" / key


def test_an_object_that_is_replaced_with_its_index_by_a_whole_one_is_served(tmp_path: Path) -> None:
    ours, theirs = home(tmp_path / "ours", b"true"), home(tmp_path / "theirs", b"fake")
    assert ours.name.partition("-ledger-")[2] == theirs.name.partition("-ledger-")[2]
    for suffix in ("", "-index"):
        shutil.copy(f"{theirs}{suffix}", f"{ours}{suffix}")
    with afterglow.connect(str(tmp_path / "ours")) as source:
        rows = source.topic("t").scan(columns=["value", "tier"]).read_all().to_pylist()
    assert rows == [{"value": b"fake", "tier": "tiered"}, {"value": b"open", "tier": "hot"}]


def names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def test_nothing_that_reads_stored_bytes_can_run_them() -> None:
    root = Path(afterglow.__file__).parent
    files = [file for package in FROM_BYTES for file in (root / package).rglob("*.py") if "_pb2" not in file.name]
    assert len(files) > 100
    assert [str(file) for file in files if RUNS_CODE & set(names(ast.parse(file.read_text())))] == []
