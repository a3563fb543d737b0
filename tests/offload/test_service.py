"""Triggers, requests by hand, and what the service owes to topics that are quiet, slow, or gone."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from tests.support.faults import Fault, FaultRule, FaultyStore
from tests.support.ledgers import TOPIC, settings
from tests.support.offloads import OffloadWorld

from afterglow.errors import (
    AfterglowError,
    InvalidPosition,
    MissingDependency,
    OffloadInProgress,
    StoreUnavailable,
    TopicMissing,
    UploadMissing,
)
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.ledger.retention import Retention
from afterglow.metadata.names import NamespaceName, TopicName
from afterglow.offload.explain import LedgerState
from afterglow.offload.pending_deletes import PendingDelete
from afterglow.offload.segments.listing import SegmentStatus
from afterglow.offload.status import OffloadState
from afterglow.offload.task import PartTask, run_part
from afterglow.offload.topic_offload import TopicOffload
from afterglow.offload.topic_schedule import SerialExecutor
from afterglow.testing.memory_hot import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.offload.task import Task

    NewWorld = Callable[..., OffloadWorld]

OTHER = "public/default/persistent/other"


def by_hand(**changes: object) -> dict[str, object]:
    return {"managed_ledger_offload_deletion_lag_in_millis": None, **changes}


# --- triggers ---------------------------------------------------------------------------------------------------------


def test_the_size_threshold_keeps_that_many_bytes_out_of_the_tier(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=300))
    ledger = world.topic(2, 2, 2, 2)
    sizes = {row.ledger_id: row.size_bytes or 0 for row in ledger.ledgers}
    assert sizes[1] == sizes[4] > 100
    world.run()
    assert world.offloaded() == [1, 2]
    assert sizes[3] + sizes[4] <= 300 < sizes[2] + sizes[3] + sizes[4]


def test_the_time_threshold_is_met_without_any_traffic(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_seconds=60))
    world.topic(2)
    world.run()
    assert world.offloaded() == []
    explained = world.service.explain(TOPIC)[0]
    assert (explained.state, explained.next_ms) == (LedgerState.WAITING, world.clock.now_ms() + 60_000)
    world.clock.advance(59.999)
    world.run()
    assert world.offloaded() == []
    world.clock.advance(0.001)
    world.run()
    assert world.offloaded() == [1]


def test_the_close_of_a_ledger_is_enough_of_a_reason(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0, managed_ledger_max_entries_per_ledger=2))
    ledger = world.open()
    world.run()
    world.append(ledger, b"1", b"2", b"3")
    world.run()
    assert world.offloaded() == [1]


def test_a_terminated_topic_is_offloaded_to_its_end(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    ledger = world.topic(2)
    world.append(ledger, b"last")
    ledger.terminate()
    world.run()
    assert world.offloaded() == [1, 2]


def test_a_quiet_topic_is_opened_when_it_is_due_and_not_before(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_seconds=1000))
    world.topic(2).close()
    world.crash()
    world.run()
    assert world.store.opened(TOPIC) is None
    world.clock.advance(1000)
    world.run()
    assert world.offloaded() == [1]


def test_a_ledger_that_a_crash_ended_is_offloaded(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    ledger = world.open()
    world.append(ledger, b"x" * 50)
    world.crash()
    world.run()
    assert world.offloaded() == [1]


def test_without_thresholds_no_topic_is_opened(new_world: NewWorld) -> None:
    world = new_world()
    world.append(world.open(), b"x" * 50)
    world.crash()
    world.run()
    world.clock.advance(1000)
    world.run()
    assert world.store.opened(TOPIC) is None
    assert world.runner.jobs == []


def test_a_changed_policy_is_obeyed_at_the_next_tick(new_world: NewWorld) -> None:
    world = new_world()
    world.catalog.ensure_defaults()
    world.topic(2)
    world.run()
    assert world.offloaded() == []
    namespace = NamespaceName("public", "default")
    world.catalog.update_policies(
        namespace, lambda old: {**old, "offload_policies": {"managedLedgerOffloadThresholdInBytes": 0}}
    )
    world.policies.changed(namespace)
    world.run()
    assert world.offloaded() == [1]


@pytest.mark.parametrize("name", ["pulsar/system/persistent/t", "public/default/persistent/__change_events"])
def test_system_topics_are_never_offloaded(new_world: NewWorld, name: str) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2, name=name)
    world.run()
    assert world.offloaded(name) == []
    assert world.service.explain(name)[0].state is LedgerState.SYSTEM_TOPIC
    world.service.offload_prefix(name, LATEST)
    world.run()
    assert "system topic" in world.service.status(name).last_error


def test_a_topic_that_streams_gets_segments_and_no_objects_of_whole_ledgers(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0, streaming_offload_enabled=True))
    world.topic(2)
    world.run()
    assert not any(row.offloadContext.complete for row in world.info().ledgerInfo)
    assert world.service.explain(TOPIC)[0].state is LedgerState.IN_SEGMENTS
    world.service.offload_prefix(TOPIC, LATEST)
    assert world.service.status(TOPIC).state is OffloadState.RUNNING
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.SUCCESS
    assert [view.status for view in world.service.segments(TOPIC)] == [SegmentStatus.OFFLOADED]


def test_a_server_that_streams_announces_tasks_at_its_start(new_world: NewWorld) -> None:
    assert new_world(settings(streaming_offload_enabled=True)).runner.prepared > 0
    assert new_world(settings(managed_ledger_offload_threshold_in_bytes=0)).runner.prepared == 0


def test_tasks_are_announced_when_a_topic_begins_to_stream_and_not_for_its_old_segments(new_world: NewWorld) -> None:
    world = new_world(settings())
    ledger = world.open()
    world.append(ledger, b"streamed")
    world.run()
    assert world.runner.prepared == 0
    set_policies(world, streamingOffloadEnabled=True)
    world.run()
    assert world.runner.prepared > 0
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert [view.status for view in world.service.segments(TOPIC)] == [SegmentStatus.OFFLOADED]

    set_policies(world, streamingOffloadEnabled=False)
    world.run()
    world.crash()
    world.open()
    world.run()
    assert world.runner.prepared == 0


def test_a_topic_that_streams_no_more_continues_in_a_new_ledger(new_world: NewWorld) -> None:
    world = new_world(settings())
    world.catalog.ensure_defaults()
    namespace = NamespaceName("public", "default")

    def switch(*, on: bool) -> None:
        policies = {"streamingOffloadEnabled": on}
        world.catalog.update_policies(namespace, lambda old: {**old, "offload_policies": policies})
        world.policies.changed(namespace)

    switch(on=True)
    ledger = world.open()
    world.append(ledger, b"streamed")
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert ledger.writing_to == 1
    switch(on=False)
    world.run()
    assert ledger.writing_to == 2
    world.append(ledger, b"not streamed")
    world.run()
    assert [len(row.offloadContext.offloadSegment) for row in world.info().ledgerInfo] == [1, 0]


def test_without_a_tier_nothing_is_attempted_and_the_reason_is_logged_once(
    new_world: NewWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = new_world(
        settings(
            managed_ledger_offload_threshold_in_bytes=0,
            managed_ledger_offload_driver="azureblob",
            managed_ledger_offload_bucket="b",
        )
    )
    world.topic(2, 2)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            world.run()
            world.clock.advance(200)
    assert caplog.text.count("offload driver 'azureblob' is not installed") == 1
    explained = world.service.explain(TOPIC)[0]
    assert explained.state is LedgerState.NO_TIER
    assert "azureblob" in explained.sentence
    assert world.info().ledgerInfo[0].offloadContext.uidMsb == 0


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_manual_offload_covers_the_ledgers_before_its_position(new_world: NewWorld) -> None:
    world = new_world(settings(**by_hand()))
    world.topic(2, 2, 2)
    assert world.service.status(TOPIC).state is OffloadState.NOT_RUN
    world.service.offload_prefix(TOPIC, Position(3, 0))
    assert world.service.status(TOPIC).state is OffloadState.RUNNING
    with pytest.raises(OffloadInProgress, match="already in progress"):
        world.service.offload_prefix(TOPIC, Position(4, 0))
    world.run()
    status = world.service.status(TOPIC)
    assert (status.state, status.last_error, status.first_unoffloaded) == ("SUCCESS", "", Position(3, 0))
    assert world.offloaded() == [1, 2]
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert world.offloaded() == [1, 2, 3]
    assert world.service.status(TOPIC).first_unoffloaded == Position(4, 0)


def test_a_manual_offload_with_nothing_to_do_succeeds(new_world: NewWorld) -> None:
    world = new_world(settings(**by_hand()))
    world.topic(2)
    world.service.offload_prefix(TOPIC, Position(1, 1))
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.SUCCESS
    assert world.service.status(TOPIC).first_unoffloaded == Position(1, 0)


def test_a_failed_ledger_does_not_stop_the_others_and_the_first_error_is_reported(new_world: NewWorld) -> None:
    world = new_world(settings(**by_hand()))
    world.topic(2, 2, 2)
    world.service.offload_prefix(TOPIC, LATEST)
    world.service.tick()
    world.settle()
    world.runner.fail_one(StoreUnavailable("the first"))
    world.runner.fail_one(StoreUnavailable("the second"))
    world.run()
    status = world.service.status(TOPIC)
    assert (status.state, status.last_error) == (OffloadState.ERROR, "the first")
    assert status.first_unoffloaded == Position(1, 0)
    assert world.offloaded() == [3]

    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.SUCCESS
    assert world.offloaded() == [1, 2, 3]


def test_an_earlier_attempt_that_fails_does_not_fail_a_manual_offload(new_world: NewWorld) -> None:
    world = new_world(settings(**by_hand(managed_ledger_offload_threshold_in_bytes=0)))
    world.topic(2)
    world.service.tick()
    world.settle()
    world.service.offload_prefix(TOPIC, LATEST)
    world.runner.fail_one(StoreUnavailable("before"))
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.SUCCESS
    assert world.offloaded() == [1]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (EARLIEST, "no ledger -1"),
        (Position(1, 0), "no ledger 1"),  # trimmed
        (Position(5, 0), "no ledger 5"),
        (Position(999, -7), "no ledger 999"),
        (Position(3, -1), "ledger 3 has 2 entries"),
        (Position(3, 3), "ledger 3 has 2 entries"),
        (Position(4, 2), "ledger 4 has 1 entry"),
    ],
)
def test_what_cannot_be_a_position_of_the_topic_is_refused(
    new_world: NewWorld, position: Position, reason: str, *, streaming: bool
) -> None:
    world = new_world(settings(**by_hand(streaming_offload_enabled=streaming)))
    world.topic(1).trimmer.truncate()
    ledger = world.topic(2)
    world.append(ledger, b"a")
    assert [row.ledger_id for row in ledger.ledgers] == [3, 4]
    with pytest.raises(InvalidPosition, match=f"up to {position}: .*{reason}; give a position from 3:0 to 4:1, or lat"):
        world.service.offload_prefix(TOPIC, position)
    assert world.service.status(TOPIC).state is OffloadState.NOT_RUN
    for valid in (Position(3, 0), Position(3, 2), Position(4, 0), Position(4, 1), LATEST):
        world.service.offload_prefix(TOPIC, valid)
        world.run()
        assert world.service.status(TOPIC).state is OffloadState.SUCCESS


def set_policies(world: OffloadWorld, **policies: object) -> None:
    topic = TopicName.from_managed_ledger_name(TOPIC)
    world.catalog.update_topic_policies(topic, lambda _old: {"offloadPolicies": policies})
    world.policies.changed(topic.namespace)


def fail_ledgers(world: OffloadWorld, count: int) -> None:
    """Have the first try to offload each ledger fail."""
    world.service.tick()
    world.settle()
    for _ in range(count):
        world.runner.fail_one(StoreUnavailable("no route"))
    world.settle()
    assert world.service.statistics(TOPIC).failing


def test_the_failure_of_a_ledger_is_removed_when_the_ledger_is_trimmed(new_world: NewWorld) -> None:
    world = new_world(settings(**by_hand(managed_ledger_offload_threshold_in_bytes=0)))
    ledger = world.topic(2)
    fail_ledgers(world, 1)
    ledger.trimmer.truncate()
    world.settle()
    assert [row.ledgerId for row in world.info().ledgerInfo] == [3]
    world.service.on_ledger_closed(TOPIC)
    world.run()
    assert not world.service.statistics(TOPIC).failing


def test_the_failure_of_a_ledger_is_removed_when_segments_hold_it(new_world: NewWorld) -> None:
    world = new_world(
        settings(
            **by_hand(managed_ledger_offload_threshold_in_bytes=0, managed_ledger_offload_deletion_lag_in_millis=1000)
        )
    )
    world.topic(2)
    fail_ledgers(world, 1)
    set_policies(world, streamingOffloadEnabled=True)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert world.service.explain(TOPIC)[0].state is LedgerState.WAITING_FOR_LAG
    assert not world.service.statistics(TOPIC).failing
    world.clock.advance(2)
    [found, *_] = world.service.explain(TOPIC)
    assert (found.state, found.error) == (LedgerState.TO_BE_FREED, None)


def test_the_obstacle_of_a_policy_is_cleared_when_nothing_is_due(new_world: NewWorld) -> None:
    world = new_world(settings(**by_hand()))
    world.topic(2)
    set_policies(world, managedLedgerOffloadDriver="filesystem", managedLedgerOffloadThresholdInBytes=0)
    world.run()
    assert world.service.statistics(TOPIC).failing
    set_policies(world, managedLedgerOffloadThresholdInBytes=-1)
    world.service.on_ledger_closed(TOPIC)
    world.run()
    assert not world.service.statistics(TOPIC).failing


def test_a_topic_that_is_not_there_cannot_be_offloaded(new_world: NewWorld) -> None:
    world = new_world()
    with pytest.raises(TopicMissing):
        world.service.offload_prefix(TOPIC, LATEST)
    with pytest.raises(TopicMissing):
        world.service.explain(TOPIC)


def test_a_manual_offload_ends_when_its_ledgers_are_trimmed(new_world: NewWorld) -> None:
    world = new_world(settings(**by_hand()))
    ledger = world.topic(2)
    world.service.offload_prefix(TOPIC, LATEST)
    ledger.trimmer.truncate()
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.SUCCESS


def test_a_manual_offload_of_a_topic_with_a_new_owner_fails(new_world: NewWorld) -> None:
    world = new_world(settings(**by_hand()))
    world.topic(2)
    other = new_world(settings(**by_hand()), world.metadata)
    other.hot = world.hot
    other.boot()
    other.store.open(TOPIC)
    for _ in range(2):
        world.service.offload_prefix(TOPIC, LATEST)
        world.run()
        assert world.service.status(TOPIC).state is OffloadState.ERROR
    assert world.objects() == []


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_due_tasks_of_all_topics_go_out_as_one_job(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2, 20)
    world.topic(2, name=OTHER)
    world.service.tick()
    world.settle()
    assert [sorted({task.topic for task in job}) for job in world.runner.jobs] == [[OTHER, TOPIC]]
    assert len(world.runner.jobs[0]) == 6
    world.run()
    assert len(world.runner.jobs) == 1


def test_a_topic_whose_tasks_do_not_end_holds_up_no_other(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2)
    world.service.tick()
    world.settle()
    world.topic(2, name=OTHER)
    world.service.tick()
    world.settle()
    assert [job[0].topic for job in world.runner.jobs] == [TOPIC, OTHER]
    world.runner.run_one(1)
    world.settle()
    assert world.offloaded(OTHER)
    assert world.offloaded() == []
    world.run()
    assert world.offloaded() == [1]


def test_a_tick_does_not_wait_for_a_topic_that_is_being_polled(new_world: NewWorld) -> None:
    """One poll blocks on the executor; tasks of other topics go out with the next tick."""
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2, name=OTHER)
    world.service.tick()
    world.settle()
    world.runner.run_all()
    world.settle()
    world.service.on_ledger_closed(TOPIC)
    world.topic(2)
    world.service.tick()
    assert len(world.runner.jobs) == 1
    world.executor.run_one()
    world.service.tick()
    world.settle()
    world.run()
    assert world.offloaded() == [world.info().ledgerInfo[0].ledgerId]


def test_idle_topics_cost_no_piece_of_work(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2)
    world.run()
    world.service.tick()
    assert len(world.executor) == 0
    assert world.runner.waiting == type(world.runner.waiting)()


def test_a_job_that_cannot_be_started_is_a_failure_like_any_other(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2)

    def refuse(_tasks: Sequence[Task], _done: object) -> None:
        raise MissingDependency.of_extra("Spark is not installed", "spark")

    with monkeypatch.context() as patched:
        patched.setattr(world.runner, "submit", refuse)
        world.run()
    assert "pulsar-afterglow[spark]" in (world.service.explain(TOPIC)[0].error or "")
    world.clock.advance(60)
    world.run()
    assert world.offloaded() == [1]


def test_a_result_that_comes_twice_counts_once(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(20)
    world.service.tick()
    world.settle()
    task, done = world.runner.waiting[0]
    world.runner.waiting.appendleft((task, done))
    world.run()
    assert world.offloaded() == [1]


def test_a_stalled_offload_is_named_once(new_world: NewWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0, offload_stall_warning_seconds=10))
    world.topic(2)
    world.service.tick()
    world.settle()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            world.clock.advance(10)
            world.service.tick()
    assert caplog.text.count("has made no progress for 10 s: it is copying, 0 of 1 tasks ended") == 1
    assert world.service.statistics(TOPIC).stalled == (1,)
    world.run()
    assert world.service.statistics(TOPIC).stalled == ()


def test_nothing_is_handed_out_after_the_close(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2)
    world.service.close()
    world.service.tick()
    assert len(world.executor) == 0
    assert world.runner.jobs == []


# --- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "per_second"),
    [
        ({"offload_throttling_rate_in_bytes": 2_000}, 2_000),
        ({"offload_throttling_rate_per_topic_in_bytes": 1_000}, 2_000),
    ],
)
def test_bytes_go_out_at_the_rate_that_is_allowed(new_world: NewWorld, limits: dict[str, int], per_second: int) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0, **limits))
    for name in (TOPIC, OTHER):
        world.topic(*[10] * 8, name=name)
    total = 0
    for second in range(60):
        world.service.tick()
        world.settle()
        largest = max((task.size_bytes for job in world.runner.jobs for task in job), default=0)
        total = sum(task.size_bytes for job in world.runner.jobs for task in job)
        assert total <= per_second * (second + 1) + 2 * largest
        world.runner.run_all()
        world.settle()
        world.clock.advance(1)
    assert len(world.offloaded()) == len(world.offloaded(OTHER)) == 8
    assert total > 5 * per_second


def test_requests_are_limited_too(new_world: NewWorld) -> None:
    world = new_world(
        settings(managed_ledger_offload_threshold_in_bytes=0, offload_throttling_rate_per_topic_in_requests=5)
    )
    world.topic(*[2] * 6)
    for ledgers in (2, 3, 4):  # the first two at once: a bucket that is not in debt lets one more through
        world.service.tick()
        world.settle()
        world.runner.run_all()
        world.settle()
        assert len(world.offloaded()) == ledgers
        world.clock.advance(1)


def test_a_throttled_topic_holds_up_no_other(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.catalog.ensure_defaults()
    world.catalog.update_topic_policies(
        TopicName.from_managed_ledger_name(TOPIC),
        lambda old: {**old, "offloadPolicies": {"offloadThrottlingRatePerTopicInBytes": 1}},
    )
    world.policies.changed(None)
    world.topic(2, 2)
    world.topic(2, 2, name=OTHER)
    world.service.tick()
    world.settle()
    world.runner.run_all()
    world.settle()
    assert len(world.offloaded()) == 1
    assert len(world.offloaded(OTHER)) == 2
    world.clock.advance(1000)
    world.run()
    assert len(world.offloaded()) == 2


# --- hot copies -------------------------------------------------------------------------------------------------------


def lagging(lag_ms: int | None = 1000, **changes: object) -> dict[str, object]:
    return {
        "managed_ledger_offload_threshold_in_bytes": 0,
        "managed_ledger_offload_deletion_lag_in_millis": lag_ms,
        **changes,
    }


def test_hot_copies_go_after_the_lag(new_world: NewWorld) -> None:
    world = new_world(settings(**lagging()))
    world.topic(2, 2)
    world.run()
    assert world.hot.ledgers() == (1, 2, 3)
    world.clock.advance(1)
    world.run()
    assert world.hot.ledgers() == (1, 2, 3)
    world.clock.advance(0.001)
    world.run()
    assert world.hot.ledgers() == (3,)
    assert [row.offloadContext.bookkeeperDeleted for row in world.info().ledgerInfo] == [True, True, False]
    assert world.service.explain(TOPIC)[0].state is LedgerState.FREED


def test_without_a_lag_hot_copies_stay(new_world: NewWorld) -> None:
    world = new_world(settings(**lagging(None)))
    world.topic(2)
    world.run()
    world.clock.advance(10**6)
    world.run()
    assert world.hot.ledgers() == (1, 2)


def test_the_deletion_lag_of_a_topic_that_is_not_open_passes_too(new_world: NewWorld) -> None:
    world = new_world(settings(**lagging()))
    world.topic(2)
    world.run()
    world.crash()
    world.clock.advance(2)
    world.run()
    assert 1 not in world.hot.ledgers()


def _lose(world: OffloadWorld, key: str) -> None:
    world.tier.delete([key])


def _cut(world: OffloadWorld, key: str) -> None:
    world.tier.put(key, world.tier.get(key)[:-1])


def _spoil(world: OffloadWorld, key: str) -> None:
    world.tier.put(key, b"?" * 100)


@pytest.mark.parametrize(
    ("damage", "suffix", "words"),
    [
        (_lose, "", "is missing"),
        (_cut, "", "bytes, and its index says"),
        (_lose, "-index", "has no index"),
        (_spoil, "-index", "damaged index"),
    ],
)
def test_a_hot_copy_stays_while_the_object_is_not_sound(
    damage: Callable[[OffloadWorld, str], None], suffix: str, words: str
) -> None:
    world = OffloadWorld(settings(**lagging()))
    world.topic(2)
    world.run()
    key = world.objects()[0] + suffix
    kept = world.tier.get(key), world.tier.head(key).metadata
    damage(world, key)
    world.clock.advance(2)
    world.run()
    explained = world.service.explain(TOPIC)[0]
    assert explained.state is LedgerState.TO_BE_FREED
    assert words in (explained.error or "")
    assert world.hot.ledgers() == (1, 2)

    world.tier.put(key, kept[0], metadata=kept[1])
    world.clock.advance(120)
    world.run()
    assert world.hot.ledgers() == (2,)


def test_an_object_that_ends_before_its_ledger_frees_nothing() -> None:
    world = OffloadWorld(settings(**lagging()))
    ledger = world.topic(2)
    world.run()

    def grow(info: ManagedLedgerInfo) -> None:
        info.ledgerInfo[0].entries = 3

    ledger.update(grow)
    world.clock.advance(2)
    world.run()
    assert "ends with entry 1" in (world.service.explain(TOPIC)[0].error or "")
    assert world.hot.ledgers() == (1, 2)


# --- ledgers and topics that go ---------------------------------------------------------------------------------------


def test_a_ledger_that_is_being_copied_is_trimmed_only_afterwards(new_world: NewWorld) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    ledger = world.topic(2)
    ledger.retention = Retention.of(0, 0)
    world.service.tick()
    world.settle()
    assert world.service.is_in_use(TOPIC, 1)
    assert ledger.trim() == ()
    world.runner.run_all()
    assert ledger.trim() == ()
    world.settle()
    assert world.offloaded() == [1]
    assert ledger.trim() == (1,)
    world.run()
    assert world.objects() == []
    assert world.intents() == ()


def test_retention_deletes_objects_after_the_ledger_list_stopped_naming_them(new_world: NewWorld) -> None:
    world = new_world(settings(**lagging()))
    ledger = world.topic(2, 20)
    world.run()
    assert len(world.objects()) == 4
    ledger.trimmer.truncate()
    assert len(world.intents()) == 2
    assert len(world.objects()) == 4
    world.run()
    assert world.objects() == []
    assert world.intents() == ()


@pytest.mark.parametrize("opened", [True, False])
def test_deleting_a_topic_deletes_its_objects(new_world: NewWorld, *, opened: bool) -> None:
    world = new_world(settings(**lagging()))
    world.topic(2, 20)
    world.run()
    world.clock.advance(2)
    world.run()
    if not opened:
        world.crash()
    world.store.delete(TOPIC)
    world.run()
    assert world.objects() == []
    assert world.intents() == ()
    assert world.metadata.children("/afterglow/standalone/deletes/public/default/persistent") == ()


@pytest.mark.parametrize("ran", [0, 1, 4])
def test_deleting_a_topic_cancels_its_attempts(new_world: NewWorld, ran: int) -> None:
    world = new_world(settings(**lagging()))
    world.topic(20)
    world.service.tick()
    world.settle()
    for _ in range(ran):
        world.runner.run_one()
    world.store.delete(TOPIC)
    assert not world.service.is_in_use(TOPIC, 1)
    world.run()
    assert world.objects() == []
    assert world.tier.list_uploads() == ()
    world.run_late()
    assert world.intents() == ()


def test_a_task_that_runs_long_after_its_small_segment_was_given_up_writes_nothing(new_world: NewWorld) -> None:
    """Promises 3, 4 and 9: its process was killed, and the task waits for longer than pending deletes are kept."""
    world = new_world(settings(streaming_offload_enabled=True))
    ledger = world.open()
    world.append(ledger, b"a small segment")
    world.service.offload_prefix(TOPIC, LATEST)
    world.service.tick()
    world.settle()
    ((late, _),) = world.runner.waiting
    copy = MemoryLog().create()
    copy.append(world.hot.open(1).read(0, 0), lambda _error: None)
    world.crash()
    world.store.delete(TOPIC)
    world.run()
    world.run_late()
    assert world.intents() == ()

    assert isinstance(late, PartTask)
    result = run_part(late, open_ledger=lambda _: nullcontext(copy), open_store=lambda *_: world.tier)
    assert isinstance(result.error, UploadMissing)
    assert world.objects() == []
    assert world.findings() == []


def test_objects_of_a_topic_that_is_created_anew_are_not_mixed_up(new_world: NewWorld) -> None:
    world = new_world(settings(**lagging()))
    world.topic(2)
    world.run()
    old = world.objects()
    world.store.delete(TOPIC)
    world.topic(2)
    world.run()
    assert len(world.objects()) == 2
    assert not set(world.objects()) & set(old)


def test_pending_deletes_that_fail_are_tried_again(new_world: NewWorld) -> None:
    rule = FaultRule(Fault.ERROR_BEFORE, frozenset({"delete"}), times=2)
    world = new_world(settings(**lagging()), wrap=lambda store: FaultyStore(store, [rule]))
    ledger = world.topic(2)
    world.run()
    ledger.trimmer.truncate()
    world.run()
    assert len(world.intents()) == 1
    for _ in range(2):
        world.clock.advance(60)
        world.run()
    assert world.objects() == []
    assert world.intents() == ()


def test_a_start_scans_all_topics_at_the_next_tick(new_world: NewWorld) -> None:
    world = new_world(settings())
    world.topic(2)
    world.run()
    # As another process would: nothing tells this one of it.
    world.service._pending_deletes.record(TOPIC, PendingDelete(uuid4(), world.own), "for a test")
    world.run()
    assert len(world.intents()) == 1, "the next scan is far away"
    world.service.start()
    world.run()
    assert world.intents() == ()


def test_intents_of_topics_that_are_gone_are_replayed_at_the_start(new_world: NewWorld) -> None:
    world = new_world(settings(**lagging()))
    world.topic(2)
    world.run()
    world.store.delete(TOPIC)
    assert len(world.objects()) == 2
    world.crash()
    world.run()
    assert world.objects() == []
    assert world.intents() == ()


def test_an_object_that_a_list_still_names_is_not_deleted(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(settings(**lagging()))
    ledger = world.topic(2)
    world.run()

    def fail(*_: object, **__: object) -> None:
        raise AfterglowError("the list cannot be changed")

    with monkeypatch.context() as patched:
        patched.setattr("afterglow.ledger.trimming.drop_ledgers", fail)
        with pytest.raises(AfterglowError):
            ledger.trimmer.truncate()
    assert len(world.intents()) == 1
    world.run()
    assert len(world.objects()) == 2
    assert world.offloaded() == [1]
    ledger.trimmer.truncate()
    world.clock.advance(60)
    world.run()
    assert world.objects() == []


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_count_what_is_in_the_tier(new_world: NewWorld) -> None:
    world = new_world(settings(**lagging()))
    ledger = world.topic(2, 2)
    world.service.tick()
    world.settle()
    assert world.service.statistics(TOPIC).running == (1, 2)
    world.run()
    statistics = world.service.statistics(TOPIC)
    assert statistics.offloaded_bytes == sum(row.size_bytes or 0 for row in ledger.ledgers[:2])
    assert (statistics.last_ledger_id, statistics.last_failure_ms, statistics.running) == (2, 0, ())
    assert statistics.last_success_ms == world.clock.now_ms()


def test_topics_that_are_gone_or_quiet_are_not_kept_in_mind(new_world: NewWorld) -> None:
    world = new_world(settings())
    world.topic(2)
    world.topic(2, name=OTHER)
    world.run()
    world.store.delete(OTHER)
    world.run()
    world.clock.advance(1000)
    world.run()
    assert len(world.service._topics) == 0


def test_a_topic_that_is_about_to_be_polled_is_not_dropped_by_a_scan_at_the_same_moment(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2)
    scans: list[threading.Thread] = []
    submit = SerialExecutor.submit

    def submit_during_scan(executor: SerialExecutor, item: Callable[[], None]) -> None:
        # The scan drops the topic now, or waits until the poll is on the executor of the topic.
        scans.append(threading.Thread(target=world.service._drop_idle_topics, args=({TOPIC},)))
        scans[-1].start()
        scans[-1].join(0.2)
        submit(executor, item)

    world.settle()
    monkeypatch.setattr(SerialExecutor, "submit", submit_during_scan)
    world.service._poll_topics([TOPIC])
    monkeypatch.undo()
    for scan in scans:
        scan.join()
    world.settle()
    assert len(world.service._busy_topics()) == 1
    world.run()
    assert world.offloaded() == [1]


def test_the_state_of_a_topic_is_kept_while_ledgers_are_removed(new_world: NewWorld) -> None:
    world = new_world(settings())
    ledger = world.topic(2)
    world.run()
    world.service.before_removal(TOPIC, ledger.info.ledgerInfo[:1])
    world.service._drop_idle_topics({TOPIC})
    assert len(world.service._topics) == 1
    world.service.after_removal(TOPIC)
    world.run()
    world.service._drop_idle_topics({TOPIC})
    assert len(world.service._topics) == 0


def test_a_topic_is_polled_when_it_is_loaded_if_configured(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wanted in (False, True):
        world = new_world(settings(trigger_offload_on_topic_load=wanted))
        world.run()
        polls: list[TopicOffload] = []

        def poll(topic: TopicOffload, polls: list[TopicOffload] = polls) -> None:
            polls.append(topic)

        monkeypatch.setattr(TopicOffload, "poll", poll)
        world.open()
        world.service.tick()
        world.settle()
        assert len(polls) == int(wanted)
        monkeypatch.undo()
