"""The reader of a stream as Spark before 4.2 calls it: without the start of a micro-batch, and without a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

from afterglow.spark.datasource import releases
from afterglow.spark.datasource.source import TopicsSource

TOPIC = "persistent://public/default/t"
LIMIT = 5


def write(home: Path, count: int) -> int:
    with ServerHome(home) as server:
        (ledger_id,) = server.write("t", [message(b"%d" % number) for number in range(count)])
    return ledger_id


def reader_of(home: Path, **options: str) -> Any:
    source = TopicsSource({"source": str(home), "topic": "t", "maxEntriesPerTrigger": str(LIMIT), **options})
    return source.streamReader(source.schema())


def count(reader: Any, start: dict[str, str], end: dict[str, str]) -> int:
    return sum(batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part))


def test_the_first_batch_of_a_new_query_has_all_messages_and_those_after_it_are_limited(tmp_path: Path) -> None:
    write(tmp_path, 12)
    reader = reader_of(tmp_path)
    end = reader.latestOffset()  # the only one, if the trigger is AvailableNow or Once
    assert count(reader, reader.initialOffset(), end) == 12
    write(tmp_path, 12)
    counts, next_end = [], reader.latestOffset()
    while next_end != end:
        counts.append(count(reader, end, next_end))
        end, next_end = next_end, reader.latestOffset()
    assert counts == [LIMIT, LIMIT, 2]


def test_a_restarted_query_continues_at_its_checkpoint_with_all_that_is_new(tmp_path: Path) -> None:
    write(tmp_path, 3)
    before = reader_of(tmp_path).latestOffset()
    write(tmp_path, 12)
    reader = reader_of(tmp_path)
    assert count(reader, before, before) == 0  # Spark's call at a restart, with the offset of the checkpoint
    end = reader.latestOffset()
    assert count(reader, before, end) == 12
    assert reader.latestOffset() == end


def test_a_restarted_query_that_repeats_a_batch_is_limited_after_it(tmp_path: Path) -> None:
    write(tmp_path, 3)
    first = reader_of(tmp_path)
    start, end = first.initialOffset(), first.latestOffset()
    write(tmp_path, 12)
    reader = reader_of(tmp_path)
    assert count(reader, end, end) == 0
    assert count(reader, start, end) == 3
    assert count(reader, end, reader.latestOffset()) == LIMIT


def test_a_batch_that_is_planned_again_later_does_not_move_the_query_back(tmp_path: Path) -> None:
    write(tmp_path, 3)
    reader = reader_of(tmp_path)
    start, end = reader.initialOffset(), reader.latestOffset()
    write(tmp_path, 4)
    second = reader.latestOffset()
    assert count(reader, start, end) == 3  # a frame of the first batch, evaluated once more
    write(tmp_path, 2)
    assert count(reader, second, reader.latestOffset()) == 2


def test_a_query_from_the_latest_message_begins_with_an_empty_batch(tmp_path: Path) -> None:
    write(tmp_path, 3)
    reader = reader_of(tmp_path, start="latest")
    end = reader.latestOffset()
    write(tmp_path, 4)
    assert reader.initialOffset() == end
    assert count(reader, end, end) == 0
    assert count(reader, end, reader.latestOffset()) == 4


def test_a_start_on_a_release_without_limits_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 3)
    monkeypatch.setattr(releases, "is_available", lambda _: False)
    reader = reader_of(tmp_path)
    for _ in range(3):
        reader.latestOffset()
    (record,) = caplog.records
    assert "cannot limit the micro-batches" in record.getMessage()
    assert "maxBytesPerTrigger" in record.getMessage()


def test_the_name_of_every_capability_is_unique() -> None:
    names = [capability.name for capability in releases.CAPABILITIES]
    assert len(set(names)) == len(names)
