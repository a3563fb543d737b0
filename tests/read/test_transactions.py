"""Outcomes of transactions: entries ahead are searched once, and the cache is bounded."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.support.odd_topics import OddTopic, odd_topic

from afterglow.errors import OutOfReach
from afterglow.format.entry import encode_entry
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.marks import find_marks
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.read.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.format.frames import Frames
    from afterglow.read.copies import ServedRun

COMMIT, ABORT = 21, 22


class Watched:
    """A topic that counts the entries it was asked for beside those that are read."""

    def __init__(self, topic: OddTopic) -> None:
        self.topic = topic
        self.entries = 0

    def before(self, position: Position) -> Iterator[ServedRun]:
        raise AssertionError(f"nothing before {position} has markers of transactions")

    def after(self, position: Position) -> Iterator[ServedRun]:
        for served in self.topic.after(position):
            self.entries += len(served.run.frames)
            yield served


class Bounded(Watched):
    """A topic that is not seen to its end."""

    def after(self, position: Position) -> Iterator[ServedRun]:
        yield from super().after(position)
        raise OutOfReach("further away")


def entry(transaction: int | None = None, kind: int | None = None) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, marker_type=kind)
    if transaction is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = 1, transaction
    return encode_entry(metadata, b"v")


def skipped(
    transactions: Transactions, topic: OddTopic, start: Position = EARLIEST, end: Position = LATEST
) -> list[int]:
    """Entries of the only ledger that do not count."""
    found: list[int] = []
    for served in topic.runs(start, end):
        run = served.run
        found += transactions.skipped(run, find_marks(run.data, run.frames)).tolist()
    return found


def test_committed_ones_count_and_aborted_and_open_ones_do_not() -> None:
    topic = OddTopic({1: [entry(1), entry(2), entry(3), entry(), entry(1, COMMIT), entry(2, ABORT), entry(3)]})
    assert skipped(Transactions(topic), topic) == [1, 2, 6]


def test_only_open_ones_are_undecided() -> None:
    topic = OddTopic({1: [entry(1), entry(2), entry(3), entry(), entry(1, COMMIT), entry(2, ABORT), entry(3)]})
    transactions = Transactions(topic)
    found = [
        entry_id
        for served in topic.runs(EARLIEST, LATEST)
        for entry_id in transactions.undecided(served.run, find_marks(served.run.data, served.run.frames)).tolist()
    ]
    assert found == [2, 6]


def test_other_markers_decide_nothing() -> None:
    topic = OddTopic({1: [entry(1), entry(1, 20), entry(None, COMMIT), entry(1, 10), entry(2), entry(2, COMMIT)]})
    assert skipped(Transactions(topic), topic) == [0]


def test_entries_ahead_are_searched_once() -> None:
    many = [each for number in range(1, 100) for each in (entry(number), entry(number, COMMIT))]
    topic = OddTopic({1: [entry(0), *many]}, run_entries=5)  # 0 stays open
    watched = Watched(topic)
    assert skipped(Transactions(watched), topic) == [0]
    assert watched.entries <= len(many)


def test_a_marker_in_the_run_at_hand_is_not_fetched() -> None:
    topic = OddTopic({1: [entry(1), entry(), entry(1, COMMIT), entry(2), entry(2, COMMIT)]}, run_entries=100)
    watched = Watched(topic)
    assert skipped(Transactions(watched), topic) == []
    assert watched.entries == 0


def test_the_cache_of_outcomes_is_bounded() -> None:
    many = [each for number in range(1, 500) for each in (entry(number), entry(number, COMMIT))]
    topic = OddTopic({1: [entry(0), *many]}, run_entries=3)
    transactions = Transactions(topic, 20)
    for served in topic.runs(EARLIEST, LATEST):
        transactions.skipped(served.run, find_marks(served.run.data, served.run.frames))
        assert len(transactions._known) <= 20


def test_readers_side_by_side_share_what_one_of_them_has_seen() -> None:
    many = [each for number in range(1, 100) for each in (entry(0), entry(number), entry(number, COMMIT))]
    topic = OddTopic({1: [*many, entry(0, COMMIT)]}, run_entries=5)
    watched = Watched(topic)
    shared = Transactions(watched)
    runs = list(topic.runs(EARLIEST, LATEST))
    random.Random(3).shuffle(runs)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda each: shared.skipped(each.run, find_marks(each.run.data, each.run.frames)), runs)
        assert not any(len(entries) for entries in found)
    assert watched.entries <= 2 * len(many)


@pytest.mark.parametrize("most", [1, 2, 5, 1000])
@pytest.mark.parametrize("seed", range(10))
def test_however_few_markers_are_kept_the_same_messages_count(seed: int, most: int) -> None:
    rng = random.Random(seed)
    ends = [rng.choice([COMMIT, ABORT, None]) for _ in range(30)]
    events: list[tuple[int, int | None]] = []
    for number, end in enumerate(ends):
        first = rng.randint(0, 60)
        times = sorted(rng.randint(first, first + rng.choice([5, 60])) for _ in range(3))
        events += [(time * 100 + number, None) for time in times[:2]]
        if end is not None:
            events.append((times[2] * 100 + 50 + number, end))
    entries = [(when % 50, end) for when, end in sorted(events)]
    topic = OddTopic({1: [entry(number, end) for number, end in entries]}, run_entries=rng.randint(1, 5))
    expected = [at for at, (number, end) in enumerate(entries) if end is None and ends[number] != COMMIT]
    transactions = Transactions(topic, most)
    assert skipped(transactions, topic) == expected
    assert len(transactions._known) <= most


def test_an_end_that_is_not_the_topics_is_an_error_only_where_it_matters() -> None:
    topic = OddTopic({1: [entry(1), entry(1, COMMIT), entry(), entry(2)]}, run_entries=1)
    transactions = Transactions(Bounded(topic))
    assert skipped(transactions, topic, end=Position(1, 3)) == []
    for _ in range(2):
        with pytest.raises(OutOfReach):
            skipped(transactions, topic, Position(1, 3))


@pytest.mark.parametrize("seed", range(10))
def test_a_topic_without_transactions_asks_for_nothing(seed: int) -> None:
    rng = random.Random(seed)
    topic = odd_topic(rng)
    plain = OddTopic({
        ledger: [each for each in entries if not len(find_marks(*_framed(each)).transactions()[0])]
        for ledger, entries in topic.ledgers.items()
    })  # fmt: skip
    watched = Watched(plain)
    assert skipped(Transactions(watched), plain) == []
    assert watched.entries == 0


def _framed(each: bytes) -> tuple[bytes, Frames]:
    data = frame_entries([each])
    return data, scan_frames(data, 0)
