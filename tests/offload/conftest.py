"""Fixtures of the offload tests: worlds that are verified at the end of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.offloads import OffloadWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def new_world() -> Iterator[Callable[..., OffloadWorld]]:
    """Makes worlds, and has all of them checked in the end."""
    worlds: list[OffloadWorld] = []

    def make(*args: object, **kwargs: object) -> OffloadWorld:
        worlds.append(OffloadWorld(*args, **kwargs))  # type: ignore[arg-type]  # as the test gives them
        return worlds[-1]

    yield make
    for world in worlds:
        world.check()
