"""Splits read by others give what the topic itself gives, from the copies that the priority names."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import afterglow
from afterglow.config import BrokerConfig
from afterglow.errors import LedgerMissing, ObjectMissing
from afterglow.read.messages import MessageBatches
from afterglow.read.splits import SplitReader
from afterglow.testing.homes import APART_MS, EngineHome, batch
from afterglow.testing.ledgers import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from afterglow.engine.source import SourceTopic
    from afterglow.read.splits import Split

TOPIC = "persistent://public/default/t"
EACH = 40
"""Entries of a ledger."""
BLOCK_BYTES = 64 << 10
ENTRY_BYTES = 20_000
"""Of every fourth entry, so that a ledger has several blocks."""


def entry(ledger: int, number: int) -> bytes:
    if number % 4:
        return batch([b"%d.%d.%d" % (ledger, number, i) for i in range(3)])
    return message(bytes(ENTRY_BYTES))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ledgers: gone from the hot log, in both, in the hot log alone, and open."""
    path = tmp_path_factory.mktemp("home")
    with EngineHome(path) as engine:
        groups = [[entry(n, i) for i in range(EACH)] for n in range(4)]
        first, second, *_ = engine.write(TOPIC, *groups)
        for ledger_id in (first, second):
            engine.offload(TOPIC, ledger_id, block_bytes=BLOCK_BYTES)
        engine.free(TOPIC, first)
    return path


@pytest.fixture
def topic(home: Path) -> Iterator[SourceTopic]:
    with afterglow.connect(home) as source:
        yield source.topic(TOPIC)


def read(splits: Sequence[Split]) -> pa.Table:
    """What another process would read."""
    reader = SplitReader(BrokerConfig())
    travelled = pickle.loads(pickle.dumps(splits))
    batches = [
        batch
        for split in travelled
        for served in reader.read(split)
        for batch in MessageBatches(split.topic, split.window).of(served)
    ]
    return pa.Table.from_batches(batches) if batches else None


def tiers(splits: Sequence[Split]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for split in splits:
        found.setdefault(split.ledger_id, set()).add("hot" if split.located is None else "tiered")
    return found


@pytest.mark.parametrize("split_bytes", [1, 100_000, 1 << 30])
@pytest.mark.parametrize("priority", ["tiered-first", "bookkeeper-first"])
def test_splits_give_the_messages_of_the_topic_once_and_in_order(
    topic: SourceTopic, priority: str, split_bytes: int
) -> None:
    splits = list(topic.splits(read_priority=priority, split_bytes=split_bytes))
    assert read(splits).equals(topic.scan(read_priority=priority).read_all())


def test_the_priority_says_which_copy_a_split_names(topic: SourceTopic) -> None:
    first, second, third, last = (ledger.ledger_id for ledger in topic.ledgers())
    hot, tiered = {"hot"}, {"tiered"}
    assert tiers(list(topic.splits())) == {first: tiered, second: tiered, third: hot, last: hot}
    found = tiers(list(topic.splits(read_priority="bookkeeper-first")))
    assert found == {first: tiered, second: hot, third: hot, last: hot}


def test_splits_of_an_object_are_whole_blocks(topic: SourceTopic) -> None:
    in_tier = [split for split in topic.splits(split_bytes=1) if split.located is not None]
    of_first = [split for split in in_tier if split.ledger_id == in_tier[0].ledger_id]
    assert len(of_first) > 1
    assert [split.first for split in of_first[1:]] == [split.last + 1 for split in of_first[:-1]]
    assert (of_first[0].first, of_first[-1].last) == (0, EACH - 1)


@pytest.mark.parametrize(
    "bounds",
    [
        {"start": "{0}:5:2", "end": "{1}:6:1"},
        {"start": "{1}:39", "end": "{2}:0"},
        {"start": "{0}:7", "end": "{0}:7"},
        {"since": 30, "until": 70},
        {"start": "{1}:3", "since": 100},
    ],
)
def test_bounds_hold_inside_batches_and_by_time(topic: SourceTopic, bounds: dict[str, Any]) -> None:
    ids = [ledger.ledger_id for ledger in topic.ledgers()]
    begin_ms = int(topic.scan(columns=["broker_time"]).read_all()["broker_time"][0].value) // 1000
    window: dict[str, Any] = {
        name: begin_ms + value * APART_MS if isinstance(value, int) else value.format(*ids)
        for name, value in bounds.items()
    }
    expected = topic.scan(**window).read_all()
    found = read(list(topic.splits(**window, split_bytes=1)))
    assert found.equals(expected) if expected.num_rows else found is None


def test_a_copy_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with EngineHome(tmp_path) as engine:
        first, _ = engine.write(TOPIC, [message(b"1")], [message(b"2")])
        key = engine.offload(TOPIC, first)
    with afterglow.connect(tmp_path) as source:
        tiered, hot = source.topic(TOPIC).splits()
    (tmp_path / "tier" / key).unlink()
    with pytest.raises(ObjectMissing, match=key):
        read([tiered])
    (tmp_path / "hot" / "ledgers" / f"{hot.ledger_id}.ledger").unlink()
    with pytest.raises(LedgerMissing):
        read([hot])
