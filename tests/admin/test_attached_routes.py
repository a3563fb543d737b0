"""The admin API of a process that is attached to a cluster: what it serves, and what it leaves to the cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.support.attached_topics import CLUSTER, ENTRY_BYTES, SUBSCRIPTION, AttachedHere, FakeCluster

from afterglow.admin.app import ALL_RESOURCES
from afterglow.admin.attached_app import SERVED

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "persistent://public/default/t"
PATH = "persistent/public/default/t"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    with FakeCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.write(TOPIC, 3, 20, closed=True)
        cluster.write(TOPIC, 5, 10)
        for partition in range(2):
            cluster.write(f"persistent://public/default/p-partition-{partition}", 10 + partition, 5)
        cluster.write("persistent://acme/orders/other", 20, 1)
        cluster.put_json("/admin/policies/acme", {"adminRoles": ["boss"], "allowedClusters": [CLUSTER]})
        yield cluster


@pytest.fixture(scope="module")
def process(cluster: FakeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttachedHere]:
    """A process with three attached topics; tests only read, so that they may share it."""
    with AttachedHere(tmp_path_factory.mktemp("attached"), cluster) as process:
        for topic, entries in ((TOPIC, 30), ("persistent://public/default/p-partition-1", 5)):
            process.attached(topic, entries)
        process.attached("persistent://acme/orders/other", 1)
        yield process


def test_attached_topics_are_listed(process: AttachedHere) -> None:
    assert process.get("tenants") == ["acme", "public"]
    assert process.get("namespaces/public") == ["public/default"]
    partitions = [f"persistent://public/default/p-partition-{index}" for index in range(2)]
    assert process.get("persistent/public/default") == [*partitions, TOPIC]
    assert process.get("namespaces/public/default/topics") == [*partitions, TOPIC]
    assert process.get("persistent/public/default/partitioned") == ["persistent://public/default/p"]
    assert process.get("persistent/public/default/p/partitions")["partitions"] == 2
    assert process.get(f"{PATH}/partitions")["partitions"] == 0
    assert process.call("GET", "namespaces/nobody").status == 404
    assert process.call("GET", "persistent/public/default/missing/partitions").status == 404


def test_whatever_only_a_broker_serves_is_refused_with_the_address_of_the_cluster(process: AttachedHere) -> None:
    served = {(method, resource.path) for resources in SERVED for resource in resources for method in resource.actions}
    names = {"tenant": "public", "namespace": "default", "topic": "t"}
    seen = 0
    for resource in (resource for resources in ALL_RESOURCES for resource in resources):
        path = re.sub(r"{(\w+)(:path)?}", lambda part: names.get(part[1], "x"), resource.path)
        for method in resource.actions:
            if (method, resource.path) in served or (method == "GET" and path.startswith("/console")):
                continue
            answer = process.call(method, path, {})
            assert answer.status == 405, (method, path, answer)
            assert answer.reason == (
                f"{method} {path} is not served by afterglow attach: use the admin API of cluster {CLUSTER}, "
                f"{process.cluster.admin.url}"
            )
            seen += 1
    assert seen > 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"{PATH}"),
        ("DELETE", f"{PATH}"),
        ("PUT", f"{PATH}/subscription/s"),
        ("POST", f"{PATH}/offloadPolicies"),
        ("PUT", "namespaces/public/new"),
        ("POST", "namespaces/public/default/retention"),
        ("POST", f"{PATH}/permissions/dev"),
        ("GET", "/lookup/v2/topic/persistent/public/default/t"),
    ],
)
def test_what_belongs_to_the_cluster_cannot_be_changed(process: AttachedHere, method: str, path: str) -> None:
    assert "use the admin API of cluster lab" in _refused(process, method, path)


def _refused(process: AttachedHere, method: str, path: str) -> str:
    answer = process.call(method, path, {})
    assert answer.status == 405
    return answer.reason


def test_statistics_show_log_tier_and_subscription(process: AttachedHere) -> None:
    stats = process.get(f"{PATH}/stats")
    assert stats["storageSize"] > 30 * ENTRY_BYTES
    subscription = stats["subscriptions"][SUBSCRIPTION]
    assert (subscription["msgBacklog"], stats["offloadedStorageSize"]) == (30, 0)
    internal = process.get(f"{PATH}/internalStats")
    assert [(row["ledgerId"], row["entries"]) for row in internal["ledgers"]] == [(3, 20), (5, 0)]
    assert (internal["currentLedgerEntries"], internal["lastConfirmedEntry"]) == (10, "5:9")
    assert internal["cursors"][SUBSCRIPTION]["markDeletePosition"] == "3:-1"
    whole = process.get("persistent/public/default/p/partitioned-stats")
    assert whole["subscriptions"][SUBSCRIPTION]["msgBacklog"] == 10
    assert len(whole["partitions"]) == 2
    assert process.get(f"{PATH}/subscriptions") == [SUBSCRIPTION]


def test_the_log_has_the_ledgers_of_the_cluster_and_the_cursor_of_attach(process: AttachedHere) -> None:
    log = process.get(f"{PATH}/log")
    assert [(row["ledger_id"], row["entries"], row["status"]) for row in log["ledgers"]] == [
        (3, 20, "closed"),
        (5, 10, "open"),
    ]
    [cursor] = log["cursors"]
    assert (cursor["name"], cursor["backlog"], cursor["index"]) == (SUBSCRIPTION, 30, 0)
    assert log["entries"] == 30
    assert [row["ledger_id"] for row in process.get(f"{PATH}/log?from=4")["ledgers"]] == [5]


def test_the_overview_has_every_topic_and_names_the_cluster(process: AttachedHere) -> None:
    rows = {row["topic"]: row for row in process.get("afterglow/topics")["topics"]}
    assert rows[TOPIC]["offload"] == "streaming"
    assert (rows[TOPIC]["entries"], rows[TOPIC]["backlog"]) == (30, 30)
    assert rows["persistent://public/default/p"]["partitions"] == 2
    attached_to = process.get("afterglow/process")["attachedTo"]
    assert attached_to == {"cluster": CLUSTER, "adminUrl": process.cluster.admin.url, "subscription": SUBSCRIPTION}
    assert process.get("afterglow/tiers") == [] or process.get("afterglow/tiers")[0]["available"]


def test_the_console_is_served(process: AttachedHere) -> None:
    assert b"<title>Afterglow</title>" in process.call("GET", "/console").body


def test_probes_answer(process: AttachedHere) -> None:
    assert process.call("GET", "/status.html").body == b"OK"
    assert process.call("GET", "brokers/health").body == b"ok"
    assert process.get("brokers/configuration/runtime")["clusterName"] == CLUSTER
    assert process.call("GET", "brokers/standalone").status == 405
