from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from afterglow.admin import offload_routes
from afterglow.errors import MetadataUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.admin.conftest import Admin

TOPIC = "persistent/public/default/t"
FIELDS = (
    *("id", "status", "begin", "end", "assigned_ms", "offloaded_ms", "entries", "bytes"),
    *("driver", "bucket", "key", "error"),
)
LATEST = "latest"


@pytest.fixture
def admin(start: Callable[..., Admin]) -> Admin:
    """A broker that keeps everything, with a topic that streams."""
    admin = start(offload=True, default_retention_size_in_mb=-1, default_retention_time_in_minutes=-1)
    admin.do("PUT", TOPIC)
    stream(admin)
    return admin


def stream(admin: Admin, topic: str = TOPIC, *, on: bool = True) -> None:
    admin.do("POST", f"{topic}/offloadPolicies", {"streamingOffloadEnabled": on})


def offload(admin: Admin, *topics: str) -> None:
    """Have all that was written committed in segments."""
    for topic in topics or (TOPIC,):
        admin.do("PUT", f"{topic}/offload", LATEST)
    for _ in range(2):
        admin.offloading.begin()
        admin.offloading.finish()
    for topic in topics or (TOPIC,):
        assert admin.get(f"{topic}/offload")["status"] == "SUCCESS"


def delete(admin: Admin, query: str, topic: str = TOPIC) -> Any:
    answer = admin.call("POST", f"{topic}/deleteOffloaded?{query}")
    assert answer.status == 200, answer
    return answer.json


def test_segments_are_listed_from_their_assignment_on(admin: Admin) -> None:
    assert admin.get(f"{TOPIC}/segments") == []
    first, second = admin.write_ledgers(2)
    admin.offloading.begin()
    [row] = admin.get(f"{TOPIC}/segments")
    assert set(row) == {*FIELDS, "planned_bytes", "planned_entries", "topic", "first_ms", "last_ms"}
    assert row["topic"] == "persistent://public/default/t"
    assert (row["status"], row["begin"], row["end"]) == ("Assigned", {"ledger_id": first, "entry_id": 0}, None)
    assert row["assigned_ms"] > 0
    assert [row[name] for name in ("offloaded_ms", "entries", "bytes", "error")] == [None, 0, 0, None]
    offload(admin)
    [done] = admin.get(f"{TOPIC}/segments")
    assert {name: done[name] for name in ("id", "begin", "assigned_ms", "driver", "bucket", "key")} == {
        name: row[name] for name in ("id", "begin", "assigned_ms", "driver", "bucket", "key")
    }
    assert (done["status"], done["end"]) == ("Offloaded", {"ledger_id": second, "entry_id": 0})
    assert (done["entries"], done["error"]) == (2, None)
    assert done["offloaded_ms"] >= done["assigned_ms"]
    assert done["bytes"] == (admin.offloading.tier / done["key"]).stat().st_size
    assert (done["driver"], done["bucket"]) == ("filesystem", str(admin.offloading.tier))


def test_a_failed_segment_has_its_error(admin: Admin) -> None:
    admin.write_ledgers(1)
    admin.offloading.tier.rmdir()
    admin.do("PUT", f"{TOPIC}/offload", LATEST)
    admin.offloading.begin()
    admin.offloading.finish()
    [row] = admin.get(f"{TOPIC}/segments")
    assert row["status"] == "Failed"
    [explained, *_] = admin.get(f"{TOPIC}/explain")
    assert explained["state"] == "failed"
    assert explained["error"] == row["error"]
    assert explained["next_ms"] > 0


def test_segments_of_all_partitions_are_listed(admin: Admin) -> None:
    base = "persistent/public/default/p"
    admin.do("PUT", f"{base}/partitions", 2)
    stream(admin, base)
    for index in range(2):
        admin.write_ledgers(1, f"public/default/persistent/p-partition-{index}")
    offload(admin, *(f"{base}-partition-{index}" for index in range(2)))
    rows = admin.get(f"{base}/segments")
    assert [row["topic"] for row in rows] == [f"persistent://public/default/p-partition-{index}" for index in range(2)]
    admin.refused(404, "GET", "persistent/public/default/none/segments")


def test_statistics_count_entries_in_segments_before_their_ledger_is_whole(admin: Admin) -> None:
    ledger = admin.service.store.open("public/default/persistent/t", create=False)
    offload(admin)
    assert admin.get(f"{TOPIC}/stats")["offloadedStorageSize"] == 0
    admin.write_entries(3)
    offload(admin)
    admin.write_entries(1)
    found = admin.get(f"{TOPIC}/stats")
    assert ledger.size_bytes > found["offloadedStorageSize"] == ledger.size_bytes * 3 // 4 > 0
    ledger.roll()
    offload(admin)
    assert admin.get(f"{TOPIC}/stats")["offloadedStorageSize"] == ledger.size_bytes


def test_a_ledger_that_segments_hold_is_offloaded_wherever_ledgers_are_listed(admin: Admin) -> None:
    first, second = admin.write_ledgers(2)
    admin.write_entries(1)
    offload(admin)
    rows = {row["ledgerId"]: row["offloaded"] for row in admin.get(f"{TOPIC}/internalStats")["ledgers"]}
    open_ledger = max(rows)
    assert rows == {first: True, second: True, open_ledger: False}  # which will grow
    listed = {row["ledgerId"]: row["isOffloaded"] for row in admin.get(f"{TOPIC}/internal-info")["ledgers"]}
    assert listed == rows
    assert admin.get(f"{TOPIC}/stats")["lastOffloadLedgerId"] == second


def test_the_first_unoffloaded_message_is_exact(admin: Admin) -> None:
    offload(admin)
    (closed,) = admin.write_ledgers(1)
    admin.write_entries(3)
    offload(admin)
    newest = max(row["ledgerId"] for row in admin.get(f"{TOPIC}/internalStats")["ledgers"])
    assert newest > closed
    assert first_unoffloaded(admin) == (newest, 3)
    admin.write_entries(2)
    offload(admin)
    assert first_unoffloaded(admin) == (newest, 5)
    admin.service.store.open("public/default/persistent/t", create=False).roll()
    offload(admin)
    assert first_unoffloaded(admin) in {(newest, 5), (newest + 1, 0)}


def test_segments_reach_up_to_the_message_that_was_asked_for(admin: Admin) -> None:
    admin.write_entries(10)
    newest = max(row["ledgerId"] for row in admin.get(f"{TOPIC}/internalStats")["ledgers"])
    admin.do("PUT", f"{TOPIC}/offload", {"ledgerId": newest, "entryId": 4, "partitionIndex": -1})
    for _ in range(2):
        admin.offloading.begin()
        admin.offloading.finish()
    assert admin.get(f"{TOPIC}/offload")["status"] == "SUCCESS"
    assert first_unoffloaded(admin) == (newest, 4)
    done, live = admin.get(f"{TOPIC}/segments")
    assert (done["status"], done["end"]["entry_id"]) == ("Offloaded", 3)
    assert (live["status"], live["end"]) == ("Assigned", None)


def test_a_message_that_the_topic_cannot_have_is_refused(admin: Admin) -> None:
    admin.write_entries(3)
    newest = max(row["ledgerId"] for row in admin.get(f"{TOPIC}/internalStats")["ledgers"])
    before = admin.state()
    for body in ("999:-7", f"{newest}:4", f"{newest}:-1", f"{newest + 1}:0", "earliest"):
        assert f"to {newest}:3, or latest" in admin.refused(412, "PUT", f"{TOPIC}/offload", body)
    assert admin.state() == before
    assert admin.get(f"{TOPIC}/offload")["status"] == "NOT_RUN"


def test_a_segment_of_which_nothing_is_uploaded_follows_a_corrected_policy(admin: Admin, tmp_path: Path) -> None:
    wrong = {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": (tmp_path / "none").as_uri()}
    admin.do("POST", f"{TOPIC}/offloadPolicies", {"streamingOffloadEnabled": True, **wrong})
    admin.write_entries(3)
    admin.do("PUT", f"{TOPIC}/offload", LATEST)
    admin.offloading.begin()
    admin.offloading.finish()
    [failed] = admin.get(f"{TOPIC}/segments")
    assert (failed["status"], failed["bucket"]) == ("Failed", str(tmp_path / "none"))
    stream(admin)  # the broker's own tier again
    for _ in range(2):
        admin.offloading.begin()
        admin.offloading.finish()
    assert admin.get(f"{TOPIC}/offload")["status"] == "SUCCESS"
    [done] = admin.get(f"{TOPIC}/segments")
    assert (done["status"], done["bucket"]) == ("Offloaded", str(admin.offloading.tier))
    assert done["id"] != failed["id"]


def first_unoffloaded(admin: Admin) -> tuple[int, int]:
    found = admin.get(f"{TOPIC}/offload")["firstUnoffloadedMessage"]
    assert found["partitionIndex"] == -1
    return found["ledgerId"], found["entryId"]


# --- going back -------------------------------------------------------------------------------------------------------


def test_a_dry_run_returns_the_plan(admin: Admin) -> None:
    (only,) = admin.write_ledgers(1)
    offload(admin)
    stream(admin, on=False)
    before = admin.state()
    [row] = admin.get(f"{TOPIC}/segments")
    row.pop("topic")
    expected = [
        {"topic": "persistent://public/default/t", "segments": [row], "ledgers": [only], "lost": [], "done": False}
    ]
    assert delete(admin, "streaming=true") == expected
    assert delete(admin, "streaming=true&dryRun=true&loseData=true") == expected
    assert admin.state() == before


def test_segments_are_deleted_and_the_ledgers_stay(admin: Admin) -> None:
    ledgers = admin.write_ledgers(2)
    offload(admin)
    stream(admin, on=False)
    [plan] = delete(admin, "streaming=true&dryRun=false")
    assert plan["done"]
    assert plan["ledgers"] == ledgers
    admin.offloading.begin()
    assert admin.get(f"{TOPIC}/segments") == []
    assert list(admin.offloading.tier.rglob("*-index")) == []
    assert [row["ledgerId"] for row in admin.get(f"{TOPIC}/internalStats")["ledgers"]][:2] == ledgers


def test_a_refused_rollback_changes_nothing(admin: Admin) -> None:
    base = "persistent/public/default/p"
    admin.do("PUT", f"{base}/partitions", 2)
    stream(admin, base)
    for index in range(2):
        admin.write_ledgers(1, f"public/default/persistent/p-partition-{index}")
    offload(admin, *(f"{base}-partition-{index}" for index in range(2)))
    path = f"{base}/deleteOffloaded"
    assert "streamingOffloadEnabled=false" in admin.refused(412, "POST", f"{path}?streaming=true&dryRun=false")
    assert "streaming=true" in admin.refused(400, "POST", path)
    stream(admin, base, on=False)
    last = admin.service.store.open("public/default/persistent/p-partition-1", create=False)
    admin.run(admin.service.blocking(last.trimmer.free, [row.ledger_id for row in last.ledgers]))
    before = admin.state()
    assert "--lose-data" in admin.refused(412, "POST", f"{path}?streaming=true&dryRun=false")
    assert admin.state() == before
    plans = delete(admin, "streaming=true&dryRun=false&loseData=true", base)
    assert [len(plan["lost"]) for plan in plans] == [0, 1]
    assert plans[1]["lost"][0]["entries"] == 1
    admin.refused(404, "POST", "persistent/public/default/none/deleteOffloaded?streaming=true")


def test_a_segment_in_progress_refuses_the_rollback(admin: Admin) -> None:
    admin.write_ledgers(1)
    admin.offloading.begin()
    stream(admin, on=False)
    assert "is being uploaded" in admin.refused(409, "POST", f"{TOPIC}/deleteOffloaded?streaming=true&dryRun=false")


# --- going back with many topics --------------------------------------------------------------------------------------

NAMESPACE = "namespaces/public/default"
EVERYTHING = "afterglow"


@pytest.fixture
def topics(admin: Admin) -> list[str]:
    """Topics with segments, whose streaming is off: one, the partitions of another, and one of another namespace."""
    admin.do("PUT", "namespaces/public/other")
    made = ["default/p-partition-0", "default/p-partition-1", "default/t", "other/t"]
    admin.do("PUT", "persistent/public/default/p/partitions", 2)
    admin.do("PUT", "persistent/public/other/t")
    admin.do("PUT", "persistent/public/default/empty")
    streams = ("default/p", "other/t")
    for name in streams:
        stream(admin, f"persistent/public/{name}")
    for name in made:
        admin.write_ledgers(1, f"public/{name.replace('/', '/persistent/')}")
    offload(admin, *(f"persistent/public/{name}" for name in made))
    for name in (*streams, "default/t"):
        stream(admin, f"persistent/public/{name}", on=False)
    return [f"persistent://public/{name}" for name in made]


def states(rows: Any) -> dict[str, str]:
    return {row["topic"]: row["state"] for row in rows}


@pytest.mark.parametrize(("path", "count"), [(NAMESPACE, 3), (EVERYTHING, 4)])
def test_rollback_of_many_topics_plans_and_deletes_together(
    admin: Admin, topics: list[str], path: str, count: int
) -> None:
    before = admin.state()
    empty = {"persistent://public/default/empty": "empty"}
    rows = delete(admin, "streaming=true", path)
    assert states(rows) == dict.fromkeys(topics[:count], "planned") | empty
    assert [row["topic"] for row in rows] == sorted(states(rows))
    planned = next(row for row in rows if row["topic"] == topics[0])
    [segment] = admin.get("persistent/public/default/p-partition-0/segments")
    assert planned == {
        "topic": topics[0],
        "state": "planned",
        "segments": 1,
        "bytes": segment["bytes"],
        "lost_entries": 0,
        "error": None,
    }
    assert admin.state() == before
    done = delete(admin, "streaming=true&dryRun=false", path)
    assert states(done) == dict.fromkeys(topics[:count], "deleted") | empty
    admin.offloading.begin()
    left = {path.name for path in admin.offloading.tier.rglob("*-index")}
    assert len(left) == len(topics) - count
    assert set(states(delete(admin, "streaming=true&dryRun=false", path)).values()) == {"empty"}


@pytest.mark.parametrize("path", [NAMESPACE, EVERYTHING])
def test_one_streaming_topic_refuses_the_rollback_of_all(admin: Admin, topics: list[str], path: str) -> None:
    stream(admin)
    before = admin.state()
    rows = delete(admin, "streaming=true", path)
    assert states(rows)[topics[0]] == "planned"
    [refused] = [row for row in rows if row["state"] == "refused"]
    assert refused["topic"] == "persistent://public/default/t"
    assert "streamingOffloadEnabled=false" in refused["error"]
    reason = admin.refused(412, "POST", f"{path}/deleteOffloaded?streaming=true&dryRun=false&loseData=true")
    assert reason.startswith(f"nothing was deleted: 1 of {len(rows)} topics are refused")
    assert reason.endswith(refused["error"])
    assert admin.state() == before


def test_one_topic_that_would_lose_entries_refuses_the_rollback_of_all(admin: Admin, topics: list[str]) -> None:
    ledger = admin.service.store.open("public/default/persistent/t", create=False)
    admin.run(admin.service.blocking(ledger.trimmer.free, [row.ledger_id for row in ledger.ledgers]))
    before = admin.state()
    [refused] = [row for row in delete(admin, "streaming=true", NAMESPACE) if row["state"] == "refused"]
    assert (refused["topic"], "--lose-data" in refused["error"]) == (topics[2], True)
    assert "--lose-data" in admin.refused(412, "POST", f"{NAMESPACE}/deleteOffloaded?streaming=true&dryRun=false")
    assert admin.state() == before
    planned = delete(admin, "streaming=true&loseData=true", NAMESPACE)
    assert {row["topic"]: row["lost_entries"] for row in planned if row["lost_entries"]} == {topics[2]: 1}
    assert admin.state() == before
    done = delete(admin, "streaming=true&dryRun=false&loseData=true", NAMESPACE)
    assert list(states(done).values()).count("deleted") == 3


def test_a_failed_topic_does_not_stop_others_and_is_done_by_the_next_call(
    admin: Admin, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    roll_back = admin.offloading.service.delete_segments

    def fail(name: str, *, dry_run: bool = True, lose_data: bool = False) -> Any:
        if name.endswith("p-partition-1") and not dry_run:
            raise MetadataUnavailable("the store is away")
        return roll_back(name, dry_run=dry_run, lose_data=lose_data)

    with monkeypatch.context() as patch:
        patch.setattr(admin.offloading.service, "delete_segments", fail)
        rows = delete(admin, "streaming=true&dryRun=false", NAMESPACE)
    assert [states(rows)[topic] for topic in topics[:3]] == ["deleted", "failed", "deleted"]
    assert next(row["error"] for row in rows if row["state"] == "failed") == "the store is away"
    assert len(admin.get("persistent/public/default/p-partition-1/segments")) == 1
    rows = delete(admin, "streaming=true&dryRun=false", NAMESPACE)
    assert [states(rows)[topic] for topic in topics[:3]] == ["empty", "deleted", "empty"]


def test_a_call_that_reaches_its_time_limit_leaves_topics_pending(
    admin: Admin, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload_routes, "_CALL_S", 0.0)
    rows = delete(admin, "streaming=true&dryRun=false", NAMESPACE)
    assert [states(rows)[topic] for topic in topics[:3]] == ["pending"] * 3
    monkeypatch.undo()
    rows = delete(admin, "streaming=true&dryRun=false", NAMESPACE)
    assert [states(rows)[topic] for topic in topics[:3]] == ["deleted"] * 3


def test_many_topics_need_the_word_streaming_and_a_namespace_that_exists(admin: Admin) -> None:
    for path in (NAMESPACE, EVERYTHING):
        assert "streaming=true" in admin.refused(400, "POST", f"{path}/deleteOffloaded")
    admin.refused(404, "POST", "namespaces/public/none/deleteOffloaded?streaming=true")


def test_a_broker_without_offload_refuses_with_the_reason(start: Callable[..., Admin]) -> None:
    admin = start()
    admin.do("PUT", TOPIC)
    assert "start it with a tier" in admin.refused(412, "GET", f"{TOPIC}/segments")
    assert "start it with a tier" in admin.refused(412, "POST", f"{TOPIC}/deleteOffloaded?streaming=true")
    for path in (NAMESPACE, EVERYTHING):
        assert "start it with a tier" in admin.refused(412, "POST", f"{path}/deleteOffloaded?streaming=true")
