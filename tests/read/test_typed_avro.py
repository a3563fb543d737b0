import json
import os
from random import Random

import pytest
from tests.support.typed import TOPIC, RandomTypes, encode_avro, messages, typed, version

from afterglow.format.schema import SchemaVersion
from afterglow.read.typed import TypedColumns

SEED = int(os.environ.get("AFTERGLOW_SEED", "20261116"))


def avro(definition: object, number: int = 0) -> SchemaVersion:
    return SchemaVersion(version(number), "AVRO", json.dumps(definition).encode())


def record(**fields: object) -> dict[str, object]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


@pytest.mark.parametrize("seed", range(SEED, SEED + 40))
def test_random_records_are_as_avros_own_library_wrote_them(seed: int) -> None:
    types = RandomTypes(Random(seed))
    definition = types.record()
    text = json.dumps(definition)
    both = [types.value(definition) for _ in range(50)]
    rows = typed([avro(definition)], messages([encode_avro(text, given) for given, _ in both]))
    for row, (_, held) in zip(rows, both, strict=True):
        assert row == {"value": held, "_corrupt": None}


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_cut_values_never_decode_and_spoil_no_other_row(seed: int) -> None:
    random = Random(seed)
    types = RandomTypes(random)
    definition = types.record()
    both = [types.value(definition) for _ in range(20)]
    whole = [encode_avro(json.dumps(definition), given) for given, _ in both]
    values = [value for good in whole for value in (good, good[: random.randrange(len(good))], good + b"\0")]
    rows = typed([avro(definition)], messages(values))
    assert [row["value"] for row in rows[::3]] == [held for _, held in both]
    for row in rows[1::3] + rows[2::3]:
        assert row["value"] is None
        assert row["_corrupt"].startswith("schema version 0: ")


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_random_bytes_are_decoded_or_refused(seed: int) -> None:
    random = Random(seed)
    definition = RandomTypes(random).record(4)
    values = [random.randbytes(random.choice([0, 1, 5, 30, 200])) for _ in range(500)]
    decoder = TypedColumns({TOPIC: [avro(definition)]}, ["value", "_corrupt"])
    for batch in decoder.of(messages(values), TOPIC):
        batch.validate(full=True)
        assert batch.column("value").is_null() == batch.column("_corrupt").is_valid()


def test_every_bit_that_flips_is_decoded_or_refused() -> None:
    definition = record(
        a={"type": "array", "items": ["null", "string"]}, b={"type": "map", "values": "long"}, c="double"
    )
    good = encode_avro(json.dumps(definition), {"a": ["x", None, "yz"], "b": {"k": 5}, "c": 1.5})
    values = []
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        values.append(bytes(flipped))
    for row in typed([avro(definition)], messages(values)):
        assert (row["value"] is None) == (row["_corrupt"] is not None)


def test_items_that_take_no_bytes_cannot_ask_for_memory() -> None:
    definition = record(a={"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}})
    many = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2**63 - 1 items
    few = b"\x02\x00"
    rows = typed([avro(definition)], messages([many + b"\0", few]))
    assert rows[0]["_corrupt"] == "schema version 0: a: it claims more items than it has bytes"
    assert rows[1]["value"] == {"a": [{}]}


def test_blocks_may_have_their_size() -> None:
    rows = typed([avro(record(a={"type": "array", "items": "int"}))], messages([b"\x03\x04\x02\x04\x02\x06\x00"]))
    assert rows[0]["value"] == {"a": [1, 2, 3]}


def test_a_named_type_is_used_again() -> None:
    location = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}
    definition = {**record(a=location, b="geo.Place", c=["null", "Place"]), "namespace": "geo"}
    rows = typed([avro(definition)], messages([b"\x02\x04\x02\x06"]))
    assert rows[0]["value"] == {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}


def test_a_uuid_of_sixteen_bytes_is_text() -> None:
    definition = record(a={"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"})
    rows = typed([avro(definition)], messages([bytes(range(0xF0, 0x100))]))
    assert rows[0]["value"] == {"a": "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"}


def test_a_decimal_beyond_its_precision_is_refused() -> None:
    definition = record(a={"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0})
    rows = typed([avro(definition)], messages([b"\x02\x63", b"\x02\x64", b"\x02\x9d", b"\x02\x9c", b"\x00"]))
    assert [row["value"] and int(row["value"]["a"]) for row in rows] == [99, None, -99, None, 0]
    assert rows[1]["_corrupt"] == "schema version 0: a: a number is out of range"


def test_text_that_is_not_utf8_is_refused() -> None:
    rows = typed([avro(record(a="string"))], messages([b"\x02\xff", b"\x04\xc3\xa9", b"\x06\xed\xa0\x80"]))
    assert [row["value"] for row in rows] == [None, {"a": "é"}, None]
    assert rows[0]["_corrupt"] == "schema version 0: a: a text is not UTF-8"


def test_a_recursive_definition_makes_no_column() -> None:
    definition = record(a="int", next=["null", "R"])
    rows = typed([avro(definition)], messages([b"\x02\x00"]))
    assert rows[0]["value"] == b"\x02\x00"
    assert "refers to itself at R" in rows[0]["_corrupt"]


def test_definitions_that_grow_by_reuse_are_refused() -> None:
    kinds: object = "int"
    for level in range(30):
        kinds = {
            "type": "record",
            "name": f"L{level}",
            "fields": [{"name": "a", "type": kinds}, {"name": "b", "type": f"L{level - 1}" if level else "int"}],
        }
    rows = typed([avro(kinds)], messages([b"\0"]))
    assert "more than 4,000 parts" in rows[0]["_corrupt"]


@pytest.mark.parametrize(
    "definition",
    [b"", b"{", b"null", b"[]", b'"Unknown"', b'{"type":"record","name":"R"}', b'{"type":"record","fields":[]}',
     b'{"type":"enum","name":"E"}', b'{"type":"fixed","name":"F"}', b'{"type":"array"}', b'{"type":7}',
     b'{"type":"record","name":"R","fields":[{"name":"a"}]}', b'{"type":"array","items":"null"}', b'"null"'],
)  # fmt: skip
def test_an_invalid_definition_leaves_bytes_and_a_reason(definition: bytes) -> None:
    rows = typed([SchemaVersion(version(0), "AVRO", definition)], messages([b"abc"]))
    assert rows[0]["value"] == b"abc"
    assert rows[0]["_corrupt"].startswith("schema version 0 ")
