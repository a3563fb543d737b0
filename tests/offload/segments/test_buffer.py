"""What a stream keeps in the offload buffer until it is uploaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.ledgers import Receipts
from tests.support.offloads import OffloadWorld
from tests.support.streams import streaming

from afterglow.errors import HotLogError, MetadataUnavailable, StoreUnavailable
from afterglow.format.position import LATEST
from afterglow.ledger.offload_buffer import OffloadBuffer
from afterglow.ledger.reader import ReadOrigin

if TYPE_CHECKING:
    from afterglow.ledger.managed_ledger import ManagedLedger


class BufferedWorld(OffloadWorld):
    """A topic that streams, without a tail cache and with a buffer."""

    buffer_bytes = 1 << 20

    def prepare(self) -> None:
        self.buffer = OffloadBuffer(self.buffer_bytes)
        super().prepare()


@pytest.fixture
def world() -> BufferedWorld:
    return BufferedWorld(streaming(max_offload_segment_size_in_bytes=1 << 20), block_bytes=256, part_bytes=512)


@pytest.fixture
def ledger(world: BufferedWorld) -> ManagedLedger:
    """A topic that the stream has polled."""
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


def test_the_next_ledger_is_kept_from_its_first_entry_on(world: BufferedWorld, ledger: ManagedLedger) -> None:
    world.append(ledger, b"w")
    ledger.roll()
    world.append(ledger, b"x", b"y")
    assert held(world) == 3
    world.service.offload_prefix(ledger.name, LATEST)
    world.run()
    assert held(world) == 0
    ledger.roll()
    world.append(ledger, b"z")
    assert held(world) == 1


def test_a_ledger_that_replaces_a_failed_one_is_kept_too(world: BufferedWorld, ledger: ManagedLedger) -> None:
    world.append(ledger, b"w")
    failed = ledger.writing_to
    assert failed is not None
    world.hot.held = True
    receipts = Receipts()
    ledger.append((b"lost",), 1, receipts)
    world.hot.open(failed).fail(HotLogError("the disk is gone"))
    world.hot.held = False
    world.settle()
    world.append(ledger, b"x")
    assert receipts.errors
    assert ledger.writing_to != failed
    assert held(world) == 2


def test_metadata_that_cannot_be_reached_costs_no_entry_that_is_kept(
    world: BufferedWorld, ledger: ManagedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.service.offload_prefix(ledger.name, LATEST)
    world.run()
    world.append(ledger, *(b"%d" % number * 60 for number in range(5)))
    failed: list[str] = []

    def put(path: str, _value: bytes, _expected_version: int) -> int:
        failed.append(path)
        raise MetadataUnavailable("away")

    with monkeypatch.context() as away:
        away.setattr(world.metadata, "put", put)
        world.service.tick()
        world.settle()
        assert failed
        world.append(ledger, b"while metadata is away")
        assert held(world) == 6
    world.clock.advance(60)
    world.service.offload_prefix(ledger.name, LATEST)
    world.run()
    assert held(world) == 0


def test_an_upload_that_is_stuck_fills_the_buffer_and_nothing_more(world: BufferedWorld, ledger: ManagedLedger) -> None:
    assert world.buffer is not None
    world.service.offload_prefix(ledger.name, LATEST)
    world.run()
    begin = ledger.layout.last.next()
    while not world.buffer.statistics.refused:
        world.append(ledger, *(b"%d" % number * 4_000 for number in range(10)))
    full = world.buffer.statistics
    assert full.bytes_held > 0.9 * world.buffer_bytes / 2
    assert ledger.reader.read_with_gaps(begin, 1, 1).origins == [(ReadOrigin.BUFFER, 1)]
    world.append(ledger, *(b"more",) * 100)
    assert world.buffer.statistics.bytes_held == full.bytes_held
    world.run()
    assert held(world) == 0
    world.append(ledger, b"again")
    assert held(world) == 1
    world.check()


def test_a_topic_that_is_switched_back_keeps_nothing(world: BufferedWorld, ledger: ManagedLedger) -> None:
    world.append(ledger, *(b"%d" % number * 60 for number in range(10)))
    world.catalog.update_topic_policies(ledger.topic, lambda _: {"offloadPolicies": {"streamingOffloadEnabled": False}})
    world.policies.changed(None)
    world.run()
    assert held(world) == 0
    world.append(ledger, b"by ledger")
    assert held(world) == 0


def test_disabling_streaming_of_an_idle_topic_empties_its_buffer(world: BufferedWorld, ledger: ManagedLedger) -> None:
    world.service.offload_prefix(ledger.name, LATEST)
    world.run()
    ledger.roll()
    world.boot()  # a service that has nothing to report of the topic
    ledger = world.open()
    world.run()
    world.clock.advance(300)
    world.run()  # a scan, which drops topics that have nothing to do and nothing to report
    world.catalog.update_topic_policies(ledger.topic, lambda _: {"offloadPolicies": {"streamingOffloadEnabled": False}})
    world.policies.changed(None)
    world.run()
    world.append(ledger, b"by ledger")
    assert held(world) == 0


def test_a_topic_that_was_idle_for_long_streams_its_next_entries_at_once(world: BufferedWorld) -> None:
    ledger = world.open()
    world.run()
    world.clock.advance(300)
    world.run()  # a scan, which drops topics that have nothing to do and nothing to report
    world.append(ledger, *(b"%d" % number * 60 for number in range(10)))
    world.service.tick()
    world.settle()
    assert world.runner.waiting
    world.run()


def test_a_topic_that_is_deleted_keeps_nothing(world: BufferedWorld, ledger: ManagedLedger) -> None:
    world.append(ledger, b"x")
    assert held(world) == 1
    world.store.delete(ledger.name)
    assert held(world) == 0
