"""What tests of offload share: the checker, run at the end of each over all that the test has made."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from afterglow.testing.offloads import INSTANCE, OffloadWorld
from afterglow.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.verify import Finding


def findings(world: OffloadWorld) -> list[Finding]:
    """What the checker finds in a world, with no grace for anything."""
    return list(
        verify(
            world.metadata,
            lambda _place: world.tier,
            tiers=[world.tier],
            instance=INSTANCE,
            now_ms=int(time.time() * 1000) + 1000,  # by the store's clock
            grace_ms=0,
            deep=True,
            hot=lambda ledger_id: ledger_id in world.hot.ledgers(),
        )
    )


def check(world: OffloadWorld) -> None:
    """Insist that the checker finds no fault."""
    assert [str(found) for found in findings(world) if found.kind.is_fault] == []


@pytest.fixture
def new_world() -> Iterator[Callable[..., OffloadWorld]]:
    """Makes worlds, and checks all of them in the end."""
    worlds: list[OffloadWorld] = []

    def make(*args: object, **kwargs: object) -> OffloadWorld:
        worlds.append(OffloadWorld(*args, **kwargs))  # type: ignore[arg-type]  # as the test gives them
        return worlds[-1]

    yield make
    for world in worlds:
        check(world)
