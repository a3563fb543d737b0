from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.support.cache import made_once
from tests.support.go_tools import go_program
from tests.support.maven import maven_class_path

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AFTERGLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_of_many_who_want_it_one_makes_it(cache: Path) -> None:
    made: list[Path] = []

    def make(scratch: Path) -> Path:
        made.append(scratch)
        (scratch / "thing").write_text("content")
        return scratch / "thing"

    with ThreadPoolExecutor(8) as pool:
        found = {future.result() for future in [pool.submit(made_once, "bin/thing-1", make) for _ in range(8)]}
    assert found == {cache / "bin" / "thing-1"}
    assert len(made) == 1
    assert [path.name for path in (cache / "bin").iterdir()] == ["thing-1"]


def test_what_cannot_be_made_leaves_nothing_behind_and_is_tried_again(cache: Path) -> None:
    def fail(scratch: Path) -> Path:
        (scratch / "half").write_text("a thing")
        raise OSError("the network is gone")

    for _ in range(2):
        with pytest.raises(OSError, match="the network is gone"):
            made_once("thing", fail)
        assert list(cache.iterdir()) == []


def test_without_the_program_that_makes_it_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="install go"):
        go_program("perf", "example.org/perf", "v1.0.0")
    with pytest.raises(MissingDependency, match="install mvn"):
        maven_class_path("thing-1", [("org.example", "thing", "1")])


def test_a_build_that_fails_is_reported_with_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\necho "$2 is not a module" >&2\nexit 1\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(MissingDependency, match=r"example\.org/perf@v1\.0\.0 is not a module"):
        go_program("perf", "example.org/perf", "v1.0.0")
