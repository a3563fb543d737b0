from __future__ import annotations

import ast
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.support.sim import PromiseBroken, run_seed
from tests.support.sim.__main__ import main
from tests.support.sim.actor import Actor
from tests.support.sim.model import TopicModel
from tests.support.sim.run import SeedResult, try_seeds
from tests.support.sim.schedule import Simulation
from tests.support.sim.steps import INTERRUPTIONS, STEPS, WITHOUT_EFFECT

from afterglow import ledger, offload
from afterglow.format.position import Position

FOUND = (
    (3000337, 1000),
    (91000437, 1000),
    (620001795, 1000),
    (700003332, 1000),
    (730000780, 3000),
    (810001631, 1000),
    (910007159, 1000),
    (1010007535, 1000),
)
"""Broke a promise at so many steps. Any change may shift what they do: their causes have tests of their own,
test_an_upload_that_the_store_creates_after_its_topic_was_deleted_is_aborted,
test_uploads_lost_together_while_metadata_is_unavailable_cost_no_other_segment_its_results,
test_a_committed_segment_whose_record_stays_for_a_while_is_not_written_again,
test_a_record_whose_deletion_had_an_unknown_outcome_is_not_taken_for_another_owners_work,
test_disabling_streaming_of_an_idle_topic_empties_its_buffer,
test_a_task_that_runs_long_after_its_attempt_was_replaced_writes_nothing,
test_a_task_that_runs_long_after_its_small_segment_was_given_up_writes_nothing and
test_a_list_that_names_a_swept_ledger_only_later_is_opened_without_it."""
SEEDS = int(os.environ.get("AFTERGLOW_SIM_SEEDS", str(2 * len(INTERRUPTIONS))))
"""With those that some steps need besides, about 300."""
MOST_ROUNDS = 60


@pytest.mark.parametrize("at", range(len(INTERRUPTIONS)), ids=lambda at: INTERRUPTIONS[at].name)
def test_promises_hold_through_faults_and_crashes_before_and_after_every_step(at: int) -> None:
    """The seeds of each step, and further ones until one of them was interrupted there."""
    interrupted: Counter[str] = Counter()
    for seed in range(at, MOST_ROUNDS * len(INTERRUPTIONS), len(INTERRUPTIONS)):
        if seed >= SEEDS and interrupted[INTERRUPTIONS[at].name]:
            return
        interrupted.update(run_seed(seed).world.interrupted)
    raise AssertionError(f"no seed has crashed {INTERRUPTIONS[at].name}")


def test_the_simulator_knows_every_numbered_step_of_the_commit_paths() -> None:
    numbered = set()
    for path in (*Path(offload.__file__).parent.rglob("*.py"), *Path(ledger.__file__).parent.rglob("*.py")):
        module = ".".join(path.relative_to(Path(offload.__file__).parents[1]).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.FunctionDef):
                where = module if isinstance(node, ast.Module) else f"{module}.{node.name}"
                numbers = re.findall(r"^(\d+)\. ", ast.get_docstring(node) or "", re.MULTILINE)
                numbered |= {(where, int(number)) for number in numbers}
    known = {(step.where, step.number) for step in STEPS}
    assert not known & WITHOUT_EFFECT.keys()
    assert known | WITHOUT_EFFECT.keys() == numbered


@pytest.mark.parametrize(("seed", "steps"), FOUND)
def test_a_seed_that_broke_a_promise_breaks_none_any_more(seed: int, steps: int) -> None:
    run_seed(seed, steps)


def run_seeds(count: int) -> None:
    for seed in range(count):
        run_seed(seed)


def test_only_a_replaced_reader_may_find_the_entries_of_an_earlier_life() -> None:
    model = TopicModel("public/default/persistent/t")
    model.send(b"earlier")
    model.created()
    model.send(b"later")
    earlier, later = (Position(1, 0), b"earlier"), (Position(2, 0), b"later")
    assert model.wrong_entries([earlier], current=False) == []
    assert len(model.wrong_entries([earlier], current=True)) == 1
    assert len(model.wrong_entries([earlier, later], current=False)) == 1  # no process knows both lives
    assert len(model.wrong_entries([(Position(1, 0), b"never")], current=False)) == 1


def test_no_action_interrupts_one_of_the_same_process() -> None:
    world = Simulation(0).world
    first, second = world.owner, Simulation(1).world.owner
    world.zombies.extend([first, second])
    world.owner = Simulation(2).world.owner
    actor = Actor(world)
    assert {actor.process() for _ in range(100)} == {first, second, world.owner}
    world.actor = first
    assert {actor.process() for _ in range(100)} == {second, world.owner}


def test_one_seed_is_one_schedule() -> None:
    assert run_seed(3).world.trace == run_seed(3).world.trace
    assert run_seed(3).world.trace != run_seed(4).world.trace


def test_a_seed_that_fails_prints_its_trace_and_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from afterglow.offload.pending_deletes import PendingDeletes

    monkeypatch.setattr(PendingDeletes, "record", lambda *_: None)
    with pytest.raises(PromiseBroken) as raised:
        run_seeds(100)
    outcome = str(raised.value)
    assert f"python -m tests.support.sim --seed {raised.value.seed} --steps 200" in outcome
    assert "append" in outcome


def test_of_many_seeds_the_first_that_fails_is_printed_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--seed", "3", "--count", "2", "--steps", "20"]) == 0
    assert "none failed" in capsys.readouterr().out
    monkeypatch.setattr("tests.support.sim.promises.check", lambda _world: ["nothing is well"])
    assert main(["--seed", "3", "--count", "2", "--steps", "20"]) == 1
    outcome = capsys.readouterr().out
    assert "nothing is well" in outcome
    assert "python -m tests.support.sim --seed 3 --steps 20\n" in outcome
    assert "--seed 4" not in outcome, "the first one ends it"
    assert main(["--seed", "3", "--count", "2", "--steps", "20", "--go-on"]) == 1
    assert "--seed 4" in capsys.readouterr().out


def test_an_error_of_any_kind_is_a_failure_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_world: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tests.support.sim.promises.come_to_rest", fail)
    (result,) = try_seeds([3], 5, jobs=1)
    assert "ZeroDivisionError" in result.problems[0]


def even_fails(seed: int, steps: int) -> SeedResult:
    return SeedResult(seed, () if seed % 2 else (f"even, {steps} steps",), 0.0)


def test_several_processes_run_each_seed_once() -> None:
    results = sorted(try_seeds(range(5, 11), 7, 2, even_fails), key=lambda result: result.seed)
    assert [result.seed for result in results] == [5, 6, 7, 8, 9, 10]
    assert [bool(result.problems) for result in results] == [False, True] * 3
