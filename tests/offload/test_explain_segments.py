"""Explanations of the ledgers of a topic that streams, or has streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.ledgers import TOPIC, settings

from afterglow.errors import StoreUnavailable
from afterglow.format.position import LATEST
from afterglow.metadata.names import NamespaceName
from afterglow.offload.explain import LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.offloads import OffloadWorld

    from afterglow.offload.explain import Explanation

    NewWorld = Callable[..., OffloadWorld]

NAMESPACE = NamespaceName("public", "default")
ENTRY = b"x" * 88
"""With its frame of 12 bytes, 100 in the log and in objects."""


def streaming(**changes: object) -> object:
    given: dict[str, object] = {
        "streaming_offload_enabled": True,
        "max_offload_segment_size_in_bytes": 2000,
        "broker_entry_metadata_interceptors": (),
        "managed_ledger_offload_deletion_lag_in_millis": None,
    }
    return settings(**(given | changes))


def switch(world: OffloadWorld, *, on: bool) -> None:
    world.catalog.ensure_defaults()
    world.catalog.update_policies(NAMESPACE, lambda old: {**old, "offload_policies": {"streamingOffloadEnabled": on}})
    world.policies.changed(NAMESPACE)


def explained(world: OffloadWorld) -> dict[int, Explanation]:
    return {found.ledger_id: found for found in world.service.explain(TOPIC)}


def test_the_open_segment_shows_its_parts_and_what_closes_it(new_world: NewWorld) -> None:
    world = new_world(streaming())
    ledger = world.open()
    world.append(ledger, *[ENTRY] * 13)
    world.run()
    world.clock.advance(100)
    world.append(ledger, ENTRY)
    (segment,) = world.service.segments(TOPIC)
    found = explained(world)[1]
    assert found.sentence == (
        "It has 14 entries: 12 in segments that are being uploaded and 2 waiting for a segment. "
        f"Segment {segment.id[:8]} is open: 2 of 2 parts are uploaded. It closes with 600 B more "
        "(maxOffloadSegmentSizeInBytes=1.95 KiB), or in 500 s (maxOffloadSegmentRolloverTimeInSeconds=600)."
    )
    assert (found.state, found.error) == (LedgerState.IN_SEGMENTS, None)
    assert found.next_ms == world.clock.now_ms() + 500_000
    ledger.roll()
    world.settle()
    assert explained(world)[1].sentence.endswith("Its hot copy is kept until all of it is in committed segments.")
    assert explained(world)[2].sentence == "It is being written, and has no entries yet."
    assert explained(world)[2].state is LedgerState.OPEN


def test_a_ledger_shows_what_is_committed_of_it(new_world: NewWorld) -> None:
    world = new_world(streaming())
    ledger = world.open()
    world.append(ledger, ENTRY, ENTRY)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert explained(world)[1].sentence == "It has 2 entries, all in committed segments. It is being written."
    assert explained(world)[1].state is LedgerState.IN_SEGMENTS
    world.append(ledger, ENTRY)
    assert explained(world)[1].sentence == (
        "It has 3 entries: 2 in committed segments and 1 waiting for a segment. The next tick begins a segment with it."
    )
    ledger.roll()
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    found = explained(world)[1]
    assert found.state is LedgerState.OFFLOADED
    assert found.sentence.startswith("It is in the tier, in 2 segments; its hot copy is kept, since managedLedger")


def test_history_shows_how_many_segments_come_before(new_world: NewWorld) -> None:
    world = new_world(streaming(streaming_offload_enabled=False, max_offload_segment_size_in_bytes=400))
    ledger = world.open()
    for _ in range(6):
        world.append(ledger, *[ENTRY] * 4)
        ledger.roll()
    world.run()
    assert explained(world)[1].state is LedgerState.NOT_TRIGGERED
    switch(world, on=True)
    assert explained(world)[1].state is LedgerState.STREAMING
    assert explained(world)[1].sentence.startswith(
        "It has 4 entries, all waiting for a segment. The next tick begins a segment"
    )
    world.service.tick()
    world.settle()
    world.service.tick()
    world.settle()
    ids = [view.id[:8] for view in world.service.segments(TOPIC)]
    found = explained(world)
    assert f"Segment {ids[0]} ends with 1:3: 0 of 1 parts are uploaded. Its hot" in found[1].sentence
    assert f"{ids[2]} ends with 3:3: 0 of 1 parts are uploaded, and 2 before it are committed first." in (
        found[3].sentence
    )
    assert "It follows the segments that are being uploaded, of which there are 4." in found[6].sentence
    assert found[6].state is LedgerState.STREAMING
    world.run()
    assert {found.state for found in explained(world).values()} == {LedgerState.OFFLOADED, LedgerState.OPEN}


def test_a_segment_that_fails_shows_its_error_and_the_next_attempt(new_world: NewWorld) -> None:
    world = new_world(streaming(offload_retry_min_backoff_millis=4000))
    world.append(world.open(), ENTRY)
    world.service.offload_prefix(TOPIC, LATEST)
    world.service.tick()
    world.settle()
    world.runner.fail_one(StoreUnavailable("no route"))
    world.run()
    (segment,) = world.service.segments(TOPIC)
    found = explained(world)[1]
    assert found.state is LedgerState.FAILED
    assert found.sentence == (
        f"It has 1 entry, in segments that are being uploaded. Segment {segment.id[:8]} failed once: "
        "StoreUnavailable: no route. Retried in 4 s."
    )
    assert found.error == "StoreUnavailable: no route"
    assert found.next_ms == world.clock.now_ms() + 4000
    world.clock.advance(4)
    world.run()
    assert explained(world)[1].error is None


def test_a_tier_that_cannot_be_used_is_explained(new_world: NewWorld) -> None:
    world = new_world(streaming(managed_ledger_offload_driver="azureblob", managed_ledger_offload_bucket="b"))
    world.append(world.open(), ENTRY)
    world.run()
    found = explained(world)[1]
    assert found.state is LedgerState.NO_TIER
    assert "It cannot be streamed: " in found.sentence
    assert "azureblob" in (found.error or "")


def test_segments_wait_for_whole_ledgers_in_progress(new_world: NewWorld) -> None:
    world = new_world(streaming(streaming_offload_enabled=False, managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2)
    world.append(world.open(), ENTRY)
    world.service.tick()
    world.settle()
    assert world.service.statistics(TOPIC).running == (1,)
    switch(world, on=True)
    found = explained(world)
    assert "It waits for the offload of whole ledgers that is in progress: 1." in found[2].sentence
    world.run()
    assert explained(world)[1].state is LedgerState.OFFLOADED
    assert (
        "in segments that are being uploaded" in explained(world)[2].sentence
        or "is open" in explained(world)[2].sentence
    )


def test_after_a_switch_back_an_open_segment_ends_with_its_ledger(new_world: NewWorld) -> None:
    world = new_world(streaming(streaming_offload_enabled=False))
    switch(world, on=True)
    world.append(world.open(), *[ENTRY] * 2)
    world.run()
    switch(world, on=False)
    found = explained(world)[1]
    assert "no part is full yet. streamingOffloadEnabled is not set any more, so that it ends with" in found.sentence
    assert found.next_ms is None
    world.run()
    assert explained(world)[1].state is LedgerState.OFFLOADED


def test_after_a_switch_back_a_ledger_that_is_partly_in_segments_ends_in_segments(new_world: NewWorld) -> None:
    world = new_world(streaming(streaming_offload_enabled=False))
    switch(world, on=True)
    ledger = world.open()
    world.append(ledger, ENTRY)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    switch(world, on=False)
    world.append(ledger, ENTRY)
    assert "goes into a last segment when the ledger is closed." in explained(world)[1].sentence
    ledger.roll()
    world.hot.complete()
    assert "a ledger with segments is completed in segments." in explained(world)[1].sentence
    world.append(ledger, ENTRY)
    assert explained(world)[2].state is LedgerState.OPEN
    assert "whole ledgers are offloaded once they are closed" in explained(world)[2].sentence
    world.run()
    assert explained(world)[1].state is LedgerState.OFFLOADED


def test_a_topic_that_is_not_open_is_explained_from_metadata(new_world: NewWorld) -> None:
    world = new_world(streaming())
    ledger = world.open()
    world.append(ledger, *[ENTRY] * 13)
    world.run()
    ledger.roll()
    world.crash()
    found = explained(world)[1]
    assert "It has 13 entries: 12 in segments that are being uploaded and 1 waiting for a segment." in found.sentence
    assert "It closes with 800 B more" in found.sentence  # as far as is planned
    world.run()
