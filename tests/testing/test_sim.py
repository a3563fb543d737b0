from __future__ import annotations

import os

import pytest

from afterglow.testing.sim import PromiseBroken, run_seed

SEEDS = int(os.environ.get("AFTERGLOW_SIM_SEEDS", "300"))
CHUNK = 20


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_promises_hold_through_faults_crashes_and_two_owners(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        run_seed(seed)


def run_seeds(count: int) -> None:
    for seed in range(count):
        run_seed(seed)


def test_one_seed_is_one_schedule() -> None:
    assert run_seed(3).world.trace == run_seed(3).world.trace
    assert run_seed(3).world.trace != run_seed(4).world.trace


def test_a_seed_that_fails_prints_its_trace_and_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from afterglow.offload.deletion import Deletions

    monkeypatch.setattr(Deletions, "record", lambda *_: None)
    with pytest.raises(PromiseBroken) as raised:
        run_seeds(100)
    told = str(raised.value)
    assert f"python -m afterglow.testing.sim --seed {raised.value.seed} --steps 200" in told
    assert "append" in told
