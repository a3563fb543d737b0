from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Canned, Cli

NAME = "persistent://public/default/t"
PATH = "persistent/public/default/t"


def segment(number: int = 0, **changes: object) -> dict[str, Any]:
    given: dict[str, Any] = {
        "id": f"0000000{number}-0000-0000-0000-000000000000",
        "status": "Offloaded",
        "begin": {"ledger_id": 3, "entry_id": 14},
        "end": {"ledger_id": 4, "entry_id": 1},
        "assigned_ms": 1_700_000_000_000,
        "offloaded_ms": 1_700_000_060_000,
        "entries": 7,
        "bytes": 1234,
        "planned_bytes": 1234,
        "driver": "filesystem",
        "bucket": "/tier",
        "key": f"0000000{number}-0000-0000-0000-000000000000",
        "error": None,
        "topic": NAME,
    }
    return given | changes


def test_segments_are_a_table_or_the_json_of_the_api(canned: Canned, canned_cli: Cli) -> None:
    filling = segment(1, status="Failed", end=None, offloaded_ms=None, error="no route")
    canned.on("GET", f"{PATH}/segments", (200, [segment(), filling]))
    assert canned_cli.rows("topics", "segments", "t") == [segment(), filling]
    shown = canned_cli.do("topics", "segments", "t")
    for words in ("3:14", "4:1", "2023-11-14", "Failed", "no route"):
        assert words in shown
    assert NAME not in shown
    canned.on("GET", f"{PATH}/segments", (200, [segment(), segment(1, topic=f"{NAME}-partition-1")]))
    assert "partition-1" in canned_cli.do("topics", "segments", "t")
    canned.on("GET", f"{PATH}/segments", (200, []))
    assert canned_cli.do("topics", "segments", "t") == f"{NAME} has no segments\n"


def test_a_closed_segment_that_is_not_uploaded_shows_how_many_entries_it_will_have(
    canned: Canned, canned_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = segment(1, status="Failed", entries=0, planned_entries=1000, offloaded_ms=None, error="no route " * 9)
    canned.on("GET", f"{PATH}/segments", (200, [segment(planned_entries=7), waiting]))
    monkeypatch.setenv("COLUMNS", "80")
    *table, error = canned_cli.do("topics", "segments", "t").splitlines()
    assert any("0 of 1000" in line for line in table)
    assert not any("of 7" in line for line in table)
    assert max(map(len, table)) <= 80
    assert error == "00000001: " + "no route " * 9


# --- rollback ---------------------------------------------------------------------------------------------------------


def plan(**changes: object) -> dict[str, Any]:
    given: dict[str, Any] = {"topic": NAME, "segments": [segment()], "ledgers": [3, 4], "lost": [], "done": False}
    return given | changes


def query(dry_run: str, lose_data: str = "false") -> str:
    return f"{PATH}/deleteOffloaded?streaming=true&dryRun={dry_run}&loseData={lose_data}"


def test_without_yes_it_is_a_dry_run(canned: Canned, canned_cli: Cli) -> None:
    canned.on("POST", query("true"), (200, [plan(lost=[{"ledger_id": 2, "entries": 5}])]))
    output = canned_cli.do("topics", "delete-offloaded", "t", "--streaming")
    assert "00000000-0000-0000-0000-000000000000" in output
    assert f"{NAME}: 1 segments of 1234 bytes would be deleted" in output
    assert "ledgers that would remain only in the hot log: 3, 4" in output
    assert "WOULD BE LOST: 5 entries of ledgers 2" in output
    assert output.endswith("nothing was changed; give --yes to delete\n")
    assert canned_cli.rows("topics", "delete-offloaded", "t", "--streaming")[0]["ledgers"] == [3, 4]


def test_with_yes_segments_are_deleted(canned: Canned, canned_cli: Cli) -> None:
    canned.on("POST", query("false"), (200, [plan(done=True)]))
    output = canned_cli.do("topics", "delete-offloaded", "t", "--streaming", "--yes")
    assert output.splitlines() == [
        f"{NAME}: 1 segments of 1234 bytes are deleted",
        "ledgers that remain only in the hot log: 3, 4",
    ]
    canned.on("POST", query("false"), (412, {"reason": "the hot copies of ledgers 2 are gone; give --lose-data"}))
    assert "--lose-data" in canned_cli.refused(1, "topics", "delete-offloaded", "t", "--streaming", "--yes")
    lost = plan(done=True, ledgers=[], lost=[{"ledger_id": 2, "entries": 5}, {"ledger_id": 3, "entries": 1}])
    canned.on("POST", query("false", "true"), (200, [lost]))
    output = canned_cli.do("topics", "delete-offloaded", "t", "--streaming", "--yes", "--lose-data")
    assert "LOST: 6 entries of ledgers 2, 3" in output


def test_a_topic_without_segments_has_nothing_to_delete(canned: Canned, canned_cli: Cli) -> None:
    canned.on("POST", query("true"), (200, [plan(segments=[], ledgers=[])]))
    assert canned_cli.do("topics", "delete-offloaded", "t", "--streaming") == f"{NAME} has no segments\n"


def test_the_streaming_flag_is_required(canned: Canned, canned_cli: Cli) -> None:
    assert "--streaming" in canned_cli.refused(2, "topics", "delete-offloaded", "t", "--yes")
    assert canned.calls == []


def outcome(topic: str, state: str, **changes: object) -> dict[str, Any]:
    given: dict[str, Any] = {
        "topic": f"persistent://public/default/{topic}",
        "state": state,
        "segments": 2,
        "bytes": 1234,
        "lost_entries": 0,
        "error": None,
    }
    return given | changes


FORMS = [
    (("namespaces", "delete-offloaded", "public/default"), "namespaces/public/default", "public/default"),
    (("topics", "delete-offloaded", "--all"), "afterglow", "all namespaces"),
]


def many(path: str, dry_run: str, lose_data: str = "false") -> str:
    return f"{path}/deleteOffloaded?streaming=true&dryRun={dry_run}&loseData={lose_data}"


@pytest.mark.parametrize(("command", "path", "where"), FORMS)
def test_outcomes_of_many_topics_are_a_table(
    canned: Canned, canned_cli: Cli, command: tuple[str, ...], path: str, where: str
) -> None:
    rows = [outcome("a", "planned", lost_entries=7), outcome("b", "empty")]
    canned.on("POST", many(path, "true"), (200, rows))
    output = canned_cli.do(*command, "--streaming")
    assert "persistent://public/default/a" in output
    assert "persistent://public/default/b" not in output
    assert "lost_entries" in output
    assert output.splitlines()[-2:] == [
        "1 more topics have no segments",
        "nothing was changed; give --yes to delete",
    ]
    assert canned_cli.rows(*command, "--streaming") == rows
    canned.on("POST", many(path, "true"), (200, [outcome("b", "empty")]))
    assert canned_cli.do(*command, "--streaming") == f"no topic of {where} has segments\n"
    canned.on("POST", many(path, "false", "true"), (200, [outcome("a", "deleted")]))
    assert "deleted" in canned_cli.do(*command, "--streaming", "--yes", "--lose-data")
    canned.on("POST", many(path, "false"), (412, {"reason": "nothing was deleted, since …"}))
    assert "nothing was deleted" in canned_cli.refused(1, *command, "--streaming", "--yes")


def test_topics_that_are_refused_or_fail_are_listed_and_exit_1(canned: Canned, canned_cli: Cli) -> None:
    command, path, _ = FORMS[0]
    canned.on("POST", many(path, "true"), (200, [outcome("a", "planned"), outcome("b", "refused", error="it streams")]))
    refused = canned_cli.run(*command, "--streaming")
    assert refused.code == 1
    assert "persistent://public/default/b: it streams\n" in refused.stdout
    assert refused.stderr == "afterglow: 1 of 2 topics are refused, so --yes would delete nothing\n"
    canned.on("POST", many(path, "false"), (200, [outcome("a", "deleted"), outcome("b", "failed", error="no route")]))
    failed = canned_cli.run(*command, "--streaming", "--yes", "--json")
    assert (failed.code, [row["state"] for row in failed.rows]) == (1, ["deleted", "failed"])
    assert "1 of 2 topics still have segments; repeat the command" in failed.stderr


def test_topics_that_one_call_leaves_pending_are_deleted_by_the_next(canned: Canned, canned_cli: Cli) -> None:
    command, path, _ = FORMS[0]
    first = [outcome("a", "deleted"), outcome("b", "pending")]
    canned.on("POST", many(path, "false"), (200, first), (200, [outcome("a", "empty"), outcome("b", "deleted")]))
    rows = canned_cli.rows(*command, "--streaming", "--yes")
    assert [(row["topic"][-1], row["state"]) for row in rows] == [("a", "deleted"), ("b", "deleted")]
    canned.on("POST", many(path, "false"), (200, [outcome("a", "failed"), outcome("b", "pending")]))
    assert "2 of 2 topics still have" in canned_cli.run(*command, "--streaming", "--yes").stderr


@pytest.mark.parametrize(
    "args",
    [
        ("topics", "delete-offloaded", "--streaming"),
        ("topics", "delete-offloaded", "t", "--all", "--streaming"),
        ("topics", "delete-offloaded", "--all", "--yes"),
        ("namespaces", "delete-offloaded", "public/default", "--yes"),
    ],
)
def test_ambiguous_arguments_exit_2_and_delete_nothing(canned: Canned, canned_cli: Cli, args: tuple[str, ...]) -> None:
    canned_cli.refused(2, *args)
    assert canned.calls == []


# --- a real server ----------------------------------------------------------------------------------------------------


def test_a_topic_streams_and_is_rolled_back_on_a_running_server(cli: Cli) -> None:
    topic = f"streams-{uuid4().hex[:8]}"
    cli.do("topics", "create", topic)
    cli.do(
        "topics", "create-subscription", topic, "-s", "keeper"
    )  # without a subscription retention may delete everything
    cli.do("topics", "set-offload-policies", topic, "--streaming", "--max-segment-size", "1M")
    cli.do("topics", "produce", topic, "-m", "x" * 1000, "-n", "20")
    cli.do("topics", "offload", topic, "-s", "0")
    assert "success" in cli.do("topics", "offload-status", topic, "-w")
    [row] = cli.rows("topics", "segments", topic)
    assert (row["status"], row["driver"]) == ("Offloaded", "filesystem")
    assert row["bytes"] > 20_000
    assert row["id"][:8] in cli.do("topics", "segments", topic)
    assert cli.rows("topics", "stats", topic)[0]["offloadedStorageSize"] > 20_000
    assert "in committed segments" in cli.do("topics", "explain", topic)
    refused = cli.refused(1, "topics", "delete-offloaded", topic, "--streaming", "--yes")
    assert "streamingOffloadEnabled=false" in refused
    cli.do("topics", "set-offload-policies", topic, "--no-streaming")
    assert "would be deleted" in cli.do("topics", "delete-offloaded", topic, "--streaming")
    assert len(cli.rows("topics", "segments", topic)) == 1
    assert "are deleted" in cli.do("topics", "delete-offloaded", topic, "--streaming", "--yes")
    assert cli.rows("topics", "segments", topic) == []
    assert cli.rows("topics", "stats", topic)[0]["offloadedStorageSize"] == 0


def test_a_namespace_is_rolled_back_on_a_running_server(cli: Cli) -> None:
    namespace = f"public/back-{uuid4().hex[:8]}"
    cli.do("namespaces", "create", namespace)
    cli.do("namespaces", "set-retention", namespace, "-t", "-1", "-s", "-1")
    cli.do("namespaces", "set-offload-policies", namespace, "--streaming")
    for name in ("a", "b"):
        cli.do("topics", "produce", f"{namespace}/{name}", "-m", "x" * 1000, "-n", "5")
        cli.do("topics", "offload", f"{namespace}/{name}", "-s", "0")
        assert "success" in cli.do("topics", "offload-status", f"{namespace}/{name}", "-w")
    command = ("namespaces", "delete-offloaded", namespace, "--streaming")
    assert cli.run(*command).code == 1
    assert "2 of 2 topics are refused" in cli.refused(1, *command, "--yes")
    cli.do("namespaces", "set-offload-policies", namespace, "--no-streaming")
    assert [row["state"] for row in cli.rows(*command)] == ["planned", "planned"]
    assert [row["state"] for row in cli.rows(*command, "--yes")] == ["deleted", "deleted"]
    assert cli.do(*command) == f"no topic of {namespace} has segments\n"
    assert len(cli.do("topics", "consume", f"{namespace}/a", "-n", "5").splitlines()) == 5
