"""Topics read from a server's home without the server: from hot log and tier, for any range."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.support.homes import APART_MS, ServerHome, batch
from tests.support.ledgers import message

import afterglow
from afterglow.errors import (
    ConfigError,
    CorruptBlock,
    CorruptEntry,
    CorruptMetadata,
    InvalidName,
    MetadataUnavailable,
    NotSupported,
    ObjectMissing,
    TopicMissing,
)
from afterglow.format.frames import iter_entries
from afterglow.format.position import Position
from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.format.schema import ENTRIES, MESSAGES
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.read.copies import StorageTier
from afterglow.tier.locations import location_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from afterglow.source.connect import Source, SourceTopic

TOPIC = "persistent://public/default/t"
LEDGERS = 4
EACH = 5
"""Entries of a ledger; every second one is a batch of three messages."""


def entry(number: int) -> bytes:
    if number % 2:
        return batch([b"%d.%d" % (number, i) for i in range(3)])
    return message(b"%d" % number)


def groups(ledgers: int = LEDGERS) -> list[list[bytes]]:
    return [[entry(ledger * EACH + at) for at in range(EACH)] for ledger in range(ledgers)]


def values(topic: SourceTopic, start: Any = None, end: Any = None, since: Any = None, until: Any = None) -> list[str]:
    found = topic.scan(start, end, since, until, ["value"]).read_all()["value"]
    return [value.decode() for value in found.to_pylist()]


def expected(first: int = 0, end: int = LEDGERS * EACH) -> list[str]:
    return [
        text
        for number in range(first, end)
        for text in ([f"{number}.{i}" for i in range(3)] if number % 2 else [f"{number}"])
    ]


def state(path: Path) -> dict[str, tuple[int, int]]:
    """Every file below a directory with its size and time of change."""
    found = ((file, file.stat()) for file in path.rglob("*"))
    return {str(file): (info.st_size, info.st_mtime_ns) for file, info in found}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[ServerHome]:
    with ServerHome(tmp_path) as home:
        yield home


@pytest.fixture
def ledgers(home: ServerHome) -> list[int]:
    """The ids of the topic's ledgers; the first half is in the tier alone, and the server has stopped."""
    ids = home.write(TOPIC, *groups())
    for ledger_id in ids[: LEDGERS // 2]:
        home.offload(TOPIC, ledger_id)
        home.free(TOPIC, ledger_id)
    home.stop()
    return ids


@pytest.fixture
def source(home: ServerHome, ledgers: list[int]) -> Iterator[Source]:
    with afterglow.connect(str(home.path)) as source:
        yield source


@pytest.fixture
def topic(source: Source) -> SourceTopic:
    return source.topic("t")


# --- what comes back ---


def test_messages_come_from_tier_and_hot_log_in_order(topic: SourceTopic, ledgers: list[int]) -> None:
    table = topic.scan().read_all()
    assert table.schema == MESSAGES
    rows = table.to_pylist()
    assert [row["value"].decode() for row in rows] == expected()
    assert {row["topic"] for row in rows} == {TOPIC}
    assert [(row["ledger_id"], row["tier"]) for row in rows] == [
        (row["ledger_id"], "tiered" if row["ledger_id"] in ledgers[:2] else "hot") for row in rows
    ]
    assert [row["batch_index"] for row in rows[:5]] == [-1, 0, 1, 2, -1]


@pytest.mark.parametrize("scan", [True, False])
def test_entries_are_byte_equal_and_name_their_tier(
    home: ServerHome,
    source: Source,
    topic: SourceTopic,
    ledgers: list[int],
    scan: bool,  # noqa: FBT001
) -> None:
    runs = list(topic.entries(scan=scan))
    found = [
        (Position(served.run.ledger_id, entry_id), bytes(data), served.tier)
        for served in runs
        for entry_id, data in iter_entries(served.run.data, served.run.frames)
    ]
    with ServerHome(home.path) as server:
        stored = {
            (ledger_id, at): data
            for ledger_id in ledgers[2:]
            for at, data in enumerate(server.hot.open(ledger_id).read(0, EACH))
        }
    assert [location for location, _, _ in found] == [Position(id_, at) for id_ in ledgers for at in range(EACH)]
    assert {tier for location, _, tier in found if location.ledger_id in ledgers[:2]} == {StorageTier.TIERED}
    for location, data, tier in found:
        assert data.endswith(groups()[ledgers.index(location.ledger_id)][location.entry_id])
        if tier is StorageTier.HOT:
            assert data == stored[location.ledger_id, location.entry_id]
    assert source.counters.counts().entries == {StorageTier.TIERED: 2 * EACH, StorageTier.HOT: 2 * EACH}


def test_entries_as_a_table_are_those_of_the_runs(topic: SourceTopic) -> None:
    table = topic.scan(include="entries").read_all()
    assert table.schema == ENTRIES
    runs = [bytes(data) for served in topic.entries() for _, data in iter_entries(served.run.data, served.run.frames)]
    assert table["data"].to_pylist() == runs
    assert table["entry_id"].to_pylist() == [*range(EACH)] * LEDGERS


def test_the_read_priority_chooses_the_copy_while_both_exist(home: ServerHome) -> None:
    (first, _) = home.write(TOPIC, *groups(2))
    home.offload(TOPIC, first)
    home.stop()
    with afterglow.connect(home.path) as source:
        topic = source.topic("t")
        for priority, tier in (
            (None, "tiered"),
            ("tiered-first", "tiered"),
            ("TIERED_STORAGE_FIRST", "tiered"),
            ("bookkeeper-first", "hot"),
        ):
            table = topic.scan(columns=["ledger_id", "tier"], read_priority=priority).read_all().to_pylist()
            assert {row["tier"] for row in table if row["ledger_id"] == first} == {tier}
        with pytest.raises(ConfigError, match="'sideways'"):
            topic.scan(read_priority="sideways")


def test_the_policy_chooses_where_the_read_does_not(home: ServerHome) -> None:
    (first, _) = home.write(TOPIC, *groups(2))
    home.offload(TOPIC, first)
    with afterglow.connect(home.path) as source:
        topic = source.topic("t")
        assert topic.scan(columns=["tier"], end=f"{first}:1").read_all()["tier"].to_pylist() == ["tiered"]
        policies = {"offloadPolicies": {"managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST"}}
        home.catalog.update_topic_policies(TopicName.parse(TOPIC), lambda _: policies)
        assert topic.scan(columns=["tier"], end=f"{first}:1").read_all()["tier"].to_pylist() == ["hot"]


def test_a_partitioned_topic_is_all_its_partitions_in_order(home: ServerHome) -> None:
    home.catalog.create_partitioned(TopicName.parse("parts"), 3)
    for number in (2, 0):  # one partition was never used
        home.write(f"parts-partition-{number}", [message(b"%d" % number), message(b"%d again" % number)])
    home.stop()
    with afterglow.connect(home.path) as source:
        topic = source.topic("parts")
        rows = topic.scan(columns=["topic", "value"]).read_all().to_pylist()
        assert [row["value"] for row in rows] == [b"0", b"0 again", b"2", b"2 again"]
        assert [row["topic"][-11:] for row in rows] == ["partition-0"] * 2 + ["partition-2"] * 2
        assert [ledger.topic[-1] for ledger in topic.ledgers()] == ["0", "2"]
        assert values(source.topic("parts-partition-2")) == ["2", "2 again"]
        with pytest.raises(NotSupported, match="parts-partition-0"):
            topic.seek(0)


def test_what_a_reader_gives_is_what_was_there_when_it_began(home: ServerHome) -> None:
    home.write(TOPIC, *groups(2))
    home.open(TOPIC).roll()
    with afterglow.connect(home.path) as source:
        runs = source.topic("t").entries(scan=False)
        count = len(next(runs).run.frames)
        home.write(TOPIC, *groups(1))
        assert count + sum(len(served.run.frames) for served in runs) == 2 * EACH
        home.stop()
        assert values(source.topic("t")) == expected(0, 2 * EACH) + expected(0, EACH)


def test_a_ledger_that_leaves_the_hot_log_meanwhile_is_read_on_from_the_tier(home: ServerHome) -> None:
    ids = home.write(TOPIC, *groups())
    with afterglow.connect(home.path) as source:
        batches = source.topic("t").messages(columns=["value", "tier"], end=f"{ids[-1]}:0", scan=False)
        rows = next(batches).to_pylist()
        home.offload(TOPIC, ids[1])
        home.free(TOPIC, ids[1])
        rows += [row for part in batches for row in part.to_pylist()]
        assert [row["value"].decode() for row in rows] == expected(0, 3 * EACH)
        assert [row["tier"] for row in rows] == [
            "tiered" if EACH <= int(row["value"].split(b".")[0]) < 2 * EACH else "hot" for row in rows
        ]


# --- windows ---


def test_positions_bound_by_entry_and_by_message_of_a_batch(topic: SourceTopic, ledgers: list[int]) -> None:
    second = ledgers[1]
    assert values(topic, f"{second}:0") == expected(EACH)
    assert values(topic, None, f"{second}:0") == expected(0, EACH)
    assert values(topic, Position(second, 1), Position(second, 3)) == expected(EACH + 1, EACH + 3)
    # Entry 3 of the first ledger, and 0 of the second, are batches.
    assert values(topic, f"{ledgers[0]}:3:1", f"{second}:0:2") == ["3.1", "3.2", "4", "5.0", "5.1"]
    assert values(topic, f"{ledgers[0]}:3:1", f"{ledgers[0]}:3:2") == ["3.1"]
    assert values(topic, "earliest", "latest") == expected()
    assert values(topic, "latest") == values(topic, None, "earliest") == []
    assert topic.scan(f"{ledgers[0]}:3:1", f"{second}:0:2", include="entries").read_all()["entry_id"].to_pylist() == [
        3,
        4,
        0,
    ]


def test_times_bound_by_broker_time_and_pass_over_ledgers(home: ServerHome, source: Source, topic: SourceTopic) -> None:
    begin = home.clock.now_ms() - LEDGERS * EACH * APART_MS
    since, until = begin + 7 * APART_MS, begin + 9 * APART_MS
    assert values(topic, None, None, since, until) == expected(7, 9)
    assert source.counters.counts().entries == {StorageTier.TIERED: EACH}  # of the ledger that holds them, and no other
    moment = datetime.fromtimestamp(since / 1000, UTC)
    assert values(topic, since=moment) == values(topic, since=moment.isoformat()) == expected(7)
    assert values(topic, since=moment + timedelta(milliseconds=1)) == expected(8)
    assert values(topic, until=str(until)) == expected(0, 9)
    assert values(topic, since="1m") == []  # the clock of the test is in the past
    assert topic.scan(None, None, since, until, ["entry_id"], include="entries").read_all()["entry_id"].to_pylist() == [
        2,
        3,
    ]


def test_times_bound_by_publish_time_where_there_is_no_other(tmp_path: Path) -> None:
    with ServerHome(tmp_path, broker_entry_metadata_interceptors=()) as home:
        home.write(TOPIC, [message(b"a", 300), message(b"b", 100)], [message(b"c", 200), batch([b"d", b"e"], 250)])
    with afterglow.connect(tmp_path) as source:
        topic = source.topic("t")
        assert values(topic, since=200) == ["a", "c", "d", "e"]
        assert values(topic, since=200, until=300) == ["c", "d", "e"]
        rows = topic.scan(columns=["broker_time", "index"]).read_all().to_pylist()
        assert rows == [{"broker_time": None, "index": None}] * 5


def test_the_search_by_time_gives_the_first_entry_at_or_after(
    home: ServerHome, topic: SourceTopic, ledgers: list[int]
) -> None:
    begin = home.clock.now_ms() - LEDGERS * EACH * APART_MS
    for number in range(LEDGERS * EACH):
        location = Position(ledgers[number // EACH], number % EACH)
        assert topic.seek(begin + number * APART_MS) == location
        assert topic.seek(begin + number * APART_MS - 1) == location
    assert topic.seek(home.clock.now_ms()) == Position(ledgers[-1], EACH)


def test_columns_come_in_the_order_asked_for_and_may_be_none(topic: SourceTopic) -> None:
    assert topic.scan(columns=["tier", "value", "entry_id"]).schema.names == ["tier", "value", "entry_id"]
    # The ones that bound the window are not among the result's.
    table = topic.scan(columns=["key"], since=0, start="0:0:1").read_all()
    assert (table.schema.names, table.num_rows) == (["key"], len(expected()))
    assert sum(part.num_rows for part in topic.messages(columns=[])) == len(expected())
    with pytest.raises(ConfigError, match="unknown column 'valeu'"):
        topic.messages(columns=["valeu"])
    with pytest.raises(ConfigError, match="include 'bytes'"):
        topic.scan(include="bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["2026-11-15T20:00:00", "yesterday", "-5", "15 parsecs", ""])
def test_a_time_that_is_none_is_refused_before_anything_is_read(topic: SourceTopic, bad: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid time"):
        topic.messages(since=bad)


def test_a_position_that_is_none_is_refused(topic: SourceTopic) -> None:
    with pytest.raises(InvalidName, match="invalid position"):
        topic.entries("first")


# --- ledgers, segments and topics ---


def test_ledgers_have_their_location(topic: SourceTopic, ledgers: list[int]) -> None:
    found = topic.ledgers()
    assert [ledger.ledger_id for ledger in found] == ledgers
    assert [(ledger.hot, ledger.tiered) for ledger in found] == [(False, True)] * 2 + [(True, False)] * 2
    assert {ledger.entries for ledger in found} == {EACH}
    assert topic.segments() == ()


def test_segments_have_the_fields_of_their_records(home: ServerHome, ledgers: list[int], topic: SourceTopic) -> None:
    ids = [UUID(int=number) for number in (2, 1)]
    path = AfterglowPaths().segments(TopicName.parse(TOPIC).managed_ledger_name)
    with closing(SqliteMetadataStore(home.path / "metadata.db")) as metadata:
        for number, uuid in enumerate(ids):
            record = SegmentRecord(version=1, uuid=str(uuid), entries=EACH, bytes=77, assigned_ms=1, offloaded_ms=2)
            record.location.CopyFrom(location_record(home.location, str(uuid)))
            record.begin.ledger_id = record.end.ledger_id = ledgers[number]
            record.end.entry_id = EACH - 1
            metadata.put(f"{path}/{uuid}", record.SerializeToString(), MUST_NOT_EXIST)
    first, second = topic.segments()
    assert [first.id, second.id] == ids  # in the order of the topic
    assert (first.begin, first.end) == (Position(ledgers[0], 0), Position(ledgers[0], EACH - 1))
    assert (first.topic, first.location, first.key) == (TOPIC, home.location, str(ids[0]))
    with closing(SqliteMetadataStore(home.path / "metadata.db")) as metadata:
        metadata.put(f"{path}/{ids[0]}", b"no record", 0)
    with pytest.raises(CorruptMetadata, match=str(ids[0])):
        topic.segments()


def test_topics_are_listed_and_a_missing_one_is_reported_with_similar_names(source: Source) -> None:
    assert source.topics() == (TOPIC,)
    with pytest.raises(TopicMissing, match=r"no topic persistent://public/default/tt; did you mean .*default/t\?"):
        source.topic("tt")
    with pytest.raises(InvalidName, match="persistent"):
        source.topic("non-persistent://public/default/t")


def test_an_invalid_home_is_reported_and_nothing_is_created(tmp_path: Path) -> None:
    with pytest.raises(MetadataUnavailable, match="no such directory"):
        afterglow.connect(str(tmp_path / "absent"))
    with pytest.raises(MetadataUnavailable, match=r"metadata\.db is missing"):
        afterglow.connect(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "pulsar://127.0.0.1:6650", "memory://tier"])
def test_sources_of_other_kinds_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"invalid source address .*; expected .*http://HOST:8080, zk://HOST"):
        afterglow.connect(address)


def test_an_explicit_tier_wins_over_what_metadata_says(home: ServerHome, ledgers: list[int], tmp_path: Path) -> None:
    (home.path / "tier").rename(tmp_path / "elsewhere")
    (home.path / "tier").mkdir()
    with afterglow.connect(home.path, tier=(tmp_path / "elsewhere").as_uri()) as source:
        assert values(source.topic("t")) == expected()
    with afterglow.connect(home.path) as source, pytest.raises(ObjectMissing, match=f"ledger-{ledgers[0]}"):
        values(source.topic("t"))


def test_metadata_may_lie_outside_the_home(home: ServerHome, ledgers: list[int], tmp_path: Path) -> None:
    moved = tmp_path / "moved.db"
    (home.path / "metadata.db").rename(moved)
    with afterglow.connect(home.path, metadata=f"sqlite:{moved}") as source:
        assert values(source.topic("t")) == expected()
    with pytest.raises(NotSupported, match="sqlite:PATH"):
        afterglow.connect(home.path, metadata="zk://127.0.0.1:2181")


def test_reading_a_home_at_rest_changes_nothing_in_it(home: ServerHome, ledgers: list[int]) -> None:
    before = state(home.path)
    with afterglow.connect(home.path) as source:
        topic = source.topic("t")
        assert values(topic) == expected()
        topic.seek("1h")
        topic.ledgers()
    assert state(home.path) == before


def test_importing_the_package_brings_neither_arrow_nor_spark() -> None:
    check = "import sys, afterglow; print([n for n in ('pyarrow', 'numpy', 'pyspark', 'sqlite3') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="conect"):
        afterglow.conect  # type: ignore[attr-defined]  # noqa: B018


# --- damage ---


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damage_in_the_tier_names_object_and_position(home: ServerHome) -> None:
    first, second = home.write(TOPIC, *groups(2))
    key = home.offload(TOPIC, first)
    home.free(TOPIC, first)
    home.stop()
    flip(home.path / "tier" / key, 200)
    with afterglow.connect(home.path) as source:
        topic = source.topic("t")
        with pytest.raises(CorruptBlock, match=f"{key}.*{first}:") as reported:
            values(topic)
        assert "block" in str(reported.value)
        assert values(topic, f"{second}:0") == expected(EACH, 2 * EACH)


def test_damage_in_the_hot_log_is_found_by_the_entrys_own_checksum(
    home: ServerHome, ledgers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = ledgers[2]
    file = next((home.path / "hot").rglob(f"{spoilt}.ledger"))
    flip(file, file.stat().st_size - 1)  # of the last entry's payload
    with afterglow.connect(home.path) as source:
        batches = source.topic("t").messages(columns=["value"])
        with pytest.raises(CorruptEntry, match=f"entry {spoilt}:{EACH - 1}: its CRC32C"):
            list(batches)
    monkeypatch.setenv("AFTERGLOW_CONF_damagedDataPolicy", "skip-and-report")
    reported: list[CorruptEntry] = []
    with afterglow.connect(home.path) as source:
        rows = [row for part in source.topic("t").messages(report=reported.append) for row in part.to_pylist()]
    assert [row["value"].decode() for row in rows] == expected(0, 3 * EACH - 1) + expected(3 * EACH)
    assert [str(error).partition(": ")[0] for error in reported] == [f"entry {spoilt}:{EACH - 1}"]
