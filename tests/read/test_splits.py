"""Splits read by other processes: the same rows as the topic, from the copies that the read priority names."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.homes import APART_MS, ServerHome, batch
from tests.support.ledgers import message

import afterglow
from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError, CorruptEntry, HotLogUnavailable, TopicChanged
from afterglow.read.copies import StorageTier
from afterglow.read.split_reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from afterglow.read.splits import Split
    from afterglow.source.connect import SourceTopic

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
    """Four ledgers: deleted from the hot log, in both copies, only in the hot log, and open."""
    path = tmp_path_factory.mktemp("home")
    with ServerHome(path) as server:
        groups = [[entry(n, i) for i in range(EACH)] for n in range(4)]
        first, second, *_ = server.write(TOPIC, *groups)
        for ledger_id in (first, second):
            server.offload(TOPIC, ledger_id, block_bytes=BLOCK_BYTES)
        server.free(TOPIC, first)
    return path


@pytest.fixture
def topic(home: Path) -> Iterator[SourceTopic]:
    with afterglow.connect(home) as source:
        yield source.topic(TOPIC)


def read(splits: Sequence[Split], **asked: Any) -> pa.Table:
    """What another process would read."""
    reader = SplitReader(BrokerConfig())
    travelled = pickle.loads(pickle.dumps(splits))
    batches = [batch for split in travelled for batch in reader.batches(split, **asked)]
    return pa.Table.from_batches(batches) if batches else None


def tiers(splits: Sequence[Split]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for split in splits:
        found.setdefault(split.ledger_id, set()).add(str(split.order[0]))
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
    in_tier = [split for split in topic.splits(split_bytes=1) if split.tier_object is not None]
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
    scan_range: dict[str, Any] = {
        name: begin_ms + value * APART_MS if isinstance(value, int) else value.format(*ids)
        for name, value in bounds.items()
    }
    expected = topic.scan(**scan_range).read_all()
    found = read(list(topic.splits(**scan_range, split_bytes=1)))
    assert found.equals(expected) if expected.num_rows else found is None


@pytest.mark.parametrize("priority", ["tiered-first", "bookkeeper-first"])
def test_a_hot_ledger_is_cut_by_its_bytes(topic: SourceTopic, priority: str) -> None:
    splits = [
        split
        for split in topic.splits(read_priority=priority, split_bytes=100_000)
        if split.order[0] is StorageTier.HOT
    ]
    by_ledger: dict[int, list[Split]] = {}
    for split in splits:
        if split.order[0] is StorageTier.HOT:
            by_ledger.setdefault(split.ledger_id, []).append(split)
    for parts in by_ledger.values():
        assert len(parts) > 1
        assert all(split.size_bytes <= 130_000 for split in parts)
        assert sum(split.entries for split in parts) == EACH
        assert sum(split.size_bytes for split in parts) > EACH // 4 * ENTRY_BYTES


def test_a_range_of_times_also_prunes_the_hot_log(topic: SourceTopic) -> None:
    times = topic.scan(columns=["broker_time", "ledger_id", "entry_id"], start=f"{topic.ledgers()[2].ledger_id}:0")
    at = times.read_all().to_pylist()
    since, until = at[EACH]["broker_time"], at[-EACH]["broker_time"]
    splits = list(topic.splits(since=since, until=until))
    assert [split.order[0] for split in splits] == [StorageTier.HOT, StorageTier.HOT]
    wanted = [row for row in at if since <= row["broker_time"] < until]
    count = len({(row["ledger_id"], row["entry_id"]) for row in wanted})
    assert count <= sum(split.entries for split in splits) <= count + len(splits)
    assert read(splits).num_rows == len(wanted)


def test_entries_are_read_as_entries(topic: SourceTopic) -> None:
    splits = list(topic.splits())
    assert read(splits, include="entries").equals(topic.scan(include="entries").read_all())
    found = read(splits, columns=["entry_id"], include="entries")
    assert found.equals(topic.scan(columns=["entry_id"], include="entries").read_all())
    with pytest.raises(ConfigError, match="'rows' is unknown"):
        read(splits, include="rows")


def make(path: Path, *, free: bool = False, **changes: object) -> tuple[str, Split, Split]:
    """A ledger in both copies and one in the hot log; returns the object's key and a split of each."""
    with ServerHome(path, **changes) as server:
        first, _ = server.write(TOPIC, [message(b"1"), message(b"2")], [message(b"3")])
        key = server.offload(TOPIC, first)
        if free:
            server.free(TOPIC, first)
    with afterglow.connect(path) as source:
        tiered, hot = source.topic(TOPIC).splits(read_priority="tiered-first")
    return key, tiered, hot


def test_a_missing_object_is_served_by_the_hot_log_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key, tiered, _ = make(tmp_path)
    (tmp_path / "tier" / key).unlink()
    assert read([tiered])["tier"].to_pylist() == ["hot", "hot"]
    assert [record.levelname for record in caplog.records if key in record.getMessage()] == ["WARNING"]


def test_a_deleted_hot_copy_is_served_by_the_tier_and_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path)
    with afterglow.connect(tmp_path) as source:
        first, _ = source.topic(TOPIC).splits(read_priority="bookkeeper-first")
    (tmp_path / "hot" / "ledgers" / f"{first.ledger_id}.ledger").unlink()
    assert read([first])["tier"].to_pylist() == ["tiered", "tiered"]
    assert not caplog.records


def test_entries_in_no_copy_raise_one_clear_error(tmp_path: Path) -> None:
    key, tiered, hot = make(tmp_path, free=True)
    (tmp_path / "tier" / key).unlink()
    with pytest.raises(TopicChanged, match=rf"{tiered.ledger_id}:0 to 1 do not exist any more: .*{key}"):
        read([tiered])
    (tmp_path / "hot" / "ledgers" / f"{hot.ledger_id}.ledger").unlink()
    with pytest.raises(TopicChanged, match="start the read again"):
        read([hot])


def test_an_unreachable_hot_log_is_reported_with_the_fix(tmp_path: Path) -> None:
    _, tiered, hot = make(tmp_path)
    home = tmp_path.rename(tmp_path.with_name("elsewhere"))
    with pytest.raises(HotLogUnavailable, match="server's machine"):
        read([hot])
    home.rename(tmp_path)
    assert read([tiered, hot]).num_rows == 3


@pytest.mark.parametrize("skips", [True, False])
def test_invalid_messages_are_skipped_only_if_the_policy_says_so(tmp_path: Path, *, skips: bool) -> None:
    with ServerHome(tmp_path) as server:
        server.write(TOPIC, [message(b"1"), b"no message", message(b"2")])
    with afterglow.connect(tmp_path) as source:
        (split,) = source.topic(TOPIC).splits()
    reader = SplitReader(BrokerConfig())
    reported: list[CorruptEntry] = []
    split = replace(split, skips_damage=skips)
    if skips:
        (batch,) = reader.batches(split, ["value"], report=reported.append)
        assert batch.column("value").to_pylist() == [b"1", b"2"]
        assert [f"{split.ledger_id}:1" in str(error) for error in reported] == [True]
    else:
        with pytest.raises(CorruptEntry):
            list(reader.batches(split, ["value"], report=reported.append))


def test_neighbours_are_every_range_of_the_topic_and_travel_packed(topic: SourceTopic) -> None:
    splits = list(topic.splits(split_bytes=1))
    (neighbourhood,) = {split.neighbourhood for split in splits}
    first, *_ = neighbours = neighbourhood.neighbours()
    assert [each.ledger_id for each in neighbours] == [ledger.ledger_id for ledger in topic.ledgers()]
    assert all((each.first, each.last) == (0, EACH - 1) for each in neighbours)
    assert [each.hot for each in neighbours] == [False, True, True, True]
    assert [each.tier_object is not None for each in neighbours] == [True, True, False, False]
    assert first.tier_object == splits[0].tier_object
    assert (neighbourhood.has_first, neighbourhood.has_last) == (True, True)
    assert len(pickle.dumps(splits)) < 400 * len(splits)
