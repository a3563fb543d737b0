"""Micro-batches of a stream: every message once, whatever happens to the topics between batches and restarts."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.homes import ServerHome, batch
from tests.support.ledgers import message
from tests.support.served_topics import eventually

import afterglow
from afterglow.config import load_conf
from afterglow.errors import EntriesMissing
from afterglow.format.entry import encode_entry
from afterglow.format.position import EARLIEST, LATEST
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.hot.local.shared_ledger import open_shared
from afterglow.metadata.names import TopicName
from afterglow.read.counters import ReadCounts
from afterglow.read.split_reader import SplitReader

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

from afterglow.spark.datasource.offsets import from_json, to_json
from afterglow.spark.datasource.options import SourceOptions
from afterglow.spark.datasource.stream_plan import BatchLimit, StreamPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from afterglow.spark.datasource.offsets import Point

TOPIC = "persistent://public/default/t"
COLUMNS = ("topic", "ledger_id", "entry_id", "batch_index", "value")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerHome]:
    with ServerHome(tmp_path) as home:
        yield home


class Stream:
    """A query and its checkpoint, as Spark keeps one."""

    def __init__(self, home: Path, **options: str) -> None:
        self.options = SourceOptions.parse({"source": str(home), "topic": "t", **options}, 0)
        self.plan = StreamPlan(self.options)
        self.committed: dict[str, str] | None = None
        self.reader = SplitReader(load_conf())

    def restart(self) -> None:
        self.plan.close()
        self.plan = StreamPlan(self.options)

    def batch(self, limit: BatchLimit | None = None, *, fails: bool = False) -> list[tuple[Any, ...]]:
        """The rows of the next batch. One that fails is done again after a restart, from the offsets on record."""
        start = to_json(self.plan.begin()) if self.committed is None else self.committed
        end = to_json(self.plan.end(from_json(start), limit))
        if fails:
            self.rows(from_json(start), from_json(end))
            self.restart()
            start = to_json(self.plan.begin()) if self.committed is None else self.committed
        found = self.rows(from_json(start), from_json(end))
        self.committed = end
        return found

    def rows(self, start: Mapping[str, Point], end: Mapping[str, Point]) -> list[tuple[Any, ...]]:
        return [
            tuple(row.values())
            for split in self.plan.splits(start, end)
            for part in self.reader.batches(split, COLUMNS)
            for row in part.to_pylist()
        ]


def scan(home: Path, topic: str = "t", **arguments: Any) -> list[tuple[Any, ...]]:
    with afterglow.connect(home) as source:
        rows = source.topic(topic).scan(columns=COLUMNS, **arguments).read_all().to_pylist()
    return [tuple(row.values()) for row in rows]


def write(server: ServerHome, topic: str, *ledgers: list[bytes]) -> list[int]:
    """Write, and wait until other processes see it."""
    ids = server.write(topic, *ledgers)
    see_all(server, topic)
    return ids


def see_all(server: ServerHome, topic: str) -> None:
    last = server.open(topic).layout.last
    if last.ledger_id < 0:
        return
    with open_shared(server.path, last.ledger_id) as ledger:
        eventually(lambda: ledger.confirmed >= last.entry_id, lambda: (topic, ledger.confirmed, last))


def some(draw: random.Random, count: int) -> list[bytes]:
    return [
        batch([draw.randbytes(draw.randint(0, 300)) for _ in range(draw.randint(1, 4))])
        if draw.random() < 0.5
        else message(draw.randbytes(draw.randint(0, 2000)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_every_message_is_read_once_whatever_happens_between_batches(server: ServerHome, seed: int) -> None:
    draw = random.Random(seed)
    server.catalog.create_partitioned(TopicName.parse("t"), 2)
    partitions = 1
    hot: list[tuple[str, int]] = []
    tiered: list[tuple[str, int]] = []
    found: list[tuple[Any, ...]] = []

    def write_some() -> None:
        name = f"t-partition-{draw.randrange(partitions)}"
        ids = server.write(name, *(some(draw, draw.randint(1, 12)) for _ in range(draw.randint(1, 3))))
        hot.extend((name, ledger_id) for ledger_id in ids)

    write_some()
    stream = Stream(server.path, maxPartitionBytes=str(draw.choice([1, 4000, 1 << 20])))
    for _ in range(30):
        match draw.randrange(8):
            case 0 | 1:
                write_some()
            case 2 if closed := [each for each in hot if server.open(each[0]).writing_to != each[1]]:
                name, ledger_id = draw.choice(closed)
                hot.remove((name, ledger_id))
                server.offload(name, ledger_id, block_bytes=draw.choice([4096, 1 << 20]))
                tiered.append((name, ledger_id))
            case 3 if tiered:
                server.free(*tiered.pop(draw.randrange(len(tiered))))
            case 4 if partitions < 4:
                partitions += 1
                server.catalog.update_partitions(TopicName.parse("t"), max(partitions, 2))
            case 5:
                stream.restart()
            case _:
                limit = draw.choice(
                    [
                        None,
                        BatchLimit(entries=draw.randint(1, 9)),
                        BatchLimit(draw.randint(1, 9000)),
                        BatchLimit(5000, 4),
                    ]
                )
                rows = stream.batch(limit, fails=draw.random() < 0.3)
                if limit is not None and limit.entries is not None:
                    assert len({row[:3] for row in rows}) <= limit.entries
                found += rows
    for number in range(partitions):
        see_all(server, f"t-partition-{number}")
    found += stream.batch()
    assert stream.batch() == []
    assert sorted(found) == sorted(scan(server.path))
    for name in {row[0] for row in found}:
        assert [row for row in found if row[0] == name] == scan(server.path, name)


def test_limits_bound_a_batch_and_share_it_among_topics(server: ServerHome) -> None:
    for name, count in (("a", 100), ("b", 10), ("c", 2)):
        write(server, name, [message(bytes(1000)) for _ in range(count)])
    stream = Stream(server.path, topic="a,b,c")

    def counts(limit: BatchLimit) -> list[int]:
        rows = stream.batch(limit)
        return [sum(row[0].endswith(f"/{name}") for row in rows) for name in "abc"]

    assert counts(BatchLimit(entries=20)) == [9, 9, 2]
    assert counts(BatchLimit(entries=20)) == [19, 1, 0]
    a, b, c = counts(BatchLimit(30_000))
    assert (b, c) == (0, 0)
    assert 25 <= a <= 30
    assert counts(BatchLimit(1)) == [1, 0, 0]  # one entry, however large
    assert len(stream.batch()) == 112 - 40 - a - 1


def test_topics_take_turns_where_there_are_more_than_entries_may_be_read(server: ServerHome) -> None:
    for name in "abcd":
        write(server, name, [message(b"") for _ in range(3)])
    stream = Stream(server.path, topic="a,b,c,d")
    seen = [row[0][-1] for _ in range(4) for row in stream.batch(BatchLimit(entries=1))]
    assert sorted(seen) == ["a", "b", "c", "d"]


def test_a_query_that_begins_at_the_end_loses_nothing_that_comes_then(server: ServerHome) -> None:
    write(server, "t", [message(b"old")])
    stream = Stream(server.path, start="latest")
    start = stream.plan.begin()
    write(server, "t", [message(b"new")])
    assert stream.plan.end(start, None) == start  # the first batch is empty: its end is on record, its start is not
    stream.committed = to_json(start)
    stream.restart()
    assert [row[-1] for row in stream.batch()] == [b"new"]


def test_a_first_batch_that_failed_is_done_again_as_it_was(server: ServerHome) -> None:
    write(server, "t", [message(b"old")])
    stream = Stream(server.path, start="latest")
    assert stream.batch(fails=True) == []
    write(server, "t", [message(b"new")])
    assert [row[-1] for row in stream.batch(fails=True)] == [b"new"]


def test_an_available_now_query_ends_at_the_end_when_it_started(server: ServerHome) -> None:
    write(server, "t", some(random.Random(1), 20))
    there = scan(server.path)
    stream = Stream(server.path)
    stream.plan.stop_growing()
    found = stream.batch(BatchLimit(entries=5))
    write(server, "t", [message(b"later")])
    while rows := stream.batch(BatchLimit(entries=5)):
        found += rows
    assert found == there


def test_ranges_and_times_bound_a_stream_too(server: ServerHome) -> None:
    first_ms = server.clock.now_ms()
    first, second = write(server, "t", *(some(random.Random(2), 20) for _ in range(2)))
    bounds = {"start": f"{first}:5:1", "end": f"{second}:9:1", "since": str(first_ms + 8000)}
    stream = Stream(server.path, **bounds)
    found = []
    while rows := stream.batch(BatchLimit(entries=7)):
        found += rows
    assert found == scan(server.path, **bounds)
    assert found


def test_data_that_was_trimmed_before_it_was_read_is_an_error_that_names_the_cure(server: ServerHome) -> None:
    first, second, third = write(server, "t", *([message(b"%d" % number)] * 3 for number in range(3)))
    stream = Stream(server.path)
    assert len(stream.batch(BatchLimit(entries=2))) == 2
    server.trim("t", first)
    server.trim("t", second)
    with pytest.raises(EntriesMissing, match=f"up to {first}:2:0 and begins at ledger {third} .*failOnDataLoss=false"):
        stream.batch()


def test_a_stream_continues_behind_trimmed_data_if_allowed(
    server: ServerHome, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = write(server, "t", *([message(b"%d" % number)] * 3 for number in range(3)))
    stream = Stream(server.path, failOnDataLoss="false")
    assert len(stream.batch(BatchLimit(entries=2))) == 2
    server.trim("t", first)
    server.trim("t", second)
    with caplog.at_level(logging.WARNING):
        assert [row[1] for row in stream.batch()] == [third] * 3
    assert "trimmed before they were read" in caplog.text


def test_data_that_was_read_may_be_trimmed(server: ServerHome) -> None:
    first, _ = write(server, "t", [message(b"0")], [message(b"1")])
    stream = Stream(server.path)
    assert len(stream.batch()) == 2
    server.trim("t", first)
    stream.restart()
    assert stream.batch() == []
    write(server, "t", [message(b"2")])
    assert [row[-1] for row in stream.batch()] == [b"2"]


def test_a_stream_of_tiers_alone_waits_for_entries_that_none_has_yet(server: ServerHome) -> None:
    first, second, third, _ = write(server, "t", *([message(b"%d" % number)] * 2 for number in range(4)))
    stream = Stream(server.path, hot="skip")
    assert stream.batch() == []
    server.offload("t", first)
    server.offload("t", third)
    assert [row[1] for row in stream.batch()] == [first] * 2
    server.offload("t", second)
    assert [row[1] for row in stream.batch()] == [second] * 2 + [third] * 2
    assert stream.batch() == []


def test_a_new_query_begins_with_the_rest_and_warns(server: ServerHome, caplog: pytest.LogCaptureFixture) -> None:
    first, second = write(server, "t", [message(b"0")], [message(b"1")])
    server.trim("t", first)
    with caplog.at_level(logging.WARNING):
        assert [row[1] for row in Stream(server.path).batch()] == [second]
        assert not caplog.records
        stream = Stream(server.path, start=f"{first}:0")
        assert [row[1] for row in stream.batch()] == [second]
        stream.batch()
    (record,) = caplog.records
    assert f"{TOPIC} from {first}:0 to latest: {first}:0 to {second}:0 was trimmed" in record.getMessage()


def test_a_new_query_that_waits_for_a_position_to_come_says_so_once(
    server: ServerHome, caplog: pytest.LogCaptureFixture
) -> None:
    (only,) = write(server, "t", [message(b"0")])
    stream = Stream(server.path, start=f"{only}:2")
    with caplog.at_level(logging.WARNING):
        assert stream.batch() == []
        server.append("t", message(b"1"))
        see_all(server, "t")
        assert stream.batch() == []
    (record,) = caplog.records
    assert f"{only}:2 to latest was never written" in record.getMessage()
    server.append("t", message(b"2"))
    see_all(server, "t")
    assert [row[-1] for row in stream.batch()] == [b"2"]


def test_a_new_query_fails_on_data_loss_where_data_was_trimmed(server: ServerHome) -> None:
    first, second = write(server, "t", [message(b"0")], [message(b"1")])
    server.trim("t", first)
    for start in (f"{first}:0", f"{second}:9"):
        with pytest.raises(EntriesMissing, match=f"{TOPIC} from {start} to latest"):
            Stream(server.path, start=start, failOnDataLoss="true").batch()


def test_a_deleted_topic_is_an_error_or_a_warning(server: ServerHome) -> None:
    write(server, "a1", [message(b"1")])
    write(server, "a2", [message(b"2")])
    stream, lenient = (
        Stream(server.path, topic="", topicsPattern="a.", failOnDataLoss=flag) for flag in ("true", "false")
    )
    assert len(stream.batch()) == len(lenient.batch()) == 2
    server.open("a1").delete()
    write(server, "a2", [message(b"3")])
    with pytest.raises(EntriesMissing, match="default/a1 does not exist any more"):
        stream.batch()
    assert [row[-1] for row in lenient.batch()] == [b"3"]


def test_topics_that_come_later_are_read_from_their_start(server: ServerHome) -> None:
    stream = Stream(server.path, topic="", topicsPattern="a.*")
    assert stream.batch() == []
    write(server, "a1", [message(b"1")])
    assert [row[-1] for row in stream.batch()] == [b"1"]
    write(server, "a2", [message(b"2")])
    stream.restart()
    assert [row[-1] for row in stream.batch()] == [b"2"]


def test_offsets_of_another_topic_are_refused(server: ServerHome) -> None:
    write(server, "t", [message(b"1")])
    stream = Stream(server.path)
    stream.committed = {TOPIC: "99:0:0"}
    with pytest.raises(EntriesMissing, match="a new checkpointLocation"):
        stream.batch()


# --- transactions ---


def in_transaction(transaction: int, value: bytes = b"", marker: int | None = None) -> bytes:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, marker_type=marker, txnid_most_bits=0,
        txnid_least_bits=transaction,
    )  # fmt: skip
    return encode_entry(metadata, value)


def test_a_batch_ends_before_a_transaction_that_is_open(server: ServerHome) -> None:
    write(server, "__transaction_buffer_snapshot", [message(b"")])  # as Pulsar does before the first transaction
    write(server, "t", [message(b"a"), in_transaction(1, b"b"), message(b"c")])
    stream = Stream(server.path)
    assert [row[-1] for row in stream.batch()] == [b"a"]
    assert stream.batch() == []
    write(server, "t", [in_transaction(2, b"d"), in_transaction(2, marker=22), message(b"e")])
    assert stream.batch(BatchLimit(entries=1)) == []
    stream.restart()
    assert stream.batch() == []
    write(server, "t", [in_transaction(1, marker=21), in_transaction(3, b"f")])
    assert [row[-1] for row in stream.batch()] == [b"b", b"c", b"e"]
    assert stream.batch() == []
    write(server, "t", [in_transaction(3, marker=21)])
    assert [row[-1] for row in stream.batch(fails=True)] == [b"f"]
    stream.plan.close()


def test_no_entry_is_read_in_search_of_transactions_where_there_can_be_none(server: ServerHome) -> None:
    write(server, "t", [message(b"a"), in_transaction(1, b"b")])
    with afterglow.connect(server.path) as source:
        assert source.topic("t").first_undecided(EARLIEST, LATEST) is None
        assert source.counters.counts() == ReadCounts()
        write(server, "__transaction_buffer_snapshot", [message(b"")])
        assert source.topic("t").first_undecided(EARLIEST, LATEST) is not None


def test_a_batch_does_not_open_a_topic_whose_offset_stays(server: ServerHome) -> None:
    """After a restart it would come again, or fail, where the topic was deleted meanwhile."""
    write(server, "t", [message(b"a"), message(b"b")])
    stream = Stream(server.path)
    begin = stream.plan.begin()
    end = stream.plan.end(begin, None)
    gone = {"persistent://public/default/gone": end[TOPIC]}
    assert len(stream.rows({**begin, **gone}, {**end, **gone})) == 2
    assert stream.rows({**end, **gone}, {**end, **gone}) == []


def test_an_offset_keeps_the_position_of_a_topic_that_has_nothing_new(server: ServerHome) -> None:
    """Without it a restarted stream would read that topic from its beginning."""
    server.catalog.create_partitioned(TopicName.parse("t"), 2)
    for number in range(2):
        write(server, f"t-partition-{number}", [message(b"a")])
    plan = Stream(server.path).plan
    first = plan.end(plan.begin(), None)
    write(server, "t-partition-0", [message(b"b")])
    second = plan.end(first, None)
    idle, busy = f"{TOPIC}-partition-1", f"{TOPIC}-partition-0"
    assert (second[idle], second.keys()) == (first[idle], first.keys())
    assert second[busy] > first[busy]
