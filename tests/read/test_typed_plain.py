import struct
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa
import pytest
from tests.support.typed import TOPIC, messages, typed, version

from afterglow.format.schema import SchemaVersion
from afterglow.read.typed import TypedColumns

MOMENT = datetime(2026, 11, 16, 3, 4, 5, 678000, UTC)
MILLIS = int(MOMENT.timestamp() * 1000)


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        ("INT8", b"\xff", -1), ("INT16", b"\x80\x00", -(2**15)), ("INT32", struct.pack(">i", -5), -5),
        ("INT64", struct.pack(">q", 2**62), 2**62), ("FLOAT", struct.pack(">f", 1.5), 1.5),
        ("DOUBLE", struct.pack(">d", 0.1), 0.1), ("BOOLEAN", b"\x01", True), ("BOOLEAN", b"\x00", False),
        ("STRING", "é€".encode(), "é€"), ("STRING", b"", ""), ("BYTES", b"\xff", b"\xff"),
        ("DATE", struct.pack(">q", MILLIS), MOMENT), ("TIME", struct.pack(">q", MILLIS), MOMENT),
        ("TIMESTAMP", struct.pack(">q", MILLIS), MOMENT),
        ("INSTANT", struct.pack(">qi", MILLIS // 1000, 678_000_999), MOMENT),
        ("LOCAL_DATE", struct.pack(">q", -1), date(1969, 12, 31)),
        ("LOCAL_TIME", struct.pack(">q", 3_723_000_004_000), time(1, 2, 3, 4)),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 1, 3_723_000_004_999), datetime(1970, 1, 2, 1, 2, 3, 4)),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_plain_values_are_as_pulsar_writes_them(kind: str, value: bytes, held: Any) -> None:
    rows = typed([SchemaVersion(version(0), kind)], messages([value, None]))
    assert rows == [{"value": held, "_corrupt": None}, {"value": None, "_corrupt": None}]


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("INT8", b"", "does not have the length"), ("INT16", b"\0", "does not have the length"),
        ("INT32", b"\0" * 5, "does not have the length"), ("INT64", b"\0" * 4, "does not have the length"),
        ("FLOAT", b"\0" * 8, "does not have the length"), ("DOUBLE", b"\0" * 4, "does not have the length"),
        ("BOOLEAN", b"\0\0", "does not have the length"), ("DATE", b"\0", "does not have the length"),
        ("INSTANT", b"\0" * 8, "does not have the length"), ("LOCAL_DATE", b"\0", "does not have the length"),
        ("LOCAL_DATE_TIME", b"\0" * 8, "does not have the length"), ("STRING", b"\xff", "not UTF-8"),
        ("DATE", struct.pack(">q", 2**62), "out of range"), ("INSTANT", struct.pack(">qi", 2**62, 0), "out of range"),
        ("INSTANT", struct.pack(">qi", 0, 10**9), "out of range"),
        ("LOCAL_DATE", struct.pack(">q", 2**40), "out of range"),
        ("LOCAL_TIME", struct.pack(">q", -1), "out of range"),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 0, 86_400 * 10**9), "out of range"),
    ],
)  # fmt: skip
def test_bytes_of_another_form_are_refused(kind: str, value: bytes, why: str) -> None:
    row = typed([SchemaVersion(version(0), kind)], messages([value]))[0]
    assert row["value"] is None
    assert why in row["_corrupt"]


def test_plain_numbers_are_widened_from_version_to_version() -> None:
    schemas = [SchemaVersion(version(n), kind) for n, kind in enumerate(("INT8", "INT32", "DOUBLE", "FLOAT"))]
    values = [b"\xff", struct.pack(">i", 7), struct.pack(">d", 0.5), struct.pack(">f", 0.25)]
    rows = typed(schemas, messages(values, [version(n) for n in range(4)]))
    assert [row["value"] for row in rows] == [-1.0, 7.0, 0.5, 0.25]


@pytest.mark.parametrize("kind", ["PROTOBUF", "PROTOBUF_NATIVE", "EXTERNAL"])
def test_a_type_that_is_not_decoded_leaves_the_bytes_and_says_so(kind: str) -> None:
    rows = typed([SchemaVersion(version(0), kind, b"{}")], messages([b"\x08\x01", None]))
    assert rows[0] == {
        "value": b"\x08\x01",
        "_corrupt": f"schema version 0 is of the type {kind}, which is not decoded",
    }
    assert rows[1] == {"value": None, "_corrupt": None}


def test_without_schemas_values_stay_bytes() -> None:
    rows = typed([], messages([b"x", None], [None, None]))
    assert rows == [{"value": b"x", "_corrupt": None}, {"value": None, "_corrupt": None}]


def test_encrypted_messages_are_not_decoded() -> None:
    rows = typed([SchemaVersion(version(0), "INT8")], messages([b"\x01", b"\x01"], encrypted=[True, False]))
    assert rows == [{"value": None, "_corrupt": "the message is encrypted"}, {"value": 1, "_corrupt": None}]
    rows = typed([], messages([b"\x01"], encrypted=[True]))
    assert rows == [{"value": b"\x01", "_corrupt": "the message is encrypted"}]


def test_only_what_is_asked_for_is_needed() -> None:
    schemas = {TOPIC: [SchemaVersion(version(0), "INT8")]}
    assert TypedColumns(schemas, ["key", "topic"]).needed == ("key", "topic")
    assert TypedColumns(schemas, ["value"]).needed == ("value", "schema_version", "encrypted")
    assert TypedColumns(schemas, ["_corrupt", "tier"]).needed == ("tier", "value", "schema_version", "encrypted")
    assert TypedColumns(schemas).schema.names[-1] == "_corrupt"
    plain = TypedColumns(schemas, ["key", "entry_id"])
    assert next(plain.of(messages([b"x"]), TOPIC)).schema == pa.schema([("key", pa.binary()), ("entry_id", pa.int64())])


def test_a_slice_of_a_batch_is_decoded_as_the_batch_is() -> None:
    batch = messages([b"\x01", None, b"\x02", b"\x03"]).slice(1, 3)
    rows = typed([SchemaVersion(version(0), "INT8")], batch, ("entry_id", "value"))
    assert rows == [{"entry_id": 1, "value": None}, {"entry_id": 2, "value": 2}, {"entry_id": 3, "value": 3}]
