import json
from typing import Any

import pyarrow as pa
from tests.support.typed import encode_avro, messages, typed, version

from afterglow.format.schema import SchemaVersion
from afterglow.read.typed import TypedColumns


def schemas(kind: str, *definitions: Any) -> list[SchemaVersion]:
    return [
        SchemaVersion(version(n), kind, json.dumps(definition).encode()) for n, definition in enumerate(definitions)
    ]


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def evolved(definitions: list[Any], data: list[Any]) -> list[dict[str, Any]]:
    """Rows of one datum of each version, Avro and JSON alike."""
    values = [encode_avro(json.dumps(definition), datum) for definition, datum in zip(definitions, data, strict=True)]
    versions = [version(number) for number in range(len(data))]
    rows = typed(schemas("AVRO", *definitions), messages(values, versions))
    texts = [json.dumps(datum).encode() for datum in data]
    assert typed(schemas("JSON", *definitions), messages(texts, versions)) == rows
    return rows


def test_fields_are_united_by_name_and_what_a_version_lacks_is_null() -> None:
    rows = evolved(
        [record(a="int", gone="string"), record(new=["null", "double"], a="int")],
        [{"a": 1, "gone": "x"}, {"new": 2.5, "a": 2}],
    )
    assert [list(row["value"].items()) for row in rows] == [
        [("new", None), ("a", 1), ("gone", "x")],
        [("new", 2.5), ("a", 2), ("gone", None)],
    ]


def test_numbers_are_widened() -> None:
    rows = evolved(
        [record(a="int", b="int", c="long", d="float"), record(a="long", b="double", c="float", d="double")],
        [{"a": 1, "b": 2, "c": 2**40 + 1, "d": 0.5}, {"a": 2**40, "b": 0.5, "c": 1.5, "d": 0.1}],
    )
    assert rows[0]["value"] == {"a": 1, "b": 2.0, "c": float(2**40 + 1), "d": 0.5}
    assert rows[1]["value"] == {"a": 2**40, "b": 0.5, "c": 1.5, "d": 0.1}


def test_a_narrower_newest_version_does_not_narrow_the_column() -> None:
    rows = evolved([record(a="long"), record(a="int")], [{"a": 2**40}, {"a": 5}])
    assert [row["value"]["a"] for row in rows] == [2**40, 5]


def test_text_and_bytes_change_into_each_other() -> None:
    definitions = [record(a="string", b="bytes"), record(a="bytes", b="string")]
    values = [encode_avro(json.dumps(definition), datum) for definition, datum in zip(
        definitions, [{"a": "é", "b": b"x"}, {"a": b"\xff", "b": "y"}], strict=True)]  # fmt: skip
    values.append(encode_avro(json.dumps(definitions[0]), {"a": "", "b": b"\xff"}))
    rows = typed(schemas("AVRO", *definitions), messages(values, [version(0), version(1), version(0)]))
    assert [row["value"] for row in rows] == [{"a": "é".encode(), "b": "x"}, {"a": b"\xff", "b": "y"}, None]
    assert rows[2]["_corrupt"] == "schema version 0: b: a text is not UTF-8"


def test_what_does_not_fit_the_newest_is_refused_where_it_is_not_null() -> None:
    rows = evolved(
        [record(a=["null", "string"]), record(a=["null", {"type": "array", "items": "int"}])], [{"a": None}, {"a": [1]}]
    )
    assert [row["value"] for row in rows] == [{"a": None}, {"a": [1]}]
    definitions = [record(a=["null", "string"]), record(a=["null", {"type": "array", "items": "int"}])]
    value = encode_avro(json.dumps(definitions[0]), {"a": "x"})
    for kind, given in (("AVRO", value), ("JSON", b'{"a":"x"}')):
        rows = typed(schemas(kind, *definitions), messages([given]))
        assert rows == [{"value": None, "_corrupt": "schema version 0: a: it is of another type than the column"}]


def test_records_evolve_inside_arrays_maps_and_unions() -> None:
    def nested(**fields: Any) -> dict[str, Any]:
        return record(
            a={"type": "array", "items": {"type": "map", "values": ["null", {**record(**fields), "name": "I"}]}}
        )

    rows = evolved(
        [nested(x="int"), nested(x="long", y=["null", "string"])],
        [{"a": [{"k": {"x": 1}, "l": None}, {}]}, {"a": [{"k": {"x": 2**40, "y": "z"}}]}],
    )
    assert rows[0]["value"] == {"a": [[("k", {"x": 1, "y": None}), ("l", None)], []]}
    assert rows[1]["value"] == {"a": [[("k", {"x": 2**40, "y": "z"})]]}


def test_a_type_that_becomes_one_of_several_is_a_member() -> None:
    rows = evolved([record(a="int"), record(a=["null", "string", "int"])], [{"a": 1}, {"a": "x"}])
    assert [row["value"]["a"] for row in rows] == [
        {"member_string": None, "member_int": 1},
        {"member_string": "x", "member_int": None},
    ]


def test_each_version_keeps_its_own_unit_of_time() -> None:
    definitions = [record(a={"type": "long", "logicalType": f"timestamp-{unit}"}) for unit in ("millis", "micros")]
    definitions.append(record(a={"type": "long", "logicalType": "timestamp-nanos"}))
    rows = typed(schemas("JSON", *definitions), messages([b'{"a":1}'] * 3, [version(0), version(1), version(2)]))
    assert len({row["value"]["a"] for row in rows}) == 1  # JSON follows the newest
    values = [b"\x02", b"\x02", b"\x02"]
    rows = typed(schemas("AVRO", *definitions), messages(values, [version(n) for n in range(3)]))
    assert [row["value"]["a"].microsecond for row in rows] == [1000, 1, 0]


def test_an_enum_gains_symbols() -> None:
    definitions = [record(a={"type": "enum", "name": "E", "symbols": symbols}) for symbols in (["x"], ["y", "x"])]
    rows = evolved(definitions, [{"a": "x"}, {"a": "y"}])
    assert [row["value"]["a"] for row in rows] == ["x", "y"]


def test_a_version_that_the_topic_does_not_have_is_said() -> None:
    found = schemas("AVRO", record(a="int"))
    rows = typed(found, messages([b"\x02", b"\x02", b"\x02"], [version(0), version(7), None]))
    assert [row["_corrupt"] for row in rows] == [
        None,
        "the topic has no schema version 7",
        "the message carries no schema version",
    ]
    assert [row["value"] for row in rows] == [{"a": 1}, None, None]


def test_topics_share_one_type_though_their_versions_have_the_same_numbers() -> None:
    one, two = schemas("AVRO", record(a="int")), schemas("AVRO", record(a="double", b="string"))
    decoder = TypedColumns({"one": one, "two": two}, ["value"])
    assert decoder.schema.field("value").type == pa.struct([("a", pa.float64()), ("b", pa.string())])
    first = next(decoder.of(messages([b"\x02"]), "one"))
    second = next(decoder.of(messages([bytes(8) + b"\x02x"]), "two"))
    assert first.to_pylist() == [{"value": {"a": 1.0, "b": None}}]
    assert second.to_pylist() == [{"value": {"a": 0.0, "b": "x"}}]
