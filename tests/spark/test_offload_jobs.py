"""The runner with a real Spark. A pipe in place of a file that tasks read lets a test block them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.support.served_topics import eventually

from afterglow.config import BrokerConfig
from afterglow.errors import AfterglowError, ConfigError, LedgerMissing, MissingDependency
from afterglow.format.blocks import plan_v1
from afterglow.hot.local.log import LocalLog
from afterglow.hot.local.paths import HotLogPaths
from afterglow.offload.task import LedgerPart, LedgerTask, PartTask
from afterglow.spark.jvm import active_session, jvm_process
from afterglow.spark.offload_jobs import SparkRunner, describe, explain, group_count
from afterglow.storage import open_store
from afterglow.storage.store import Upload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from tests.support.shared_spark import SharedSpark

    from afterglow.offload.task import PartResult, Task
    from afterglow.offload.task_dispatch import JobCounts

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

ANSWER_S = 120.0


class Home:
    """A home with one closed ledger, whose tasks can be blocked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with LocalLog(path) as log:
            ledger = log.create()
            for number in range(50):
                ledger.append((b"%d" % number * 20,), lambda _error: None)
            ledger.close()
            log.flush()
            self.plans = plan_v1(ledger.offsets(0, ledger.confirmed), 1024)
            self.ledger_id = ledger.ledger_id
            self.instance = log.instance
        self._file = HotLogPaths(path).instance

    def task(self, number: int = 1, **changes: object) -> PartTask:
        (self.path / "tier").mkdir(exist_ok=True)
        url, key = (self.path / "tier").as_uri(), f"object-{number}"
        given: dict[str, object] = {
            "topic": f"public/default/persistent/{self.path.name}",
            "key": key,
            "number": number,
            "upload_id": open_store(url).create_upload(key).upload_id,
            "url": url,
            "options": (),
            "home": str(self.path),
            "instance": self.instance,
            "ledgers": (LedgerPart(self.ledger_id, self.plans),),
        }
        return PartTask(**(given | changes))  # type: ignore[arg-type]  # fields by name

    def hold(self) -> None:
        """Make tasks block when they read the instance of the home."""
        self._file.unlink()
        os.mkfifo(self._file)

    def wait_for_task(self) -> int:
        """The process of a held task, once there is one."""
        self._pipe = os.open(self._file, os.O_WRONLY)  # blocks until a task reads
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    held = {fd.readlink() for fd in (process / "fd").iterdir()}
                    if self._file in held and int(process.name) != os.getpid():
                        return int(process.name)
        raise AssertionError("no task reads")

    def release(self) -> None:
        """Let blocked tasks and all later ones continue."""
        ready = self._file.with_suffix(".new")
        ready.write_text(self.instance)
        ready.replace(self._file)
        with contextlib.suppress(BrokenPipeError):  # the reader has ended
            os.write(self._pipe, self.instance.encode())
        os.close(self._pipe)

    def stored(self, task: PartTask) -> int:
        """Checksum of the part that a task has uploaded."""
        (part,) = open_store(task.url).list_parts(Upload(task.key, task.upload_id))
        assert part.crc32c is not None
        return part.crc32c


class Results:
    """Reported results, in order."""

    def __init__(self) -> None:
        self.all: list[tuple[Task, PartResult]] = []
        self._new: queue.SimpleQueue[tuple[Task, PartResult]] = queue.SimpleQueue()

    def __call__(self, task: Task, result: PartResult) -> None:
        self.all.append((task, result))
        self._new.put((task, result))

    def next(self) -> tuple[Task, PartResult]:
        return self._new.get(timeout=ANSWER_S)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def other(tmp_path: Path) -> Home:
    return Home(tmp_path / "other")


@pytest.fixture
def runner(spark: SparkSession) -> Iterator[SparkRunner]:
    """A runner on the shared session."""
    with contextlib.closing(SparkRunner("local[2]")) as runner:
        yield runner


def gone(pid: int) -> bool:
    """Whether a process ends within the time that a test gives it."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
    return False


def settled(runner: SparkRunner) -> JobCounts:
    """The counts once every job has ended."""
    while (counts := runner.counts()).running:
        pass
    return counts


@pytest.mark.spark("offload")
def test_every_task_of_a_job_is_done_and_reported_once(runner: SparkRunner, home: Home) -> None:
    tasks = [home.task(number) for number in range(1, 8)]
    results = Results()
    before = settled(runner)

    runner.submit(tasks, results)
    for _ in tasks:
        results.next()
    runner.submit([home.task(8)], last := Results())
    last.next()  # all of the first job was reported before this

    assert sorted(task.task_id for task, _ in results.all) == [task.task_id for task in tasks]
    for task, result in results.all:
        assert isinstance(task, PartTask)
        assert result.task_id == task.task_id
        assert result.error is None
        assert result.part is not None
        assert result.part.crc32c == home.stored(task)
        assert [len(of_ledger) for of_ledger in result.statistics] == [len(home.plans)]
    counts = settled(runner)
    assert (counts.succeeded - before.succeeded, counts.failed - before.failed) == (2, 0)
    assert counts.seconds > before.seconds


def test_a_task_is_reported_while_another_of_its_job_still_runs(runner: SparkRunner, home: Home, other: Home) -> None:
    other.hold()
    slow, quick = other.task(), home.task()
    results = Results()

    runner.submit([slow, quick], results)
    other.wait_for_task()

    assert results.next()[0] == quick
    assert len(results.all) == 1
    other.release()
    task, result = results.next()
    assert (task, result.error) == (slow, None)


def test_a_job_does_not_wait_for_an_earlier_one(runner: SparkRunner, home: Home, other: Home) -> None:
    other.hold()
    slow, quick = Results(), Results()

    runner.submit([other.task()], slow)
    other.wait_for_task()
    runner.submit([home.task(1), home.task(2)], quick)

    assert {quick.next()[1].error, quick.next()[1].error} == {None}
    assert slow.all == []
    other.release()
    assert slow.next()[1].error is None


@pytest.mark.spark("offload")
def test_a_killed_worker_costs_a_retry_not_an_offload(runner: SparkRunner, home: Home, other: Home) -> None:
    other.hold()
    results = Results()

    runner.submit([other.task(), home.task()], results)
    worker = other.wait_for_task()
    assert results.next()[1].error is None
    os.kill(worker, signal.SIGKILL)
    assert gone(worker)
    other.release()

    task, result = results.next()
    assert isinstance(task, PartTask)
    assert (task.topic, result.error) == (other.task().topic, None)
    assert result.part is not None
    assert result.part.crc32c == other.stored(task)


def test_an_expected_failure_is_that_tasks_result(runner: SparkRunner, home: Home) -> None:
    results = Results()

    runner.submit([home.task(1), home.task(2, instance="another"), home.task(3)], results)
    ended = {task.task_id: result for task, result in (results.next() for _ in range(3))}

    assert [task_id for task_id, result in ended.items() if result.error is not None] == ["object-2/2"]
    assert isinstance(ended["object-2/2"].error, LedgerMissing)


def test_an_unexpected_failure_spoils_no_other_task(runner: SparkRunner, home: Home) -> None:
    results = Results()

    runner.submit([home.task(1), home.task(2, options=None), home.task(3)], results)
    ended = {task.task_id: result for task, result in (results.next() for _ in range(3))}

    assert [task_id for task_id, result in ended.items() if result.error is not None] == ["object-2/2"]
    assert "object-2/2: TypeError: " in str(ended["object-2/2"].error)


def test_a_listener_that_fails_does_not_cost_other_results(runner: SparkRunner, home: Home) -> None:
    results = Results()

    def listen(task: Task, result: PartResult) -> None:
        results(task, result)
        raise RuntimeError("not today")

    runner.submit([home.task(1), home.task(2)], listen)

    assert {results.next()[0].task_id, results.next()[0].task_id} == {"object-1/1", "object-2/2"}


def test_spark_shows_topics_and_objects_of_a_job(runner: SparkRunner, home: Home) -> None:
    results = Results()
    runner.submit([home.task(1), home.task(2)], results)
    results.next()
    results.next()

    running = runner._spark()
    job = max(running.context.statusTracker().getJobIdsForGroup("offload-1"))  # other runners had that number before
    shown = running.context._jsc.sc().statusStore().job(job).description().get()

    assert shown == "offload public/default/persistent/home: object-1, object-2"


@pytest.mark.parametrize(
    ("count", "mebibytes", "groups"), [(1, 8, 1), (4, 8, 4), (7, 0, 4), (32, 8, 8), (16, 64, 16), (1000, 0, 63)]
)
def test_small_tasks_share_a_spark_task_and_large_ones_do_not(count: int, mebibytes: int, groups: int) -> None:
    tasks = [
        LedgerTask(
            topic="t",
            key=str(n),
            ledger_id=n,
            entries=1,
            uuid=UUID(int=n),
            size_bytes=mebibytes << 20,
            policy=BrokerConfig(),
            own=None,
            metadata=(),
            home="",
            instance="",
        )
        for n in range(count)
    ]
    assert group_count(tasks, workers=2) == groups


def test_a_description_of_many_objects_is_short(home: Home) -> None:
    task = home.task()
    shown = describe([replace(task, key=f"object-{number}", number=number) for number in range(1, 1000)])
    assert len(shown) < 260
    assert shown.startswith("offload public/default/persistent/home: object-1, object-2, ")
    assert shown.endswith("…")


@pytest.mark.own_spark
def test_a_spark_that_died_costs_its_tasks_a_retry_and_the_next_job_starts_another(
    other: Home, shared_spark: SharedSpark
) -> None:
    shared_spark.end()
    with contextlib.closing(SparkRunner("local[2]")) as runner:
        other.hold()
        results = Results()
        runner.submit([other.task()], results)
        worker = other.wait_for_task()
        jvm = jvm_process()
        assert jvm is not None
        jvm.kill()

        _, result = results.next()
        assert type(result.error) is AfterglowError
        assert "object-1/1 was not done, since its Spark job failed; retry it" in str(result.error)
        assert gone(worker)
        other.release()
        runner.submit([other.task()], results)
        assert results.next()[1].error is None
        counts = settled(runner)
        assert (counts.succeeded, counts.failed) == (1, 1)


@pytest.mark.own_spark
def test_spark_has_idle_priority_and_closing_ends_it_with_its_workers_while_a_task_runs(
    home: Home, other: Home, shared_spark: SharedSpark
) -> None:
    shared_spark.end()
    runner = SparkRunner("local[2]", idle_priority=True)
    runner._spark()
    lowered = jvm_process()
    assert lowered is not None
    if hasattr(os, "SCHED_IDLE"):
        threads = Path(f"/proc/{lowered.pid}/task").iterdir()
        assert {os.sched_getscheduler(int(thread.name)) for thread in threads} == {os.SCHED_IDLE}
    other.hold()
    results = Results()
    runner.submit([other.task()], results)
    worker = other.wait_for_task()
    jvm = jvm_process()
    assert jvm is lowered

    started = time.monotonic()
    runner.close()

    assert time.monotonic() - started < 15
    assert gone(worker)
    assert jvm.poll() is not None
    assert results.all == []
    runner.submit([home.task()], results)  # ignored, since it is closed
    runner.close()
    assert results.all == []
    other.release()


@pytest.mark.own_spark
def test_spark_and_its_workers_are_started_ahead_of_the_first_job(home: Home, shared_spark: SharedSpark) -> None:
    shared_spark.end()
    with contextlib.closing(SparkRunner("local[2]")) as runner:
        runner.prepare()
        runner.prepare()

        def is_prepared() -> bool:
            session = active_session()
            if session is None:
                return False
            tracker = session.sparkContext.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("prepare")]
            return [job.status for job in jobs if job is not None] == ["SUCCEEDED"]

        eventually(is_prepared, lambda: "Spark was not started, or its workers failed")
        assert runner.counts().succeeded == 0  # it is not an offload job
        session = active_session()
        runner.submit([home.task()], results := Results())
        assert results.next()[1].error is None
        assert active_session() is session
        assert session is not None
        assert len(session.sparkContext.statusTracker().getJobIdsForGroup("prepare")) == 1


@pytest.mark.own_spark
def test_a_spark_that_cannot_start_is_reported_ahead_of_the_first_job_and_by_it(
    home: Home, shared_spark: SharedSpark, caplog: pytest.LogCaptureFixture
) -> None:
    shared_spark.end()
    with contextlib.closing(SparkRunner("local[2]", properties={"spark.driver.memory": "much"})) as runner:
        runner.prepare()
        eventually(lambda: "Spark did not start ahead of the first offload" in caplog.text, lambda: caplog.text)
        runner.submit([home.task()], results := Results())
        assert "its Spark job failed" in str(results.next()[1].error)


def test_a_runner_without_jobs_starts_nothing() -> None:
    SparkRunner("local[2]").close()


def test_executors_without_this_package_are_distinguished_from_other_failures() -> None:
    spark = "Error while finding module specification for 'afterglow.spark.daemon' (ModuleNotFoundError: No module "
    found = explain(ValueError(f"{'x' * 2_000}{spark}named 'afterglow')"))
    assert isinstance(found, MissingDependency)
    assert "spark.pyspark.python" in str(found)
    assert explain(found) is found
    other = explain(ValueError("x" * 2_000))
    assert isinstance(other, str)
    assert len(other) == 500


def test_a_malformed_master_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"--master local\[x\] \(sparkMaster\) is malformed"):
        SparkRunner("local[x]")
