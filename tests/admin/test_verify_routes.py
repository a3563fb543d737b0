"""Verification of the tiers over REST: the lines of its answer, and the ways in which it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.served_topics import eventually

from afterglow.admin import verify_routes
from afterglow.pipeline import verify_runs
from afterglow.pipeline.tier_verifier import VerifyRequest
from afterglow.storage import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin

    from afterglow.storage.store import ObjectInfo

VERIFY = "afterglow/verify"
TOPIC = "persistent/public/default/t"


@pytest.fixture
def admin(start: Callable[..., Admin]) -> Admin:
    """A broker with two ledgers in its tier."""
    admin = start(
        offload=True,
        managed_ledger_offload_threshold_in_bytes=0,
        default_retention_size_in_mb=-1,
        default_retention_time_in_minutes=-1,
    )
    admin.do("PUT", TOPIC)
    admin.get(f"{TOPIC}/stats")
    admin.write_ledgers(2)
    admin.offloading.begin()
    admin.offloading.finish()
    return admin


class Report:
    """The lines of an answer that came to its end."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        assert all(len(line) == 1 for line in lines)
        *others, last = lines
        self.result: dict[str, Any] = last["result"]
        self.findings = [line["finding"] for line in others if "finding" in line]
        self.progress = [line["progress"] for line in others if "progress" in line]


def run(admin: Admin, **request: Any) -> Report:
    answer = admin.call("POST", VERIFY, request or None)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer
    return Report([json.loads(line) for line in answer.body.splitlines()])


def metrics(admin: Admin) -> list[str]:
    return admin.call("GET", "/metrics").body.decode().splitlines()


def plant_orphan(admin: Admin, name: str = "0f0e0d0c-0000-4000-8000-000000000000-ledger-1") -> None:
    """An object of this instance that nothing names, two hours old."""
    store = LocalStore(admin.offloading.tier)
    store.put(name, b"x", metadata={"afterglowinstance": admin.offloading.instance})
    path = admin.offloading.tier / name
    os.utime(path, (path.stat().st_mtime - 7_200,) * 2)


def objects(admin: Admin) -> set[str]:
    return {info.key for info in LocalStore(admin.offloading.tier).list()}


def test_an_intact_tier_has_no_findings(admin: Admin) -> None:
    report = run(admin)
    result = report.result
    assert (result["state"], result["faults"], result["counts"], report.findings) == ("done", 0, {}, [])
    assert (report.progress[-1]["objectsDone"], report.progress[-1]["objectsDue"]) == (2, 2)
    assert result["startedMillis"] <= result["endedMillis"]
    assert result["error"] == ""


def test_a_finding_is_reported_as_the_command_line_prints_it(admin: Admin) -> None:
    key = min(objects(admin), key=len)
    LocalStore(admin.offloading.tier).delete([key])
    report = run(admin)
    assert (report.result["state"], report.result["faults"]) == ("done", 1)
    assert report.result["counts"] == {"missing_object": 1}
    lines = metrics(admin)
    assert 'afterglow_check_findings{cluster="standalone",depth="shallow",kind="missing_object"} 1.0' in lines
    (finding,) = report.findings
    assert finding.keys() == {"kind", "topic", "object", "position", "detail", "fault"}
    assert (finding["kind"], finding["object"], finding["fault"]) == ("missing_object", key, True)


def test_a_sweep_deletes_only_where_delete_is_set(admin: Admin) -> None:
    before = objects(admin)
    plant_orphan(admin)
    dry = run(admin, sweep=True)
    assert (dry.result["faults"], dry.result["deleted"], dry.result["counts"]) == (1, 0, {"orphan_object": 1})
    assert "would delete" in dry.findings[0]["detail"]
    assert len(objects(admin)) == len(before) + 1
    wet = run(admin, sweep=True, delete=True)
    assert (wet.result["faults"], wet.result["deleted"], wet.result["counts"]) == (0, 1, {"orphan_object": 1})
    assert wet.findings[0]["detail"].endswith("deleted")
    assert objects(admin) == before
    lines = metrics(admin)
    assert 'afterglow_sweep_deleted_total{cluster="standalone",kind="orphan_object"} 1.0' in lines
    assert 'afterglow_check_findings{cluster="standalone",depth="shallow",kind="orphan_object"} 0.0' in lines
    assert 'afterglow_checks_total{cluster="standalone",state="done"} 2.0' in lines
    assert not [line for line in lines if 'depth="deep"' in line]


def test_a_young_orphan_is_pending_within_the_grace(admin: Admin) -> None:
    plant_orphan(admin)
    assert run(admin, graceMillis=10_000_000).result["counts"] == {"pending": 1}
    assert run(admin, graceMillis=0).result["counts"] == {"orphan_object": 1}


def test_all_findings_are_streamed(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_runs, "_BUFFERED", 3)
    store = LocalStore(admin.offloading.tier)
    for number in range(50):
        store.put(f"0-{number:02}", b"theirs")
    plant_orphan(admin)
    report = run(admin)
    assert report.result["counts"] == {"foreign": 50, "orphan_object": 1}
    assert sorted(item["object"] for item in report.findings if not item["fault"]) == [f"0-{n:02}" for n in range(50)]
    assert [item["kind"] for item in report.findings if item["fault"]] == ["orphan_object"]


class Gate:
    """Holds up the first head request for an object until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.key = ""
        self._reached, self._open = threading.Event(), threading.Event()
        head = LocalStore.head

        def held(store: LocalStore, key: str) -> ObjectInfo:
            self.key = key
            self._reached.set()
            assert self._open.wait(30)
            return head(store, key)

        monkeypatch.setattr(LocalStore, "head", held)

    @contextmanager
    def reached(self) -> Iterator[None]:
        """While a verification waits there."""
        assert self._reached.wait(30)
        try:
            yield
        finally:
            self._open.set()


@pytest.fixture
def gate(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Gate:
    assert admin.offloading  # which has read objects before
    monkeypatch.setattr(verify_routes, "_PROGRESS_S", 0.05)
    return Gate(monkeypatch)


class Streamed:
    """A call under way."""

    def __init__(self, admin: Admin, **request: Any) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=30)
        self._connection.request("POST", f"/admin/v2/{VERIFY}", json.dumps(request).encode())
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200

    def line(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._answer.readline())
        return found

    def rest(self) -> Report:
        with closing(self._connection):
            return Report([json.loads(line) for line in self._answer])

    def disconnect(self) -> None:
        self._connection.close()


def test_one_verification_runs_at_a_time_and_does_not_block_other_calls(admin: Admin, gate: Gate) -> None:
    streamed = Streamed(admin)
    with gate.reached():
        progress = streamed.line()["progress"]
        while progress["current"] != gate.key:
            progress = streamed.line()["progress"]
        assert (progress["objectsDone"], progress["objectsDue"]) == (0, 2)
        assert "another verification is running" in admin.refused(409, "POST", VERIFY, {"sweep": True})
        assert 'afterglow_checks_running{cluster="standalone"} 1.0' in metrics(admin)
        admin.get(f"{TOPIC}/stats")
    assert streamed.rest().result["state"] == "done"
    assert 'afterglow_checks_running{cluster="standalone"} 0.0' in metrics(admin)
    assert run(admin).result["state"] == "done"


def test_a_client_that_disconnects_cancels_the_verification(admin: Admin, gate: Gate) -> None:
    plant_orphan(admin)
    before = objects(admin)
    streamed = Streamed(admin, sweep=True, delete=True)
    runs = admin.offloading.verify_runs
    with gate.reached():
        assert runs._running is not None
        control = runs._running[0].control
        streamed.disconnect()
        eventually(lambda: control.cancelled, lambda: "the run is not cancelled")
    eventually(lambda: not runs.figures().running, lambda: "the run does not end")
    assert control.objects_done == 0
    assert objects(admin) == before
    assert 'afterglow_checks_total{cluster="standalone",state="cancelled"} 1.0' in metrics(admin)
    assert run(admin, sweep=True, delete=True).result["deleted"] == 1


def test_a_client_that_is_gone_before_the_first_line_cancels_the_verification(admin: Admin, gate: Gate) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_message: object) -> None:
        await asyncio.Event().wait()

    runs = admin.offloading.verify_runs
    started = runs.start(VerifyRequest(), lambda: None)
    with gate.reached():
        response = verify_routes._VerifyResponse(started, asyncio.Event())
        admin.run(response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send))
        assert started.control.cancelled
    eventually(lambda: not runs.figures().running, lambda: "the run does not end")


def test_a_verification_whose_findings_are_not_read_can_be_cancelled(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_runs, "_BUFFERED", 3)
    for number in range(10):
        LocalStore(admin.offloading.tier).put(f"0-{number}", b"theirs")
    runs = admin.offloading.verify_runs
    started = runs.start(VerifyRequest(), lambda: None)
    eventually(lambda: sum(started.counts.values()) > 3, lambda: started.counts)
    started.control.cancel()
    eventually(lambda: started.result is not None, lambda: "the run does not end")
    assert started.result is not None
    assert started.result.state == "cancelled"


def test_a_failed_verification_reports_the_error_and_the_next_one_runs(admin: Admin) -> None:
    hidden = admin.offloading.tier.rename(admin.offloading.tier.with_name("hidden"))
    result = run(admin).result
    assert result["state"] == "failed"
    assert str(admin.offloading.tier) in result["error"]
    assert 'afterglow_checks_total{cluster="standalone",state="failed"} 1.0' in metrics(admin)
    hidden.rename(admin.offloading.tier)
    assert run(admin).result["state"] == "done"


def test_closing_cancels_the_running_verification_and_refuses_new_ones(admin: Admin, gate: Gate) -> None:
    streamed = Streamed(admin)
    runs = admin.offloading.verify_runs
    ending = threading.Thread(target=runs.close)
    with gate.reached():
        assert runs._running is not None
        control = runs._running[0].control
        ending.start()
        eventually(lambda: control.cancelled, lambda: "the run is not cancelled")
    ending.join()
    assert streamed.rest().result["state"] == "cancelled"
    assert "shutting down" in admin.refused(409, "POST", VERIFY)


def test_closing_does_not_wait_for_a_store_that_does_not_answer(
    admin: Admin, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_runs, "_GRACE_S", 0.1)
    streamed = Streamed(admin)
    with gate.reached():
        admin.offloading.verify_runs.close()
        assert streamed.rest().result["state"] == "cancelled"


def test_a_malformed_request_starts_nothing(admin: Admin) -> None:
    for status, body in (
        (400, []),
        (400, {"deep": "yes"}),
        (400, {"deeper": True}),
        (400, {"delete": True}),
        (400, {"graceMillis": 1.5}),
        (412, {"graceMillis": -1}),
    ):
        admin.refused(status, "POST", VERIFY, body)
    assert not admin.offloading.verify_runs.figures().ended


def test_a_broker_without_a_tier_refuses(start: Callable[..., Admin]) -> None:
    assert "tier" in start().refused(412, "POST", VERIFY)
