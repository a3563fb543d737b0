"""``--when-behind release``: the hold of a topic is given up before a backlog quota blocks its producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.attached_topics import ENTRY_BYTES, AttachedHere, FakeCluster
from tests.support.clock import ManualClock
from tests.support.served_topics import eventually

from afterglow.attach.quota_release import QuotaLimits, QuotaRelease
from afterglow.errors import HotLogError
from afterglow.format.position import Position
from afterglow.hot.pulsar import SkippedRange
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.recorded_admin import RecordedAdmin

    from afterglow.attach.topic import AttachedTopic

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
PATH = "persistent/public/default/t"
START, END = Position(7, -1), Position(9, 9)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with FakeCluster(directory) as cluster:
        cluster.write(TOPIC, 7, 20, closed=True)
        cluster.write(TOPIC, 9, 10)
        set_quota(cluster.admin, 1_000_000)
        yield cluster


@pytest.fixture
def process(cluster: FakeCluster, tmp_path: Path) -> Iterator[AttachedHere]:
    with AttachedHere(tmp_path, cluster) as process:
        process.attached(TOPIC, 30)
        eventually(lambda: TOPIC in cluster.broker.consumers, lambda: cluster.broker.consumers)
        yield process


def set_quota(admin: RecordedAdmin, limit: int) -> None:
    quota = {"limitSize": limit, "limitTime": -1, "policy": "producer_request_hold"}
    admin.answers["brokers/configuration/runtime"] = {"clusterName": "lab"}
    admin.answers["namespaces/public/default"] = {"backlog_quota_map": {"destination_storage": quota}}


def opened(process: AttachedHere) -> AttachedTopic:
    found = process.topics.opened(NAME.managed_ledger_name)
    assert found is not None
    return found


def release(process: AttachedHere, limit: int | None) -> bool:
    return QuotaRelease(process.topics, process.holds, lambda _: limit).check_topic(opened(process))


def may_be_lost(process: AttachedHere) -> bool:
    metrics = process.call("GET", "/metrics").body.decode()
    (line,) = (line for line in metrics.splitlines() if line.startswith("afterglow_attach_may_be_lost{"))
    return line.endswith(" 1.0")


def test_below_the_limit_the_subscription_holds_everything(process: AttachedHere, cluster: FakeCluster) -> None:
    behind = opened(process).bytes_behind(None)
    assert behind > 30 * ENTRY_BYTES
    assert not release(process, behind + 1)
    assert not release(process, None)
    assert opened(process).released is None
    assert cluster.broker.marked[TOPIC] == START


def test_at_the_limit_the_hold_is_given_up_and_the_range_is_recorded_and_alerted(
    process: AttachedHere, cluster: FakeCluster
) -> None:
    assert not may_be_lost(process)
    assert release(process, opened(process).bytes_behind(None))
    eventually(lambda: cluster.broker.marked[TOPIC] == END, lambda: cluster.broker.marked)
    assert opened(process).released == SkippedRange(START, END)
    assert may_be_lost(process)
    assert not release(process, 1), "the backlog counts from there"


def test_the_record_is_written_before_the_acknowledgement(process: AttachedHere, cluster: FakeCluster) -> None:
    process.follower.close()
    process.holds.release(TOPIC).result(60)
    with pytest.raises(HotLogError):
        release(process, 1)
    assert opened(process).released == SkippedRange(START, END)
    assert cluster.broker.marked[TOPIC] == START


def test_once_the_range_is_in_the_tier_nothing_may_be_lost(process: AttachedHere) -> None:
    assert release(process, 1)
    assert process.call("PUT", f"{PATH}/offload", "latest").status == 204
    process.in_tier(TOPIC)
    assert opened(process).released is None
    assert opened(process).held_from == END
    assert not may_be_lost(process)


def test_a_restarted_process_knows_the_range_and_does_not_hold_it_again(
    process: AttachedHere, cluster: FakeCluster, tmp_path: Path
) -> None:
    assert release(process, 1)
    eventually(lambda: cluster.broker.marked[TOPIC] == END, lambda: cluster.broker.marked)
    process.__exit__()
    with AttachedHere(tmp_path, cluster, metadata=process.metadata) as next_one:
        next_one.attached(TOPIC, 30)
        assert opened(next_one).released == SkippedRange(START, END)
        assert opened(next_one).held_from == END
        eventually(lambda: next_one.holds.state(TOPIC).held, lambda: next_one.holds.state(TOPIC))
        assert next_one.holds.state(TOPIC).may_be_lost is None, "this process itself has released it"


def test_a_second_release_extends_the_range(process: AttachedHere, cluster: FakeCluster) -> None:
    assert release(process, 1)
    cluster.write(TOPIC, 9, 15)
    process.attached(TOPIC, 35)
    assert release(process, 1)
    assert opened(process).released == SkippedRange(START, Position(9, 14))


def test_bytes_behind_a_position_count_the_entries_after_it(process: AttachedHere) -> None:
    topic = opened(process)
    whole = topic.bytes_behind(None)
    assert topic.bytes_behind(START) == whole == topic.size_bytes
    assert topic.bytes_behind(END) == 0
    assert topic.bytes_behind(Position(7, 19)) == pytest.approx(whole / 3, rel=0.01)
    assert topic.bytes_behind(Position(7, 9)) == pytest.approx(whole * 2 / 3, rel=0.01)


def test_the_limit_is_seventy_percent_of_the_quota_of_the_cluster_and_follows_it(cluster: FakeCluster) -> None:
    clock = ManualClock()
    limits = QuotaLimits(AdminClient(cluster.admin.url, ClusterCredentials.of(None, None)), clock)
    assert limits.release_bytes(NAME) == 700_000
    set_quota(cluster.admin, 500_000)
    asked = len(cluster.admin.asked)
    assert limits.release_bytes(NAME) == 700_000
    assert len(cluster.admin.asked) == asked
    clock.advance(60)
    assert limits.release_bytes(NAME) == 350_000


# --- what counts as skipped by others ---


def test_a_mark_delete_position_at_the_start_of_the_next_ledger_skips_nothing(
    process: AttachedHere, cluster: FakeCluster
) -> None:
    topics = process.topics
    assert not topics.has_entries(NAME, END, Position(12, -1))
    assert not topics.has_entries(NAME, Position(7, 19), Position(9, -1))
    assert topics.has_entries(NAME, Position(7, 18), Position(9, -1))
    assert topics.has_entries(NAME, Position(7, 19), Position(12, -1))
    assert topics.has_entries(NAME, END, Position(12, 0))
    process.follower.close()
    cluster.write(TOPIC, 10, 3, closed=True)
    assert topics.has_entries(NAME, END, Position(12, -1)), "of a ledger that this process has not seen yet"
