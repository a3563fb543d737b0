from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from tests.support.ledgers import TOPIC
from tests.support.offloads import OffloadWorld
from tests.support.streams import streaming

from afterglow.errors import AccessDenied, BucketMissing, StoreUnavailable
from afterglow.format.position import LATEST, Position
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload.segments.listing import SegmentStatus
from afterglow.offload.segments.part_planner import Sizes
from afterglow.offload.segments.records import new_record
from afterglow.offload.segments.topic_stream import TopicStream
from afterglow.offload.segments.upload_record import UploadRecordNode
from afterglow.offload.status import OffloadState

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.errors import StorageError
    from afterglow.ledger.managed_ledger import ManagedLedger

    NewWorld = Callable[..., OffloadWorld]


def set_policies(world: OffloadWorld, **policies: object) -> None:
    topic = TopicName.from_managed_ledger_name(TOPIC)
    world.catalog.update_topic_policies(topic, lambda _old: {"offloadPolicies": policies})
    world.policies.changed(topic.namespace)


def switch(world: OffloadWorld, *, streaming: bool) -> None:
    set_policies(world, streamingOffloadEnabled=streaming)


def without_directory(world: OffloadWorld) -> ManagedLedger:
    """A topic whose stream cannot begin a segment: its policy names a driver without the directory it needs."""
    ledger = world.open()
    set_policies(world, streamingOffloadEnabled=True, managedLedgerOffloadDriver="filesystem")
    world.append(ledger, b"a")
    world.run()
    return ledger


def test_a_topic_that_streams_no_more_is_not_polled_at_every_tick() -> None:
    world = OffloadWorld()
    ledger = world.topic(1)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    switch(world, streaming=True)
    world.service.on_ledger_closed(TOPIC)
    world.run()
    switch(world, streaming=False)
    world.run()
    world.append(ledger, b"a")
    world.run(2)


def test_a_manual_offload_ends_if_streaming_is_disabled_before_it_began() -> None:
    world = OffloadWorld()
    ledger = world.open()
    switch(world, streaming=True)
    world.run()
    world.append(ledger, b"a")
    world.service.offload_prefix(TOPIC, LATEST)
    assert world.service.status(TOPIC).state is OffloadState.RUNNING
    switch(world, streaming=False)
    world.run()
    status = world.service.status(TOPIC)
    assert status.state is OffloadState.ERROR
    assert "streamingOffloadEnabled" in status.last_error


def test_a_manual_offload_ends_if_segments_end_before_its_target() -> None:
    world = OffloadWorld()
    ledger = world.open()
    switch(world, streaming=True)
    world.append(ledger, b"a")
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.SUCCESS
    ledger.roll()
    world.append(ledger, b"b")
    world.service.offload_prefix(TOPIC, LATEST)
    switch(world, streaming=False)
    world.run()
    status = world.service.status(TOPIC)
    assert status.state is OffloadState.ERROR
    assert "streamingOffloadEnabled" in status.last_error


def test_a_manual_offload_succeeds_after_the_cause_of_an_earlier_error_is_fixed(new_world: NewWorld) -> None:
    world = new_world()
    without_directory(world)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.ERROR
    assert "fileSystemURI" in world.service.status(TOPIC).last_error
    switch(world, streaming=True)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    status = world.service.status(TOPIC)
    assert (status.state, status.last_error) == (OffloadState.SUCCESS, "")


def test_a_manual_offload_is_not_failed_by_an_attempt_that_began_before_it(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world()
    without_directory(world)
    world.clock.advance(60)
    advance = TopicStream.advance

    def asked_for_meanwhile(stream: TopicStream, *args: Any) -> Any:
        switch(world, streaming=True)
        world.service.offload_prefix(TOPIC, LATEST)
        monkeypatch.undo()
        return advance(stream, *args)  # by the policy from before

    monkeypatch.setattr(TopicStream, "advance", asked_for_meanwhile)
    world.service.tick()
    world.executor.run_all()
    states = [world.service.status(TOPIC).state]
    world.run()
    states.append(world.service.status(TOPIC).state)
    assert states == [OffloadState.RUNNING, OffloadState.SUCCESS]


def test_an_error_ends_with_its_cause_before_a_segment_is_committed(new_world: NewWorld) -> None:
    world = new_world()
    without_directory(world)
    failed_ms = world.clock.now_ms()
    assert world.service.statistics(TOPIC).failing
    world.clock.advance(0.001)
    world.service.on_ledger_closed(TOPIC)
    world.run()
    assert world.service.statistics(TOPIC).last_failure_ms == failed_ms  # a poll that waits is not a failure
    switch(world, streaming=True)
    world.clock.advance(60)
    world.run()
    assert [view.status for view in world.service.segments(TOPIC)] == [SegmentStatus.ASSIGNED]
    statistics = world.service.statistics(TOPIC)
    assert (statistics.failing, statistics.last_failure_ms) == (False, failed_ms)


def test_a_failed_manual_offload_closes_no_segment_later(new_world: NewWorld) -> None:
    world = new_world()
    without_directory(world)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.ERROR
    switch(world, streaming=True)
    world.clock.advance(60)
    world.run()
    assert [view.status for view in world.service.segments(TOPIC)] == [SegmentStatus.ASSIGNED]


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (BucketMissing("no bucket"), OffloadState.ERROR),
        (AccessDenied("no right"), OffloadState.ERROR),
        (StoreUnavailable("no route"), OffloadState.RUNNING),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_manual_offload_ends_if_the_store_keeps_denying_requests(
    new_world: NewWorld, error: StorageError, state: OffloadState
) -> None:
    world = streams(new_world, tail=3)
    world.service.offload_prefix(TOPIC, LATEST)
    for _ in range(2):
        world.service.tick()
        world.settle()
        world.runner.fail_one(error)
        world.settle()
        assert world.service.status(TOPIC).state is OffloadState.RUNNING
        world.clock.advance(60)
    world.service.tick()
    world.settle()
    world.runner.fail_one(error)
    world.settle()
    assert world.service.status(TOPIC).state is state
    assert world.service.status(TOPIC).last_error == ("" if state is OffloadState.RUNNING else str(error))
    world.clock.advance(60)
    world.run()
    assert ends(world) == [Position(1, 2)]


# --- up to a position -------------------------------------------------------------------------------------------------


def streams(new_world: NewWorld, *ledgers: int, tail: int = 0, part_bytes: int = 1 << 20) -> OffloadWorld:
    """A topic that streams, with closed ledgers and entries of 100 bytes in the open one, its live segment begun."""
    world = new_world(streaming(max_offload_segment_size_in_bytes=1 << 20), part_bytes=part_bytes)
    ledger = world.topic(*ledgers)
    world.append(ledger, *[b"x" * 60] * tail)
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.NOT_RUN
    return world


def ends(world: OffloadWorld) -> list[Position | None]:
    """The last entry of every segment; None of the live one."""
    return [view.end for view in world.service.segments(TOPIC)]


def offload(world: OffloadWorld, position: Position) -> Position:
    """Offload by hand; returns the first position that is not in the tier then."""
    world.service.offload_prefix(TOPIC, position)
    world.run()
    status = world.service.status(TOPIC)
    assert (status.state, status.last_error) == (OffloadState.SUCCESS, "")
    return status.first_unoffloaded


def test_a_live_segment_closes_right_before_the_position_that_was_asked_for(new_world: NewWorld) -> None:
    world = streams(new_world, tail=10)
    assert ends(world) == [None]
    assert offload(world, Position(1, 3)) == Position(1, 3)
    assert ends(world) == [Position(1, 2), None]
    assert offload(world, Position(1, 3)) == Position(1, 3)  # which is there already
    assert ends(world) == [Position(1, 2), None]
    assert offload(world, Position(1, 10)) == Position(1, 10)
    assert ends(world) == [Position(1, 2), Position(1, 9)]


def test_a_position_in_an_older_ledger_leaves_the_newer_ones_to_the_live_segment(new_world: NewWorld) -> None:
    world = streams(new_world, 2, 3, tail=2)
    assert offload(world, Position(2, 0)) == Position(2, 0)
    assert ends(world) == [Position(1, 1), None]
    assert offload(world, Position(2, 3)) == Position(3, 0)  # behind the last entry of a ledger
    assert ends(world) == [Position(1, 1), Position(2, 2), None]
    assert offload(world, LATEST) == Position(3, 2)
    assert ends(world) == [Position(1, 1), Position(2, 2), Position(3, 1)]


def test_parts_that_are_uploaded_behind_the_position_stay_in_the_segment(new_world: NewWorld) -> None:
    world = streams(new_world, tail=30, part_bytes=800)
    planned = world.service._topic(TOPIC).uploads[0].planned_end
    assert planned > Position(1, 3)
    assert offload(world, Position(1, 3)) == planned.next()
    assert ends(world) == [planned, None]


def test_nothing_is_closed_for_a_position_before_everything(new_world: NewWorld) -> None:
    world = streams(new_world, 2, tail=2)
    assert offload(world, Position(1, 0)) == Position(1, 0)
    assert ends(world) == [None]


@pytest.mark.parametrize("ledgers", [(), (2,)])
def test_the_newest_ledger_by_its_number_alone_stands_for_the_whole_topic(
    new_world: NewWorld, ledgers: tuple[int, ...]
) -> None:
    world = streams(new_world, *ledgers, tail=4)
    newest = len(ledgers) + 1
    assert offload(world, Position(newest, 0)) == Position(newest, 4)
    assert ends(world) == [Position(newest, 3)]


def test_entries_that_come_meanwhile_are_left_to_the_next_segment(new_world: NewWorld) -> None:
    world = streams(new_world, tail=2)
    world.service.offload_prefix(TOPIC, LATEST)
    world.append(world.open(), b"late")
    world.run()
    assert ends(world) == [Position(1, 1), None]


def test_a_topic_that_was_not_polled_yet_is_offloaded_up_to_the_position(new_world: NewWorld) -> None:
    world = new_world(streaming(max_offload_segment_size_in_bytes=1 << 20))
    ledger = world.topic(3)
    world.append(ledger, *[b"x"] * 5)
    assert offload(world, Position(2, 2)) == Position(2, 2)
    assert ends(world) == [Position(2, 1), None]


def begin_nameless(world: OffloadWorld, ledger_id: int) -> None:
    """Put a segment on record, and crash before the list names it."""
    uuid = uuid4()
    record = new_record(
        uuid,
        world.own,
        Position(ledger_id, 0),
        None,
        owner_epoch=1,
        sizes=Sizes(256, 512),
        assigned_ms=0,
        first_entry_ms=0,
    )
    UploadRecordNode(world.metadata, AfterglowPaths().upload(TOPIC, uuid), 1).create(record)


@pytest.mark.parametrize("dies", [True, False])
def test_a_segment_on_record_that_no_list_names_is_given_up_though_the_topic_does_not_stream(*, dies: bool) -> None:
    world = OffloadWorld()
    ledger = world.topic(1)
    world.run()
    begin_nameless(world, ledger.info.ledgerInfo[0].ledgerId)
    if dies:
        world.crash()
    for _ in range(3):
        world.clock.advance(world.config.retention_check_interval_in_seconds)
        world.run()
    assert world.metadata.children(AfterglowPaths().uploads(TOPIC)) == ()
    assert len(world.intents()) == 1, "a request under way may still create an upload"
    world.run_late()
    assert world.intents() == ()
