from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.pipeline.metrics.broker import BrokerMetrics
from afterglow.pipeline.metrics.collector import own_figures
from afterglow.pipeline.metrics.overview import Overview

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin

NAME = "persistent://public/default/{}"
EVERYTHING = "latest"


@pytest.fixture
def admin(start: Callable[..., Admin]) -> Admin:
    """A broker that keeps everything, with a topic that streams, one that does not, and a partitioned one."""
    admin = start(offload=True, default_retention_size_in_mb=-1, default_retention_time_in_minutes=-1)
    for name in ("streams", "stays"):
        admin.do("PUT", f"persistent/public/default/{name}")
    admin.do("PUT", "persistent/public/default/parted/partitions", 2)
    admin.do("POST", "persistent/public/default/streams/offloadPolicies", {"streamingOffloadEnabled": True})
    return admin


def rows(admin: Admin, query: str = "") -> dict[str, Any]:
    """Rows by name. A snapshot is cached briefly, so that a test must set up everything before the first."""
    return {row["topic"]: row for row in admin.get(f"afterglow/topics{query}")["topics"]}


def offload(admin: Admin, topic: str) -> None:
    admin.do("PUT", f"persistent/public/default/{topic}/offload", EVERYTHING)
    for _ in range(2):
        admin.offloading.begin()
        admin.offloading.finish()


def test_every_topic_has_a_row_with_what_is_in_the_tier_and_what_is_not(admin: Admin) -> None:
    admin.write_ledgers(3, "public/default/persistent/streams")
    offload(admin, "streams")
    admin.write_entries(1, "public/default/persistent/streams")
    admin.write_ledgers(2, "public/default/persistent/stays")
    found = rows(admin)
    assert set(found) == {NAME.format(name) for name in ("streams", "stays", "parted")}
    streams, stays = found[NAME.format("streams")], found[NAME.format("stays")]
    assert (streams["offload"], stays["offload"]) == ("streaming", "manual")
    assert (streams["entries"], stays["entries"]) == (4, 2)
    assert streams["size_bytes"] == streams["offloaded_bytes"] + streams["lag_bytes"]
    assert 3 * streams["lag_bytes"] == streams["offloaded_bytes"] > 0
    assert stays["lag_bytes"] == stays["size_bytes"] == 2 * streams["lag_bytes"]
    assert not streams["failing"]


def test_figures_are_those_of_the_statistics(admin: Admin) -> None:
    admin.do("PUT", "persistent/public/default/stays/subscription/s", "earliest")
    admin.write_entries(3, "public/default/persistent/stays")
    found = rows(admin)[NAME.format("stays")]
    stats = admin.get("persistent/public/default/stays/stats")
    assert found["size_bytes"] == stats["storageSize"]
    assert (found["backlog"], found["subscriptions"], found["open"]) == (3, 1, True)


def test_idle_topics_are_not_opened(admin: Admin) -> None:
    admin.write_ledgers(2, "public/default/persistent/stays")
    admin.get("persistent/public/default/stays/stats")
    admin.do("PUT", "persistent/public/default/stays/unload")
    opened = {ledger.name for ledger in admin.service.store.all_opened()}
    assert "public/default/persistent/stays" not in opened
    found = rows(admin)[NAME.format("stays")]
    assert (found["open"], found["entries"]) == (False, 2)
    assert found["lag_bytes"] == found["size_bytes"] > 0
    assert {ledger.name for ledger in admin.service.store.all_opened()} == opened


def test_partitions_are_one_topic_and_can_be_listed(admin: Admin) -> None:
    for index in range(2):
        admin.write_entries(index + 1, f"public/default/persistent/parted-partition-{index}")
    # named like a partition, and none
    admin.do("PUT", "persistent/public/default/odd-partition-0")
    found = rows(admin)
    whole = found[NAME.format("parted")]
    assert (whole["partitions"], whole["entries"]) == (2, 3)
    assert found[NAME.format("odd-partition-0")]["partitions"] == 0
    assert NAME.format("parted-partition-0") not in found
    parts = admin.get(f"afterglow/topics?partitionsOf={NAME.format('parted')}")
    assert [(row["topic"], row["entries"]) for row in parts["topics"]] == [
        (NAME.format("parted-partition-0"), 1),
        (NAME.format("parted-partition-1"), 2),
    ]
    assert parts["totals"]["entries"] == 3


def test_pages_are_filtered_sorted_and_cut(admin: Admin) -> None:
    admin.write_entries(2, "public/default/persistent/stays")
    admin.write_entries(1, "public/default/persistent/streams")
    names = ["stays", "streams", "parted"]
    by_size = admin.get("afterglow/topics?sort=size&descending=true")
    assert [row["topic"] for row in by_size["topics"]] == [NAME.format(name) for name in names]
    second = admin.get("afterglow/topics?sort=size&descending=true&offset=1&limit=1")
    assert [row["topic"] for row in second["topics"]] == [NAME.format("streams")]
    assert (second["total"], second["matching"]) == (3, 3)
    found = admin.get("afterglow/topics?filter=DEFAULT%20st&limit=0")
    assert (found["total"], found["matching"], found["topics"]) == (3, 2, [])
    assert found["totals"]["entries"] == 3


def test_malformed_parameters_are_refused(shared: Admin) -> None:
    for query in ("sort=age", "limit=1001", "limit=-1", "offset=x", "descending=2"):
        answer = shared.call("GET", f"afterglow/topics?{query}")
        assert answer.status in {400, 412}
        assert query.split("=", maxsplit=1)[0] in answer.reason


def test_a_snapshot_is_cached_briefly_and_rates_are_measured_since(shared: Admin) -> None:
    shared.call("PUT", "persistent/public/default/measured")
    shared.get("persistent/public/default/measured/stats")
    clock = [0.0]
    overview = Overview(shared.server, partial(own_figures, BrokerMetrics(shared.server)), lambda: clock[0])
    first = shared.run(overview.snapshot())
    clock[0] = 0.9
    assert shared.run(overview.snapshot()) is first
    topic = next(topic for name, topic in shared.service.open_topics.items() if name.local_name == "measured")
    topic.past_traffic_in.add(20, 200)
    clock[0] = 10.0
    [row] = [row for row in shared.run(overview.snapshot()).topics if row.topic.endswith("measured")]
    assert (row.messages_in_per_second, row.bytes_in_per_second) == (2.0, 20.0)


def test_a_failing_topic_is_marked(admin: Admin) -> None:
    admin.write_ledgers(1, "public/default/persistent/streams")
    admin.offloading.tier.rmdir()
    offload(admin, "streams")
    answer = admin.get("afterglow/topics?sort=state&descending=true")
    assert answer["failing"] == 1
    assert next((row["topic"], row["failing"]) for row in answer["topics"]) == (NAME.format("streams"), True)


def test_a_broker_that_does_not_offload_has_no_modes(start: Callable[..., Admin]) -> None:
    admin = start()
    admin.do("PUT", "persistent/public/default/t")
    [row] = admin.get("afterglow/topics")["topics"]
    assert (row["offload"], row["offloaded_bytes"], row["failing"]) == ("none", 0, False)
