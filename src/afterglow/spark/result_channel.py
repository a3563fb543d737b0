"""Results of tasks, delivered to the driver when each task ends rather than when its job does.

Spark merges the updates of an accumulator in the driver as each task succeeds, once per task however many attempts it
took, and its scheduler waits for the merge. The merge here delivers the update and keeps nothing.
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

    TaskResult: TypeAlias = tuple[int, int, PartResult]
    """Number of the job, index of the task in it, result of the task."""

_log = logging.getLogger(__name__)

R = TypeVar("R")


class ResultChannel(AccumulatorParam["tuple[R, ...]"]):
    """Collects results in a worker, where a task adds few, and delivers them in the driver.

    Args:
        on_result: Called in the driver with each result. Spark's scheduler waits for it.
    """

    def __init__(self, on_result: Callable[[R], object] | None = None) -> None:
        self._on_result = on_result

    def __reduce__(self) -> tuple[type[ResultChannel[R]], tuple[()]]:
        """Pickle for workers, which have no callback."""
        return (ResultChannel, ())

    def zero(self, _value: tuple[R, ...]) -> tuple[R, ...]:
        """No results."""
        return ()

    def addInPlace(self, value1: tuple[R, ...], value2: tuple[R, ...]) -> tuple[R, ...]:  # noqa: N802 - PySpark's name
        """Concatenate in a worker, deliver in the driver."""
        if self._on_result is None:
            return (*value1, *value2)
        for result in value2:
            self._on_result(result)
        return ()


def run_in_job(results: Accumulator[tuple[TaskResult, ...]], job: int, indexed: tuple[int, Task]) -> TaskResult:
    """Run one task of a job, in a worker.

    It raises nothing: Spark would retry in vain and then fail the job with all its tasks.

    Args:
        results: Delivers the result.
        job: The job's number.
        indexed: The task, with its index in the job.
    """
    index, task = indexed
    try:
        result = run_task(task)
    except Exception as error:  # noqa: BLE001 - one failed task must not fail the others
        _log.exception("%s failed with an unexpected error", task.task_id)
        result = failed(task, AfterglowError(f"{task.task_id}: {type(error).__name__}: {error}"))
    outcome = (job, index, result)
    results.add((outcome,))
    return outcome
