import json
import struct

from tests.support.typed import encode_avro, messages, typed, version

from afterglow.format.schema import SchemaVersion

RECORD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]})


def pair(key: bytes | None, value: bytes | None) -> bytes:
    """A pair as an inline value has it."""
    parts = b""
    for part in (key, value):
        parts += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    return parts


def schema(key: str, value: str, encoding: str, number: int = 0) -> SchemaVersion:
    definitions = {"AVRO": RECORD.encode(), "JSON": RECORD.encode()}
    properties = {"key.schema.type": key, "value.schema.type": value, "kv.encoding.type": encoding}
    definition = pair(definitions.get(key, b""), definitions.get(value, b""))
    return SchemaVersion(version(number), "KEY_VALUE", definition, properties)


COLUMNS = ("key", "value", "_corrupt")


def test_inline_pairs_give_typed_keys_and_values() -> None:
    value = encode_avro(RECORD, {"a": 7})
    values = [pair(b"\0\0\0\x05", value), pair(None, value), pair(b"\0\0\0\x05", None), pair(None, None), None]
    rows = typed([schema("INT32", "AVRO", "INLINE")], messages(values), COLUMNS)
    assert rows == [
        {"key": 5, "value": {"a": 7}, "_corrupt": None},
        {"key": None, "value": {"a": 7}, "_corrupt": None},
        {"key": 5, "value": None, "_corrupt": None},
        {"key": None, "value": None, "_corrupt": None},
        {"key": None, "value": None, "_corrupt": None},
    ]


def test_separated_pairs_have_their_key_in_the_messages_key() -> None:
    batch = messages([b'{"a":1}', None], keys=[b'{"a":2}', b'{"a":3}'])
    rows = typed([schema("JSON", "JSON", "SEPARATED")], batch, COLUMNS)
    assert rows == [
        {"key": {"a": 2}, "value": {"a": 1}, "_corrupt": None},
        {"key": {"a": 3}, "value": None, "_corrupt": None},
    ]


def test_either_side_may_be_damaged() -> None:
    values = [
        pair(b"\0", b"x"),
        pair(b"\0\0\0\x01", b"\xff"),
        pair(b"\0", b"\xff"),
        b"",
        b"\0\0\0\x09",
        pair(b"1234", b"x") + b"!",
    ]
    rows = typed([schema("INT32", "STRING", "INLINE")], messages(values), COLUMNS)
    assert [row["key"] for row in rows] == [None, 1, None, None, None, None]
    assert [row["value"] for row in rows] == ["x", None, None, None, None, None]
    assert [row["_corrupt"] for row in rows] == [
        "schema version 0: key: it does not have the length of its type",
        "schema version 0: value: a text is not UTF-8",
        "schema version 0: value: a text is not UTF-8",
        *["the value is not a valid key-value pair: the lengths of key and value do not match its size"] * 3,
    ]


def test_a_side_that_is_not_decoded_stays_bytes() -> None:
    rows = typed([schema("BYTES", "PROTOBUF", "INLINE")], messages([pair(b"\xff", b"\x08")]), COLUMNS)
    assert rows[0]["key"] == b"\xff"
    assert rows[0]["value"] == b"\x08"
    assert "PROTOBUF" in rows[0]["_corrupt"]


def test_the_encoding_may_change_between_versions() -> None:
    schemas = [schema("STRING", "STRING", "INLINE"), schema("STRING", "STRING", "SEPARATED", 1)]
    batch = messages(
        [pair(b"a", b"b"), b"d", pair(b"e", b"f"), b"h"],
        [version(0), version(1), version(0), version(1)],
        keys=[None, b"c", None, b"g"],
    )
    rows = typed(schemas, batch, COLUMNS)
    assert [(row["key"], row["value"]) for row in rows] == [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")]


def test_a_pair_definition_without_two_schemas_is_reported() -> None:
    broken = SchemaVersion(version(0), "KEY_VALUE", b"\0\0\0\x09x", {})
    rows = typed([broken], messages([b"abc"]))
    assert rows == [{"value": b"abc", "_corrupt": "schema version 0 ends within the definition of its key"}]
