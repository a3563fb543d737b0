"""The demo's own parts, without a server; the whole of it runs in tests/cli/test_demo.py."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from afterglow.demo.run import differences, entry_times, make_message, message_rows, wrong_seeks
from afterglow.demo.screen import BLANK, FILLING, FREED, HOT, OFFLOADED, UPLOADED, TopicSnapshot
from afterglow.format.position import Position
from afterglow.source.directory import SourceLedger

if TYPE_CHECKING:
    from afterglow.demo.run import MessageRow

ROW: MessageRow = (7, 0, -1, "k", {"a": "b"}, 5, "digest")


def rows(count: int) -> list[MessageRow]:
    """Messages in batches of three."""
    return [(7, number // 3, number % 3, None, {}, None, f"digest {number}") for number in range(count)]


def test_messages_are_distinct_and_reproducible_by_number() -> None:
    assert make_message(5) == make_message(5)
    assert len({value for *_, value in map(make_message, range(60))}) == 60


def test_columns_of_spark_are_the_messages_that_were_sent() -> None:
    names = ("ledger_id", "entry_id", "batch_index", "key", "properties", "event_ms", "digest")
    columns = dict(zip(names, ([value] for value in ROW), strict=True))
    columns["properties"] = pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))
    assert message_rows(pa.table(columns)) == [ROW]


@pytest.mark.parametrize(
    "other",
    [
        (7, 0, -1, "", {"a": "b"}, 5, "digest"),
        (7, 0, -1, None, {"a": "b"}, 5, "digest"),
        (7, 0, -1, "k", {}, 5, "digest"),
        (7, 0, -1, "k", {"a": "b", "": ""}, 5, "digest"),
        (7, 0, -1, "k", {"a": "b"}, None, "digest"),
        (7, 0, -1, "k", {"a": "b"}, 5, "other"),
    ],
)
def test_any_difference_in_a_message_is_detected(other: MessageRow) -> None:
    assert differences([ROW], [other]) == ["message 0 came back changed"]


def test_equal_messages_show_no_difference() -> None:
    assert differences(rows(40), rows(40)) == []


def test_a_missing_message_is_detected() -> None:
    assert differences(rows(40), rows(40)[1:]) == ["40 messages were sent, 39 came back"]


def test_messages_in_another_order_are_detected() -> None:
    second, first, *rest = rows(40)
    found = differences(rows(40), [first, second, *rest])
    assert [line.partition(" came")[0] for line in found] == ["message 0", "message 1"]


def test_a_full_scan_determines_what_a_seek_must_find() -> None:
    entries = [number // 3 for number in range(12)]  # at 0, 2, 4, 6 s
    columns = {"ledger_id": [7] * 12, "entry_id": entries, "broker_ms": [2_000 * entry for entry in entries]}
    times = entry_times(pa.table(columns))
    assert list(times) == [Position(7, entry) for entry in range(4)]
    expected = {-1: 0, 0: 0, 1: 1, 2_000: 1, 2_001: 2, 6_000: 3, 6_001: 4}
    assert wrong_seeks("a seek", times, [(at, Position(7, entry)) for at, entry in expected.items()]) == []
    assert wrong_seeks("a seek", times, [(2_000, Position(7, 2))]) == ["a seek sought 2000 and found 7:2, not 7:1"]


def ledger(ledger_id: int, entries: int, *, hot: bool = True) -> SourceLedger:
    return SourceLedger("t", ledger_id, entries, None, None, None, hot, not hot)


def segment(
    begin: tuple[int, int], end: tuple[int, int] | None, *, entries: int = 0, status: str = "Offloaded"
) -> dict[str, Any]:
    names = ("ledger_id", "entry_id")
    first, last = (None if at is None else dict(zip(names, at, strict=True)) for at in (begin, end))
    return {"status": status, "begin": first, "end": last, "entries": entries}


TOPIC = TopicSnapshot(
    (ledger(3, 60, hot=False), ledger(5, 40)),
    [
        segment((3, 0), (3, 49)),
        segment((3, 50), (5, 9)),
        segment((5, 10), None, entries=20, status="Assigned"),
    ],
)


def test_lanes_show_ledgers_and_segments_over_the_same_log() -> None:
    lanes = TOPIC.lanes(50, 0)
    assert lanes["ledgers"] == [(FREED, 30, "3"), (HOT, 20, "5")]
    assert lanes["segments"] == [(OFFLOADED, 25, "1"), (OFFLOADED, 10, "2"), (UPLOADED, 10, "3"), (FILLING, 5, "")]


@pytest.mark.parametrize("width", [1, 7, 50, 200])
@pytest.mark.parametrize("entries", [0, 100, 1_000])
def test_lanes_are_as_wide_as_the_screen_for_any_log(width: int, entries: int) -> None:
    for topic in (TOPIC, TopicSnapshot((), []), TopicSnapshot((ledger(1, 0),), [])):
        for strokes in topic.lanes(width, entries).values():
            assert sum(columns for _, columns, _ in strokes) == width
            assert all(columns > 0 for _, columns, _ in strokes)
            assert not any(one[0] is other[0] is BLANK for one, other in pairwise(strokes))
