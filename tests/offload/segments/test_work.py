from __future__ import annotations

from afterglow.format.position import LATEST
from afterglow.metadata.names import TopicName
from afterglow.offload.manual import OffloadState
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
