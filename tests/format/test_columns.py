"""The columns decoder against the oracle, which shares no code with it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import strategies
from tests.support.oracle import batch_rows, decode_rows

from afterglow.errors import ConfigError, CorruptEntry
from afterglow.format import schema
from afterglow.format.columns import BLOCK_COLUMNS, UnreadableEntry, decode_messages
from afterglow.format.compression import Codec, compress
from afterglow.format.entry import encode_batch, encode_broker_metadata, encode_entry
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.proto.pulsar_api_pb2 import (
    CompressionType,
    EncryptionKeys,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.support.oracle import Row
    from tests.support.strategies import LedgerEntries

HEAD = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2).SerializeToString()


def decode(
    entries: Iterable[bytes], ledger: int = 3, first: int = 0, **options: Any
) -> tuple[list[Row], list[UnreadableEntry]]:
    framed = frame_entries(entries, first)
    rows: list[Row] = []
    bad: list[UnreadableEntry] = []
    expected = options.get("start") or first
    for messages in decode_messages(framed, scan_frames(framed, first), ledger, **options):
        assert messages.first_entry_id == expected
        expected = messages.end_entry_id
        messages.batch.validate(full=True)
        rows += batch_rows(messages.batch)
        bad += messages.unreadable
    return rows, bad


def expected_rows(ledger: LedgerEntries) -> list[Row]:
    return [
        row
        for entry_id, entry in enumerate(ledger.entries, ledger.first_entry_id)
        for row in decode_rows(entry, ledger.ledger_id, entry_id, check=True)
    ]


def metadata_of(**fields: Any) -> MessageMetadata:
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 1, "publish_time": 2, **fields})


def entry_of(payload: bytes = b"", **fields: Any) -> bytes:
    return encode_entry(metadata_of(**fields), payload)


def batch_entry(singles: Sequence[SingleMessageMetadata], **fields: Any) -> bytes:
    payload = encode_batch((single, b"v%d" % i) for i, single in enumerate(singles))
    return entry_of(payload, num_messages_in_batch=len(singles), **fields)


def one(entry: bytes, **options: Any) -> Row:
    rows, bad = decode([entry], **options)
    assert bad == []
    (row,) = rows
    return row


def reason(entry: bytes, **options: Any) -> str:
    rows, bad = decode([entry], **options)
    assert rows == []
    (found,) = bad
    return found.reason


# --- any topic -----------------------------------------------------------------------------------------------------


@given(strategies.ledgers())
def test_messages_are_those_that_the_oracle_sees(ledger: LedgerEntries) -> None:
    rows, bad = decode(ledger.entries, ledger.ledger_id, ledger.first_entry_id, check=True)
    assert bad == []
    assert rows == expected_rows(ledger)


@given(strategies.ledgers(), st.permutations(BLOCK_COLUMNS), st.integers(1, len(BLOCK_COLUMNS)))
def test_any_columns_in_any_order_have_the_same_values(ledger: LedgerEntries, order: list[str], count: int) -> None:
    chosen = order[:count]
    rows, _ = decode(ledger.entries, ledger.ledger_id, ledger.first_entry_id, columns=chosen)
    assert rows == [{name: row[name] for name in chosen} for row in expected_rows(ledger)]
    assert all(list(row) == chosen for row in rows)


@given(strategies.ledgers(max_entries=8), st.integers(-2, 10), st.integers(-2, 10), st.integers(-1, 400))
def test_a_range_in_any_steps_gives_its_messages(ledger: LedgerEntries, low: int, high: int, batch_bytes: int) -> None:
    first = ledger.first_entry_id
    framed = frame_entries(ledger.entries, first)
    rows: list[Row] = []
    for messages in decode_messages(
        framed,
        scan_frames(framed, first),
        ledger.ledger_id,
        start=first + low,
        end=first + high,
        batch_bytes=batch_bytes,
    ):
        assert messages.unreadable == ()
        rows += batch_rows(messages.batch)
    assert rows == [row for row in expected_rows(ledger) if first + low <= row["entry_id"] < first + high]


@given(strategies.ledgers(max_entries=3), st.data())
def test_a_corrupt_entry_is_reported_and_the_others_are_decoded(ledger: LedgerEntries, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(ledger.entries)))
    entries = [*ledger.entries[:offset], b"\x00\x00\x00\xffdamaged", *ledger.entries[offset:]]
    rows, bad = decode(entries, ledger.ledger_id, ledger.first_entry_id)
    position = ledger.first_entry_id + offset
    assert bad == [UnreadableEntry(position, "its message metadata reaches beyond the entry")]
    shifted = [row | {"entry_id": row["entry_id"] + (row["entry_id"] >= position)} for row in expected_rows(ledger)]
    assert rows == shifted
    with pytest.raises(CorruptEntry, match=rf"entry {ledger.ledger_id}:{position}: its message metadata"):
        decode(entries, ledger.ledger_id, ledger.first_entry_id, strict=True)


@given(st.binary(min_size=1, max_size=200), st.integers(0, 10**6))
def test_a_flipped_bit_behind_the_checksum_is_found_if_asked_for(payload: bytes, offset: int) -> None:
    entry = bytearray(encode_broker_metadata(4, 5) + entry_of(payload))
    covered = len(entry) - 12 - 6  # broker metadata, then magic and checksum
    at = len(entry) - 1 - offset % covered
    entry[at] ^= 1 << offset % 8
    good = entry_of(b"other")
    rows, bad = decode([good, bytes(entry), good], check=True)
    assert [row["entry_id"] for row in rows] == [0, 2]
    assert bad == [UnreadableEntry(1, "its CRC32C does not match its bytes")]


# --- one thing at a time -------------------------------------------------------------------------------------------


def test_the_columns_have_the_types_of_the_contract() -> None:
    framed = frame_entries([entry_of()])
    (messages,) = decode_messages(framed, scan_frames(framed, 0), 1)
    assert messages.batch.schema == schema.choose(schema.MESSAGES, BLOCK_COLUMNS)
    assert set(schema.MESSAGES.names) - set(BLOCK_COLUMNS) == {"topic", "tier"}


def test_a_plain_message_has_its_fields() -> None:
    entry = encode_broker_metadata(7, 8) + entry_of(
        b"value",
        properties=[KeyValue(key="a", value="1"), KeyValue(key="a", value="ż")],
        event_time=9,
        partition_key="k",
        ordering_key=b"o",
        schema_version=b"\0" * 8,
        replicated_from="zürich",
        schema_id=b"\1\2",
    )
    assert one(entry) == {
        "ledger_id": 3,
        "entry_id": 0,
        "batch_index": -1,
        "producer": "p",
        "sequence_id": 1,
        "publish_time": 2000,
        "event_time": 9000,
        "broker_time": 7000,
        "index": 8,
        "key": b"k",
        "ordering_key": b"o",
        "properties": [("a", "1"), ("a", "ż")],
        "schema_version": b"\0" * 8,
        "encrypted": False,
        "value": b"value",
        "replicated_from": "zürich",
        "schema_id": b"\1\2",
    }


def test_what_is_absent_is_null() -> None:
    row = one(entry_of())
    texts = ("key", "ordering_key", "schema_version", "replicated_from", "schema_id")
    for name in ("event_time", "broker_time", "index", *texts):
        assert row[name] is None
    assert (row["properties"], row["value"]) == ([], b"")


@pytest.mark.parametrize(("time", "index"), [(None, None), (7, None), (None, 8), (0, 0)])
def test_broker_metadata_may_be_partial(time: int | None, index: int | None) -> None:
    row = one(encode_broker_metadata(time, index) + entry_of())
    assert (row["broker_time"], row["index"]) == (None if time is None else time * 1000, index)


def test_messages_of_a_batch_are_numbered_up_to_the_entrys_index() -> None:
    entry = encode_broker_metadata(None, 41) + batch_entry(
        [SingleMessageMetadata(compacted_out=i == 1) for i in range(4)]
    )
    rows, _ = decode([entry])
    assert [(row["batch_index"], row["index"], row["value"]) for row in rows] == [
        (0, 38, b"v0"),
        (2, 40, b"v2"),
        (3, 41, b"v3"),
    ]


def test_a_message_takes_from_its_batch_what_it_lacks_itself() -> None:
    singles = [SingleMessageMetadata(), SingleMessageMetadata(sequence_id=6, event_time=7, null_value=False)]
    rows, _ = decode([batch_entry(singles, sequence_id=5, event_time=4, null_value=True, partition_key="outer")])
    assert [(row["sequence_id"], row["event_time"], row["value"], row["key"]) for row in rows] == [
        (5, 4000, None, None),
        (6, 7000, b"v1", None),
    ]


def test_the_messages_of_a_batch_share_the_origin_and_the_schema_id_of_their_entry() -> None:
    entry = batch_entry([SingleMessageMetadata()] * 3, replicated_from="us-west", schema_id=b"id")
    rows, _ = decode([entry, entry_of()], columns=["schema_id", "replicated_from"])
    assert rows == [{"schema_id": b"id", "replicated_from": "us-west"}] * 3 + [
        {"schema_id": None, "replicated_from": None}
    ]


@pytest.mark.parametrize("field", ["producer_name", "schema_version", "replicated_from", "schema_id"])
def test_a_long_name_of_a_batch_is_not_repeated_without_limit(field: str) -> None:
    name = "n" * 100_000 if field in {"producer_name", "replicated_from"} else b"n" * 100_000
    assert reason(batch_entry([SingleMessageMetadata()] * 100, **{field: name})) == (
        "it claims more messages than its bytes, or one record batch, can hold"
    )


def test_a_batch_of_one_is_still_a_batch() -> None:
    assert one(batch_entry([SingleMessageMetadata()]))["batch_index"] == 0


@pytest.mark.parametrize("length", range(9))
def test_keys_in_base64_are_bytes(length: int) -> None:
    key = bytes(range(250, 250 + min(length, 6))) + b"x" * max(length - 6, 0)
    text = base64.b64encode(key).decode()
    assert one(entry_of(partition_key=text, partition_key_b64_encoded=True))["key"] == key
    assert one(entry_of(partition_key=text))["key"] == text.encode()
    assert one(entry_of(partition_key=text, null_partition_key=True))["key"] is None


@pytest.mark.parametrize("text", ["a", "ab*d", "abcde", "ż"])
def test_an_invalid_base64_key_makes_its_entry_unreadable_only_if_keys_are_requested(text: str) -> None:
    entry = entry_of(partition_key=text, partition_key_b64_encoded=True)
    assert reason(entry) == "its key is not valid base64"
    assert one(entry, columns=["value"]) == {"value": b""}


def test_bytes_that_are_not_utf8_show_as_the_replacement_character() -> None:
    head = HEAD + b"\x0a\x03a\xffb" + b"\x22\x06\x0a\x01\xc3\x12\x01\x80"
    row = one(strategies.envelope(head, b""))
    assert row["producer"] == "a\ufffdb"
    assert row["properties"] == [("\ufffd", "\ufffd")]


def test_text_is_judged_per_value_and_not_across_values() -> None:
    # Each half of a character is broken, though both stand side by side in the column.
    halves = [strategies.envelope(HEAD + b"\x0a\x01" + half, b"") for half in (b"\xc3", b"\xbc")]
    rows, _ = decode(halves)
    assert [row["producer"] for row in rows] == ["\ufffd", "\ufffd"]


def test_an_empty_schema_version_says_that_there_is_none() -> None:
    assert one(entry_of(schema_version=b""))["schema_version"] is None


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("payload", [b"", b"x", b"abc" * 1000])
def test_every_codec_is_expanded(codec: Codec, payload: bytes) -> None:
    entry = entry_of(
        compress(codec, payload), compression=CompressionType.ValueType(codec), uncompressed_size=len(payload)
    )
    assert one(entry)["value"] == payload


@pytest.mark.parametrize("codec", Codec)
def test_an_empty_payload_need_not_be_compressed(codec: Codec) -> None:
    entry = entry_of(b"", compression=CompressionType.ValueType(codec))
    assert one(entry)["value"] == b"" == decode_rows(entry, 3, 0)[0]["value"]


def test_codecs_stand_side_by_side() -> None:
    payloads = [bytes([i]) * (50 + i) for i in range(40)]
    entries = [
        entry_of(
            compress(Codec(i % 5), payload),
            compression=CompressionType.ValueType(i % 5),
            uncompressed_size=len(payload),
        )
        for i, payload in enumerate(payloads)
    ]
    rows, bad = decode(entries)
    assert bad == []
    assert [row["value"] for row in rows] == payloads


def test_an_encrypted_entry_is_one_row_as_stored() -> None:
    entry = encode_broker_metadata(1, 9) + entry_of(
        b"secret",
        num_messages_in_batch=10,
        encryption_keys=[EncryptionKeys(key="k", value=b"v")],
        compression=CompressionType.ZSTD,
        uncompressed_size=1000,
    )
    row = one(entry)
    assert (row["encrypted"], row["batch_index"], row["index"], row["value"]) == (True, -1, 9, b"secret")


def test_a_chunk_is_one_row_as_stored_and_a_whole_message_is_none() -> None:
    chunk = entry_of(b"piece", num_chunks_from_msg=2, chunk_id=0, compression=CompressionType.LZ4, uncompressed_size=99)
    assert one(chunk)["value"] == b"piece"
    whole = entry_of(
        compress(Codec.LZ4, b"whole"), num_chunks_from_msg=1, compression=CompressionType.LZ4, uncompressed_size=5
    )
    assert one(whole)["value"] == b"whole"


def test_markers_give_no_rows() -> None:
    rows, bad = decode([entry_of(marker_type=20), entry_of(b"x"), entry_of(marker_type=0)])
    assert bad == []
    assert [row["entry_id"] for row in rows] == [1]


@pytest.mark.parametrize("entries", [[], [entry_of(marker_type=20)], [b"bad", b"bad"]])
def test_a_range_without_a_message_is_an_empty_batch(entries: list[bytes]) -> None:
    rows, bad = decode(entries)
    assert rows == []
    assert len(bad) == entries.count(b"bad")


def test_of_a_field_given_twice_the_last_counts() -> None:
    head = (
        metadata_of(
            sequence_id=9, partition_key="first", compression=CompressionType.LZ4, num_messages_in_batch=3
        ).SerializeToString()
        + metadata_of(sequence_id=5, partition_key="last", compression=CompressionType.NONE).SerializeToString()
    )
    payload = encode_batch([(SingleMessageMetadata(), b"a"), (SingleMessageMetadata(), b"b")])
    entry = strategies.envelope(head + MessageMetadata(num_messages_in_batch=2).SerializePartialToString(), payload)
    rows, _ = decode([entry])
    assert rows == decode_rows(entry, 3, 0)
    assert [(row["sequence_id"], row["value"]) for row in rows] == [(5, b"a"), (5, b"b")]


def test_a_known_number_with_another_wire_type_is_an_unknown_field() -> None:
    odd = b"\x12\x01x" + b"\x08\x05" + b"\x1d\0\0\0\0" + b"\x31\0\0\0\0\0\0\0\0"  # fields 2, 1, 3, 6
    entry = strategies.envelope(HEAD + odd, b"v")
    assert one(entry) == decode_rows(entry, 3, 0)[0]


def test_groups_are_refused_as_pulsars_own_parser_refuses_them() -> None:
    group = strategies.varint(1000 << 3 | 3) + strategies.varint(1000 << 3 | 4)
    assert reason(strategies.envelope(HEAD + group, b"")) == "its message metadata does not parse"


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, 2**64 - 1])
def test_numbers_past_the_signed_range_wrap_and_times_stop_at_what_the_column_holds(value: int) -> None:
    entry = encode_broker_metadata(value, value) + entry_of(sequence_id=value, publish_time=value, event_time=value)
    row = one(entry)
    assert row == decode_rows(entry, 3, 0)[0]
    assert row["sequence_id"] == (value if value < 2**63 else value - 2**64)


def test_no_columns_at_all_still_count_the_messages() -> None:
    framed = frame_entries([entry_of(), batch_entry([SingleMessageMetadata()] * 3)])
    (messages,) = decode_messages(framed, scan_frames(framed, 0), 1, columns=[])
    assert (messages.batch.num_rows, messages.batch.num_columns) == (4, 0)


@pytest.mark.parametrize("columns", [["nothing"], ["topic"], ["value", "tier"], ["value", "value"]])
def test_a_wrong_column_is_an_error_at_once(columns: list[str]) -> None:
    with pytest.raises(ConfigError):
        decode_messages(b"", scan_frames(b"", 0), 1, columns=columns)


def test_frames_of_other_bytes_are_refused() -> None:
    framed = frame_entries([entry_of(b"x" * 100)])
    with pytest.raises(ValueError, match="exceed the data of"):
        decode_messages(framed[:-1], scan_frames(framed, 0), 1)


def test_a_step_may_be_of_any_size() -> None:
    entries = [entry_of(b"x" * i) for i in range(10)]
    assert decode(entries, batch_bytes=2**70) == decode(entries, batch_bytes=1)


_CLAIMS = "it claims more messages than its bytes, or one record batch, can hold"
_TORN = "a message of its batch reaches beyond the payload"
_PARSES = "the metadata of a message in its batch does not parse"
_EXPANDS = "its payload does not expand to the size it claims"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (b"", "its message metadata reaches beyond the entry"),
        (b"\x0e", "its message metadata reaches beyond the entry"),
        (b"\x0e\x02\0\0\0", "its broker metadata reaches beyond the entry"),
        (b"\x0e\x02\0\0\0\x05abcd", "its broker metadata reaches beyond the entry"),
        (b"\x0e\x02\xff\xff\xff\xff", "its broker metadata reaches beyond the entry"),
        (b"\x0e\x02\0\0\0\x01\x08", "its broker metadata does not parse"),
        (b"\x0e\x01\0\0\0", "it ends inside its checksum"),
        (b"\xff\xff\xff\xff", "its message metadata reaches beyond the entry"),
        (strategies.envelope(b"\x0a\x05ab", b""), "its message metadata does not parse"),
        (strategies.envelope(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b""), "its message metadata does not parse"),
        (strategies.envelope(b"\x80" * 11, b""), "its message metadata does not parse"),
        (strategies.envelope(b"", b""), "its message metadata lacks producer name, sequence id or publish time"),
        (strategies.envelope(HEAD + b"\x40\x05", b""), "it is compressed by an unknown codec"),
        (entry_of(b"x", num_messages_in_batch=0), _CLAIMS),
        (entry_of(b"x", num_messages_in_batch=-1), _CLAIMS),
        (entry_of(b"x" * 11, num_messages_in_batch=2), _CLAIMS),
        (entry_of(b"\0\0\0\x09\x18\0\0\0\0", num_messages_in_batch=1), _TORN),
        (entry_of(b"\0\0\0\x02\x18\x09", num_messages_in_batch=1), _TORN),
        (entry_of(b"\0\0\0\x02\x20\0", num_messages_in_batch=1), _PARSES),
        (entry_of(b"xx", compression=CompressionType.LZ4, uncompressed_size=5), _EXPANDS),
        (entry_of(b"", compression=CompressionType.LZ4, uncompressed_size=1), _EXPANDS),
        (entry_of(b"xx", compression=CompressionType.ZSTD, uncompressed_size=5), _EXPANDS),
        (strategies.envelope(HEAD + b"\x22\x03\x0a\x01k", b""), "one of its properties lacks a key or a value"),
        (strategies.envelope(HEAD + b"\x22\x02\x0a\x05", b""), "one of its properties lacks a key or a value"),
    ],
)  # fmt: skip
def test_the_reason_of_an_unreadable_entry_is_reported(entry: bytes, expected: str) -> None:
    assert reason(entry) == expected


def test_what_was_not_asked_for_cannot_be_wrong() -> None:
    for entry in (
        strategies.envelope(HEAD + b"\x22\x03\x0a\x01k", b"v"),
        entry_of(b"no lz4", compression=CompressionType.LZ4, uncompressed_size=5),
    ):
        assert one(entry, columns=["sequence_id"]) == {"sequence_id": 1}


def test_the_choice_of_columns_knows_their_names() -> None:
    assert schema.choose(schema.ENTRIES, None) is schema.ENTRIES
    assert schema.choose(schema.ENTRIES, ["data", "topic"]) == pa.schema(
        [pa.field("data", pa.binary()), pa.field("topic", pa.string())]
    )
    with pytest.raises(ConfigError, match="unknown column 'x'; use some of topic"):
        schema.choose(schema.ENTRIES, ["x"])


# --- plain messages, which are decoded in one pass -----------------------------------------------------------------


def plain_entries(count: int, *, key: str = "key") -> list[bytes]:
    return [entry_of(b"value %d" % i, sequence_id=i, partition_key=f"{key}-{i}") for i in range(count)]


def oracle_rows(entries: Iterable[bytes]) -> list[Row]:
    return [row for i, entry in enumerate(entries) for row in decode_rows(entry, 3, i, check=True)]


@pytest.mark.parametrize("at", [0, 5, 9])
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(batch_entry([SingleMessageMetadata()] * 3), id="batch"),
        pytest.param(entry_of(compress(Codec.LZ4, b"x" * 50), compression=1, uncompressed_size=50), id="compressed"),
        pytest.param(entry_of(b"chunk", num_chunks_from_msg=2, chunk_id=0, uuid="u"), id="chunk"),
        pytest.param(entry_of(b"m", marker_type=21), id="marker"),
    ],
)
def test_plain_messages_around_another_entry_are_decoded_with_it(other: bytes, at: int) -> None:
    entries = plain_entries(10)
    entries[at] = other
    expected = [row for row in oracle_rows(entries) if row["value"] != b"m"]
    assert decode(entries, check=True) == (expected, [])


@pytest.mark.parametrize("at", [0, 5, 9])
def test_a_wrong_checksum_among_plain_messages_is_reported_and_the_others_are_decoded(at: int) -> None:
    entries = plain_entries(10)
    good = oracle_rows(entries)
    entries[at] = entries[at][:-1] + b"?"
    rows, bad = decode(entries, check=True)
    assert rows == good[:at] + good[at + 1 :]
    assert bad == [UnreadableEntry(at, "its CRC32C does not match its bytes")]


@pytest.mark.parametrize("fields", [{"num_messages_in_batch": 0}, {"compression": 1}, {"num_chunks_from_msg": 2}])
def test_a_wrong_checksum_is_reported_rather_than_what_it_led_to(fields: dict[str, Any]) -> None:
    entry = entry_of(b"value", **fields)
    _, bad = decode([entry[:-1] + b"?"], check=True)
    assert bad == [UnreadableEntry(0, "its CRC32C does not match its bytes")]


def test_plain_messages_with_long_texts_are_decoded_too() -> None:
    entries = plain_entries(10, key="k" * 5_000)
    assert decode(entries, check=True) == (oracle_rows(entries), [])
