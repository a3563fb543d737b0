"""Segments whose entries a broker of Pulsar delivered: without markers, and with entries that it did not deliver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.oracle import batch_rows
from tests.support.read_world import TOPIC, ReadWorld

from afterglow.errors import CorruptEntry
from afterglow.format.entry import encode_entry
from afterglow.format.position import Position
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.read.entry_source import TieredEntrySource
from afterglow.read.messages import EntryBatches, MessageBatches
from afterglow.read.neighbours import ViewNeighbours
from afterglow.read.ranges import ObjectLocator, offloaded_range_at
from afterglow.read.scan_range import ScanRange
from afterglow.read.topic_reader import TopicReader, TopicView

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.read.transactions import Transactions

COMMIT, ABORT = 21, 22
HIDDEN = b""
"""In place of a marker, or of a message of an aborted transaction."""


def entry(value: bytes, transaction: int | None = None, kind: int | None = None) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, marker_type=kind)
    if transaction is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = 1, transaction
    return encode_entry(metadata, value)


@pytest.fixture
def world() -> Iterator[ReadWorld]:
    made = ReadWorld()
    yield made
    made.tiers.close()


def reader(world: ReadWorld) -> TopicReader:
    view = TopicView.pin(TOPIC, world.info, world.hot)
    return TopicReader(view, TieredEntrySource(TOPIC, world.hot, world.tiers, lambda: world.policy, world.counters))


def values(world: ReadWorld, *, scan: bool = True, transactions: Transactions | None = None) -> list[bytes]:
    topic = reader(world)
    batches = MessageBatches("t", ScanRange(), ["value"], neighbours=ViewNeighbours(topic), transactions=transactions)
    rows: list[Any] = []
    for served in topic.read(scan=scan):
        for batch in batches.of(served):
            rows += batch_rows(batch)
    return [row["value"] for row in rows]


def segment(world: ReadWorld, entries: list[bytes], *, stripped: bool) -> None:
    row = world.add(entries)
    world.offload_v2([(row, 0, len(entries) - 1)], markers_stripped=stripped)
    world.free(row)


@pytest.mark.parametrize("scan", [False, True])
def test_transactional_messages_that_a_broker_delivered_are_committed(world: ReadWorld, *, scan: bool) -> None:
    segment(world, [entry(b"a", 1), entry(b"b"), HIDDEN, entry(b"c", 2), HIDDEN], stripped=True)
    segment(world, [entry(b"open", 3), entry(b"d", 4), entry(b"", 4, COMMIT)], stripped=False)
    assert values(world, scan=scan) == [b"a", b"b", b"c", b"d"]


def test_without_the_record_of_it_messages_without_a_marker_are_not_committed(world: ReadWorld) -> None:
    segment(world, [entry(b"a", 1), entry(b"b")], stripped=False)
    assert values(world) == [b"b"]


def test_without_the_record_of_it_an_entry_without_bytes_is_damaged(world: ReadWorld) -> None:
    segment(world, [entry(b"a"), HIDDEN], stripped=False)
    with pytest.raises(CorruptEntry, match=":1: its message metadata reaches beyond the entry"):
        values(world)


def test_damage_in_such_a_segment_is_reported(world: ReadWorld) -> None:
    segment(world, [entry(b"a"), HIDDEN, b"\0"], stripped=True)
    with pytest.raises(CorruptEntry, match=":2: its message metadata reaches beyond the entry"):
        values(world)


def test_a_message_there_commits_the_earlier_ones_of_its_transaction(world: ReadWorld) -> None:
    segment(world, [entry(b"a", 1), entry(b"b", 2), entry(b"c", 3), entry(b"", 3, ABORT)], stripped=False)
    segment(world, [entry(b"d", 1), HIDDEN, HIDDEN], stripped=True)
    assert values(world) == [b"a", b"d"]


def test_raw_entries_are_those_that_were_delivered(world: ReadWorld) -> None:
    delivered = [entry(b"a", 1), entry(b"b")]
    segment(world, [delivered[0], HIDDEN, delivered[1], HIDDEN], stripped=True)
    batches = EntryBatches("t", ScanRange(), ["entry_id", "data"])
    rows = [row for served in reader(world).read() for batch in batches.of(served) for row in batch_rows(batch)]
    assert [(row["entry_id"], row["data"]) for row in rows] == [(0, delivered[0]), (2, delivered[1])]


def test_an_explicit_tier_has_the_flag_of_the_record(world: ReadWorld) -> None:
    segment(world, [entry(b"a")], stripped=True)
    offloaded = offloaded_range_at(world.info.ledgerInfo[0], 0)
    assert offloaded is not None
    locator = ObjectLocator(world.metadata, world._paths, explicit=world.location)
    assert locator.locate(TOPIC, offloaded, world.policy).markers_stripped
    assert not ObjectLocator(explicit=world.location).locate(TOPIC, offloaded, world.policy).markers_stripped


def test_a_search_by_time_passes_entries_that_were_not_delivered(world: ReadWorld) -> None:
    segment(world, [HIDDEN, entry(b"a"), HIDDEN], stripped=True)
    assert reader(world).find_by_time(2) == Position(world.info.ledgerInfo[0].ledgerId, 1)
