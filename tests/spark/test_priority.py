"""Priority of Spark's processes: real processes for the system's part, numbers for the judgement."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from afterglow.spark.priority import PriorityKeeper, ProcessTree, Starvation

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_idle_policy = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no idle policy")

FAMILY = """
import subprocess, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
child = [sys.executable, "-c", "print(input())"]
first = subprocess.Popen(child, stdin=subprocess.PIPE)
print(first.pid, flush=True)
input()
later = subprocess.Popen(child, stdin=subprocess.PIPE)
print(later.pid, flush=True)
input()
"""


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    """A process with two threads and a child, which starts another child when it gets a line."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def next_child(family: subprocess.Popen[str]) -> int:
    assert family.stdout is not None
    return int(family.stdout.readline())


def policies(*pids: int) -> set[int]:
    """Policies of all threads of processes."""
    return {os.sched_getscheduler(int(each.name)) for pid in pids for each in Path(f"/proc/{pid}/task").iterdir()}


@needs_idle_policy
def test_all_threads_and_children_are_lowered_and_later_children_inherit_it(family: subprocess.Popen[str]) -> None:
    first = next_child(family)

    ProcessTree(family.pid).lower()

    assert family.stdin is not None
    family.stdin.write("\n")
    family.stdin.flush()
    assert policies(family.pid, first, next_child(family)) == {os.SCHED_IDLE}


@needs_idle_policy
def test_restoring_gives_all_processes_normal_priority_or_reports_that_the_system_refuses(
    family: subprocess.Popen[str],
) -> None:
    first = next_child(family)
    tree = ProcessTree(family.pid)
    tree.lower()

    restored = tree.restore()

    assert policies(family.pid, first) == {os.SCHED_OTHER if restored else os.SCHED_IDLE}


@needs_idle_policy
def test_processor_time_and_runnable_threads_are_those_of_the_tree() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        tree = ProcessTree(busy.pid)
        while tree.cpu_seconds() < 0.05:
            assert busy.poll() is None
        assert tree.is_runnable()
    finally:
        busy.kill()
        busy.wait()
    assert not tree.is_runnable()


def test_a_process_that_wants_a_processor_and_gets_next_to_nothing_starves() -> None:
    starvation = Starvation()
    seen = [starvation.is_seen(second, second * 0.05, runnable=True) for second in range(12)]
    assert seen == [False] * 10 + [True, False]


@pytest.mark.parametrize(
    ("share", "idle_at"),
    [
        pytest.param(0.2, -1, id="it gets a fifth of a core"),
        pytest.param(0.0, 5, id="it waited for something else in between"),
    ],
)
def test_a_process_with_a_share_or_without_a_runnable_thread_does_not_starve(share: float, idle_at: int) -> None:
    starvation = Starvation()
    seen = [starvation.is_seen(second, second * share, runnable=second != idle_at) for second in range(14)]
    assert True not in seen


class Machine:
    """A busy machine with one Spark on it, and its clock."""

    def __init__(self, *, privileged: bool) -> None:
        self.privileged = privileged
        self.now_s = 0.0
        self.idle = False
        self.restarts = 0
        self.keeper = PriorityKeeper(self.restart, lambda: self.now_s)
        self.keeper.begin(self)

    def restart(self) -> None:
        self.restarts += 1
        self.idle = False

    def lower(self) -> None:
        self.idle = True

    def restore(self) -> bool:
        if self.privileged:
            self.idle = False
        return self.privileged

    def cpu_seconds(self) -> float:
        return 0.0

    def is_runnable(self) -> bool:
        return True

    def run(self, seconds: int, *, busy: bool) -> bool:
        """Let time pass; returns whether Spark has idle priority then."""
        for _ in range(seconds):
            self.now_s += 1
            self.keeper.tick(busy=busy)
        return self.idle


def test_a_starving_spark_gets_normal_priority_for_ten_minutes() -> None:
    machine = Machine(privileged=True)
    assert machine.run(10, busy=True)
    assert not machine.run(1, busy=True)
    assert not machine.run(599, busy=False)
    assert machine.run(1, busy=False)
    assert machine.restarts == 0


def test_without_the_privilege_a_starving_spark_is_started_anew_at_normal_priority() -> None:
    machine = Machine(privileged=False)

    machine.run(11, busy=True)
    assert (machine.restarts, machine.idle) == (1, False)
    machine.keeper.begin(machine)
    machine.run(300, busy=True)

    assert (machine.restarts, machine.idle) == (1, False)


def test_a_spark_without_work_does_not_starve() -> None:
    machine = Machine(privileged=True)
    assert machine.run(60, busy=False)


def test_a_spark_that_ends_has_normal_priority_and_is_not_lowered_again() -> None:
    machine = Machine(privileged=True)
    assert machine.keeper.end()
    machine.run(60, busy=False)
    assert not machine.idle
    assert not Machine(privileged=False).keeper.end()


def test_a_system_that_refuses_to_lower_priorities_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(Machine):
        def lower(self) -> None:
            raise PermissionError(1, "not permitted")

    machine = Refusing(privileged=True)
    machine.run(30, busy=False)

    assert not machine.idle
    assert [record.message for record in caplog.records] == [
        "Spark keeps its priority, since the system does not allow to lower it: [Errno 1] not permitted"
    ]
