"""What a stream keeps in memory until parts have taken it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from afterglow.errors import StoreUnavailable
from afterglow.format.position import LATEST
from afterglow.ledger.offload_buffer import OffloadBuffer
from afterglow.testing.offloads import OffloadWorld
from afterglow.testing.streams import streaming

if TYPE_CHECKING:
    from afterglow.ledger.managed_ledger import ManagedLedger


class BufferedWorld(OffloadWorld):
    """A topic that streams, without a tail cache and with a buffer."""

    def prepare(self) -> None:
        self.buffer = OffloadBuffer(1 << 20)
        super().prepare()


@pytest.fixture
def world() -> BufferedWorld:
    return BufferedWorld(streaming(max_offload_segment_size_in_bytes=1 << 20), block_bytes=256, part_bytes=512)


@pytest.fixture
def ledger(world: BufferedWorld) -> ManagedLedger:
    """A topic that the stream has looked at."""
    ledger = world.open()
    world.append(ledger, b"first")
    world.run()
    return ledger


def held(world: BufferedWorld) -> int:
    assert world.buffer is not None
    return world.buffer.statistics.entries


def test_entries_are_kept_until_a_part_with_them_is_uploaded(world: BufferedWorld, ledger: ManagedLedger) -> None:
    world.append(ledger, *(b"%d" % number * 60 for number in range(10)))
    assert held(world) == 10
    world.service.tick()
    world.settle()
    assert world.runner.waiting
    assert held(world) == 10
    world.run()
    assert 0 < held(world) < 10  # the last block is not full yet
    world.service.offload_prefix(ledger.name, LATEST)
    world.run()
    assert held(world) == 0
    world.append(ledger, b"next")
    assert held(world) == 1


def test_a_part_that_fails_keeps_its_entries(world: BufferedWorld, ledger: ManagedLedger) -> None:
    world.append(ledger, *(b"%d" % number * 60 for number in range(10)))
    world.service.tick()
    world.settle()
    while world.runner.waiting:
        world.runner.fail_one(StoreUnavailable("down"))
        world.settle()
    assert held(world) == 10


def test_the_next_ledger_is_kept_from_the_next_look_on(world: BufferedWorld, ledger: ManagedLedger) -> None:
    ledger.roll()
    world.settle()
    world.run()
    world.append(ledger, b"x", b"y")
    assert held(world) == 2


def test_a_topic_that_is_switched_back_keeps_nothing(world: BufferedWorld, ledger: ManagedLedger) -> None:
    world.append(ledger, *(b"%d" % number * 60 for number in range(10)))
    world.catalog.update_topic_policies(ledger.topic, lambda _: {"offloadPolicies": {"streamingOffloadEnabled": False}})
    world.policies.changed(None)
    world.run()
    assert held(world) == 0
    world.append(ledger, b"by ledger")
    assert held(world) == 0


def test_a_topic_that_is_deleted_keeps_nothing(world: BufferedWorld, ledger: ManagedLedger) -> None:
    world.append(ledger, b"x")
    assert held(world) == 1
    world.store.delete(ledger.name)
    assert held(world) == 0
