import json
import math
import os
from random import Random
from typing import Any

import pytest
from tests.support.typed import TOPIC, messages, typed, version

from afterglow.format.schema import SchemaVersion
from afterglow.read.typed import TypedColumns

SEED = int(os.environ.get("AFTERGLOW_SEED", "20261116"))
JAVA = {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"}

DEFINITION: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "text", "type": ["null", "string"]},
        {"name": "int", "type": "int"},
        {"name": "long", "type": "long"},
        {"name": "float", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "flag", "type": "boolean"},
        {"name": "items", "type": {"type": "array", "items": ["null", "long"]}},
        {"name": "pairs", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "inner", "type": {"type": "record", "name": "I", "fields": [{"name": "x", "type": "double"}]}},
        {"name": "enum", "type": {"type": "enum", "name": "E", "symbols": ["a"]}},
    ],
}


def schema(definition: Any = DEFINITION, properties: dict[str, str] | None = None) -> list[SchemaVersion]:
    return [SchemaVersion(version(0), "JSON", json.dumps(definition).encode(), properties or {})]


def one(kind: Any, text: str, properties: dict[str, str] | None = None) -> dict[str, Any]:
    """The row of a value whose field ``a`` is of a type."""
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    row = typed(schema(definition, properties), messages([text.encode()]))[0]
    return {"a": row["value"] and row["value"]["a"], "why": row["_corrupt"]}


def some_text(random: Random) -> str:
    return "".join(random.choice('ab"\\/\n\t\u00e9\u20ac\U0001f600\x01') for _ in range(random.randint(0, 12)))


def random_value(random: Random) -> dict[str, Any]:
    """A value of DEFINITION, with some of its fields, in any order."""
    whole = {
        "text": random.choice([None, some_text(random)]),
        "int": random.choice([0, -(2**31), 2**31 - 1, 17]),
        "long": random.choice([0, -(2**63) + 1, 2**63 - 1, random.randint(-(10**15), 10**15)]),
        "float": random.choice([0.0, 1.5, -0.25, 3.0]),
        "double": random.choice([random.random(), random.random() * 1e300, 5e-324, 1.7976931348623157e308, -0.0, 12]),
        "flag": random.random() < 0.5,
        "items": [random.choice([None, random.randint(-9, 9)]) for _ in range(random.choice([0, 1, 6]))],
        "pairs": {
            some_text(random): [some_text(random)] * random.choice([0, 1, 2]) for _ in range(random.choice([0, 1, 3]))
        },
        "inner": random.choice([None, {"x": random.random()}, {}]),
        "enum": "a",
    }
    names = random.sample(list(whole), random.randint(0, len(whole)))
    unknown = {"other": {"a": [1.5, {"b": [None, True, False, "]}"]}, []]}} if random.random() < 0.3 else {}
    return {**{name: whole[name] for name in names}, **unknown}


def expected(value: dict[str, Any]) -> dict[str, Any]:
    held: dict[str, Any] = {field["name"]: value.get(field["name"]) for field in DEFINITION["fields"]}
    if held["pairs"] is not None:
        held["pairs"] = list(held["pairs"].items())
    if held["inner"] is not None:
        held["inner"] = {"x": held["inner"].get("x")}
    return held


@pytest.mark.parametrize("seed", range(SEED, SEED + 12))
@pytest.mark.parametrize("options", [{}, {"indent": 1}, {"ensure_ascii": False}], ids=["plain", "indented", "utf8"])
def test_random_values_are_as_they_were_written(seed: int, options: dict[str, Any]) -> None:
    random = Random(seed)
    values = [random_value(random) for _ in range(100)]
    texts = [json.dumps(value, **options).encode() for value in values]
    rows = typed(schema(), messages(texts))
    for row, value in zip(rows, values, strict=True):
        assert row == {"value": expected(value), "_corrupt": None}


@pytest.mark.parametrize("seed", range(SEED, SEED + 8))
def test_what_python_refuses_is_refused_and_spoils_no_other_row(seed: int) -> None:
    random = Random(seed)
    values = [random_value(random) for _ in range(40)]
    texts: list[bytes] = []
    for value in values:
        good = json.dumps(value).encode()
        at = random.randrange(len(good))
        changed = good[:at] + random.choice([b"", b"}", b'"', b",", b"\x00", b"9", b"\xff"]) + good[at + 1 :]
        texts += [good, changed, good[:at], good + b"{}"]
    rows = typed(schema(), messages(texts))
    assert [row["value"] for row in rows[::4]] == [expected(value) for value in values]
    for text, row in zip(texts, rows, strict=True):
        assert (row["value"] is None) == (row["_corrupt"] is not None)
        try:
            json.loads(text)
        except ValueError:
            assert row["value"] is None


@pytest.mark.parametrize(
    "text",
    ["", " ",
     "nul", "{", "{}}", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', "{,}", "{1:1}", '{"a" 1}', '{"a":01}',
     '{"a":+1}', '{"a":.5}', '{"a":1.}', '{"a":1e}', '{"a":-}', '{"a":tru}', '{"a":truth}', '{"b":fals}', '{"b":[1 2]}',
     '{"b":[1,]}', '{"b":[}', '{"b":{]}', '{"b":"\n"}', '{"b":"\\', '{"b":x}'],
)  # fmt: skip
def test_invalid_json_is_refused(text: str) -> None:
    assert one("double", text)["why"] is not None


def test_deep_values_are_refused() -> None:
    assert one("int", '{"b":' + "[" * 127 + "]" * 127 + ',"a":1}') == {"a": 1, "why": None}
    assert "nested more than 128 deep" in one("int", '{"b":' + "[" * 100_000)["why"]


@pytest.mark.parametrize(
    ("kind", "text", "held"),
    [
        ("int", "1", 1), ("int", "2147483648", None), ("int", "1.0", None), ("int", '"1"', None), ("int", "true", None),
        ("long", "-9223372036854775807", -(2**63) + 1), ("long", "9223372036854775808", None),
        ("long", "99999999999999999999", None), ("double", "1", 1.0), ("double", "1e400", math.inf),
        ("double", "123456789012345678901234567890", 123456789012345678901234567890.0),
        ("double", "Infinity", math.inf), ("double", "-Infinity", -math.inf), ("double", '"-Infinity"', -math.inf),
        ("double", '"1"', None), ("double", "-0.0", 0.0), ("float", "0.1", 0.10000000149011612), ("boolean", "1", None),
        ("string", "1", None), ("string", '"\\ud83d\\ude00\\u00e9\\n"', "\U0001f600é\n"), ("string", '"\\ud83d"', None),
        ("string", '"\\x"', None), ("string", "[]", None), ({"type": "array", "items": "int"}, "{}", None),
        ({"type": "map", "values": "int"}, "[]", None), ("string", "null", None),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, "2", "2"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "12.30", "12.30"),
        ("bytes", '"é"', "é".encode()),
    ],
)  # fmt: skip
def test_a_field_takes_what_fits_it(kind: Any, text: str, held: Any) -> None:
    row = one(kind, f'{{"a":{text}}}')
    assert row["a"] == held
    assert (row["why"] is None) == (held is not None or text == "null")


def test_not_a_number_is_one() -> None:
    assert math.isnan(one("double", '{"a":NaN}')["a"])
    assert math.isnan(one("float", '{"a":"NaN"}')["a"])


def test_bytes_are_base64_where_java_wrote_them() -> None:
    assert one("bytes", '{"a":"AP/+"}', JAVA)["a"] == b"\x00\xff\xfe"
    assert one("bytes", '{"a":"AP8="}', JAVA)["a"] == b"\x00\xff"
    assert one("bytes", '{"a":"A!"}', JAVA)["why"] == "schema version 0: a: bytes are not given as base64"


def test_a_union_of_several_takes_the_first_that_fits() -> None:
    kind = ["null", "long", "double", "string", {"type": "array", "items": "int"}, "boolean"]
    for text, name, held in [("1", "long", 1), ("1.5", "double", 1.5), ('"x"', "string", "x"), ("[1]", "array", [1])]:
        found = one(kind, f'{{"a":{text}}}')["a"]
        assert {key: value for key, value in found.items() if value is not None} == {f"member_{name}": held}
    assert one(kind, '{"a":null}') == {"a": None, "why": None}
    assert one(kind, '{"a":{}}')["why"] == "schema version 0: a: it is of another type than the column"


def test_a_field_that_is_there_twice_is_refused() -> None:
    assert one("int", '{"a":1,"a":2}')["why"] == "schema version 0: a: the field is there twice"


def test_names_may_be_written_with_escapes() -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "é", "type": "int"}, {"name": "b", "type": "int"}]}
    rows = typed(schema(definition), messages([b'{"\\u00e9":1,"\\u0062":2}', '{"é":3}'.encode()]))
    assert [row["value"] for row in rows] == [{"é": 1, "b": 2}, {"é": 3, "b": None}]


def test_many_items_and_much_text_grow_their_columns() -> None:
    values = [{"items": list(range(n)), "text": "x" * n, "pairs": {str(k): ["y"] * k for k in range(n % 7)}} for n in
              (0, 1, 5000, 2, 0, 3)]  # fmt: skip
    rows = typed(schema(), messages([json.dumps(value).encode() for value in values]))
    assert [row["value"] for row in rows] == [expected(value) for value in values]


def test_rows_that_take_too_much_memory_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afterglow.format.typed.columns.MAX_BYTES", 20_000)
    definition = {"type": "record", "name": "R", "fields": [
        {"name": "f", "type": {"type": "array", "items": {"type": "record", "name": "I", "fields": [
            {"name": f"x{n}", "type": "long"} for n in range(50)]}}}]}  # fmt: skip
    texts = [b'{"f":[' + b"{}," * n + b"{}]}" for n in (3, 4, 1000, 2, 5, 1)]
    decoder = TypedColumns({TOPIC: schema(definition)}, ["entry_id", "value", "_corrupt"])
    batches = list(decoder.of(messages(texts), TOPIC))
    assert len(batches) > 1
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["entry_id"] for row in rows] == list(range(6))
    assert [row["value"] and len(row["value"]["f"]) for row in rows] == [4, 5, None, 3, 6, 2]
    assert rows[2]["_corrupt"].startswith("schema version 0: it takes more than")
