from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from starlette.requests import Request

from afterglow.admin.call import BrokerCall, ReadLimits
from afterglow.offload.ledger_scan import LedgerScan
from afterglow.read.copies import StorageTier
from afterglow.read.counters import ReadCounters

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin


TOPIC = "persistent/public/default/t"
NAME = "public/default/persistent/t"


@pytest.fixture
def admin(start: Callable[..., Admin]) -> Admin:
    """A broker that keeps everything, with a topic."""
    admin = start(offload=True, default_retention_size_in_mb=-1, default_retention_time_in_minutes=-1)
    admin.do("PUT", TOPIC)
    return admin


def message(ledger_id: int, partition: int = -1) -> dict[str, int]:
    return {"ledgerId": ledger_id, "entryId": 0, "partitionIndex": partition}


def offloaded(admin: Admin, topic: str = TOPIC) -> list[int]:
    return [row["ledgerId"] for row in admin.get(f"{topic}/internalStats")["ledgers"] if row["offloaded"]]


def test_an_offload_up_to_a_message_reports_its_status(admin: Admin) -> None:
    first, second, third = admin.write_ledgers(3)
    earliest = message(-1) | {"entryId": -1}
    assert admin.get(f"{TOPIC}/offload") == {
        "status": "NOT_RUN",
        "lastError": "",
        "firstUnoffloadedMessage": earliest,
    }
    admin.do("PUT", f"{TOPIC}/offload", message(third))
    admin.offloading.begin()
    assert admin.get(f"{TOPIC}/offload") == {
        "status": "RUNNING",
        "lastError": "",
        "firstUnoffloadedMessage": earliest,
    }
    assert admin.refused(409, "PUT", f"{TOPIC}/offload", message(third)) == "Offload already in progress"
    assert offloaded(admin) == []
    admin.offloading.finish()
    assert admin.get(f"{TOPIC}/offload") == {
        "status": "SUCCESS",
        "lastError": "",
        "firstUnoffloadedMessage": message(third),
    }
    assert offloaded(admin) == [first, second]


def test_a_failed_offload_reports_the_error_and_no_position(admin: Admin) -> None:
    first, second = admin.write_ledgers(2)
    admin.offloading.tier.rmdir()
    admin.do("PUT", f"{TOPIC}/offload", message(second))
    admin.offloading.begin()
    admin.offloading.finish()
    found = admin.get(f"{TOPIC}/offload")
    assert found["status"] == "ERROR"
    assert found["lastError"]
    assert found["firstUnoffloadedMessage"] == {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    assert admin.get(f"{TOPIC}/stats")["lastOffloadFailureTimeStamp"] > 0
    explained = {row["ledger_id"]: row for row in admin.get(f"{TOPIC}/explain")}
    assert explained[first]["error"] in found["lastError"]


@pytest.mark.parametrize(
    ("status", "body"),
    [(400, None), (400, 5), (400, {}), (400, {"ledgerId": "x", "entryId": 0}), (412, "nowhere"), (412, "99999999:0")],
)
def test_an_offload_needs_a_message_of_the_topic(admin: Admin, status: int, body: object) -> None:
    admin.write_ledgers(1)
    before = admin.state()
    reason = admin.refused(status, "PUT", f"{TOPIC}/offload", body)
    assert reason.startswith("messageId is null") or body is not None
    assert admin.state() == before
    assert admin.get(f"{TOPIC}/offload")["status"] == "NOT_RUN"


def test_an_offload_of_a_partitioned_topic_uses_the_partition_of_the_message(admin: Admin) -> None:
    base = "persistent/public/default/p"
    admin.do("PUT", f"{base}/partitions", 2)
    for index in range(2):
        _, last = admin.write_ledgers(2, f"public/default/persistent/p-partition-{index}")
    admin.do("PUT", f"{base}/offload", message(last, partition=1))
    admin.offloading.begin()
    admin.offloading.finish()
    assert admin.get(f"{base}-partition-0/offload")["status"] == "NOT_RUN"
    assert admin.get(f"{base}-partition-1/offload")["status"] == "SUCCESS"
    assert len(offloaded(admin, f"{base}-partition-1")) == 1
    assert "p-partition-0" in admin.refused(404, "PUT", f"{base}/offload", message(last))
    assert "p-partition-0" in admin.refused(404, "GET", f"{base}/offload")


def test_a_threshold_set_over_the_api_offloads(admin: Admin) -> None:
    first, second, third = admin.write_ledgers(3)
    admin.offloading.begin()
    admin.offloading.finish()
    assert offloaded(admin) == []
    sizes = {row["ledgerId"]: row["size"] for row in admin.get(f"{TOPIC}/internalStats")["ledgers"]}
    admin.do("PUT", "namespaces/public/default/offloadThreshold", sizes[second] + sizes[third])
    admin.offloading.begin()
    admin.offloading.finish()
    assert offloaded(admin) == [first]
    admin.do("POST", f"{TOPIC}/offloadPolicies", {"managedLedgerOffloadThresholdInBytes": sizes[third]})
    admin.offloading.begin()
    admin.offloading.finish()
    assert offloaded(admin) == [first, second]


def test_every_ledger_is_explained_of_a_topic_and_of_all_partitions(admin: Admin) -> None:
    (closed,) = admin.write_ledgers(1)
    rows = admin.get(f"{TOPIC}/explain")
    assert rows[0] == {
        "topic": "persistent://public/default/t",
        "ledger_id": closed,
        "state": "not-triggered",
        "sentence": rows[0]["sentence"],
        "next_ms": None,
        "error": None,
    }
    assert "managedLedgerOffloadThresholdInBytes" in rows[0]["sentence"]
    admin.do("PUT", "persistent/public/default/p/partitions", 2)
    for index in range(2):
        admin.write_ledgers(1, f"public/default/persistent/p-partition-{index}")
    partitions = {row["topic"] for row in admin.get("persistent/public/default/p/explain")}
    assert partitions == {f"persistent://public/default/p-partition-{index}" for index in range(2)}


def test_a_missing_topic_is_not_offloaded(admin: Admin) -> None:
    before = admin.state()
    for path in ("persistent/public/default/none", "persistent/public/none/t"):
        admin.refused(404, "PUT", f"{path}/offload", message(0))
        for part in ("offload", "explain"):
            admin.refused(404, "GET", f"{path}/{part}")
    assert admin.state() == before


def test_a_broker_without_offload_refuses_with_the_reason(start: Callable[..., Admin]) -> None:
    admin = start()
    admin.do("PUT", TOPIC)
    assert "start it with a tier" in admin.refused(412, "PUT", f"{TOPIC}/offload", message(0))
    assert "start it with a tier" in admin.refused(412, "GET", f"{TOPIC}/offload")
    assert "start it with a tier" in admin.refused(412, "GET", f"{TOPIC}/explain")
    assert admin.get(f"{TOPIC}/stats")["offloadedStorageSize"] == 0


def test_statistics_have_the_offloaded_size(admin: Admin) -> None:
    first, last = admin.write_ledgers(2)
    found = admin.get(f"{TOPIC}/stats")
    names = ("lastOffloadLedgerId", "lastOffloadSuccessTimeStamp", "lastOffloadFailureTimeStamp")
    assert [found[name] for name in ("offloadedStorageSize", *names)] == [0, 0, 0, 0]
    admin.do("PUT", f"{TOPIC}/offload", message(last))
    admin.offloading.begin()
    admin.offloading.finish()
    found = admin.get(f"{TOPIC}/stats")
    sizes = {row["ledgerId"]: row["size"] for row in admin.get(f"{TOPIC}/internalStats")["ledgers"]}
    assert found["offloadedStorageSize"] == sizes[first] > 0
    assert found["lastOffloadLedgerId"] == first
    assert found["lastOffloadSuccessTimeStamp"] > 0
    assert found["lastOffloadFailureTimeStamp"] == 0


def test_statistics_of_partitions_are_summed_and_the_latest_times_taken(admin: Admin) -> None:
    base = "persistent/public/default/p"
    admin.do("PUT", f"{base}/partitions", 2)
    for index in range(2):
        _, last = admin.write_ledgers(2, f"public/default/persistent/p-partition-{index}")
        admin.do("PUT", f"{base}-partition-{index}/offload", message(last))
    admin.offloading.begin()
    admin.offloading.finish()
    found = admin.get(f"{base}/partitioned-stats")
    each = list(found["partitions"].values())
    assert found["offloadedStorageSize"] == sum(row["offloadedStorageSize"] for row in each) > 0
    for name in ("lastOffloadLedgerId", "lastOffloadSuccessTimeStamp"):
        assert found[name] == max(row[name] for row in each) > 0


def test_the_metadata_of_an_offloaded_ledger_names_its_attempt(admin: Admin) -> None:
    first, last = admin.write_ledgers(2)
    admin.do("PUT", f"{TOPIC}/offload", message(last))
    admin.offloading.begin()
    admin.offloading.finish()
    rows = {row["ledgerId"]: row for row in admin.get(f"{TOPIC}/internal-info")["ledgers"]}
    assert rows[first]["isOffloaded"]
    assert rows[first]["offloadedContextUuid"]
    assert not rows[last]["isOffloaded"]


def test_statistics_count_reads_by_tier(admin: Admin) -> None:
    counters = ReadCounters()
    counters.served(StorageTier.TIERED, 3, 300)
    counters.fell_back(StorageTier.TIERED, "object_missing")
    admin.server.read_counts = lambda name: counters.counts() if name == NAME else None
    assert admin.get(f"{TOPIC}/stats")["afterglowReads"] == {
        "hot": {"entries": 0, "bytes": 0},
        "tiered": {"entries": 3, "bytes": 300},
        "fallbacks": [{"wanted": "tiered", "reason": "object_missing", "reads": 1}],
        "leftOut": {},
    }
    admin.server.read_counts = lambda _name: None
    assert "afterglowReads" not in admin.get(f"{TOPIC}/stats")


def test_the_ledgers_in_a_tier_are_scanned(admin: Admin) -> None:
    first, second, third = admin.write_ledgers(3)
    path = "namespaces/public/default/scanOffloadedLedgers"
    assert admin.get(path) == {"objects": [], "total": 0, "errors": 0, "unknown": 0, "complete": True}
    admin.do("PUT", f"{TOPIC}/offload", message(third))
    admin.offloading.begin()
    admin.offloading.finish()
    found = admin.get(path)
    assert (found["total"], found["errors"], found["unknown"]) == (2, 0, 0)
    assert {row["ledger"] for row in found["objects"]} == {first, second}
    for row in found["objects"]:
        assert (row["status"], row["numEntries"], row["offloaded"]) == ("OK", 1, True)
        assert row["managedLedgerName"] == "public/default/persistent/t"
        assert row["name"] == f"{row['uuid']}-ledger-{row['ledger']}"
    admin.do("DELETE", f"{TOPIC}?force=true")
    left = admin.get(path)
    assert left["errors"] == left["total"]


def test_one_tier_is_scanned_at_a_time(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "namespaces/public/default/scanOffloadedLedgers"
    seen: list[str] = []

    def scan(*_args: object, **_kwargs: object) -> LedgerScan:
        seen.append(admin.refused(409, "GET", path))
        return LedgerScan((), complete=False)

    monkeypatch.setattr("afterglow.offload.service.scan_ledgers", scan)
    assert admin.get(path)["complete"] is False
    assert admin.get(path)["complete"] is False
    assert len(seen) == 2


def test_searches_by_callers_leave_threads_to_consumers(admin: Admin) -> None:
    found: list[int] = []

    async def search() -> None:
        turns = asyncio.Semaphore(0)
        call = BrokerCall(admin.server, ReadLimits(turns), Request({"type": "http"}))
        waiting = asyncio.create_task(call.search(found.append, 1))
        for _ in range(4):
            await admin.service.run_in_tier_pool(found.copy)
        assert found == []
        turns.release()
        await waiting
        assert found == [1]

    admin.run(search())
