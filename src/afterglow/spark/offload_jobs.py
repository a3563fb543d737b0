"""Offload tasks as Spark jobs: descriptions travel through Spark, entries never.

Every submit becomes one job. Where it has many small tasks, Spark is given several as one, since each costs it some
milliseconds; what was done of them is then reported together. Jobs run side by side, each in a pool of its own: Spark
gives every job its share of the workers, so that none waits for another to end. At most ``max_jobs`` run at a time;
further ones queue. Memory is bounded by the workers: each does one task at a time, and a task holds one part.

Spark is started by the first job, on a thread, and stays until :meth:`SparkRunner.close`. Where its JVM has died, the
next job starts another.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from afterglow.errors import AfterglowError, MissingDependency
from afterglow.offload.task import failed
from afterglow.offload.task_dispatch import JobCounters
from afterglow.spark.master import is_local
from afterglow.spark.session import cancel_start, local_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from afterglow.offload.task import PartResult, Task
    from afterglow.offload.task_dispatch import JobCounts
    from afterglow.spark.result_channel import TaskResult

_log = logging.getLogger(__name__)

P = ParamSpec("P")

_DESCRIPTION_CHARACTERS: Final = 240
"""Of a job; Spark keeps descriptions for as long as it remembers the jobs."""


_GROUP_BYTES: Final = 32 << 20
_GROUP_TASKS: Final = 16
"""Of tasks that Spark runs as one: a tenth of a second of work, so that no other job waits for long."""


@dataclass(slots=True)
class _Job:
    number: int
    tasks: Sequence[Task]
    done: Callable[[Task, PartResult], None]
    begun_s: float = field(default_factory=time.monotonic)
    open: set[int] = field(init=False)
    """Places of tasks that nothing was reported of yet. Only the reporting thread touches it."""

    def __post_init__(self) -> None:
        self.open = set(range(len(self.tasks)))

    def report(self, place: int, result: PartResult) -> None:
        """Tell how a task ended, unless that was told before."""
        if place not in self.open:
            return
        self.open.remove(place)
        task = self.tasks[place]
        try:
            self.done(task, result)
        except Exception:  # noqa: BLE001 - a failure of whoever listens must not cost the other tasks' results
            _log.exception("the result of %s could not be taken", task.task_id)


@dataclass(frozen=True, slots=True)
class _Running:
    """A Spark that has been started."""

    context: Any
    work: Callable[[int], Callable[[tuple[int, Task]], TaskResult]]
    """Gives what a job of a number does with each of its tasks."""
    stack: ExitStack
    """Ends it."""


class SparkRunner:
    """A :class:`~afterglow.offload.task_dispatch.TaskRunner` on Spark. ``done`` is always called on the same thread.

    Args:
        master: Where tasks run. With one that is not local, tasks must say how they are read from afar.
        max_jobs: Jobs that may run at a time.
        properties: Of Spark, by their full names; they win over ours.

    Raises:
        ConfigError: The master is malformed.
    """

    def __init__(
        self, master: str = "local[*]", *, max_jobs: int = 4, properties: Mapping[str, str] | None = None
    ) -> None:
        is_local(master)
        self._master = master
        self._properties = dict(properties or {})
        self._numbers = itertools.count(1)
        self._threads = ThreadPoolExecutor(max_jobs, thread_name_prefix="offload-job")
        self._reports = ThreadPoolExecutor(1, thread_name_prefix="offload-report")
        self._jobs: dict[int, _Job] = {}
        self._counters = JobCounters()
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False

    def submit(self, tasks: Sequence[Task], done: Callable[[Task, PartResult], None]) -> None:
        """Run tasks as one job; see the protocol."""
        job = _Job(next(self._numbers), tuple(tasks), done)
        self._jobs[job.number] = job
        self._counters.begun()
        self._hand(self._threads, self._run, job)

    def counts(self) -> JobCounts:
        """How jobs went so far."""
        return self._counters.counts()

    def close(self) -> None:
        """Run no further task and end Spark with its workers; tasks under way end where they are, unreported."""
        self._closed = True
        cancel_start()  # whoever starts Spark holds the lock until it has started
        with self._lock:
            running = self._running
            if running is not None:
                for number in list(self._jobs):
                    with suppress(Exception):  # ends anyhow; cancelled jobs only end without complaints in the log
                        running.context.cancelJobGroup(_group(number))
        self._end_spark()
        self._threads.shutdown(cancel_futures=True)
        self._reports.shutdown(cancel_futures=True)

    def _run(self, job: _Job) -> None:
        """Run a job to its end, on a thread of its own."""
        landed: list[TaskResult] = []
        error: BaseException | None = None
        try:
            landed = self._collect(job)
        except BaseException as caught:  # noqa: BLE001 - whatever it was, every task must be heard of
            error = caught
        self._hand(self._reports, self._end, job, landed, error)

    def _collect(self, job: _Job) -> list[TaskResult]:
        running = self._spark()
        context = running.context
        # Properties of the thread, which is the same for other jobs later: all of them are set anew.
        context.setJobGroup(_group(job.number), describe(job.tasks))
        context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
        groups = group_count(job.tasks, context.defaultParallelism)
        try:
            placed = context.parallelize(list(enumerate(job.tasks)), groups)
            collected: list[TaskResult] = placed.map(running.work(job.number)).collect()
        except BaseException:
            self._forget_dead(running)
            raise
        return collected

    def _landed(self, result: TaskResult) -> None:
        """A task has ended. On a thread of Spark's, whose scheduler waits for this."""
        self._hand(self._reports, self._report, result)

    def _hand(self, pool: ThreadPoolExecutor, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            pool.submit(work, *args, **kwargs)
        except RuntimeError:  # the pool takes no more
            if not self._closed:
                raise

    def _report(self, result: TaskResult) -> None:
        number, place, outcome = result
        job = self._jobs.get(number)
        if job is not None and not self._closed:
            job.report(place, outcome)

    def _end(self, job: _Job, landed: list[TaskResult], error: BaseException | None) -> None:
        """A job has ended: report what was not reported yet."""
        del self._jobs[job.number]
        if self._closed:
            return
        for _, place, outcome in landed:
            job.report(place, outcome)
        self._counters.ended(time.monotonic() - job.begun_s, failed=bool(job.open))
        if not job.open:
            return
        reason = explain(error)
        _log.warning("offload job %s ended with %s tasks undone: %s", job.number, len(job.open), reason)
        for place in sorted(job.open):
            task = job.tasks[place]
            job.report(place, failed(task, reason if isinstance(reason, AfterglowError) else _undone(task, reason)))

    # --- Spark itself ---

    def _spark(self) -> _Running:
        """The running Spark; the first caller starts it and others wait.

        Raises:
            MissingDependency: PySpark or a Java is missing.
            ConfigError: The process runs a session of other settings.
        """
        with self._lock:
            if self._closed:
                raise AfterglowError("the server is shutting down")
            if self._running is None:
                with ExitStack() as stack:
                    context = stack.enter_context(local_session(self._master, **self._properties)).sparkContext
                    from afterglow.spark.result_channel import OffloadFunction, ResultChannel  # noqa: PLC0415 - import Spark

                    results = context.accumulator((), ResultChannel(self._landed))
                    self._running = _Running(context, partial(OffloadFunction, results), stack.pop_all())
            return self._running

    def _forget_dead(self, running: _Running) -> None:
        """Let go of a Spark that no longer answers, so that the next job starts another."""
        try:
            dead = running.context._jsc is None or running.context._jsc.sc().isStopped()  # noqa: SLF001 - not public
        except Exception:  # noqa: BLE001 - the JVM does not answer
            dead = True
        if dead:
            self._end_spark(running)

    def _end_spark(self, only: _Running | None = None) -> None:
        with self._lock:
            running = self._running
            if running is None or (only is not None and only is not running):
                return
            self._running = None
            try:
                running.stack.close()
            except Exception as error:  # noqa: BLE001 - it is gone either way
                _log.warning("Spark did not end cleanly: %s", _shortened(str(error), 500))


def group_count(tasks: Sequence[Task], workers: int) -> int:
    """Into how many groups of neighbours tasks are put: two for each worker at least, so that all have work to the end.

    Args:
        tasks: Of one job.
        workers: That Spark has.
    """
    by_size = -(-sum(task.size_bytes for task in tasks) // _GROUP_BYTES)
    by_count = -(-len(tasks) // _GROUP_TASKS)
    return min(len(tasks), max(2 * workers, by_size, by_count))


def describe(tasks: Sequence[Task]) -> str:
    """What a job does, for people who look at Spark: topics first, then objects, as far as there is room."""
    topics = ", ".join(dict.fromkeys(task.topic for task in tasks))
    objects = ", ".join(dict.fromkeys(task.key for task in tasks))
    half = _DESCRIPTION_CHARACTERS // 2
    return f"offload {_shortened(topics, half)}: {_shortened(objects, half)}"


def explain(error: BaseException | None) -> AfterglowError | str:
    """Why a job failed, for people."""
    if isinstance(error, AfterglowError):
        return error
    if "No module named 'afterglow" in str(error):
        return MissingDependency(
            "the Python of Spark's executors cannot import afterglow as it is here: install the same version where "
            "they run, or name a Python that has it by spark.pyspark.python, or ship one by spark.archives"
        )
    return _shortened(f"{type(error).__name__}: {error}", 500)


def _group(number: int) -> str:
    return f"offload-{number}"


def _undone(task: Task, reason: object) -> AfterglowError:
    return AfterglowError(f"{task.task_id} was not done, since its Spark job failed and must be tried again: {reason}")


def _shortened(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
