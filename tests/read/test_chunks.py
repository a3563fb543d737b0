"""Limits of chunk assembly: payloads held in memory, extent of searches, and behaviour beyond the limits."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from tests.support.odd_topics import OddTopic, chunks, odd_topic

from afterglow.errors import CorruptEntry, IncompleteMessage
from afterglow.format.compression import Codec
from afterglow.format.entry import decode_entry, encode_entry
from afterglow.format.marks import find_marks
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.read import chunks as chunks_module
from afterglow.read.chunks import ChunkedMessages, CompleteMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.read.copies import ServedRun


@dataclass
class Watched:
    """A topic that counts the entries it was asked for beside those that are read."""

    topic: OddTopic
    before_entries: int = 0
    after_entries: int = 0
    asked: list[Position] = field(default_factory=list)

    def before(self, position: Position) -> Iterator[ServedRun]:
        self.asked.append(position)
        for served in self.topic.before(position):
            self.before_entries += len(served.run.frames)
            yield served

    def after(self, position: Position) -> Iterator[ServedRun]:
        for served in self.topic.after(position):
            self.after_entries += len(served.run.frames)
            yield served


def plain(size: int = 1) -> bytes:
    return encode_entry(MessageMetadata(producer_name="q", sequence_id=7, publish_time=5), bytes(size))


def outcomes(
    chunked: ChunkedMessages, topic: OddTopic, start: Position = EARLIEST
) -> Iterator[tuple[Position, CompleteMessage | IncompleteMessage]]:
    for served in topic.runs(start, LATEST):
        run = served.run
        chunked.enter(run)
        for entry_id, outcome in chunked.add(run, find_marks(run.data, run.frames)).items():
            yield Position(run.ledger_id, entry_id), outcome


def value(outcome: CompleteMessage | IncompleteMessage) -> bytes:
    assert isinstance(outcome, CompleteMessage)
    return bytes(outcome.value())


def interleaved(count: int, size: int) -> tuple[OddTopic, list[bytes]]:
    """Messages in three chunks, the first chunks of all before the second chunks of all, and so on."""
    payloads = [random.Random(number).randbytes(3 * size) for number in range(count)]
    parts = [chunks(payload, 3, uuid=f"p-{number}") for number, payload in enumerate(payloads)]
    return OddTopic({1: [entry for number in range(3) for entry in (part[number] for part in parts)]}), payloads


def test_payloads_are_held_up_to_a_bound_and_read_again_beyond_it() -> None:
    topic, payloads = interleaved(20, 1_000)
    roomy = Watched(topic)
    assert [value(each) for _, each in outcomes(ChunkedMessages(roomy, payloads=True), topic)] == payloads
    assert (roomy.before_entries, roomy.after_entries) == (0, 0)
    tight = Watched(topic)
    chunked = ChunkedMessages(tight, payloads=True, max_held_bytes=6_000)
    found = []
    for _, outcome in outcomes(chunked, topic):
        held = sum(len(part.payload or b"") for message in chunked._messages.values() for part in message.chunks)
        assert held <= 6_000
        found.append(value(outcome))
    assert found == payloads
    assert tight.after_entries >= 2 * 20 - 6


def test_without_values_no_payload_is_held_or_read_again() -> None:
    topic, _ = interleaved(5, 1_000)
    watched = Watched(topic)
    chunked = ChunkedMessages(watched, payloads=False, max_held_bytes=0)
    assert sum(isinstance(outcome, CompleteMessage) for _, outcome in outcomes(chunked, topic)) == 5
    assert (watched.before_entries, watched.after_entries) == (0, 0)


def test_earlier_chunks_are_searched_once_and_no_further_than_needed() -> None:
    topic, payloads = interleaved(4, 10)
    with_rest = OddTopic({0: [plain()] * 100, 1: topic.ledgers[1]})
    watched = Watched(with_rest)
    found = [
        value(outcome) for _, outcome in outcomes(ChunkedMessages(watched, payloads=True), with_rest, Position(1, 8))
    ]
    assert found == payloads
    assert watched.asked == [Position(1, 8)]
    assert watched.before_entries <= 8 + with_rest.run_entries
    # The first search has kept its payloads; the other messages are read again, two chunks each.
    assert watched.after_entries <= 3 * 2 * with_rest.run_entries


def test_a_range_without_the_last_chunk_searches_for_nothing() -> None:
    topic, _ = interleaved(4, 10)
    watched = Watched(topic)
    chunked = ChunkedMessages(watched, payloads=True)
    for served in topic.runs(Position(1, 4), Position(1, 8)):
        chunked.enter(served.run)
        assert chunked.add(served.run, find_marks(served.run.data, served.run.frames)) == {}
    assert watched.asked == []


def test_a_chunk_without_a_first_chunk_is_searched_within_the_maximum_gap() -> None:
    lone = chunks(b"abcdef", 3)
    entries = [*[plain(1_000)] * 200, lone[1], *[plain(1_000)] * 5, lone[2]]
    topic = OddTopic({1: entries})
    watched = Watched(topic)
    chunked = ChunkedMessages(watched, payloads=True, max_gap_bytes=20_000)
    ((position, outcome),) = outcomes(chunked, topic, Position(1, 190))
    assert position == Position(1, 206)
    assert isinstance(outcome, IncompleteMessage)
    assert 5 <= watched.before_entries <= 30
    assert len(watched.asked) == 1


@pytest.mark.parametrize("start", [EARLIEST, Position(1, 1), Position(1, 12)])
def test_chunks_beyond_the_maximum_gap_make_no_message_wherever_reading_begins(start: Position) -> None:
    first, second = chunks(b"abcd", 2)
    topic = OddTopic({1: [first, *[plain(1_000)] * 20, second]})
    for max_gap_bytes, kind in ((19_000, IncompleteMessage), (25_000, CompleteMessage)):
        chunked = ChunkedMessages(topic, payloads=True, max_gap_bytes=max_gap_bytes)
        ((_, outcome),) = outcomes(chunked, topic, start)
        assert isinstance(outcome, kind)


def test_open_messages_are_followed_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "MAX_TRACKED", 10)
    topic, payloads = interleaved(10, 10)
    assert [value(each) for _, each in outcomes(ChunkedMessages(topic, payloads=True), topic)] == payloads
    more, _ = interleaved(30, 10)
    chunked = ChunkedMessages(more, payloads=True)
    for _ in outcomes(chunked, more):
        assert len(chunked._messages) <= 10
        assert len(chunked._seen) <= 10 + more.run_entries


def test_a_chunk_that_is_deleted_before_it_is_read_again_makes_the_message_incomplete() -> None:
    topic, _ = interleaved(1, 10)
    elsewhere = OddTopic({2: [plain()]})
    ((_, outcome),) = outcomes(ChunkedMessages(elsewhere, payloads=True, max_held_bytes=0), topic)
    assert isinstance(outcome, CompleteMessage)
    with pytest.raises(IncompleteMessage, match="its chunk in entry 1:0 does not exist any more"):
        outcome.value()


@pytest.mark.parametrize("seed", range(20))
def test_any_bound_gives_the_same_messages(seed: int) -> None:
    topic = odd_topic(random.Random(seed))
    expected = [(location, value(each)) for location, each in _wholes(ChunkedMessages(topic, payloads=True), topic)]
    for held_bytes in (0, 50, 500):
        chunked = ChunkedMessages(topic, payloads=True, max_held_bytes=held_bytes)
        assert [(location, value(each)) for location, each in _wholes(chunked, topic)] == expected


def _wholes(chunked: ChunkedMessages, topic: OddTopic) -> Iterator[tuple[Position, CompleteMessage]]:
    for location, each in outcomes(chunked, topic):
        if isinstance(each, CompleteMessage):
            yield location, each


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZLIB, Codec.ZSTD, Codec.SNAPPY])
@pytest.mark.parametrize("claim", [1_000, 2**32 - 1])
def test_a_message_that_does_not_hold_what_its_chunks_claim_costs_no_memory(codec: Codec, claim: int) -> None:
    entries = []
    for entry in map(decode_entry, chunks(bytes(32 << 20), 2, codec)):
        entry.metadata.uncompressed_size = claim
        entries.append(encode_entry(entry.metadata, bytes(entry.payload)))
    topic = OddTopic({1: entries})
    ((_, outcome),) = outcomes(ChunkedMessages(topic, payloads=True), topic)
    assert isinstance(outcome, CompleteMessage)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptEntry):
            outcome.value()
        assert tracemalloc.get_traced_memory()[1] < 4 * sum(map(len, entries)) + (1 << 16)
    finally:
        tracemalloc.stop()
