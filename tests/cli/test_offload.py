from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.cli import main, offload
from afterglow.cli.offload import first_kept

if TYPE_CHECKING:
    from tests.cli.conftest import Canned, Cli

NAME = "persistent://public/default/t"
PATH = "persistent/public/default/t"


def stats(*ledgers: tuple[int, int], current: int) -> dict[str, Any]:
    """Of closed ledgers, and an open one after them."""
    newest = max((ledger_id for ledger_id, _ in ledgers), default=0) + 1
    rows = [{"ledgerId": ledger_id, "size": size} for ledger_id, size in (*ledgers, (newest, 0))]
    return {"ledgers": rows, "currentLedgerSize": current}


@pytest.mark.parametrize(
    ("size", "kept"),
    [
        (0, 4),  # only the open ledger stays
        (4, 4),
        (5, 4),  # the open one is full to the brim; the next does not fit
        (24, 4),
        (25, 3),
        (44, 3),
        (45, 2),
        (64, 2),
        (65, None),
        (1000, None),
    ],
)
def test_the_newest_ledgers_that_fit_are_kept(size: int, kept: int | None) -> None:
    assert first_kept(stats((1, 20), (2, 20), (3, 20), current=5), size) == kept


def test_a_topic_without_ledgers_has_nothing_to_offload() -> None:
    assert first_kept({"ledgers": [], "currentLedgerSize": 0}, 0) is None


@given(
    st.lists(st.integers(0, 100), max_size=8),
    st.integers(0, 100),
    st.integers(0, 500),
)
def test_kept_ledgers_fit_and_one_more_would_not(sizes: list[int], current: int, size: int) -> None:
    found = stats(*enumerate(sizes, 1), current=current)
    everything = [*sizes, current]
    kept = first_kept(found, size)
    if kept is None:
        assert sum(everything) <= size
        return
    staying = everything[kept - 1 :]
    assert sum(staying) <= size or len(staying) == 1
    assert sum(everything[max(kept - 2, 0) :]) > size


def test_an_offload_is_requested_at_the_computed_position(canned: Canned, canned_cli: Cli) -> None:
    canned.on("GET", f"{PATH}/partitions", (200, {"partitions": 0}))
    canned.on("GET", f"{PATH}/internalStats", (200, stats((7, 2 << 20), (9, 2 << 20), current=1)))
    canned.on("PUT", f"{PATH}/offload", (204, None))
    output = canned_cli.do("topics", "offload", "t", "-s", "3M")
    assert output == f"Offload triggered for {NAME} for messages before 9:0:-1\n"
    method, path, body, _ = canned.calls[-1]
    assert (method, path) == ("PUT", f"/admin/v2/{PATH}/offload")
    assert body == {"ledgerId": 9, "entryId": 0, "partitionIndex": -1}
    assert canned_cli.do("topics", "offload", "t", "-s", "5M") == "Nothing to offload\n"
    assert canned_cli.rows("topics", "offload", "t", "-s", "3M") == [
        {"topic": NAME, "triggered": True, "before_ledger_id": 9}
    ]


def test_an_offload_of_a_topic_that_streams_says_that_everything_goes(canned: Canned, canned_cli: Cli) -> None:
    canned.on("GET", f"{PATH}/partitions", (200, {"partitions": 0}))
    canned.on("GET", f"{PATH}/internalStats", (200, stats((7, 2 << 20), current=1)))
    canned.on("PUT", f"{PATH}/offload", (204, None))
    policies = f"{PATH}/offloadPolicies?applied=true"
    canned.on("GET", policies, (200, {"streamingOffloadEnabled": True}))
    output = canned_cli.do("topics", "offload", "t", "-s", "0")
    assert output == f"Offload triggered for {NAME} for all messages written so far\n"
    assert canned.calls[-1][2] == {"ledgerId": 8, "entryId": 0, "partitionIndex": -1}
    for answer in ((200, {}), (200, None), (403, {"reason": "no"})):
        canned.on("GET", policies, answer)
        output = canned_cli.do("topics", "offload", "t", "-s", "0")
        assert output == f"Offload triggered for {NAME} for messages before 8:0:-1\n"


def test_a_refused_partition_does_not_prevent_the_offload_of_others(canned: Canned, canned_cli: Cli) -> None:
    canned.on("GET", f"{PATH}/partitions", (200, {"partitions": 3}))
    for index, answer in enumerate([(409, {"reason": "Offload already in progress"}), (204, None)]):
        canned.on("GET", f"{PATH}-partition-{index}/internalStats", (200, stats((1, 10), current=0)))
        canned.on("PUT", f"{PATH}-partition-{index}/offload", answer)
    canned.on("GET", f"{PATH}-partition-2/internalStats", (200, {"ledgers": [], "currentLedgerSize": 0}))
    outcome = canned_cli.run("topics", "offload", "t", "-s", "0")
    assert outcome.code == 1
    assert outcome.stdout.splitlines() == [
        f"Offload triggered for {NAME}-partition-1 for messages before 2:0:-1",
        f"Nothing to offload from {NAME}-partition-2",
    ]
    assert outcome.stderr == "afterglow: Offload already in progress\n"


def status(state: str, error: str = "") -> tuple[int, Any]:
    first = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    return 200, {"status": state, "lastError": error, "firstUnoffloadedMessage": first}


@pytest.mark.parametrize(
    ("state", "words"),
    [("NOT_RUN", "has not been run"), ("RUNNING", "is currently running"), ("SUCCESS", "was a success")],
)
def test_the_status_is_reported_as_by_pulsar_admin(canned: Canned, canned_cli: Cli, state: str, words: str) -> None:
    canned.on("GET", f"{PATH}/partitions", (200, {"partitions": 0}))
    canned.on("GET", f"{PATH}/offload", status(state))
    assert words in canned_cli.do("topics", "offload-status", "t")
    [row] = canned_cli.rows("topics", "offload-status", "t")
    assert (row["topic"], row["status"]) == (NAME, state)


def test_a_failed_offload_exits_1_with_its_error(canned: Canned, canned_cli: Cli) -> None:
    canned.on("GET", f"{PATH}/partitions", (200, {"partitions": 0}))
    canned.on("GET", f"{PATH}/offload", status("ERROR", "the bucket is gone"))
    outcome = canned_cli.run("topics", "offload-status", "t", "-w")
    assert outcome.code == 1
    assert outcome.stdout.startswith("Error in offload")
    assert outcome.stderr == f"afterglow: Error offloading {NAME}: the bucket is gone\n"


def test_waiting_ends_when_no_partition_is_running(
    canned: Canned, canned_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "_POLL_S", 0.0)
    canned.on("GET", f"{PATH}/partitions", (200, {"partitions": 2}))
    canned.on("GET", f"{PATH}-partition-0/offload", status("RUNNING"), status("SUCCESS"))
    canned.on("GET", f"{PATH}-partition-1/offload", status("RUNNING"), status("RUNNING"), status("SUCCESS"))
    rows = canned_cli.rows("topics", "offload-status", "t", "--wait-complete")
    assert [row["status"] for row in rows] == ["SUCCESS", "SUCCESS"]
    assert sum(path.endswith("-1/offload") for _, path, _, _ in canned.calls) == 3


def test_an_offload_can_be_waited_for(canned: Canned, canned_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_POLL_S", 0.0)
    canned.on("GET", f"{PATH}/partitions", (200, {"partitions": 0}))
    canned.on("GET", f"{PATH}/internalStats", (200, stats((7, 10), current=0)))
    canned.on("PUT", f"{PATH}/offload", (204, None))
    canned.on("GET", f"{PATH}/offload", status("RUNNING"), status("SUCCESS"))
    rows = canned_cli.rows("topics", "offload", "t", "-s", "0", "-w")
    assert [row.get("status") for row in rows] == [None, "SUCCESS"]
    canned.on("GET", f"{PATH}/offload", status("ERROR", "the bucket is gone"))
    outcome = canned_cli.run("topics", "offload", "t", "-s", "0", "-w")
    assert (outcome.code, outcome.stderr) == (1, f"afterglow: Error offloading {NAME}: the bucket is gone\n")
    calls = len(canned.calls)
    assert canned_cli.do("topics", "offload", "t", "-s", "1G", "-w") == "Nothing to offload\n"
    assert len(canned.calls) == calls + 2, "nothing is waited for"


def test_reasons_are_shown_by_ledger_and_by_partition_where_there_are_several(canned: Canned, canned_cli: Cli) -> None:
    row = {"ledger_id": 3, "state": "open", "sentence": "it is being written", "next_ms": None, "error": None}
    canned.on("GET", f"{PATH}/explain", (200, [{"topic": f"{NAME}-partition-0", **row}]))
    assert canned_cli.rows("topics", "explain", "t") == [{"topic": f"{NAME}-partition-0", **row}]
    assert "partition-0" not in canned_cli.do("topics", "explain", "t")
    both = [{"topic": f"{NAME}-partition-{index}", **row} for index in (0, 1)]
    canned.on("GET", f"{PATH}/explain", (200, both), (200, []))
    assert "partition-1" in canned_cli.do("topics", "explain", "t")
    assert canned_cli.do("topics", "explain", "t") == f"{NAME} has no ledgers\n"


def segment(state: str, done: int, planned: int) -> dict[str, Any]:
    begin = {"ledger_id": 3, "entry_id": 14}
    return {"id": "0123456789abcdef", "status": state, "begin": begin, "bytes": done, "planned_bytes": planned}


def test_waiting_on_a_terminal_shows_progress_of_segments(canned: Canned) -> None:
    canned.on("GET", f"{PATH}/partitions", (200, {"partitions": 0}))
    canned.on("GET", f"{PATH}/offload", *[status("RUNNING")] * 3, status("SUCCESS"))
    other = segment("Offloaded", 9, 9) | {"id": "fedcba9876543210"}
    canned.on(
        "GET",
        f"{PATH}/segments",
        (200, [other, segment("Assigned", 0, 0)]),
        (200, [other, segment("Failed", 1024, 2048) | {"error": "no route"}]),
        (200, [other, segment("Offloaded", 2048, 2048)]),
    )
    master, terminal = pty.openpty()
    # Its name and size are of no interest to the test; that it is a terminal is.
    process = subprocess.Popen(
        [sys.executable, "-m", "afterglow", "--admin-url", canned.url, "topics", "offload-status", "t", "-w"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm"},
        text=True,
    )
    os.close(terminal)
    printed = bytearray()
    with contextlib.suppress(OSError):  # raised by Linux when the other end is closed
        while data := os.read(master, 4096):
            printed += data
    os.close(master)
    stdout, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert stdout == f"Offload was a success for {NAME}\n"
    assert f"offload is running for {NAME}".encode() in printed
    for words in (b"01234567 from 3:14 Assigned", b"Failed: no route", b"1.0/2.0", b"Offloaded", b"2.0/2.0"):
        assert words in printed
    assert b"fedcba98" not in printed, "earlier segments are not announced"


def test_waiting_works_without_a_list_of_segments(canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulsar's own brokers know none."""
    canned.on("GET", f"{PATH}/partitions", (200, {"partitions": 0}))
    canned.on("GET", f"{PATH}/offload", status("RUNNING"), status("SUCCESS"))
    monkeypatch.setattr(offload, "_POLL_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with pytest.raises(SystemExit) as ended:
        main(["--admin-url", canned.url, "topics", "offload-status", "t", "-w"])
    assert ended.value.code == 0
    assert any(path.endswith("/segments") for _, path, _, _ in canned.calls)
