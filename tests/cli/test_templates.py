"""``afterglow read`` by template and by column."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message

from afterglow.cli import main
from afterglow.cli.template import Template, TemplateSink
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

ROW: dict[str, Any] = {
    "topic": "persistent://public/default/t-partition-3",
    "ledger_id": 7,
    "entry_id": 11,
    "batch_index": 2,
    "publish_time": datetime(2026, 11, 15, 20, 0, 0, 5_000, UTC),
    "key": b"k1",
    "value": "wörld".encode(),
    "properties": [("a", "1")],
}
HOSTILE = b"\x1b]0;owned\x07\xff line\n"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (r"%k %v\n", "k1 wörld\n"),
        (r"%t\t%p\t%o", "persistent://public/default/t-partition-3\t3\t7:11:2"),
        ("%d|%h|%K|%V|%%", '1794772800005|{"a": "1"}|2|6|%'),
        ("%v{hex} %k{base64}", "77c3b6726c64 azE="),
        (r"\\ \x41\r", "\\ A\r"),
        ("no field", "no field"),
    ],
)
def test_a_template_has_the_fields_of_a_message(template: str, text: str) -> None:
    assert Template.parse(template).render(ROW).decode() == text


def test_fields_that_a_message_lacks_are_empty() -> None:
    plain = {**ROW, "topic": "persistent://public/default/t", "batch_index": -1, "key": None, "value": None}
    assert Template.parse("%p %o [%k] [%v] %V").render(plain) == b"-1 7:11 [] [] 0"


def test_typed_values_are_json() -> None:
    typed = {**ROW, "key": 5, "value": {"name": "wörld", "tags": ["a"]}}
    assert Template.parse("%k %v").render(typed).decode() == '5 {"name": "wörld", "tags": ["a"]}'


def test_a_template_reads_only_the_columns_that_it_names() -> None:
    assert Template.parse("%o %v %V").columns == ("ledger_id", "entry_id", "batch_index", "value")
    assert Template.parse("x").columns == ("entry_id",)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("%z", "unknown field %z; use %k key"),
        ("%v{json}", "unknown encoding {json}"),
        (r"\q", r"unknown escape \\q"),
        (r"\xg1", r"unknown escape \\x"),
        ("%", "ends with %"),
        ("a\\", r"ends with \\"),
    ],
)
def test_an_invalid_template_is_refused_with_what_is_valid(template: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Template.parse(template)


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_terminal", [False, True])
def test_control_characters_reach_a_file_but_no_terminal(is_terminal: bool) -> None:  # noqa: FBT001 - parametrized
    held = io.BytesIO()
    out = Terminal(held, "utf-8") if is_terminal else io.TextIOWrapper(held, "utf-8")
    batch = pa.RecordBatch.from_pydict({"value": pa.array([HOSTILE], pa.binary())})
    TemplateSink(out, Template.parse(r"%v\n")).write(batch)
    out.flush()
    expected = b"\\x1b]0;owned\\x07\\xff line\n\n" if is_terminal else HOSTILE + b"\n"
    assert held.getvalue() == expected


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with ServerHome(tmp_path) as server:
        server.write("t", [message(b"one"), message(b"\xfftwo")])
    return tmp_path


def run(capfdbinary: pytest.CaptureFixture[bytes], *arguments: object) -> tuple[int, bytes, bytes]:
    with pytest.raises(SystemExit) as ended:
        main(["read", *map(str, arguments)])
    printed = capfdbinary.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err


def test_the_command_prints_by_template(home: Path, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    assert run(capfdbinary, home, "t", "--template", r"%o=%v\n")[:2] == (0, b"1:0=one\n1:1=\xfftwo\n")
    file = tmp_path / "values"
    assert run(capfdbinary, home, "t", "--template", r"%v\n", "--output", file, "--limit", 1)[0] == 0
    assert file.read_bytes() == b"one\n"
    for option in (("--format", "jsonl"), ("--columns", "value"), ("--entries",)):
        code, _, complaint = run(capfdbinary, home, "t", "--template", "%v", *option)
        assert code == 2
        assert b"--template replaces" in complaint
    code, _, complaint = run(capfdbinary, home, "t", "--template", "%z")
    assert (code, complaint.count(b"\n")) == (2, 1)
    assert b"unknown field %z" in complaint


def test_values_that_are_text_are_shown_as_text_in_json(home: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    _, out, _ = run(capfdbinary, home, "t", "--format", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["value"] for row in rows] == ["one", None]
    assert [base64.b64decode(row["value_base64"]) for row in rows] == [b"one", b"\xfftwo"]
    assert [row["null_value"] for row in rows] == [False, False]


def test_chosen_columns_are_those_of_every_format(home: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    _, out, _ = run(capfdbinary, home, "t", "--columns", "value, tier", "--format", "jsonl")
    assert list(json.loads(out.splitlines()[0])) == ["null_value", "value", "value_base64", "tier"]
    _, out, _ = run(capfdbinary, home, "t", "--columns", "tier,value,publish_time")
    assert out.splitlines()[0].split() == [b"tier", b"value", b"publish_time"]
    assert out.splitlines()[1].split()[:2] == [b"hot", b"one"]
    _, out, _ = run(capfdbinary, home, "t", "--columns", "entry_id,data", "--entries", "--format", "jsonl")
    assert list(json.loads(out.splitlines()[0])) == ["entry_id", "data_base64"]
    code, _, complaint = run(capfdbinary, home, "t", "--columns", "valeu")
    assert code == 2
    assert b"unknown column 'valeu'" in complaint
