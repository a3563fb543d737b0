"""Requested ranges that a topic does not hold any more: reported, or refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message

import afterglow
from afterglow.errors import EntriesMissing
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql.datasource import Filter

    from afterglow.source.connect import SourceTopic

TOPIC = "persistent://public/default/t"


@pytest.fixture
def home(tmp_path: Path) -> tuple[Path, int, int]:
    """A topic of which the first of three ledgers was trimmed; and the ids of the two that are left."""
    with ServerHome(tmp_path) as server:
        first, second, third = server.write("t", *([message(b"%d" % number)] * 3 for number in range(3)))
        server.trim("t", first)
    return tmp_path, second, third


def by_scan(topic: SourceTopic, **range_: Any) -> int:
    return int(topic.scan(**range_).read_all().num_rows)


def by_few(topic: SourceTopic, **range_: Any) -> int:
    return int(topic.scan(scan=False, include="entries", **range_).read_all().num_rows)


def by_messages(topic: SourceTopic, **range_: Any) -> int:
    return sum(batch.num_rows for batch in topic.messages(**range_))


def by_entries(topic: SourceTopic, **range_: Any) -> int:
    return sum(served.run.frames.end_entry_id - served.run.frames.first_entry_id for served in topic.entries(**range_))


@pytest.mark.parametrize("count", [by_scan, by_few, by_messages, by_entries])
def test_a_read_of_what_was_trimmed_warns_or_fails(
    home: tuple[Path, int, int], count: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    path, second, third = home
    with afterglow.connect(path) as source, caplog.at_level(logging.WARNING):
        topic = source.topic("t")
        assert count(topic) == count(topic, start="earliest") == count(topic, start=f"{second}:0") == 6
        assert count(topic, start=f"{second}:0", fail_on_data_loss=True) == 6
        assert not caplog.records
        assert count(topic, start="0:1") == 6
        assert f"{TOPIC} from 0:1 to latest: 0:1 to {second}:0 was trimmed" in caplog.text
        assert f"{second}:0 through {third}:2 is available" in caplog.text
        caplog.clear()
        assert count(topic, start=f"{third}:4") == 0
        assert f"{third}:4 to latest was never written" in caplog.text
        caplog.clear()
        assert count(topic, start=f"{third}:1", end=f"{second}:1") == 0
        assert f"end {second}:1 is before start {third}:1; swap the two" in caplog.text
        for start in ("0:1", f"{third}:4"):
            with pytest.raises(EntriesMissing, match=f"{TOPIC} from {start} to latest"):
                count(topic, start=start, fail_on_data_loss=True)


def test_a_time_before_the_first_entry_that_is_left_loses_nothing(
    home: tuple[Path, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    with afterglow.connect(home[0]) as source, caplog.at_level(logging.WARNING):
        assert by_scan(source.topic("t"), since=0, fail_on_data_loss=True) == 6
    assert not caplog.records


def test_each_partition_is_reported_and_none_is_read_if_one_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerHome(tmp_path) as server:
        server.catalog.create_partitioned(TopicName.parse("t"), 2)
        whole = server.write("t-partition-0", [message(b"0")] * 2)[0]
        gone, left = server.write("t-partition-1", [message(b"1")], [message(b"2")])
        server.trim("t-partition-1", gone)
    with afterglow.connect(tmp_path) as source, caplog.at_level(logging.WARNING):
        topic = source.topic("t")
        assert by_scan(topic, start=f"{whole}:1") == 2
        (record,) = caplog.records
        assert f"{TOPIC}-partition-1 from {whole}:1 to latest: {whole}:1 to {left}:0 was trimmed" in record.getMessage()
        with pytest.raises(EntriesMissing, match="t-partition-1 from"):
            topic.scan(start=f"{whole}:1", fail_on_data_loss=True)


def test_what_is_in_the_hot_log_alone_is_not_lost_to_readers_that_skip_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerHome(tmp_path) as server:
        first, second, third = server.write("t", *([message(b"%d" % number)] * 3 for number in range(3)))
        server.offload("t", second)
    with afterglow.connect(tmp_path, hot="skip") as source, caplog.at_level(logging.WARNING):
        topic = source.topic("t")
        for start, rows in ((f"{first}:1", 3), (f"{third}:2", 0)):
            assert by_scan(topic, start=start, fail_on_data_loss=True) == rows
    assert not caplog.records


# --- batches of Spark's, as they are planned ---


def planned(home: Path, *filters: Filter, **options: str) -> int:
    """How many entries a batch of Spark's plans to read."""
    from afterglow.spark.datasource.source import TopicsSource

    source = TopicsSource({"source": str(home), "topic": "t", **options})
    reader: Any = source.reader(source.schema())
    if filters:
        reader.pushFilters(list(filters))
    return sum(split.last - split.first + 1 for each in reader.partitions() for split in each.value.splits)


def test_a_batch_warns_of_what_was_trimmed(home: tuple[Path, int, int], caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
    path, second, third = home
    with caplog.at_level(logging.WARNING):
        assert planned(path) == planned(path, start=f"{second}:0", end=f"{third}:3", failOnDataLoss="true") == 6
        assert not caplog.records
        assert planned(path, start="0:1") == 6
        assert f"{TOPIC} from 0:1 to latest: 0:1 to {second}:0 was trimmed" in caplog.text
        caplog.clear()
        assert planned(path, start="99:0") == 0
        assert f"{TOPIC} from 99:0 to latest: 99:0 to latest was never written" in caplog.text
        caplog.clear()
        assert planned(path, start=f"{third}:1", end=f"{second}:1") == 0
        assert f"end {second}:1 is before start {third}:1" in caplog.text


@pytest.mark.parametrize("start", ["0:1", "99:0"])
def test_a_batch_fails_where_that_is_asked_for(home: tuple[Path, int, int], start: str) -> None:
    pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
    with pytest.raises(EntriesMissing, match=f"{TOPIC} from {start} to latest"):
        planned(home[0], start=start, failOnDataLoss="true")


def test_filters_ask_for_nothing_that_could_be_missing(
    home: tuple[Path, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    pyspark = pytest.importorskip("pyspark.sql.datasource", reason="the extra pulsar-afterglow[spark] is not installed")
    path, second, _ = home
    bounds = (pyspark.GreaterThanOrEqual(("ledger_id",), 0), pyspark.LessThan(("ledger_id",), second))
    with caplog.at_level(logging.WARNING):
        assert planned(path, *bounds[:1], pushdown="true", failOnDataLoss="true") == 6
        assert planned(path, *bounds, pushdown="true", failOnDataLoss="true") == 3  # bounds may be wider than filters
    assert not caplog.records
