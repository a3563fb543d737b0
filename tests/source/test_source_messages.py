"""Topics with chunks and transactions, from a home: in one process and in splits, from hot log and tier."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message
from tests.support.odd_topics import OddTopic, chunks, odd_topic
from tests.support.oracle import batch_rows

import afterglow
from afterglow.config import BrokerConfig
from afterglow.format.columns import BLOCK_COLUMNS
from afterglow.format.frames import iter_entries
from afterglow.format.position import Position
from afterglow.read.split_reader import SplitReader

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.errors import CorruptEntry
    from afterglow.source.connect import SourceTopic

SEEDS = range(8)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a topic per seed; of each, some ledgers are in the tier, and some of these there alone."""
    path = tmp_path_factory.mktemp("home")
    with ServerHome(path) as server:
        for seed in SEEDS:
            rng = random.Random(seed)
            entries = odd_topic(rng, messages=20, stamped=0).ledgers.values()
            for ledger_id in server.write(f"t{seed}", *entries)[:-1]:
                if rng.random() < 0.7:
                    server.offload(f"t{seed}", ledger_id, block_bytes=1 << 10)
                    if rng.random() < 0.5:
                        server.free(f"t{seed}", ledger_id)
        sent = chunks(b"unfinished" * 9, 3, uuid="gone-1")
        server.write("unfinished", [message(b"a"), sent[0], message(b"b")], [sent[1], message(b"c")])
    return path


def stored(topic: SourceTopic) -> OddTopic:
    ledgers: dict[int, list[bytes]] = {}
    for served in topic.entries():
        for _, entry in iter_entries(served.run.data, served.run.frames):
            ledgers.setdefault(served.run.ledger_id, []).append(bytes(entry))
    return OddTopic(ledgers)


def ignore(_: CorruptEntry) -> None:
    """Messages that lack chunks are skipped."""


@pytest.mark.parametrize("seed", SEEDS)
def test_scans_and_splits_have_the_messages_that_a_plain_reading_sees(home: Path, seed: int) -> None:
    rng = random.Random(seed)
    with afterglow.connect(home) as source:
        topic = source.topic(f"t{seed}")
        odd = stored(topic)
        expected = odd.rows()
        assert batch_rows(topic.scan(columns=BLOCK_COLUMNS, report=ignore).read_all()) == expected
        reader = SplitReader(BrokerConfig())
        for split_bytes in (1, 3_000):
            found = [
                row
                for split in topic.splits(split_bytes=split_bytes)
                for batch in reader.batches(split, BLOCK_COLUMNS, report=ignore)
                for row in batch_rows(batch)
            ]
            assert found == expected
        for _ in range(10):
            low, high = sorted(rng.choices(odd.positions, k=2))
            rows = batch_rows(topic.scan(low, high, columns=BLOCK_COLUMNS, report=ignore, scan=False).read_all())
            assert rows == [row for row in expected if low <= Position(row["ledger_id"], row["entry_id"]) < high]


def test_a_message_that_was_never_finished_is_reported(home: Path) -> None:
    reported: list[CorruptEntry] = []
    with afterglow.connect(home) as source:
        found = source.topic("unfinished").scan(columns=["value"], report=reported.append).read_all()
    assert found["value"].to_pylist() == [b"a", b"b", b"c"]
    (error,) = reported
    assert "message 'gone-1' came in 3 chunks, of which chunk 2 is missing" in str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_ranges_of_times_read_the_entries_around_them(home: Path, seed: int) -> None:
    with afterglow.connect(home) as source:
        topic = source.topic(f"t{seed}")
        expected = stored(topic).rows()
        times = sorted({_time(row) // 1000 for row in expected})
        reader = SplitReader(BrokerConfig())
        for since, until in zip(times[::5], times[3::4], strict=False):
            rows = [row for row in expected if since * 1000 <= _time(row) < until * 1000]
            assert batch_rows(topic.scan(None, None, since, until, BLOCK_COLUMNS, report=ignore).read_all()) == rows
            splits = topic.splits(None, None, since, until, split_bytes=1)
            assert [
                row
                for split in splits
                for batch in reader.batches(split, BLOCK_COLUMNS, report=ignore)
                for row in batch_rows(batch)
            ] == rows


def _time(row: dict[str, int]) -> int:
    return row["publish_time"] if row["broker_time"] is None else row["broker_time"]
