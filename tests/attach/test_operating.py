"""Operation of attached topics over the admin API: offload, deletion of segments, verification, policies, metrics."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.attached_topics import CLUSTER, SUBSCRIPTION, AttachedHere, FakeCluster
from tests.support.served_topics import eventually

from afterglow.attach.policies import read_policy_file
from afterglow.config import AuthenticationProvider
from afterglow.format.position import Position
from afterglow.pipeline.metrics.definitions import GROUPS, METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from afterglow.attach.policies import PolicyFile


TOPIC = "persistent://public/default/t"
PATH = "persistent/public/default/t"
OTHER = "persistent://public/other/u"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with FakeCluster(directory) as cluster:
        cluster.write(TOPIC, 7, 20, closed=True)
        cluster.write(TOPIC, 9, 10)
        cluster.write(OTHER, 12, 5)
        yield cluster


@pytest.fixture
def attach(tmp_path: Path, cluster: FakeCluster) -> Iterator[Callable[..., AttachedHere]]:
    """Attaches a process and waits until it knows the topics; a further one replaces it."""
    running: list[AttachedHere] = []

    def begin(**options: Any) -> AttachedHere:
        if running:
            options.setdefault("metadata", running[-1].metadata)
            running.pop().__exit__()
        process = AttachedHere(tmp_path, cluster, **options).__enter__()
        running.append(process)
        process.attached(TOPIC, 30)
        process.attached(OTHER, 5)
        return process

    yield begin
    for process in running:
        process.__exit__()


def policies(path: Path, text: str) -> PolicyFile:
    file = path / "attach.toml"
    file.write_text(text)
    return read_policy_file(file)


def held_up_to(cluster: FakeCluster, position: Position, topic: str = TOPIC) -> None:
    """Wait until the subscription of a topic is acknowledged up to a position."""
    eventually(lambda: cluster.broker.marked.get(topic) == position, lambda: cluster.broker.marked)


# --- offload ---


def test_a_manual_offload_commits_all_entries_and_acknowledges_them(
    attach: Callable[..., AttachedHere], cluster: FakeCluster
) -> None:
    process = attach()
    assert process.call("PUT", f"{PATH}/offload", "latest").status == 204
    process.in_tier(TOPIC)
    eventually(lambda: process.get(f"{PATH}/offload")["status"] == "SUCCESS", lambda: process.get(f"{PATH}/offload"))
    segments = process.get(f"{PATH}/segments")
    assert [row["status"] for row in segments] == ["Offloaded"] * len(segments)
    assert sum(row["entries"] for row in segments) == 30
    explained = process.get(f"{PATH}/explain")
    assert [(row["ledger_id"], row["state"]) for row in explained] == [(7, "offloaded"), (9, "in-segments")]
    held_up_to(cluster, Position(9, 9))
    log = process.get(f"{PATH}/log")
    assert log["lag_bytes"] == 0
    assert [row["kind"] for row in log["objects"]] == ["segment"] * len(segments)
    assert log["cursors"][0]["backlog"] == 0


def test_a_second_manual_offload_is_refused_while_one_runs(attach: Callable[..., AttachedHere]) -> None:
    process = attach()
    assert process.call("PUT", f"{PATH}/offload", "latest").status == 204
    answer = process.call("PUT", f"{PATH}/offload", "latest")
    assert (answer.status, answer.reason) == (409, "Offload already in progress")


# --- deletion of segments ---


def objects_of(process: AttachedHere) -> list[Path]:
    """Objects in the tier; ``.uploads`` is the store's own."""
    return sorted(path for path in process.tier.iterdir() if path.name != ".uploads")


def test_segments_are_deleted_of_a_topic_a_namespace_and_all(
    attach: Callable[..., AttachedHere], cluster: FakeCluster, tmp_path: Path
) -> None:
    process = attach()
    for topic, path in ((TOPIC, PATH), (OTHER, "persistent/public/other/u")):
        assert process.call("PUT", f"{path}/offload", "latest").status == 204
        process.in_tier(topic)
    held_up_to(cluster, Position(9, 9))
    streaming = process.call("POST", f"{PATH}/deleteOffloaded?streaming=true&dryRun=false")
    assert streaming.status == 412
    assert "streamingOffloadEnabled" in streaming.reason
    before = objects_of(process)

    process = attach(policies=policies(tmp_path, "[policies]\nstreamingOffloadEnabled = false\n"))
    rows = process.call("POST", "afterglow/deleteOffloaded?streaming=true").json
    assert {row["topic"]: row["state"] for row in rows} == {TOPIC: "planned", OTHER: "planned"}
    assert objects_of(process) == before
    [row] = process.call("POST", "namespaces/public/other/deleteOffloaded?streaming=true&dryRun=false").json
    assert (row["topic"], row["state"]) == (OTHER, "deleted")
    [plan] = process.call("POST", f"{PATH}/deleteOffloaded?streaming=true&dryRun=false").json
    assert plan["topic"] == TOPIC
    assert plan["lost"] == []
    assert process.get(f"{PATH}/segments") == []

    def left() -> list[Path]:
        process.offload.tick()
        return objects_of(process)

    eventually(lambda: left() == [], left)


# --- verification ---


def verified(process: AttachedHere, body: dict[str, Any] | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Findings and the result of a verification."""
    answer = process.call("POST", "afterglow/verify", body or {})
    assert answer.status == 200
    lines = [json.loads(line) for line in answer.body.splitlines()]
    return [line["finding"] for line in lines if "finding" in line], lines[-1]["result"]


def test_verification_finds_a_missing_object_and_nothing_else(attach: Callable[..., AttachedHere]) -> None:
    process = attach()
    assert process.call("PUT", f"{PATH}/offload", "latest").status == 204
    process.in_tier(TOPIC)
    findings, result = verified(process)
    assert (findings, result["state"], result["faults"]) == ([], "done", 0)
    key = process.get(f"{PATH}/segments")[0]["key"]
    (process.tier / key).unlink()
    findings, result = verified(process)
    assert [(row["kind"], row["topic"]) for row in findings] == [("missing_object", TOPIC)]
    assert result["faults"] == 1


# --- policies ---


def test_policies_name_the_flag_or_the_table_that_sets_them(
    attach: Callable[..., AttachedHere], tmp_path: Path
) -> None:
    file = policies(
        tmp_path,
        "[policies]\nmaxOffloadSegmentRolloverTimeInSeconds = 600\n"
        '[topics."public/default/.*"]\nmaxOffloadSegmentSizeInBytes = 33554432\n',
    )
    process = attach(policies=file)
    rows = {row["name"]: (row["value"], row["origin"], row["source"]) for row in process.get(f"{PATH}/policy")}
    assert rows["maxOffloadSegmentSizeInBytes"] == (33554432, "topic", 'attach.toml [topics."public/default/.*"]')
    assert rows["maxOffloadSegmentRolloverTimeInSeconds"] == (600, "broker", "attach.toml [policies]")
    assert rows["streamingOffloadBlockSizeInBytes"][1:] == ("default", "default")
    other = {row["name"]: row for row in process.get("persistent/public/other/u/policy")}
    assert other["maxOffloadSegmentSizeInBytes"]["origin"] == "default"
    applied = process.get(f"{PATH}/offloadPolicies?applied=true")
    assert applied["maxSizePerOffloadSegmentMbytes"] == 32


# --- access ---


def test_roles_are_those_of_the_clusters_tenants(attach: Callable[..., AttachedHere], cluster: FakeCluster) -> None:
    cluster.put_json("/admin/policies/public", {"adminRoles": ["boss"], "allowedClusters": [CLUSTER]})
    key = b"k" * 32
    process = attach(
        authentication_enabled=True,
        authentication_providers=(AuthenticationProvider.TOKEN,),
        token_secret_key=base64.b64encode(key).decode(),
        authorization_enabled=True,
        super_user_roles=("root",),
    )

    def status(role: str | None, method: str, path: str) -> int:
        token = None if role is None else jwt.encode({"sub": role}, key, "HS256")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return process.call(method, path, "latest", headers).status

    assert status(None, "GET", f"{PATH}/stats") == 401
    assert status("stranger", "GET", f"{PATH}/stats") == 403
    assert status("stranger", "PUT", f"{PATH}/offload") == 403
    assert status("boss", "GET", f"{PATH}/stats") == 200
    assert status("boss", "PUT", f"{PATH}/offload") == 204
    assert status("boss", "POST", "afterglow/deleteOffloaded?streaming=true") == 403
    assert status("boss", "POST", "afterglow/verify") == 403
    assert status("root", "POST", "afterglow/deleteOffloaded?streaming=true") == 200


# --- metrics ---


class Scrape:
    """Samples of one scrape."""

    def __init__(self, process: AttachedHere) -> None:
        text = process.call("GET", "/metrics").body.decode()
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        wanted = {"cluster": CLUSTER, **labels}
        [found] = [sample.value for sample in self.samples if sample.name == name and sample.labels == wanted]
        return found


def test_metrics_show_lag_hold_lost_entries_and_load(attach: Callable[..., AttachedHere], cluster: FakeCluster) -> None:
    process = attach()
    labels = {"namespace": "public/default", "topic": TOPIC}
    eventually(
        lambda: Scrape(process).value("afterglow_attach_held", **labels) == 1, lambda: process.holds.state(TOPIC)
    )
    scrape = Scrape(process)
    assert scrape.value("afterglow_attach_lag_entries", **labels) == 30
    assert scrape.value("afterglow_offload_lag_bytes", **labels) > 30_000
    assert scrape.value("afterglow_attach_topics", namespace="public/default") == 1
    assert scrape.value("afterglow_attach_read_bytes_total", route="bookies") == 0
    assert scrape.value("afterglow_attach_polls_total", result="read") >= 2
    assert process.call("PUT", f"{PATH}/offload", "latest").status == 204
    process.in_tier(TOPIC)
    cluster.write(TOPIC, 9, 14)
    process.attached(TOPIC, 34)
    scrape = Scrape(process)
    assert scrape.value("afterglow_attach_lag_entries", **labels) == 4
    assert scrape.value("afterglow_attach_confirmed_entries_total", **labels) == 4
    assert scrape.value("afterglow_attach_read_bytes_total", route="bookies") > 30_000
    assert scrape.value("afterglow_attach_lost_entries", **labels) == 0
    declared = {metric.name for group in GROUPS if group.attached for metric in group.metrics}
    emitted = {sample.name: set(sample.labels) for sample in scrape.samples}
    assert declared <= set(emitted)
    assert set(emitted) <= set(METRICS)
    assert all(emitted[name] == {"cluster", *METRICS[name].labels} for name in emitted)
    assert not any(name.startswith(("pulsar_topics", "pulsar_in")) for name in emitted)


def test_entries_that_the_cluster_trims_too_early_are_an_alert(
    attach: Callable[..., AttachedHere], cluster: FakeCluster
) -> None:
    process = attach()
    cluster.trim(TOPIC, 7)
    labels = {"namespace": "public/default", "topic": TOPIC}
    eventually(
        lambda: Scrape(process).value("afterglow_attach_lost_entries", **labels) == 20,
        lambda: process.topics.opened("public/default/persistent/t"),
    )
    assert Scrape(process).value("afterglow_attach_lag_entries", **labels) == 10


def test_a_topic_that_cannot_be_followed_is_reported(attach: Callable[..., AttachedHere], cluster: FakeCluster) -> None:
    process = attach()
    cluster.admin.statuses[f"{PATH}/internalStats"] = 403
    cluster.write(TOPIC, 9, 12)
    labels = {"namespace": "public/default", "topic": TOPIC}
    eventually(lambda: Scrape(process).value("afterglow_attach_follow_failing", **labels) == 1, process.follower.polls)
    assert Scrape(process).value("afterglow_attach_polls_total", result="failed") >= 1
    del cluster.admin.statuses[f"{PATH}/internalStats"]
    process.attached(TOPIC, 32)
    assert SUBSCRIPTION in process.get(f"{PATH}/stats")["subscriptions"]
