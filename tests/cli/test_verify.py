"""``afterglow verify`` by way of an engine's admin API; of homes see ``tests/verify/test_cli.py``."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.hot.local.shared import read_instance
from afterglow.storage import LocalStore
from afterglow.testing.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Canned, Cli

    from afterglow.testing.serving import Served

JOB = "afterglow/checks/7"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checked") / "home"


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    """An engine whose tier holds an orphan, and an object of somebody else."""
    with serving(home) as engine:
        instance = read_instance(home)
        assert instance is not None
        tier = LocalStore(home / "tier")
        tier.put("0-orphan", b"x", metadata={"afterglowinstance": instance})
        os.utime(home / "tier" / "0-orphan", (1e9, 1e9))
        tier.put("1-foreign", b"y")
        yield engine


def test_an_engine_tells_and_sweeps_what_verify_does_of_its_home(cli: Cli, served: Served, home: Path) -> None:
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


def job(state: str = "done", **fields: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": "7",
        "state": state,
        "endedMillis": None if state == "running" else 1,
        "counts": {},
        "faults": 0,
    }
    return told | {"objectsDone": 0, "objectsDue": 0, "bytesDone": 0, "bytesDue": 0, "error": ""} | fields


def test_all_pages_of_findings_are_asked_for_and_what_was_not_kept_is_told(canned_cli: Cli, canned: Canned) -> None:
    findings = [{"kind": "foreign", "topic": None, "object": str(n), "position": None, "detail": ""} for n in range(3)]
    canned.on("POST", "afterglow/checks", (202, job("queued")))
    canned.on("GET", JOB, (200, job("running")), (200, job(counts={"foreign": 9})))
    for start, next_start in ((0, 2), (2, 3), (3, 3)):
        page = [finding | {"fault": False} for finding in findings[start:next_start]]
        canned.on("GET", f"{JOB}/findings?from={start}", (200, {"findings": page, "next": next_start}))
    found = canned_cli.run("verify", canned.url, "--deep", "--grace", "10s", "--json", "--token", "abc")
    assert (found.code, found.rows) == (0, findings)
    assert "6 more findings were counted and not kept" in found.stderr
    method, path, body, headers = canned.calls[0]
    assert (method, path, headers["Authorization"]) == ("POST", "/admin/v2/afterglow/checks", "Bearer abc")
    assert body == {"deep": True, "sweep": False, "delete": False, "graceMillis": 10_000}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (job("failed", error="the bucket is gone"), "the check was failed: the bucket is gone"),
        (job("cancelled"), "the check was cancelled"),
    ],
)
def test_a_check_that_came_to_no_end_is_one_line(
    canned_cli: Cli, canned: Canned, answer: dict[str, Any], words: str
) -> None:
    canned.on("POST", "afterglow/checks", (202, job("queued")))
    canned.on("GET", JOB, (200, answer))
    assert words in canned_cli.refused(1, "verify", canned.url)


def test_what_is_no_afterglow_is_told_so(canned_cli: Cli, canned: Canned) -> None:
    assert "no Afterglow" in canned_cli.refused(1, "verify", canned.url)


def test_ctrl_c_cancels_the_check(canned_cli: Cli, canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    canned.on("POST", "afterglow/checks", (202, job("queued")))
    canned.on("GET", JOB, (200, job("running")))
    canned.on("DELETE", JOB, (204, None))
    monkeypatch.setattr("time.sleep", lambda _: signal.raise_signal(signal.SIGINT))
    found = canned_cli.run("verify", canned.url)
    assert (found.code, found.stderr) == (
        130,
        f"afterglow: interrupted; stopping the check that {canned.url} makes\n",
    )
    assert canned.calls[-1][:2] == ("DELETE", f"/admin/v2/{JOB}")
