from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from afterglow.format.position import LATEST, Position
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload.manual import OffloadState
from afterglow.offload.segments.cutting import Sizes
from afterglow.offload.segments.listing import SegmentStatus
from afterglow.offload.segments.node import UploadNode
from afterglow.offload.segments.records import new_record
from afterglow.offload.segments.stream import TopicStream
from afterglow.testing.ledgers import TOPIC
from afterglow.testing.offloads import OffloadWorld

if TYPE_CHECKING:
    from collections.abc import Callable

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


def test_a_topic_that_streams_no_more_is_not_looked_at_with_every_tick() -> None:
    world = OffloadWorld()
    ledger = world.topic(1)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    switch(world, streaming=True)
    world.service.ended(TOPIC)
    world.run()
    switch(world, streaming=False)
    world.run()
    world.append(ledger, b"a")
    world.run(2)


def test_an_offload_by_hand_ends_where_streaming_is_switched_off_before_it_began() -> None:
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


def test_an_offload_by_hand_ends_where_segments_end_before_what_it_asked_for() -> None:
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


def test_an_offload_by_hand_succeeds_after_the_cause_of_an_earlier_error_is_gone(new_world: NewWorld) -> None:
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


def test_an_offload_by_hand_is_not_failed_by_an_attempt_that_began_before_it(
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
    world.service.ended(TOPIC)
    world.run()
    assert world.service.statistics(TOPIC).last_failure_ms == failed_ms  # a look that waits is no failure
    switch(world, streaming=True)
    world.clock.advance(60)
    world.run()
    assert [view.status for view in world.service.segments(TOPIC)] == [SegmentStatus.ASSIGNED]
    statistics = world.service.statistics(TOPIC)
    assert (statistics.failing, statistics.last_failure_ms) == (False, failed_ms)


def test_an_offload_by_hand_that_failed_closes_no_segment_later(new_world: NewWorld) -> None:
    world = new_world()
    without_directory(world)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.ERROR
    switch(world, streaming=True)
    world.clock.advance(60)
    world.run()
    assert [view.status for view in world.service.segments(TOPIC)] == [SegmentStatus.ASSIGNED]


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
    UploadNode(world.metadata, AfterglowPaths().upload(TOPIC, uuid), 1).create(record)


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
    assert world.intents() == ()
