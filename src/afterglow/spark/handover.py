"""Handing a task's result to the driver when that task ends, not when its job does.

Spark merges an accumulator's updates in the driver as each task succeeds, once per task however often it was tried, and
waits for the merge. So the merge here hands the update over and keeps nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pyspark.accumulators import AccumulatorParam

from afterglow.errors import AfterglowError
from afterglow.offload.task import failed, run_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.accumulators import Accumulator

    from afterglow.offload.task import PartResult, Task

    Landed: TypeAlias = tuple[int, int, PartResult]
    """A job's number, a task's place in it, and how that task ended."""

_log = logging.getLogger(__name__)

R = TypeVar("R")


class Handover(AccumulatorParam["tuple[R, ...]"]):
    """Adds up results in a worker, where a task adds few, and hands them over in the driver.

    Args:
        landed: Called in the driver with what a task added. Spark's scheduler waits for it.
    """

    def __init__(self, landed: Callable[[R], object] | None = None) -> None:
        self._landed = landed

    def __reduce__(self) -> tuple[type[Handover[R]], tuple[()]]:
        """What a worker gets knows nothing of the driver."""
        return (Handover, ())

    def zero(self, _value: tuple[R, ...]) -> tuple[R, ...]:
        """Nothing."""
        return ()

    def addInPlace(self, value1: tuple[R, ...], value2: tuple[R, ...]) -> tuple[R, ...]:  # noqa: N802 - PySpark's name
        """Join in a worker, hand over in the driver."""
        if self._landed is None:
            return (*value1, *value2)
        for result in value2:
            self._landed(result)
        return ()


class Work:
    """What a job does with each of its tasks, in a worker.

    Args:
        results: Where results go.
        job: The job's number.
    """

    def __init__(self, results: Accumulator[tuple[Landed, ...]], job: int) -> None:
        self._results = results
        self._job = job

    def __call__(self, placed: tuple[int, Task]) -> Landed:
        """Do one task. Nothing is raised: Spark would try four times in vain and then end the job for all its tasks."""
        place, task = placed
        try:
            result = run_task(task)
        except Exception as error:  # noqa: BLE001 - one bad task must not spoil the others
            _log.exception("%s failed in a way that was not expected", task.task_id)
            result = failed(task, AfterglowError(f"{task.task_id}: {type(error).__name__}: {error}"))
        landed = (self._job, place, result)
        self._results.add((landed,))
        return landed
