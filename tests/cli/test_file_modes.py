"""Modes of the files that ``afterglow serve`` creates."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pulsar
import pytest
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """What most systems give their users; a child inherits it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(home: Path) -> dict[str, int]:
    return {
        str(path.relative_to(home.parent)): stat.S_IMODE(path.lstat().st_mode)
        for path in (home, *home.rglob("*"))
        if not path.is_socket()
    }


def test_a_home_and_all_in_it_is_private_to_its_user(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as served:
        client = pulsar.Client(served.service_url)
        client.subscribe("t", "s")
        client.create_producer("t").send(b"x")
        client.close()
        assert served.stop() == 0
        assert not [line for line in served.lines if "other users" in line]
    found = modes(home)
    assert len(found) > 5
    assert {name: f"{mode:o}" for name, mode in found.items() if mode & 0o077} == {}


def test_a_home_that_others_can_access_is_left_unchanged_with_a_warning(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    with serving(home) as served:
        (line,) = [line for line in served.lines if "other users" in line]
        assert line.endswith(f"{home} has mode 0755; run chmod -R go-rwx {home}")
    assert stat.S_IMODE(home.stat().st_mode) == 0o755
