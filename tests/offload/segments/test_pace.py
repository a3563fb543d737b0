"""How soon a stream goes on: with the entry that fills something, and before what takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.ledgers import TOPIC, settings
from tests.support.streams import StreamWorld, streaming

from afterglow.format.position import LATEST
from afterglow.offload.segments.topic_stream import MAX_ASSIGNED
from afterglow.offload.topic_offload import TopicOffload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest
    from tests.support.offloads import OffloadWorld

    from afterglow.offload.task import StreamTask

ENTRY = bytes(60)


def frame_bytes() -> int:
    """Of an entry as the log holds it, with what the broker puts in front."""
    world = StreamWorld()
    world.append(ENTRY)
    return len(world.entries()[0]) + 12


FRAME_BYTES = frame_bytes()


def is_due(world: StreamWorld) -> bool:
    return world.stream.is_due(world.world.clock.now_ms())


def test_a_stream_is_due_with_the_entry_that_fills_a_part() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=1 << 20))
    world.append(ENTRY)
    world.settle()
    count = 1
    while not is_due(world):
        world.append(ENTRY)
        count += 1
    assert (count - 1) * FRAME_BYTES < world.sizes.part_bytes <= count * FRAME_BYTES


def test_a_stream_is_due_with_the_entry_that_fills_a_segment_though_it_fills_no_part() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=12 * FRAME_BYTES))
    for _ in range(11):
        world.append(ENTRY)
        world.settle()
    assert world.covered() == []
    assert not is_due(world)
    world.append(ENTRY)
    assert is_due(world)
    world.settle()
    assert world.covered() == ["1:11"]


def test_what_waits_of_a_segment_that_has_just_begun_counts_too() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10 * FRAME_BYTES))
    world.append(*[ENTRY] * 18)
    world.settle()
    assert world.covered() == ["1:9"]
    assert len(world.stream.uploads) == 1
    world.append(ENTRY, ENTRY)
    assert is_due(world)


def test_tasks_of_further_segments_go_out_before_one_is_finished() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=2 * FRAME_BYTES))
    world.append(*[ENTRY] * 20)
    assert world.advance() == MAX_ASSIGNED
    world.run()
    calls: list[tuple[int, int]] = []

    def hand_out(tasks: Sequence[StreamTask]) -> None:
        calls.append((len(tasks), len(world.covered())))
        world.tasks += tasks

    world.tasks += world.stream.advance(hand_out)
    assert calls == [(0, 0), (1, 1), (1, 2), (1, 3)]
    world.settle()
    assert len(world.covered()) == 10


def test_results_that_come_before_a_poll_are_seen_by_one(
    new_world: Callable[..., OffloadWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(settings(streaming_offload_enabled=True, max_offload_segment_size_in_bytes=1 << 20))
    world.topic(20, size_bytes=100)
    world.service.tick()
    world.settle()
    world.service.offload_prefix(TOPIC, LATEST)
    world.service.tick()
    world.settle()
    polled: list[str] = []
    poll = TopicOffload.poll

    def counted(topic: TopicOffload) -> None:
        polled.append(topic.name)
        poll(topic)

    monkeypatch.setattr(TopicOffload, "poll", counted)
    assert world.runner.run_all() > 2
    world.settle()
    assert polled == [TOPIC]
    world.run()
