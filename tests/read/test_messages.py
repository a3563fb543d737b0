"""Messages of topics with chunks and transactions: any range, in runs of any size, against a plain implementation."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.odd_topics import OddTopic, chunks, odd_topic
from tests.support.oracle import batch_rows

from afterglow.errors import CorruptEntry
from afterglow.format.columns import BLOCK_COLUMNS
from afterglow.format.compression import Codec
from afterglow.format.entry import decode_entry, encode_entry
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.format.proto.pulsar_api_pb2 import CompressionType, MessageMetadata
from afterglow.read.messages import MessageBatches
from afterglow.read.scan_range import ScanRange

if TYPE_CHECKING:
    from tests.support.oracle import Row

    from afterglow.errors import IncompleteMessage

SEEDS = st.integers(0, 2**32)


def read(
    topic: OddTopic, scan_range: ScanRange | None = None, columns: Any = BLOCK_COLUMNS, **options: Any
) -> list[Row]:
    """The messages of a window, by an assembler that begins there."""
    scan_range = scan_range or ScanRange()
    batches = MessageBatches("t", scan_range, columns, neighbours=topic, **{"on_incomplete": lambda _: None, **options})
    found: list[Row] = []
    for served in topic.runs(scan_range.start, scan_range.end_entry):
        for batch in batches.of(served):
            assert batch.num_rows
            batch.validate(full=True)
            assert batch.schema.names == list(columns)
            found += batch_rows(batch)
    batches.end()
    return found


def location(row: Row) -> Position:
    return Position(row["ledger_id"], row["entry_id"])


def plain(payload: bytes = b"v", **fields: Any) -> bytes:
    return encode_entry(MessageMetadata(producer_name="q", sequence_id=7, publish_time=5, **fields), payload)


def marker(kind: int, number: int) -> bytes:
    return plain(b"", marker_type=kind, txnid_most_bits=0, txnid_least_bits=number)


# --- any topic -----------------------------------------------------------------------------------------------------


@given(SEEDS)
def test_a_topic_has_the_messages_that_a_plain_reading_sees(seed: int) -> None:
    topic = odd_topic(random.Random(seed))
    assert read(topic) == topic.rows()


@given(SEEDS)
def test_ranges_next_to_each_other_share_out_the_messages(seed: int) -> None:
    rng = random.Random(seed)
    topic = odd_topic(rng)
    expected = topic.rows()
    cuts = sorted(rng.sample(topic.positions, min(4, len(topic.positions))))
    found = []
    for start, end in zip([EARLIEST, *cuts], [*cuts, LATEST], strict=True):
        rows = read(topic, ScanRange(start=start, end=end))
        assert rows == [row for row in expected if start <= location(row) < end]
        found += rows
    assert found == expected


@given(SEEDS, st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_range_of_times_has_the_messages_whose_last_chunk_is_in_it(seed: int, since: int, until: int) -> None:
    topic = odd_topic(random.Random(seed))
    scan_range = ScanRange(since_ms=since, until_ms=until)
    expected = [row for row in topic.rows() if since * 1000 <= _time(row) < until * 1000]
    assert read(topic, scan_range) == expected


def _time(row: Row) -> int:
    found: int = row["publish_time"] if row["broker_time"] is None else row["broker_time"]
    return found


@given(SEEDS, st.lists(st.sampled_from(BLOCK_COLUMNS), unique=True))
def test_other_columns_are_those_of_the_same_messages(seed: int, columns: list[str]) -> None:
    topic = odd_topic(random.Random(seed))
    if not columns:
        batches = MessageBatches("t", ScanRange(), columns, neighbours=topic, on_incomplete=lambda _: None)
        rows = sum(batch.num_rows for served in topic.runs(EARLIEST, LATEST) for batch in batches.of(served))
        assert rows == len(topic.rows())
        return
    assert read(topic, columns=columns) == [{name: row[name] for name in columns} for row in topic.rows()]


@given(SEEDS)
def test_damaged_entries_are_reported_and_cost_only_their_own_messages(seed: int) -> None:
    topic = odd_topic(random.Random(seed), damaged=0.1)
    reported: list[CorruptEntry] = []
    assert read(topic, on_corrupt=reported.append) == topic.rows()


@given(SEEDS)
def test_chunks_on_both_sides_of_skipped_runs_are_not_joined(seed: int) -> None:
    rng = random.Random(seed)
    topic = odd_topic(rng)
    expected = {location(row) for row in topic.rows()}
    batches = MessageBatches("t", ScanRange(), BLOCK_COLUMNS, neighbours=topic, on_incomplete=lambda _: None)
    wanted, found = [], []
    for served in topic.runs(EARLIEST, LATEST):
        if rng.random() < 0.5:
            frames = served.run.frames
            wanted += [Position(served.run.ledger_id, id_) for id_ in range(frames.first_entry_id, frames.end_entry_id)]
            found += [row for batch in batches.of(served) for row in batch_rows(batch)]
    assert found == [row for row in topic.rows() if location(row) in set(wanted) & expected]


# --- chunks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
def test_a_message_is_one_row_at_its_last_chunk_with_its_expanded_payload(codec: Codec) -> None:
    payload = b"abcdefgh" * 100
    topic = OddTopic({3: [plain(), *chunks(payload, 3, codec, partition_key="k"), plain()]})
    first, row, last = read(topic)
    assert (row["entry_id"], row["batch_index"], row["value"], row["key"]) == (3, -1, payload, b"k")
    assert [first["entry_id"], last["entry_id"]] == [0, 4]


def test_an_encrypted_message_has_its_chunks_as_they_are_stored() -> None:
    (row,) = read(OddTopic({1: chunks(b"secret" * 9, 4, Codec.ZSTD, encrypted=True)}))
    assert row["encrypted"]
    stored = b"".join(one["value"] for one in read(OddTopic({1: chunks(b"secret" * 9, 4, Codec.ZSTD, encrypted=True)})))
    assert row["value"] == stored != b"secret" * 9


def test_an_incomplete_message_is_reported_once_by_the_range_of_its_last_chunk() -> None:
    sent = chunks(b"abcdef", 3, uuid="lost-1")
    topic = OddTopic({1: [sent[0], plain(), sent[2], plain()]})
    reported: list[IncompleteMessage] = []
    assert len(read(topic, on_incomplete=reported.append)) == 2
    assert len(read(topic, ScanRange(end=Position(1, 2)), on_incomplete=reported.append)) == 1
    assert [str(error) for error in reported] == [
        "entry 1:2: message 'lost-1' came in 3 chunks, of which chunk 1 is missing"
    ]


def test_a_message_that_was_never_finished_is_reported_at_the_end_of_the_topic() -> None:
    sent = chunks(b"abcdef", 3, uuid="open-1")
    topic = OddTopic({1: [plain(), sent[0]], 2: [plain(), sent[1], plain()]})
    reported: list[IncompleteMessage] = []
    assert len(read(topic, on_incomplete=reported.append)) == 3
    assert [str(error) for error in reported] == [
        "entry 2:1: message 'open-1' came in 3 chunks, of which chunk 2 is missing"
    ]


def test_chunks_that_were_sent_again_after_the_last_are_not_reported() -> None:
    sent = chunks(b"abcdef", 3)
    topic = OddTopic({1: [*sent, *sent[1:]]}, run_entries=2)
    reported: list[IncompleteMessage] = []
    assert [row["entry_id"] for row in read(topic, on_incomplete=reported.append)] == [2]
    assert read(topic, ScanRange(start=Position(1, 3)), on_incomplete=reported.append) == []
    assert reported == []


def test_without_anything_around_chunks_come_as_they_are() -> None:
    topic = OddTopic({1: [*chunks(b"abcdef", 3), plain(txnid_most_bits=0, txnid_least_bits=1)]})
    batches = MessageBatches("t", ScanRange(), ("value",))
    values = [row["value"] for served in topic.after(EARLIEST) for b in batches.of(served) for row in batch_rows(b)]
    assert values == [b"ab", b"cd", b"ef", b"v"]


def test_a_payload_that_does_not_expand_is_a_damaged_entry() -> None:
    first, _ = chunks(b"x" * 100, 2, Codec.LZ4)
    wrong = encode_entry(
        MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, uuid="p-1", num_chunks_from_msg=2, chunk_id=1,
            total_chunk_msg_size=decode_entry(first).metadata.total_chunk_msg_size,
            compression=CompressionType.LZ4, uncompressed_size=99,
        ),
        b"garbage",
    )  # fmt: skip
    topic = OddTopic({1: [first, wrong, plain()]})
    with pytest.raises(CorruptEntry, match="entry 1:1: LZ4 payload"):
        read(topic)
    reported: list[CorruptEntry] = []
    assert [row["entry_id"] for row in read(topic, on_corrupt=reported.append)] == [2]
    assert len(reported) == 1


def test_a_message_above_the_limit_is_refused_before_it_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afterglow.read.chunks.MAX_UNCOMPRESSED_BYTES", 99)
    with pytest.raises(CorruptEntry, match="entry 1:1: its 2 chunks have 100 bytes, above the limit of 99"):
        read(OddTopic({1: chunks(bytes(100), 2)}))


def test_small_messages_in_chunks_share_batches() -> None:
    topic = OddTopic({1: [entry for n in range(50) for entry in chunks(b"ab", 2, uuid=f"p-{n}")]}, run_entries=1000)
    batches = MessageBatches("t", ScanRange(), neighbours=topic)
    (served,) = topic.after(EARLIEST)
    (batch,) = batches.of(served)
    assert batch.num_rows == 50


# --- transactions --------------------------------------------------------------------------------------------------


def test_a_marker_after_the_end_of_the_range_counts() -> None:
    fields = {"txnid_most_bits": 0}
    topic = OddTopic({
        1: [plain(b"a", txnid_least_bits=1, **fields), plain(b"b", txnid_least_bits=2, **fields), plain(b"c")],
        2: [plain(b"d", txnid_least_bits=3, **fields), marker(22, 1), marker(21, 2)],
    })  # fmt: skip
    assert [row["value"] for row in read(topic, ScanRange(end=Position(2, 1)))] == [b"b", b"c"]
    assert [row["value"] for row in read(topic, ScanRange(start=Position(1, 1), end=Position(1, 2)))] == [b"b"]


def test_a_batch_of_a_transaction_is_in_or_out_as_a_whole() -> None:
    topic = OddTopic({1: [plain(b"", txnid_most_bits=5, txnid_least_bits=1), marker(21, 1), plain(b"z")]})
    # The marker is of another transaction: the higher bits differ.
    assert [row["value"] for row in read(topic)] == [b"z"]
