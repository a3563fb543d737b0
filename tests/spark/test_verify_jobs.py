"""Deep verification in Spark jobs: the same findings as in this process, whatever tasks fail."""

from __future__ import annotations

import os
import signal
import threading
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from tests.support.ledgers import message
from tests.support.offloaded import INSTANCE, OffloadedTopic, random_entries
from tests.support.served_topics import eventually

from afterglow.config import BrokerConfig
from afterglow.errors import AfterglowError, NotSupported, StoreUnavailable
from afterglow.pipeline.tier_verifier import TierStores, TierVerifier, VerifyRequest
from afterglow.pipeline.verify_runs import VerifyRuns, VerifyState
from afterglow.spark.verify_jobs import ObjectPortion, SparkVerifier, group_portions
from afterglow.storage import LocalStore
from afterglow.storage.wrapper import StoreWrapper
from afterglow.verify import CommittedObject, FindingKind, HeldRange, ParsedLocation
from afterglow.verify.deep import LocalVerifier, portions
from afterglow.verify.topic_records import TopicRecordsReader
from afterglow.verify.verifier import committed_objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from afterglow.pipeline.tier_verifier import VerifyControl
    from afterglow.verify import Finding

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

MIB = 1 << 20


@pytest.fixture
def world(tmp_path: Path) -> OffloadedTopic:
    """Ledgers with their own objects, one of them without statistics, and segments."""
    made = OffloadedTopic(LocalStore(tmp_path / "tier", create=True))
    for ledger_id in (1, 2, 3):
        made.ledger(ledger_id, [message(entry, 1_000 + i) for i, entry in enumerate(random_entries(80))])
        made.offload(ledger_id, block_bytes=4096, statistics=ledger_id != 3)
    made.ledger(4, random_entries(30))
    made.ledger(5, random_entries(30))
    made.segment([(4, 0, 29), (5, 0, 9)], block_bytes=4096)
    made.segment([(5, 10, 29)], block_bytes=4096)
    return made


def committed(world: OffloadedTopic) -> tuple[CommittedObject, ...]:
    return committed_objects(TopicRecordsReader(world.metadata, "standalone").topic(world.topic))


def by_object(found: Iterator[tuple[CommittedObject, tuple[Finding, ...]]]) -> dict[str, tuple[Finding, ...]]:
    return {target.key: findings for target, findings in found}


@pytest.mark.spark("verify")
def test_a_job_finds_what_this_process_finds(spark: SparkSession, world: OffloadedTopic) -> None:
    due = committed(world)
    assert len(due) == 5
    for target, offset in zip(due, (3, 150, 700, 4100, 500), strict=True):
        world.spoil(target.key, offset)
    found = by_object(SparkVerifier(spark, world.store, INSTANCE)(due))
    assert found == by_object(LocalVerifier(world.store, INSTANCE, deep=True)(due))
    assert all(findings for findings in found.values())
    assert {finding.kind for findings in found.values() for finding in findings} == {FindingKind.DAMAGED_BLOCK}


def test_progress_ends_with_everything_that_was_due(spark: SparkSession, world: OffloadedTopic) -> None:
    reported: list[tuple[int, int, int]] = []
    verifier = SparkVerifier(spark, world.store, INSTANCE, lambda *now: reported.append(now))
    due = committed(world)
    list(verifier(due[:2]))
    list(verifier(due[2:]))
    size = sum(target.size_bytes for target in due)
    assert reported == sorted(reported)
    assert reported[-1] == (size, size, 5)


def test_the_portions_of_an_object_are_reported_together(
    spark: SparkSession, world: OffloadedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    from afterglow.spark import verify_jobs

    monkeypatch.setattr(verify_jobs, "portions", lambda target: portions(target, 5000))
    due = committed(world)
    assert len(portions(due[2], 5000)) > 2
    world.replace(due[2].key, bytes(world.tier.get(due[2].key))[:-7])
    found = by_object(SparkVerifier(spark, world.store, INSTANCE)(due))
    assert found == by_object(LocalVerifier(world.store, INSTANCE, deep=True)(due))
    assert [finding.kind for finding in found[due[2].key]] == [FindingKind.WRONG_LENGTH, FindingKind.DAMAGED_BLOCK]


class FailingStore(StoreWrapper):
    """Refuses one object, and ends the first worker that reads another."""

    def __init__(self, inner: LocalStore, refused: str = "", deadly: str = "", sign: str = "") -> None:
        super().__init__(inner)
        self.refused, self.deadly, self.sign = refused, deadly, sign

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        if key == self.refused:
            raise StoreUnavailable(f"{key} is unavailable")
        if key == self.deadly and not os.path.exists(self.sign):  # noqa: PTH110
            open(self.sign, "w").close()  # noqa: PTH123
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get(key, start, end)


def test_a_store_that_fails_does_not_stop_the_verification_of_other_objects(
    spark: SparkSession, world: OffloadedTopic
) -> None:
    due = committed(world)
    world.spoil(due[4].key, 200)
    assert isinstance(world.tier, LocalStore)
    world.tier = FailingStore(world.tier, refused=due[0].key)
    verification = SparkVerifier(spark, world.store, INSTANCE)(due)
    found = by_object(islice(verification, len(due) - 1))
    with pytest.raises(StoreUnavailable, match=due[0].key):
        next(verification)
    assert found.keys() == {target.key for target in due[1:]}
    assert [finding.kind for finding in found[due[4].key]] == [FindingKind.DAMAGED_BLOCK]


@pytest.mark.spark("verify")
def test_a_killed_task_is_retried_and_its_findings_are_reported_once(
    spark: SparkSession, world: OffloadedTopic, tmp_path: Path
) -> None:
    due = committed(world)
    world.spoil(due[0].key, 200)
    assert isinstance(world.tier, LocalStore)
    world.tier = FailingStore(world.tier, deadly=due[1].key, sign=str(tmp_path / "killed"))
    found = list(SparkVerifier(spark, world.store, INSTANCE)(due))
    assert (tmp_path / "killed").exists()
    assert [target.key for target, _ in found] == [target.key for target in due]
    assert [len(findings) for _, findings in found] == [1, 0, 0, 0, 0]


def test_an_abandoned_verification_ends_its_job(spark: SparkSession, world: OffloadedTopic) -> None:
    tracker = spark.sparkContext.statusTracker()
    verifier = SparkVerifier(spark, world.store, INSTANCE)
    for _ in verifier(committed(world) * 40):
        break
    assert not tracker.getActiveJobsIds()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("verify-job")]


def test_a_cancelled_verification_ends_its_job_while_a_task_runs(
    spark: SparkSession, world: OffloadedTopic, tmp_path: Path
) -> None:
    """The task waits in a pipe that the test holds open, so that only the end of the job ends the wait."""
    due = committed(world)
    pipe = tmp_path / "tier" / f"{due[0].key}-index"
    pipe.unlink()
    os.mkfifo(pipe)
    verifier = SparkVerifier(spark, world.store, INSTANCE)

    def cancel() -> None:
        with pipe.open("wb"):  # opens once the task does
            verifier.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(AfterglowError, match="cancel"):
        list(verifier(due))
    thread.join()
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


def verify_runs(world: OffloadedTopic, home: Path) -> VerifyRuns:
    """The runs of a server on the topic."""
    config = BrokerConfig(spark_master="local[2]")

    def open_verifier(control: VerifyControl) -> TierVerifier:
        stores = TierStores(world.tier, config, control=control)
        return TierVerifier(home, INSTANCE, world.metadata, stores, config, quiet=False)

    return VerifyRuns(open_verifier)


def test_a_deep_verification_of_a_server_uses_the_running_session(
    spark: SparkSession, world: OffloadedTopic, tmp_path: Path
) -> None:
    key = committed(world)[0].key
    world.spoil(key, 200)
    run = verify_runs(world, tmp_path).start(VerifyRequest(deep=True), lambda: None)
    eventually(lambda: run.result is not None, lambda: run.control.current)
    assert run.result is not None
    assert (run.result.state, run.result.error) == (VerifyState.DONE, "")
    assert run.result.counts[FindingKind.DAMAGED_BLOCK] == 1
    size = sum(target.size_bytes for target in committed(world))
    assert (run.control.objects_done, run.control.bytes_done, run.control.bytes_due) == (5, size, size)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []  # it is still there


def test_a_cancelled_deep_verification_ends_its_job_while_a_task_runs(
    spark: SparkSession, world: OffloadedTopic, tmp_path: Path
) -> None:
    """The task waits in a pipe that the test holds open, so that only the end of the job ends the wait."""
    pipe = tmp_path / "tier" / f"{committed(world)[0].key}-index"
    pipe.unlink()
    os.mkfifo(pipe)
    run = verify_runs(world, tmp_path).start(VerifyRequest(deep=True), lambda: None)
    with pipe.open("wb"):  # opens once the task does
        run.control.cancel()
        eventually(lambda: run.result is not None, lambda: run.control.current)
    assert run.result is not None
    assert run.result.state == VerifyState.CANCELLED
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_objects_that_tasks_do_not_see_are_not_reported_as_missing(
    spark: SparkSession, world: OffloadedTopic, tmp_path: Path
) -> None:
    """As where the tier is a directory of the driver's machine, and the tasks run on others."""

    class Elsewhere(LocalStore):
        def __reduce__(self) -> tuple[object, ...]:
            return LocalStore, (str(tmp_path / "empty"),)

    world.tier = Elsewhere(tmp_path / "tier")
    with pytest.raises(AfterglowError, match="same directory on every machine"):
        list(SparkVerifier(spark, world.store, INSTANCE)(committed(world)))


def test_a_missing_object_is_a_finding(spark: SparkSession, world: OffloadedTopic) -> None:
    due = committed(world)
    world.tier.delete([due[0].key])
    found = by_object(SparkVerifier(spark, world.store, INSTANCE)(due))
    assert [finding.kind for finding in found[due[0].key]] == [FindingKind.MISSING_OBJECT]


def test_objects_in_memory_are_refused(spark: SparkSession) -> None:
    world = OffloadedTopic()
    world.ledger(1, random_entries(3))
    world.offload(1)
    with pytest.raises(NotSupported, match="memory://"):
        list(SparkVerifier(spark, world.store, INSTANCE)(committed(world)))


def test_small_portions_go_together_and_large_ones_alone() -> None:
    def indexed(size_bytes: int, count: int) -> list[ObjectPortion]:
        target = CommittedObject("t", ParsedLocation(), "k", 1, (HeldRange(1, 0, 0),), size_bytes=size_bytes)
        return [ObjectPortion(number, portion) for number in range(count) for portion in portions(target)]

    assert [len(group) for group in group_portions(indexed(1000, 130))] == [64, 64, 2]
    assert [len(group) for group in group_portions(indexed(20 * MIB, 7))] == [3, 3, 1]
    assert [len(group) for group in group_portions(indexed(300 * MIB, 2))] == [1] * 6
    assert group_portions([]) == []
    large = indexed(300 * MIB, 1)
    assert [(item.portion.byte_range.start, item.portion.byte_range.end) for item in large] == [
        (0, 128 * MIB),
        (128 * MIB, 256 * MIB),
        (256 * MIB, None),
    ]
    assert sum(item.portion.size_bytes for item in large) == 300 * MIB
