"""Offload tasks as Spark jobs: task descriptions travel through Spark, entries never do.

Every submit becomes one job. Many small tasks of a job share a Spark task, since each of those costs some milliseconds;
their results are then reported together. Jobs run side by side, each in a scheduler pool of its own, so that Spark
gives every job its share of the workers and none waits for another to end. At most ``max_jobs`` run at a time; further
ones queue. Memory is bounded by the workers: each runs one task at a time, and a task holds one part.

:meth:`SparkRunner.prepare` or the first job starts Spark, on a thread, and it runs until :meth:`SparkRunner.close`. If
its JVM has died, the next job starts another.
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
from afterglow.spark.jvm import is_stopped, kill_soon
from afterglow.spark.master import is_local
from afterglow.spark.priority import INTERVAL_S, PriorityKeeper, ProcessTree
from afterglow.spark.session import abort, cancel_start, local_session, own_jvm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from afterglow.offload.task import PartResult, Task
    from afterglow.offload.task_dispatch import JobCounts
    from afterglow.spark.result_channel import TaskResult

_log = logging.getLogger(__name__)

P = ParamSpec("P")

_DESCRIPTION_CHARACTERS: Final = 240
"""Of a job; Spark keeps descriptions for as long as it keeps the jobs."""
_GROUP_BYTES: Final = 32 << 20
_GROUP_TASKS: Final = 16
"""Tasks that share a Spark task: a tenth of a second of work, so that no other job waits for long."""
_END_S: Final = 5.0
"""Wait for a Spark that must end at idle priority, on a machine that may be busy."""


@dataclass(slots=True)
class _OffloadJob:
    number: int
    tasks: Sequence[Task]
    done: Callable[[Task, PartResult], None]
    unreported: set[int]
    """Indexes of tasks without a reported result. Only the reporting thread uses it."""
    begun_s: float = field(default_factory=time.monotonic)

    def report(self, index: int, result: PartResult) -> None:
        """Report the result of a task, unless it was reported before."""
        if index not in self.unreported:
            return
        self.unreported.remove(index)
        task = self.tasks[index]
        try:
            self.done(task, result)
        except Exception:  # noqa: BLE001 - a failing callback must not lose the results of other tasks
            _log.exception("the callback for the result of %s failed", task.task_id)


@dataclass(frozen=True, slots=True)
class _RunningSpark:
    context: Any
    run: Callable[[int, tuple[int, Task]], TaskResult]
    """Runs a task of a job, given its number, in a worker."""
    stack: ExitStack
    """Ends Spark when it is closed."""
    ended: threading.Event
    """Set when Spark is about to end."""


class SparkRunner:
    """A :class:`~afterglow.offload.task_dispatch.TaskRunner` on Spark. ``done`` is always called on the same thread.

    Args:
        master: Spark's master. If it is not local, tasks must describe how remote workers read their entries.
        max_jobs: Jobs that may run at a time.
        properties: Settings of Spark by their full names; they override ours.
        log_file: File that gets what Spark prints; see :func:`~afterglow.spark.session.local_session`.
        idle_priority: Whether a Spark on this machine runs at idle priority; see :mod:`afterglow.spark.priority`.

    Raises:
        ConfigError: The master is malformed.
    """

    def __init__(
        self,
        master: str = "local[*]",
        *,
        max_jobs: int = 4,
        properties: Mapping[str, str] | None = None,
        log_file: Path | None = None,
        idle_priority: bool = False,
    ) -> None:
        self._priority = PriorityKeeper(restart=abort) if is_local(master) and idle_priority else None
        self._master = master
        self._properties = dict(properties or {})
        self._log_file = log_file
        self._numbers = itertools.count(1)
        self._threads = ThreadPoolExecutor(max_jobs, thread_name_prefix="offload-job")
        self._reports = ThreadPoolExecutor(1, thread_name_prefix="offload-report")
        self._jobs: dict[int, _OffloadJob] = {}
        self._counters = JobCounters()
        self._lock = threading.Lock()
        self._running: _RunningSpark | None = None
        self._prepared = False
        self._preparing = False
        self._closed = False

    def prepare(self) -> None:
        """Start Spark and its Python workers in the background; see the protocol."""
        if self._prepared:
            return
        self._prepared = True
        self._submit_to(self._threads, self._prepare)

    def submit(self, tasks: Sequence[Task], done: Callable[[Task, PartResult], None]) -> None:
        """Run tasks as one job; see the protocol."""
        job = _OffloadJob(next(self._numbers), tuple(tasks), done, set(range(len(tasks))))
        self._prepared = True
        self._jobs[job.number] = job
        self._counters.begun()
        self._submit_to(self._threads, self._run, job)

    def counts(self) -> JobCounts:
        """Counts of jobs so far."""
        return self._counters.counts()

    def close(self) -> None:
        """Run no further task and end Spark with its workers; running tasks are killed and not reported."""
        self._closed = True
        cancel_start()  # the thread that starts Spark holds the lock until it has started
        with self._lock:
            running = self._running
            if running is not None:
                self._limit_end()
                for number in list(self._jobs):
                    with suppress(Exception):  # Spark ends anyway; a cancelled job only logs less
                        running.context.cancelJobGroup(_job_group(number))
        self._end_spark()
        self._threads.shutdown(cancel_futures=True)
        self._reports.shutdown(cancel_futures=True)

    def _prepare(self) -> None:
        """Start Spark, and run a job without work in every worker: it starts them and compiles what any job runs."""
        try:
            context = self._spark().context
            context.setJobGroup("prepare", "start Python workers")
            workers = context.defaultParallelism
            self._preparing = True
            context.parallelize(range(workers), workers).foreach(start_worker)
        except Exception as error:  # noqa: BLE001 - of any kind: the first job reports it to its tasks
            if not self._closed:
                _log.warning("Spark did not start ahead of the first offload; that one tries again: %s", explain(error))
        finally:
            self._preparing = False

    def _run(self, job: _OffloadJob) -> None:
        """Run a job to its end, on a thread of the pool."""
        results: list[TaskResult] = []
        error: BaseException | None = None
        try:
            results = self._collect(job)
        except BaseException as caught:  # noqa: BLE001 - whatever it was, every task must be reported
            error = caught
        self._submit_to(self._reports, self._end, job, results, error)

    def _collect(self, job: _OffloadJob) -> list[TaskResult]:
        running = self._spark()
        context = running.context
        # Spark keeps these per thread, and later jobs run on the same thread: all of them are set anew.
        context.setJobGroup(_job_group(job.number), describe(job.tasks))
        context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
        groups = group_count(job.tasks, context.defaultParallelism)
        try:
            indexed = context.parallelize(list(enumerate(job.tasks)), groups)
            collected: list[TaskResult] = indexed.map(partial(running.run, job.number)).collect()
        except BaseException:
            if is_stopped(running.context):
                self._end_spark(running)  # the next job starts another
            raise
        return collected

    def _on_result(self, result: TaskResult) -> None:
        """Take the result of a task, on a thread of Spark's, whose scheduler waits for this."""
        self._submit_to(self._reports, self._report, result)

    def _submit_to(self, pool: ThreadPoolExecutor, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            pool.submit(work, *args, **kwargs)
        except RuntimeError:  # the pool is shut down
            if not self._closed:
                raise

    def _report(self, result: TaskResult) -> None:
        number, index, outcome = result
        job = self._jobs.get(number)
        if job is not None and not self._closed:
            job.report(index, outcome)

    def _end(self, job: _OffloadJob, results: list[TaskResult], error: BaseException | None) -> None:
        """Report the tasks of a job that has ended, as far as they are not reported yet."""
        del self._jobs[job.number]
        if self._closed:
            return
        for _, index, outcome in results:
            job.report(index, outcome)
        self._counters.ended(time.monotonic() - job.begun_s, failed=bool(job.unreported))
        if not job.unreported:
            return
        reason = explain(error)
        _log.warning("offload job %s failed with %s tasks undone: %s", job.number, len(job.unreported), reason)
        for index in sorted(job.unreported):
            task = job.tasks[index]
            cause = AfterglowError(f"{task.task_id} was not done, since its Spark job failed; retry it: {reason}")
            job.report(index, failed(task, reason if isinstance(reason, AfterglowError) else cause))

    # --- Spark itself ---

    def _spark(self) -> _RunningSpark:
        """The running Spark; the first caller starts it and others wait.

        Raises:
            MissingDependency: PySpark or a Java is missing.
            ConfigError: The process runs a session with other settings.
        """
        with self._lock:
            if self._closed:
                raise AfterglowError("the server is shutting down")
            if self._running is None:
                with ExitStack() as stack:
                    session = local_session(self._master, log_file=self._log_file, **self._properties)
                    context = stack.enter_context(session).sparkContext
                    from afterglow.spark.result_channel import ResultChannel, run_in_job  # noqa: PLC0415 - imports Spark

                    results = context.accumulator((), ResultChannel(self._on_result))
                    ended = threading.Event()
                    stack.callback(ended.set)
                    self._running = _RunningSpark(context, partial(run_in_job, results), stack.pop_all(), ended)
                    self._lower_priority(self._running)
            return self._running

    def _lower_priority(self, running: _RunningSpark) -> None:
        """Lower the priority of a Spark that this package has started, and adjust it on a thread until Spark ends."""
        keeper, jvm = self._priority, own_jvm()
        if keeper is None or jvm is None:
            return

        def adjust() -> None:
            while not running.ended.wait(INTERVAL_S):
                keeper.tick(busy=self._preparing or bool(self._jobs))

        keeper.begin(ProcessTree(jvm.pid))
        threading.Thread(target=adjust, name="spark-priority", daemon=True).start()

    def _limit_end(self) -> None:
        """Have Spark end soon: at normal priority, or else, after some seconds, without cleaning up."""
        jvm = own_jvm()
        if jvm is None or self._priority is None or self._priority.end():
            return

        def kill() -> None:
            if jvm.poll() is None:
                kill_soon(jvm)

        limit = threading.Timer(_END_S, kill)
        limit.daemon = True
        limit.start()

    def _end_spark(self, only: _RunningSpark | None = None) -> None:
        """End Spark; with ``only``, unless another one runs by now."""
        with self._lock:
            running = self._running
            if running is None or (only is not None and only is not running):
                return
            self._running = None
            try:
                running.stack.close()
            except Exception as error:  # noqa: BLE001 - it has ended either way
                _log.warning("Spark did not end cleanly: %s", _shortened(str(error), 500))


def start_worker(_: int) -> None:
    """Load the kernels in a worker; unpickling this function has imported what tasks run."""
    from afterglow.format._kernels.native import kernels  # noqa: PLC0415 - the driver does not need it

    kernels()


def group_count(tasks: Sequence[Task], workers: int) -> int:
    """Number of Spark tasks that a job's tasks share: at least two per worker, so that all are busy to the end."""
    by_size = -(-sum(task.size_bytes for task in tasks) // _GROUP_BYTES)
    by_count = -(-len(tasks) // _GROUP_TASKS)
    return min(len(tasks), max(2 * workers, by_size, by_count))


def describe(tasks: Sequence[Task]) -> str:
    """Description of a job in Spark's UI: topics, then objects, each shortened to half the length."""
    topics = ", ".join(dict.fromkeys(task.topic for task in tasks))
    objects = ", ".join(dict.fromkeys(task.key for task in tasks))
    half = _DESCRIPTION_CHARACTERS // 2
    return f"offload {_shortened(topics, half)}: {_shortened(objects, half)}"


def explain(error: BaseException | None) -> AfterglowError | str:
    """The reason why a job failed, for users."""
    if isinstance(error, AfterglowError):
        return error
    if "No module named 'afterglow" in str(error):
        return MissingDependency(
            "the Python of Spark's executors cannot import afterglow as it is here: install the same version where "
            "they run, or name a Python that has it by spark.pyspark.python, or ship one by spark.archives"
        )
    return _shortened(f"{type(error).__name__}: {error}", 500)


def _job_group(number: int) -> str:
    return f"offload-{number}"


def _shortened(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
