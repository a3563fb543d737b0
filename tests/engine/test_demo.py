"""The demo's own parts, without an engine; the whole of it runs in tests/cli/test_demo.py."""

from __future__ import annotations

from itertools import pairwise
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from afterglow.engine.demo_check import EntryTimes, differences
from afterglow.engine.demo_messages import COLUMNS, DIGESTS, Message, digest_batch, make_message
from afterglow.engine.demo_watch import Ink, Look
from afterglow.engine.source_records import SourceLedger
from afterglow.format.position import Position
from afterglow.format.schema import MESSAGES, choose
from afterglow.offload.segments.listing import SegmentStatus, SegmentView


def read(message: Message) -> dict[str, object]:
    """A message as a reader of the tier gives it."""
    return {
        "ledger_id": 1,
        "entry_id": 0,
        "batch_index": -1,
        "broker_time": 1_000_000,
        "event_time": message.event_time_ms * 1000 or None,
        "key": None if message.key is None else message.key.encode(),
        "properties": list(message.properties.items()),
        "value": message.value,
        "tier": "tiered",
    }


def digested(*messages: Message) -> pa.RecordBatch:
    return digest_batch(pa.RecordBatch.from_pylist([*map(read, messages)], schema=choose(MESSAGES, COLUMNS)))


def test_a_message_that_comes_back_has_the_digest_that_it_was_sent_with() -> None:
    messages = [make_message(number) for number in range(60)]
    batch = digested(*messages)
    assert batch.schema == DIGESTS
    assert batch.column("digest").to_pylist() == [message.digest for message in messages]
    assert len(set(batch.column("digest").to_pylist())) == 60
    assert batch.column("value_bytes").to_pylist() == [len(message.value) for message in messages]


@pytest.mark.parametrize(
    "other",
    [
        Message("k", {"a": "b"}, 5, b"value."),
        Message("", {"a": "b"}, 5, b"value"),
        Message(None, {"a": "b"}, 5, b"value"),
        Message("k", {}, 5, b"value"),
        Message("k", {"a": "b", "": ""}, 5, b"value"),
        Message("k", {"a": "b"}, 6, b"value"),
    ],
)
def test_messages_that_differ_in_anything_have_other_digests(other: Message) -> None:
    assert other.digest != Message("k", {"a": "b"}, 5, b"value").digest


def table(rows: int) -> pa.Table:
    """Messages in batches of three."""
    numbers = np.arange(rows)
    return pa.table(
        {
            "ledger_id": pa.array(np.full(rows, 7)),
            "entry_id": pa.array(numbers // 3),
            "batch_index": pa.array(numbers % 3, pa.int32()),
            "digest": pa.array([make_message(number).digest for number in range(rows)], pa.binary(16)),
            "broker_time": pa.array(numbers // 3 * 2_000_000, MESSAGES.field("broker_time").type),
        }
    )


def test_equal_messages_show_no_difference() -> None:
    assert differences(table(40), table(40)) == []


def test_a_missing_message_is_noticed() -> None:
    assert differences(table(40), table(40).slice(1)) == ["40 messages were sent, 39 came back"]


def test_messages_in_another_order_are_noticed() -> None:
    swapped = table(40).take([1, 0, *range(2, 40)])
    assert [line.partition(" came")[0] for line in differences(table(40), swapped)] == ["message 0", "message 1"]


def test_changed_messages_are_noticed_and_not_all_named() -> None:
    digests = [b"\0" * 16] * 39 + [table(40)["digest"][39].as_py()]
    changed = table(40).set_column(3, "digest", pa.array(digests, pa.binary(16)))
    told = differences(table(40), changed)
    assert told[0] == "message 0 came back changed"
    assert told[10:] == ["so did 29 further ones"]


def test_a_plain_scan_tells_what_a_seek_must_find() -> None:
    times = EntryTimes.of(table(12))  # entries 0 to 3, at 0, 2, 4, 6 s
    assert times.positions == tuple(Position(7, entry) for entry in range(4))
    expected = {-1: 0, 0: 0, 1: 1, 2_000: 1, 2_001: 2, 6_000: 3, 6_001: 4}
    moments = list(expected)
    assert times.wrong_seeks("a seek", moments, [Position(7, entry) for entry in expected.values()]) == []
    assert times.wrong_seeks("a seek", [2_000], [Position(7, 2)]) == ["a seek sought 2000 and found 7:2, not 7:1"]


def ledger(ledger_id: int, entries: int, *, hot: bool = True) -> SourceLedger:
    return SourceLedger("t", ledger_id, entries, None, None, None, hot, not hot)


def segment(
    begin: Position, end: Position | None, *, entries: int = 0, status: SegmentStatus = SegmentStatus.OFFLOADED
) -> SegmentView:
    return SegmentView(str(uuid4()), status, begin, end, 0, 8_000, entries, 0, 0, "filesystem", "/t", "k", None)


LOOK = Look(
    (ledger(3, 60, hot=False), ledger(5, 40)),
    (
        segment(Position(3, 0), Position(3, 49)),
        segment(Position(3, 50), Position(5, 9)),
        segment(Position(5, 10), None, entries=20, status=SegmentStatus.ASSIGNED),
    ),
)


def test_lanes_show_ledgers_and_segments_over_the_same_log() -> None:
    lanes = LOOK.lanes(50, 0)
    assert [(stroke.ink, stroke.columns, stroke.label) for stroke in lanes["ledgers"]] == [
        (Ink.FREED, 30, "3"),
        (Ink.HOT, 20, "5"),
    ]
    assert [(stroke.ink, stroke.columns, stroke.label) for stroke in lanes["segments"]] == [
        (Ink.OFFLOADED, 25, "1"),
        (Ink.OFFLOADED, 10, "2"),
        (Ink.UPLOADED, 10, "3"),
        (Ink.FILLING, 5, ""),
    ]


@pytest.mark.parametrize("width", [1, 7, 50, 200])
@pytest.mark.parametrize("entries", [0, 100, 1_000])
def test_lanes_are_as_wide_as_the_screen_whatever_the_log(width: int, entries: int) -> None:
    for look in (LOOK, Look((), ()), Look((ledger(1, 0),), ())):
        for strokes in look.lanes(width, entries).values():
            assert sum(stroke.columns for stroke in strokes) == width
            assert all(stroke.columns > 0 for stroke in strokes)
            assert not any(a.ink is b.ink is Ink.BLANK for a, b in pairwise(strokes))


def test_the_way_to_the_tier_counts_from_the_last_entry_of_a_segment() -> None:
    times = EntryTimes.of(table(12))
    assert times.to_tier_s([segment(Position(7, 0), Position(7, 1)), segment(Position(7, 2), None)]) == [6.0]
