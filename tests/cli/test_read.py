"""``afterglow read`` on the home of a real server: while it runs, and after it has stopped."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.homes import APART_MS, ServerHome, batch
from tests.support.ledgers import message
from tests.support.odd_topics import chunks
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.serving import Served

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")

KEYS = [
    "topic", "ledger_id", "entry_id", "batch_index", "producer", "sequence_id", "publish_time", "event_time",
    "broker_time", "index", "key", "key_base64", "ordering_key_base64", "properties", "schema_version_base64",
    "encrypted", "null_value", "value", "value_base64", "tier", "replicated_from", "schema_id_base64",
]  # fmt: skip
WAIT_S = 30.0


def decoded(row: dict[str, Any]) -> str:
    return base64.b64decode(row["value_base64"]).decode()


# --- beside a server and a stock client ---


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    home = tmp_path_factory.mktemp("home")
    with serving(home) as served:
        yield served, home


@pytest.fixture
def client(server: tuple[Served, Path]) -> Iterator[Any]:
    client = pulsar.Client(
        server[0].service_url,
        operation_timeout_seconds=20,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    yield client
    client.close()


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """Runs the command as JSON lines; it must succeed."""

    def run(home: Path, topic: str, *options: str) -> list[dict[str, Any]]:
        outcome = outcome_of(capsys, "read", str(home), topic, *options, "--format", "jsonl")
        assert (outcome[0], outcome[2]) == (0, "")
        return [json.loads(line) for line in outcome[1].splitlines()]

    return run


def outcome_of(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    from afterglow.cli import main

    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err


def read_until(read: Callable[..., list[dict[str, Any]]], home: Path, topic: str, count: int) -> list[dict[str, Any]]:
    """What the command gives once it sees what was sent: beside a running server that takes a moment."""
    deadline = time.monotonic() + WAIT_S
    while True:
        rows = read(home, topic)
        if len(rows) >= count or time.monotonic() > deadline:
            return rows


def send(client: Any, topic: str, *, batching: bool) -> list[dict[str, Any]]:
    """Send messages of several kinds; returns what must come back of each."""
    producer = client.create_producer(
        topic, batching_enabled=batching, batching_max_messages=10, producer_name=f"the producer of {topic[-8:]}"
    )
    sent: list[dict[str, Any]] = []
    done: list[tuple[int, Any]] = []
    for number in range(35):
        key = f"key {number}" if number % 3 else None
        options: dict[str, Any] = {} if key is None else {"partition_key": key, "ordering_key": f"order {number}"}
        producer.send_async(
            b"value %d" % number,
            lambda _result, id_, number=number: done.append((number, id_)),
            properties={"n": str(number)} if number % 2 else {},
            event_timestamp=1_000 + number if number % 5 else None,
            **options,
        )
        sent.append(
            {
                "topic": topic,
                "producer": f"the producer of {topic[-8:]}",
                "event_time": 1_000 + number if number % 5 else None,
                "index": number,
                "key": key,
                "ordering_key_base64": None if key is None else base64.b64encode(f"order {number}".encode()).decode(),
                "properties": {"n": str(number)} if number % 2 else {},
                "encrypted": False,
                "null_value": False,
                "value": f"value {number}",
                "value_base64": base64.b64encode(b"value %d" % number).decode(),
                "tier": "hot",
            }
        )
    producer.flush()
    producer.close()
    for number, id_ in done:
        sent[number] |= {"ledger_id": id_.ledger_id(), "entry_id": id_.entry_id(), "batch_index": id_.batch_index()}
    return sent


@pytest.mark.parametrize("batching", [True, False])
def test_messages_of_a_stock_client_are_read_while_the_server_runs(
    server: tuple[Served, Path],
    client: Any,
    read: Callable[..., list[dict[str, Any]]],
    batching: bool,  # noqa: FBT001
) -> None:
    topic = f"persistent://public/default/running-{batching}"
    sent = send(client, topic, batching=batching)
    rows = read_until(read, server[1], topic, len(sent))
    assert [list(row) for row in rows] == [KEYS] * len(sent)
    assert [{key: row[key] for key in wanted} for row, wanted in zip(rows, sent, strict=True)] == sent
    assert (rows[0]["batch_index"] == -1) is not batching
    assert all(row["publish_time"] <= row["broker_time"] + 1_000 for row in rows)


def test_reading_beside_a_running_server_creates_no_file(
    server: tuple[Served, Path], client: Any, read: Callable[..., list[dict[str, Any]]]
) -> None:
    sent = send(client, "persistent://public/default/unseen", batching=True)
    home = server[1]
    before = {str(file.relative_to(home)) for file in home.rglob("*")}
    assert len(read_until(read, home, "unseen", len(sent))) == len(sent)
    assert {str(file.relative_to(home)) for file in home.rglob("*")} == before


def test_partitions_are_read_in_order(
    server: tuple[Served, Path], client: Any, read: Callable[..., list[dict[str, Any]]]
) -> None:
    served, home = server
    served.admin("PUT", "persistent/public/default/parts/partitions", 3)
    producer = client.create_producer("parts", batching_enabled=False)
    for number in range(12):
        producer.send(b"%d" % number)
    rows = read_until(read, home, "parts", 12)
    assert sorted(int(decoded(row)) for row in rows) == list(range(12))
    assert [row["topic"][-1] for row in rows] == ["0"] * 4 + ["1"] * 4 + ["2"] * 4
    one = read(home, "parts-partition-1")
    assert one == [row for row in rows if row["topic"].endswith("-partition-1")]


def test_messages_are_readable_after_the_server_has_stopped(
    tmp_path: Path, read: Callable[..., list[dict[str, Any]]]
) -> None:
    topic = "persistent://public/default/stopped"
    with serving(tmp_path) as served:
        client = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        sent = send(client, topic, batching=True)
        client.close()
        assert served.stop() == 0
    rows = read(tmp_path, topic)
    assert [{key: row[key] for key in wanted} for row, wanted in zip(rows, sent, strict=True)] == sent
    assert not list(tmp_path.glob("metadata.db-*"))


# --- on a home made by hand ---


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], int]:
    """A home with twelve messages in three ledgers, the first of them in the tier alone; and the first broker time."""
    path = tmp_path_factory.mktemp("made")
    with ServerHome(path) as home:
        begin = home.clock.now_ms()
        ids = home.write(
            "t", *([message(b"%d" % (4 * i)), batch([b"%d" % (4 * i + j) for j in (1, 2, 3)])] for i in range(3))
        )
        home.offload("t", ids[0])
        home.free("t", ids[0])
    return path, ids, begin


def test_windows_and_limits_bound_what_is_read(
    made: tuple[Path, list[int], int], read: Callable[..., list[dict[str, Any]]]
) -> None:
    home, ids, begin = made

    def numbers(*options: str) -> list[int]:
        return [int(decoded(row)) for row in read(home, "t", *options)]

    assert numbers() == [*range(12)]
    assert numbers("--start", f"{ids[1]}:0", "--end", f"{ids[2]}:1") == [4, 5, 6, 7, 8]
    assert numbers("--start", f"{ids[0]}:1:2") == [*range(3, 12)]
    assert numbers("--limit", "6") == [*range(6)]
    assert numbers("--limit", "0") == []
    assert numbers("--since", str(begin + 2 * APART_MS), "--until", str(begin + 3 * APART_MS)) == [4]
    assert numbers("--since", "2023-11-14T22:13:25Z") == [9, 10, 11]  # five seconds after the clock's first
    assert numbers("--until", "5m", "--limit", "1") == [0]
    assert {row["tier"] for row in read(home, "t", "--end", f"{ids[1]}:0")} == {"tiered"}
    assert {row["tier"] for row in read(home, "t", "--start", f"{ids[1]}:0")} == {"hot"}


def test_the_limit_ends_the_read(
    made: tuple[Path, list[int], int], read: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from afterglow.read.hot_readers import SharedHotLog

    home = made[0]

    def untouched(*_: object) -> None:
        raise AssertionError("a ledger behind the limit was opened")

    monkeypatch.setattr(SharedHotLog, "open", untouched)
    assert len(read(home, "t", "--limit", "4")) == 4


def test_raw_entries_have_four_keys(
    made: tuple[Path, list[int], int], read: Callable[..., list[dict[str, Any]]]
) -> None:
    home, ids, _ = made
    rows = read(home, "t", "--entries")
    assert [list(row) for row in rows] == [["ledger_id", "entry_id", "data_base64", "tier"]] * 6
    assert [(row["ledger_id"], row["entry_id"]) for row in rows] == [(id_, at) for id_ in ids for at in (0, 1)]
    assert base64.b64decode(rows[0]["data_base64"]).endswith(message(b"0"))


def test_parquet_has_the_columns_that_spark_has(
    made: tuple[Path, list[int], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    from afterglow.format.schema import ENTRIES, MESSAGES

    home, _, _ = made
    for schema, options, rows in ((MESSAGES, (), 12), (ENTRIES, ("--entries",), 6)):
        target = tmp_path / f"{rows}.parquet"
        done = outcome_of(capsys, "read", str(home), "t", "--format", "parquet", "--output", str(target), *options)
        assert done == (0, "", "")
        table = pq.read_table(target)
        assert table.schema.names == schema.names
        assert table.schema.field("ledger_id").type == schema.field("ledger_id").type
        assert table.num_rows == rows
        assert pq.ParquetFile(target).num_row_groups == 1  # though the rows come from several ledgers
    assert sorted(file.name for file in tmp_path.iterdir()) == ["12.parquet", "6.parquet"]


def test_the_default_output_is_a_table(made: tuple[Path, list[int], int], capsys: pytest.CaptureFixture[str]) -> None:
    home, ids, _ = made
    code, printed, complaints = outcome_of(capsys, "read", str(home), "t")
    assert (code, complaints) == (0, "")
    head, first, second, *_ = printed.splitlines()
    assert head.split() == ["position", "time", "producer", "key", "properties", "value", "tier"]
    assert first.split() == [f"{ids[0]}:0", "2023-11-14T22:13:20.000Z", "p", "0", "tiered"]
    assert second.split()[0] == f"{ids[0]}:1:0"
    assert len(printed.splitlines()) == 13
    code, printed, _ = outcome_of(capsys, "read", str(home), "t", "--entries", "--limit", "2")
    assert [line.split()[0] for line in printed.splitlines()] == ["position", f"{ids[0]}:0", f"{ids[0]}:1"]


def test_values_are_shown_on_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [b"two\nlines", "grün".encode(), b"\xff\x00", b"", "ü".encode() * 500, b"\xff" * 500]
    with ServerHome(tmp_path) as home:
        home.write("t", [message(value) for value in values])
    code, printed, _ = outcome_of(capsys, "read", str(tmp_path), "t")
    assert code == 0
    shown = [line.split()[3:-1] for line in printed.splitlines()[1:]]
    assert shown == [["two\\nlines"], ["grün"], ["0xff00"], [], ["ü" * 59 + "…"], ["0x" + "f" * 57 + "…"]]


def test_a_tier_that_does_not_answer_is_reported_at_once_and_is_an_error_after_the_timeout(
    made: tuple[Path, list[int], int],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, _, _ = made
    given = {"ServiceEndpoint": "http://127.0.0.1:9", "CredentialId": "a", "CredentialSecret": "b"}
    for name, value in given.items():
        monkeypatch.setenv(f"AFTERGLOW_CONF_s3ManagedLedgerOffload{name}", value)
    code, printed, errors = outcome_of(capsys, "read", str(home), "t", "--tier", "s3://bucket", "--timeout", "3s")
    assert (code, printed.count("\n") <= 1) == (1, True)
    assert "s3://bucket at http://127.0.0.1:9 has been unavailable since" in caplog.text
    assert re.search(r"^afterglow: .* failed \d+ times in \d+\.\d s, .*\n$", errors)


def test_a_file_appears_only_when_it_is_complete(
    made: tuple[Path, list[int], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, _, _ = made
    target = tmp_path / "rows.jsonl"
    assert outcome_of(capsys, "read", str(home), "t", "--format", "jsonl", "--output", str(target)) == (0, "", "")
    assert len(target.read_text().splitlines()) == 12
    empty = tmp_path / "empty"
    empty.mkdir()
    target.unlink()
    for form in ("jsonl", "parquet"):
        code, printed, complaints = outcome_of(
            capsys, "read", str(home), "t", "--tier", empty.as_uri(), "--format", form, "--output", str(target)
        )
        assert (code, printed) == (1, "")
        assert complaints.count("\n") == 1
        assert complaints.startswith("afterglow: object ")
        assert [file.name for file in tmp_path.iterdir()] == ["empty"]


def test_a_closed_pipe_ends_it_quietly(tmp_path: Path) -> None:
    with ServerHome(tmp_path) as home:
        home.write("t", [batch([b"x" * 1_000] * 500) for _ in range(4)])
    command = [sys.executable, "-m", "afterglow", "read", str(tmp_path), "t", "--format", "jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["batch_index"] == 0
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("start", "rows", "words"),
    [
        ("{first}:1", 2, "from {first}:1 to latest: {first}:1 to {second}:0 was trimmed, or never written"),
        ("{second}:3", 0, "from {second}:3 to latest: {second}:3 to latest was never written"),
    ],
)
def test_a_missing_range_is_reported_on_stderr_and_fails_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], start: str, rows: int, words: str
) -> None:
    with ServerHome(tmp_path) as home:
        first, second = home.write("t", [message(b"0")] * 2, [message(b"1")] * 2)
        home.trim("t", first)
    words = words.format(first=first, second=second)
    expected = f"entries of the requested range are missing: persistent://public/default/t {words}"
    options = ["read", str(tmp_path), "t", "--start", start.format(first=first, second=second), "--format", "jsonl"]
    # A process of its own: the test runner has set up logging in this one.
    command = [sys.executable, "-m", "afterglow", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, rows)
    assert done.stderr.startswith(f"afterglow: {expected}")
    assert f"{second}:0 through {second}:1 is available" in done.stderr
    assert done.stderr.count("\n") == 1
    code, printed, complaints = outcome_of(capsys, *options, "--fail-on-data-loss")
    assert (code, printed) == (1, "")
    assert complaints == done.stderr


def test_neither_spark_nor_an_sdk_is_loaded(made: tuple[Path, list[int], int]) -> None:
    code = (
        "import sys, os; from afterglow.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: print([n for n in ('pyspark', 'boto3', 'kazoo') if n in sys.modules], end.code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "read", str(made[0]), "t", "--limit", "1"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.splitlines()[-1] == "[] 0"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--start", "first"), "invalid position"),
        (("--since", "yesterday"), "is not a valid time"),
        (("--read-priority", "sideways"), "sideways"),
        (("--format", "parquet"), "--output PATH"),
        (("--format", "csv"), "csv"),
        (("--limit", "-1"), "--limit"),
        (("--tier", "ftp://x"), "ftp://x"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    made: tuple[Path, list[int], int], capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    code, printed, complaints = outcome_of(capsys, "read", str(made[0]), "t", *options)
    assert (code, printed) == (2, "")
    assert complaints.count("\n") == 1
    assert words in complaints


@pytest.mark.parametrize(
    ("source", "topic", "words"),
    [("", "no-such", "no topic persistent://public/default/no-such"), ("absent", "t", "no such directory")],
)
def test_a_missing_source_or_topic_is_one_line_and_exit_1(
    made: tuple[Path, list[int], int], capsys: pytest.CaptureFixture[str], source: str, topic: str, words: str
) -> None:
    code, printed, complaints = outcome_of(capsys, "read", str(made[0] / source), topic)
    assert (code, printed) == (1, "")
    assert complaints.count("\n") == 1
    assert words in complaints


def test_damage_is_one_line_with_object_block_and_position_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerHome(tmp_path) as home:
        first, _ = home.write("t", [message(b"a"), message(b"b")], [message(b"c")])
        key = home.offload("t", first)
        home.free("t", first)
    file = tmp_path / "tier" / key
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    code, printed, complaints = outcome_of(capsys, "read", str(tmp_path), "t", "--format", "jsonl")
    assert (code, printed) == (1, "")
    assert complaints.count("\n") == 1
    assert key in complaints
    assert "block" in complaints
    assert f"{first}:" in complaints
    done = subprocess.run(
        [sys.executable, "-m", "afterglow", "read", str(tmp_path), "t", "--format", "jsonl"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "AFTERGLOW_CONF_damagedDataPolicy": "skip-and-report"},
    )
    assert done.returncode == 1
    assert [decoded(json.loads(line)) for line in done.stdout.splitlines()] == ["c"]
    assert key in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_message_with_a_missing_chunk_is_skipped_and_reported_and_not_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, torn = chunks(b"whole", 2, uuid="p-1"), chunks(b"torn", 2, uuid="p-2")
    with ServerHome(tmp_path) as home:
        (ledger,) = home.write("t", [whole[0], torn[1], whole[1], message(b"last")])
    code, printed, complaints = outcome_of(capsys, "read", str(tmp_path), "t", "--format", "jsonl")
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [(row["entry_id"], decoded(row)) for row in rows] == [(2, "whole"), (3, "last")]
    assert complaints == (
        f"afterglow: skipped: entry {ledger}:1: message 'p-2' came in 2 chunks, of which chunk 0 is missing\n"
    )
    assert code == 0
    raw = outcome_of(capsys, "read", str(tmp_path), "t", "--format", "jsonl", "--entries")
    assert (raw[0], raw[1].count("\n"), raw[2]) == (0, 4, "")
