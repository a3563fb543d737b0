from __future__ import annotations

from uuid import uuid4

import pytest

from afterglow.format.position import LATEST, Position
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload.manual import OffloadState
from afterglow.offload.segments.cutting import Sizes
from afterglow.offload.segments.node import UploadNode
from afterglow.offload.segments.records import new_record
from afterglow.testing.ledgers import TOPIC
from afterglow.testing.offloads import OffloadWorld


def switch(world: OffloadWorld, *, streaming: bool) -> None:
    topic = TopicName.from_managed_ledger_name(TOPIC)
    policies = {"streamingOffloadEnabled": streaming}
    world.catalog.update_topic_policies(topic, lambda _old: {"offloadPolicies": policies})
    world.policies.changed(topic.namespace)


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
