"""``afterglow verify`` through a server's admin API; ``tests/verify/test_cli.py`` verifies homes."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.serving import serving

from afterglow.hot.local.shared_ledger import read_instance
from afterglow.storage import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Canned, Cli
    from tests.support.serving import Served

VERIFY = "afterglow/verify"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checked") / "home"


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    """A server whose tier holds an orphan, and a foreign object."""
    with serving(home) as server:
        instance = read_instance(home)
        assert instance is not None
        tier = LocalStore(home / "tier")
        tier.put("0-orphan", b"x", metadata={"afterglowinstance": instance})
        os.utime(home / "tier" / "0-orphan", (1e9, 1e9))
        tier.put("1-foreign", b"y")
        yield server


def test_a_server_reports_and_sweeps_the_same_as_verify_of_its_home(cli: Cli, served: Served, home: Path) -> None:
    url = served.admin_url
    by_files, by_address = cli.run("verify", str(home), "--json"), cli.run("verify", url, "--json")
    assert (by_files.code, by_address.code) == (1, 1)
    assert [row | {"detail": ""} for row in by_address.rows] == [row | {"detail": ""} for row in by_files.rows]
    assert [row["kind"] for row in by_address.rows] == ["orphan_object", "foreign"]
    people = cli.run("verify", url, "--sweep")
    assert people.code == 1
    assert "the sweep would delete it" in people.stdout
    assert people.stdout.endswith("1 faults (foreign 1, orphan_object 1)\n")
    assert "no faults" in cli.do("verify", url, "--sweep", "--yes")
    assert [row["kind"] for row in cli.rows("verify", url)] == ["foreign"]


def lines(*values: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def result(state: str = "done", error: str = "") -> dict[str, Any]:
    return {"result": {"state": state, "error": error, "counts": {}, "faults": 0}}


PROGRESS = {"progress": {"current": "k", "objectsDone": 1, "objectsDue": 2, "bytesDone": 3, "bytesDue": 4}}


def test_the_options_are_sent_and_the_findings_are_those_of_the_answer(canned_cli: Cli, canned: Canned) -> None:
    findings = [{"kind": "foreign", "topic": None, "object": str(n), "position": None, "detail": ""} for n in range(3)]
    answer = [{"finding": finding | {"fault": False}} for finding in findings]
    canned.on("POST", VERIFY, (200, lines(PROGRESS, *answer[:2], PROGRESS, answer[2], result())))
    found = canned_cli.run("verify", canned.url, "--deep", "--grace", "10s", "--json", "--token", "abc")
    assert (found.code, found.rows, found.stderr) == (0, findings, "")
    method, path, body, headers = canned.calls[0]
    assert (method, path, headers["Authorization"]) == ("POST", f"/admin/v2/{VERIFY}", "Bearer abc")
    assert body == {"deep": True, "sweep": False, "delete": False, "graceMillis": 10_000}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lines(PROGRESS, result("failed", "the bucket is gone")), "the verification failed: the bucket is gone"),
        (lines(result("cancelled")), "the verification was cancelled"),
        (lines(PROGRESS), "closed the connection before the verification had ended"),
        (b"<html>", "which is not valid JSON"),
    ],
)
def test_a_verification_that_did_not_complete_is_one_line(
    canned_cli: Cli, canned: Canned, answer: bytes, words: str
) -> None:
    canned.on("POST", VERIFY, (200, answer))
    assert words in canned_cli.refused(1, "verify", canned.url)


def test_a_refusal_is_one_line(canned_cli: Cli, canned: Canned) -> None:
    canned.on("POST", VERIFY, (409, {"reason": "another verification is running"}))
    assert "another verification is running" in canned_cli.refused(1, "verify", canned.url)


def test_a_server_that_is_not_an_afterglow_is_reported(canned_cli: Cli, canned: Canned) -> None:
    assert "not an Afterglow" in canned_cli.refused(1, "verify", canned.url)


def test_ctrl_c_closes_the_connection_which_cancels_the_verification(cli_at: Callable[[str], Cli]) -> None:
    closed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.settimeout(30)
                accepted.recv(65_536)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + lines(PROGRESS))
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                with suppress(ConnectionResetError):
                    while accepted.recv(65_536):
                        pass
                closed.set()

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        found = cli_at(url).run("verify", url)
        assert (found.code, found.stderr) == (130, f"afterglow: interrupted; stopping the verification by {url}\n")
        assert closed.wait(30)
        thread.join()
