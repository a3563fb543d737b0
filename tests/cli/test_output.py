from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pulsar
import pytest
from tests.support.offloaded import OffloadedTopic

from afterglow.cli.output import PrintableFormatter, printable
from afterglow.format.entry import encode_entry
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli
    from tests.support.serving import Served

HOSTILE = "a\x1b]0;owned\x07\x1b[31mb\x9b2Jc\x7fd\u202ee\u2066f\r\n\tg"
"""Title, colour, clearing by an 8-bit sequence, delete, reordering, and what ends a line."""
ESCAPED = r"a\x1b]0;owned\x07\x1b[31mb\x9b2Jc\x7fd\u202ee\u2066f\r\n\tg"
DANGEROUS = set(HOSTILE) - set("abcdefg]0;ownedJ[31m2\r\n\t")


def is_safe(text: str) -> bool:
    return not DANGEROUS & set(text)


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t{uuid4().hex}"


@pytest.fixture
def hostile_topic(served: Served, topic: str) -> str:
    """A topic with a message whose value, key and properties have control characters."""
    client = pulsar.Client(served.service_url)
    client.subscribe(topic, "s\x1b[31m").close()
    producer = client.create_producer(topic, producer_name=f"p\x9b2J{uuid4().hex}")
    producer.send(HOSTILE.encode(), partition_key="k\x1b[2J", properties={"n\x1b[1m": "v\x07"})
    client.close()
    return topic


def on_a_terminal(*args: str, environ: dict[str, str] | None = None) -> str:
    """All that a command prints to a terminal."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "afterglow", *args],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**os.environ, **(environ or {})},
    )
    os.close(its)
    printed = b""
    try:
        while got := os.read(ours, 65536):
            printed += got
    except OSError:  # raised by Linux when the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0, printed
    return printed.decode()


def test_control_and_reordering_characters_are_escaped_and_letters_are_not() -> None:
    assert printable(HOSTILE) == ESCAPED
    assert printable(HOSTILE, keep="\n\t").endswith("\\r\n\tg")
    for text in ("wörld", "日本語\u3000x", "👩\u200d💻", "1\u00a0000"):
        assert printable(text) == text
    assert printable("\ud800") == r"\ud800"


@pytest.mark.parametrize("command", [("consume",), ("peek-messages", "-s", "s\x1b[31m")])
def test_a_payload_is_printed_with_its_control_characters_escaped(
    cli: Cli, hostile_topic: str, command: tuple[str, ...]
) -> None:
    name, *options = command
    printed = cli.do("topics", name, hostile_topic, *options)
    location, text = printed.rstrip("\n").split("\t")
    assert location.split(":")[0].isdigit()
    assert is_safe(text)
    assert text.endswith(f"={ESCAPED}")


@pytest.mark.parametrize("command", [("consume",), ("peek-messages", "-s", "s\x1b[31m")])
def test_raw_prints_the_values_alone_byte_for_byte(cli: Cli, hostile_topic: str, command: tuple[str, ...]) -> None:
    name, *options = command
    assert cli.do("topics", name, hostile_topic, *options, "--raw") == f"{HOSTILE}\n"
    output = cli.refused(2, "topics", name, hostile_topic, *options, "--raw", "--json")
    assert "--raw and --json exclude each other" in output


def test_json_is_escaped_only_on_a_terminal_and_equivalent(served: Served, cli: Cli, hostile_topic: str) -> None:
    args = ("topics", "consume", hostile_topic, "--json")
    printed = on_a_terminal(*args, environ={"AFTERGLOW_ADMIN_URL": served.admin_url})
    [row] = cli.run(*args).rows
    assert row["key"] == "k\x1b[2J"
    assert json.loads(printed) == row
    stats = ("topics", "stats-internal", hostile_topic, "--json")
    assert is_safe(on_a_terminal(*stats, environ={"AFTERGLOW_ADMIN_URL": served.admin_url}))
    assert is_safe(printed)


def test_names_that_others_chose_are_safe_in_tables_lists_and_errors(cli: Cli, hostile_topic: str) -> None:
    assert cli.do("topics", "subscriptions", hostile_topic) == "s\\x1b[31m\n"
    for command in ("stats", "stats-internal"):
        printed = cli.do("topics", command, hostile_topic)
        assert is_safe(printed)
        assert r"s\x1b[31m" in printed
    output = cli.refused(1, "topics", "stats", "persistent://public/default/none\x1b[31m\u202e")
    assert is_safe(output)
    assert r"none\x1b[31m\u202e" in output


def test_reading_prints_no_control_characters(served: Served, cli: Cli, hostile_topic: str) -> None:
    printed = cli.do("read", served.admin_url, hostile_topic)
    assert is_safe(printed)
    assert ESCAPED in printed
    assert is_safe(on_a_terminal("read", served.admin_url, hostile_topic, "--format", "jsonl"))


def test_inspect_escapes_control_characters_and_prints_brackets(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    metadata = MessageMetadata(
        producer_name="[red]\x9b2J", sequence_id=0, publish_time=1, partition_key="[/]\x1b[2J\u202e"
    )
    offloaded = OffloadedTopic(open_store(tmp_path.as_uri()))
    offloaded.ledger(1, [encode_entry(metadata, b"x")])
    args = ("inspect", tmp_path.as_uri(), offloaded.offload(1), "--messages")
    printed = cli.run(*args).stdout
    assert is_safe(printed)
    assert r"[red]\x9b2J" in printed
    assert is_safe(on_a_terminal(*args, "--format", "jsonl"))
    assert "\x9b" in cli.run(*args, "--format", "jsonl").stdout


def test_a_log_record_is_one_line_and_its_traceback_is_indented() -> None:
    record: Any = logging.LogRecord("x", logging.INFO, "", 0, "topic %s\n", ("\x1b[2Jt\nINFO forged",), None)
    record.exc_text = "Traceback\n\tline\nOSError: \x1b[2Jt\nINFO forged"
    assert PrintableFormatter("INFO %(message)s").format(record) == (
        "INFO topic \\x1b[2Jt\\nINFO forged\n  Traceback\n  \tline\n  OSError: \\x1b[2Jt\n  INFO forged"
    )
