"""Topics read with decoded values: offloaded by Apache Pulsar, or sent to a server by the stock client."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _pulsar
import pulsar
import pyarrow as pa
import pytest
from pulsar.schema import Array, Double, Integer, JsonSchema, Long, Map, Record, Schema, String, StringSchema
from tests.support import golden
from tests.support.recorded_admin import recorded_admin
from tests.support.serving import serving
from tests.support.typed import encode_avro

import afterglow
from afterglow.cli import main
from afterglow.errors import ConfigError
from afterglow.format.schema import SchemaVersion

if TYPE_CHECKING:
    from afterglow.source.connect import Source

CASES = golden.cases()
TOPICS = ("texts", "records", "points", "bytes")
POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
LOCATION = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "double"], "default": None}],
}


class Old:
    class Item(Record):  # type: ignore[misc] # the client has no types
        name = String()
        tags = Array(String())
        count = Integer()


class New:
    class Item(Record):  # type: ignore[misc]
        name = String()
        tags = Array(String())
        count = Integer()
        scores = Map(Double(), required_default=True)
        total = Long(required_default=True)


class AvroSchema(Schema):  # type: ignore[misc]
    """As the client's own, which needs a library more."""

    def __init__(self, definition: dict[str, Any]) -> None:
        super().__init__(dict, _pulsar.SchemaType.AVRO, definition, "AVRO")
        self._definition = json.dumps(definition)

    def encode(self, obj: Any) -> bytes:
        return encode_avro(self._definition, obj)

    def decode(self, data: bytes) -> Any:
        raise NotImplementedError


def values(source: Source) -> dict[str, list[Any]]:
    """All values by topic; none is corrupt."""
    found = {}
    for name in TOPICS:
        table = source.topic(name).scan(columns=["value", "_corrupt"], decode=True).read_all()
        assert table["_corrupt"].null_count == len(table)
        found[name] = table["value"].to_pylist()
    return found


@pytest.fixture(scope="module")
def produced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    """The home of a server that had topics of several schemas, and what was read of them while it ran."""
    home = tmp_path_factory.mktemp("home")
    with serving(home) as server:
        forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        server.admin("POST", "namespaces/public/default/retention", forever)
        client = pulsar.Client(server.service_url)
        client.create_producer("texts", schema=StringSchema()).send("héllo")
        for number, kind in enumerate((Old.Item, New.Item)):
            producer = client.create_producer("records", schema=JsonSchema(kind))
            more = {"scores": {"a": 0.1}, "total": 2**40} if number else {}
            producer.send(kind(name=f"n{number}", tags=["x", "y"][:number], count=number, **more))
        client.create_producer("points", schema=AvroSchema(POINT)).send({"x": 1})
        client.create_producer("points", schema=AvroSchema(LOCATION)).send({"x": 2, "y": 0.5})
        client.create_producer("bytes").send(b"\xff")
        client.close()
        with afterglow.connect(server.admin_url) as source:
            assert [schema.type for schema in source.topic("records").schemas()] == ["JSON", "JSON"]
            found = values(source)
        server.stop()
    return home, found


@pytest.mark.parametrize("name", ["json_schema", "kv_inline"])
def test_what_pulsar_has_offloaded_is_decoded_to_what_was_sent(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    case.unpack(tmp_path)
    with recorded_admin([case]) as admin, afterglow.connect(admin.url, tier=f"file://{tmp_path}", hot="skip") as source:
        topic = source.topic(case.about["topic"])
        rows = topic.scan(decode=True).read_all().to_pylist()
    sent = []
    for line in (case.path / "read-cold.jsonl").read_text().splitlines():
        payload = base64.b64decode(json.loads(line)["payloadB64"])
        key = json.loads(line).get("keyBytesB64")
        held: Any = None if key is None else base64.b64decode(key)
        if name == "kv_inline":
            size = int.from_bytes(payload[:4], "big")
            held, payload = payload[4 : 4 + size].decode(), payload[8 + size :]
        sent.append((held, json.loads(payload)))
    assert len(rows) == len(sent) > 10
    for row, (key, value) in zip(rows, sent, strict=True):
        assert row["_corrupt"] is None
        assert row["key"] == key
        assert row["value"] == {field: value.get(field) for field in row["value"]}
        assert set(value) <= set(row["value"])


def test_what_the_stock_client_sends_is_decoded_beside_its_engine_and_without_it(
    produced: tuple[Path, dict[str, list[Any]]],
) -> None:
    home, while_it_ran = produced
    with afterglow.connect(home) as source:
        found = values(source)
    assert found == {
        "texts": ["héllo"],
        "records": [
            {"name": "n0", "tags": [], "count": 0, "scores": None, "total": None},
            {"name": "n1", "tags": ["x"], "count": 1, "scores": [("a", 0.1)], "total": 2**40},
        ],
        "points": [{"x": 1, "y": None}, {"x": 2, "y": 0.5}],
        "bytes": [b"\xff"],
    }
    assert found == while_it_ran


def test_schemas_may_be_brought(produced: tuple[Path, dict[str, list[Any]]]) -> None:
    home, _ = produced
    with afterglow.connect(home) as source:
        brought = [SchemaVersion(bytes(8), "BYTES")]
        reader = source.topic("texts").scan(columns=["value"], decode=brought)
        assert reader.schema == pa.schema([("value", pa.binary())])
        assert reader.read_all()["value"].to_pylist() == ["héllo".encode()]


def test_few_rows_are_decoded_by_one_thread_alike(produced: tuple[Path, dict[str, list[Any]]]) -> None:
    home, _ = produced
    with afterglow.connect(home) as source:
        topic = source.topic("records")
        assert topic.scan(decode=True, scan=False).read_all().equals(topic.scan(decode=True).read_all())


def test_entries_are_not_decoded(produced: tuple[Path, dict[str, list[Any]]]) -> None:
    home, _ = produced
    with afterglow.connect(home) as source, pytest.raises(ConfigError, match="decode is for messages"):
        source.topic("texts").scan(include="entries", decode=True)


def test_the_command_line_shows_decoded_values(
    produced: tuple[Path, dict[str, list[Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    home, _ = produced
    with pytest.raises(SystemExit) as ended:
        main(["read", str(home), "records", "--decode", "--format", "jsonl"])
    assert ended.value.code == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["value"]["name"], row["_corrupt"], row["value_base64"]) for row in rows] == [
        ("n0", None, None),
        ("n1", None, None),
    ]
    assert rows[1]["value"]["scores"] == {"a": 0.1}
    with pytest.raises(SystemExit):
        main(["read", str(home), "points", "--decode"])
    assert '{"x": 2, "y": 0.5}' in capsys.readouterr().out


def test_the_program_in_the_docs_runs(
    produced: tuple[Path, dict[str, list[Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "home").symlink_to(produced[0])
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "dataframes.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page.split("\n## Typed values\n")[1].split("\n## ")[0], re.DOTALL)
    exec(program.replace("orders", "points"), {})
    assert capsys.readouterr().out == "struct<x: int32, y: double>\n2 of 2 decoded\n"
