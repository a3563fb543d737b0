"""The seam to whatever runs tasks: Spark in an engine, a test by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from afterglow.offload.task import PartTask, run_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from afterglow.offload.task import OpenLedger, OpenStore, PartResult, Task


class TaskRunner(Protocol):
    """Runs tasks somewhere else, many at a time. Thread-safe."""

    def submit(self, tasks: Sequence[Task], done: Callable[[Task, PartResult], None]) -> None:
        """Run tasks as one job; returns at once.

        Args:
            tasks: At least one; :func:`run_task` does each of them.
            done: Called once per task, from any thread, as soon as that task has ended, also where the job failed as a
                whole. It must not block.
        """
        ...

    def close(self) -> None:
        """Run no further task. What is under way may go on; ``done`` need not be called for it any more."""
        ...


def run_task(task: Task, *, open_ledger: OpenLedger | None = None, open_store: OpenStore | None = None) -> PartResult:
    """Do a task of any kind in this process; see :func:`~afterglow.offload.task.run_part`."""
    if isinstance(task, PartTask):
        return run_part(task, open_ledger=open_ledger, open_store=open_store)
    from afterglow.offload.driver_tasks import run_driver_task  # noqa: PLC0415 - most tasks need no driver

    return run_driver_task(task, open_ledger=open_ledger)
