"""Checks of the tiers as jobs: what they tell, and how they end."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.engine import check_jobs
from afterglow.storage import LocalStore
from afterglow.testing.served_topics import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin

    from afterglow.storage.store import ObjectInfo

CHECKS = "afterglow/checks"
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


def begin(admin: Admin, **request: Any) -> str:
    answer = admin.call("POST", CHECKS, request or None)
    assert answer.status == 202, answer
    return str(answer.json["id"])


def ended(admin: Admin, job: str) -> dict[str, Any]:
    """The job, once it has ended."""
    found: dict[str, Any] = {}

    def over() -> bool:
        found.update(admin.get(f"{CHECKS}/{job}"))
        return found["endedMillis"] is not None

    eventually(over, lambda: found)
    return found


def plant_orphan(admin: Admin, name: str = "0f0e0d0c-0000-4000-8000-000000000000-ledger-1") -> None:
    """An object of this instance that nothing names, two hours old."""
    store = LocalStore(admin.offloading.tier)
    store.put(name, b"x", metadata={"afterglowinstance": admin.offloading.instance})
    path = admin.offloading.tier / name
    os.utime(path, (path.stat().st_mtime - 7_200,) * 2)


def objects(admin: Admin) -> set[str]:
    return {info.key for info in LocalStore(admin.offloading.tier).list()}


def test_a_check_of_a_sound_tier_ends_with_no_finding(admin: Admin) -> None:
    found = ended(admin, begin(admin))
    assert (found["state"], found["faults"], found["counts"], found["findings"]) == ("done", 0, {}, [])
    assert (found["objectsDone"], found["objectsDue"]) == (2, 2)
    assert found["begunMillis"] <= found["endedMillis"]
    assert found["error"] == ""
    (listed,) = admin.get(CHECKS)
    assert listed == {name: value for name, value in found.items() if name != "findings"}


def test_what_is_wrong_is_told_as_the_command_line_tells_it(admin: Admin) -> None:
    key = min(objects(admin), key=len)
    LocalStore(admin.offloading.tier).delete([key])
    job = begin(admin)
    found = ended(admin, job)
    assert (found["state"], found["faults"], found["counts"]) == ("done", 1, {"missing_object": 1})
    told = admin.call("GET", "/metrics").body.decode().splitlines()
    assert 'afterglow_check_findings{cluster="standalone",depth="shallow",kind="missing_object"} 1.0' in told
    (finding,) = found["findings"]
    assert finding.keys() == {"kind", "topic", "object", "position", "detail", "fault"}
    assert (finding["kind"], finding["object"], finding["fault"]) == ("missing_object", key, True)
    assert admin.get(f"{CHECKS}/{job}/findings") == {"findings": [finding], "next": 1}
    assert admin.get(f"{CHECKS}/{job}/findings?from=1") == {"findings": [], "next": 1}


def test_a_sweep_deletes_only_where_it_is_told_to(admin: Admin) -> None:
    before = objects(admin)
    plant_orphan(admin)
    dry = ended(admin, begin(admin, sweep=True))
    assert (dry["faults"], dry["deleted"], dry["counts"]) == (1, 0, {"orphan_object": 1})
    assert "would delete" in dry["findings"][0]["detail"]
    assert len(objects(admin)) == len(before) + 1
    wet = ended(admin, begin(admin, sweep=True, delete=True))
    assert (wet["faults"], wet["deleted"], wet["counts"]) == (0, 1, {"orphan_object": 1})
    assert wet["findings"][0]["detail"].endswith("deleted")
    assert objects(admin) == before
    told = admin.call("GET", "/metrics").body.decode().splitlines()
    assert 'afterglow_sweep_deleted_total{cluster="standalone",kind="orphan_object"} 1.0' in told
    assert 'afterglow_check_findings{cluster="standalone",depth="shallow",kind="orphan_object"} 0.0' in told
    assert 'afterglow_checks_total{cluster="standalone",state="done"} 2.0' in told
    assert not [line for line in told if 'depth="deep"' in line]


def test_a_young_orphan_is_pending_within_the_grace(admin: Admin) -> None:
    plant_orphan(admin)
    assert ended(admin, begin(admin, graceMillis=10_000_000))["counts"] == {"pending": 1}
    assert ended(admin, begin(admin, graceMillis=0))["counts"] == {"orphan_object": 1}


def test_findings_past_the_bound_of_a_kind_are_counted_and_crowd_out_no_other(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_jobs, "KEPT_OF_A_KIND", 3)
    store = LocalStore(admin.offloading.tier)
    for number in range(5):
        store.put(f"0-{number}", b"theirs")
    plant_orphan(admin)
    found = ended(admin, begin(admin))
    assert found["counts"] == {"foreign": 5, "orphan_object": 1}
    assert (found["kept"], found["faults"]) == (4, 1)
    assert [item["kind"] for item in found["findings"]] == ["foreign"] * 3 + ["orphan_object"]


class Gate:
    """Holds up the first look at an object until the test lets it go on."""

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
        """While a check waits there."""
        assert self._reached.wait(30)
        try:
            yield
        finally:
            self._open.set()


@pytest.fixture
def gate(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Gate:
    assert admin.offloading  # which has looked at objects before
    return Gate(monkeypatch)


def test_one_check_runs_at_a_time_and_holds_up_nothing(admin: Admin, gate: Gate) -> None:
    job = begin(admin)
    with gate.reached():
        found = admin.get(f"{CHECKS}/{job}")
        assert (found["state"], found["endedMillis"], found["lookingAt"]) == ("running", None, gate.key)
        assert (found["objectsDone"], found["objectsDue"]) == (0, 2)
        assert job in admin.refused(409, "POST", CHECKS, {"sweep": True})
        assert len(admin.get(CHECKS)) == 1
        admin.get(f"{TOPIC}/stats")
    assert ended(admin, job)["state"] == "done"


def test_a_cancelled_check_ends_at_its_next_step(admin: Admin, gate: Gate) -> None:
    plant_orphan(admin)
    before = objects(admin)
    job = begin(admin, sweep=True, delete=True)
    with gate.reached():
        admin.do("DELETE", f"{CHECKS}/{job}")
    found = ended(admin, job)
    assert (found["state"], found["error"], found["objectsDone"], found["deleted"]) == ("cancelled", "", 0, 0)
    assert objects(admin) == before
    admin.do("DELETE", f"{CHECKS}/{job}")
    assert admin.get(f"{CHECKS}/{job}")["state"] == "cancelled"


def test_a_check_that_fails_says_why_and_the_next_one_runs(admin: Admin) -> None:
    hidden = admin.offloading.tier.rename(admin.offloading.tier.with_name("hidden"))
    found = ended(admin, begin(admin))
    assert found["state"] == "failed"
    assert str(admin.offloading.tier) in found["error"]
    hidden.rename(admin.offloading.tier)
    assert ended(admin, begin(admin))["state"] == "done"


def test_only_the_last_few_are_kept(admin: Admin) -> None:
    ids = [begin_and_end(admin) for _ in range(10)]
    assert [job["id"] for job in admin.get(CHECKS)] == ids[:1:-1]
    assert "long ago" in admin.refused(404, "GET", f"{CHECKS}/{ids[0]}")


def begin_and_end(admin: Admin) -> str:
    return str(ended(admin, begin(admin))["id"])


def test_closing_ends_the_check_that_runs_and_begins_no_other(admin: Admin, gate: Gate) -> None:
    job = begin(admin)
    checks = admin.offloading.checks
    closing = threading.Thread(target=checks.close)
    with gate.reached():
        closing.start()
        eventually(lambda: checks.jobs()[0].watch.cancelled, lambda: "it is not told to end")
    closing.join()
    assert admin.get(f"{CHECKS}/{job}")["state"] == "cancelled"
    assert "shutting down" in admin.refused(409, "POST", CHECKS)


def test_a_malformed_request_begins_nothing(admin: Admin) -> None:
    for status, body in (
        (400, []),
        (400, {"deep": "yes"}),
        (400, {"deeper": True}),
        (400, {"delete": True}),
        (400, {"graceMillis": 1.5}),
        (412, {"graceMillis": -1}),
    ):
        admin.refused(status, "POST", CHECKS, body)
    assert admin.get(CHECKS) == []


def test_what_is_not_there_is_404_and_a_bad_place_400(admin: Admin) -> None:
    for method, path in (("GET", ""), ("GET", "/findings"), ("DELETE", "")):
        admin.refused(404, method, f"{CHECKS}/nowhere{path}")
    job = begin_and_end(admin)
    admin.refused(400, "GET", f"{CHECKS}/{job}/findings?from=x")


def test_a_broker_without_a_tier_refuses(start: Callable[..., Admin]) -> None:
    assert "tier" in start().refused(412, "POST", CHECKS)
