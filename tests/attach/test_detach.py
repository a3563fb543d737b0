"""End of an attachment: subscriptions are deleted, and what is in the tier stays."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
from tests.support.attached_topics import CLUSTER, SUBSCRIPTION, AttachedHere, FakeCluster

from afterglow.attach.detach import Detachment
from afterglow.attach.records import recorded_subscriptions
from afterglow.config import BrokerConfig
from afterglow.errors import MetadataInUse
from afterglow.format.position import Position
from afterglow.metadata.address import open_metadata
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.metadata.lease import open_lease
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC = TopicName.parse("persistent://public/default/t")
OTHER = TopicName.parse("persistent://public/other/u")
PATHS = AfterglowPaths(CLUSTER)
CONFIG = BrokerConfig()


class Attached:
    """Two topics that were attached, of which the first is in the tier, and their subscriptions in the cluster."""

    def __init__(self, cluster: FakeCluster, path: Path) -> None:
        self.cluster = cluster
        self.address = f"sqlite:{path / 'attach.db'}"
        cluster.write(str(TOPIC), 7, 20)
        cluster.write(str(OTHER), 12, 5)
        with closing(open_metadata(self.address)) as store, AttachedHere(path, cluster, metadata=store) as process:
            process.attached(str(TOPIC), 20)
            process.attached(str(OTHER), 5)
            assert process.call("PUT", "persistent/public/default/t/offload", "latest").status == 204
            process.in_tier(str(TOPIC))
        self.subscriptions = {topic: self.answer(topic, "other", SUBSCRIPTION) for topic in (TOPIC, OTHER)}

    def answer(self, topic: TopicName, *names: str) -> list[str]:
        found = list(names)
        self.cluster.admin.answers[f"persistent/{topic.namespace}/{topic.local_name}/subscriptions"] = found
        return found

    def refuse(self, topic: TopicName, status: int) -> None:
        path = f"persistent/{topic.namespace}/{topic.local_name}/subscription/{SUBSCRIPTION}"
        self.cluster.admin.statuses[path] = status

    def names(self) -> tuple[str, ...]:
        with closing(open_metadata(self.address)) as store:
            return recorded_subscriptions(store, PATHS)

    def segments(self) -> tuple[str, ...]:
        with closing(open_metadata(self.address)) as store:
            return store.children(PATHS.segments(TOPIC.managed_ledger_name))


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[Attached]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with FakeCluster(directory) as cluster:
        yield Attached(cluster, tmp_path)


@pytest.fixture
def detachment(attached: Attached) -> Iterator[Detachment]:
    admin = AdminClient(attached.cluster.admin.url, ClusterCredentials.of(None, None))
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_metadata(attached.address, read_only=True)))
        yield Detachment(admin, store, PATHS, attached.address, stack.pop_all())


def test_it_deletes_the_subscription_of_every_topic_and_keeps_the_tier(
    attached: Attached, detachment: Detachment
) -> None:
    segments = attached.segments()
    assert detachment.detach(CONFIG) == {TOPIC: None, OTHER: None}
    assert attached.subscriptions == {TOPIC: ["other"], OTHER: ["other"]}
    assert attached.names() == ()
    assert attached.segments() == segments != ()
    assert detachment.detach(CONFIG) == {}


def test_it_says_what_the_tier_has_before_anything_changes(attached: Attached, detachment: Detachment) -> None:
    first, second = detachment.topics()
    assert (first.topic, first.in_tier, first.last, first.is_behind) == (TOPIC, Position(7, 19), Position(7, 19), False)
    assert (second.topic, second.in_tier, second.last, second.is_behind) == (OTHER, None, Position(12, 4), True)
    assert first.subscriptions == second.subscriptions == (SUBSCRIPTION,)
    assert attached.cluster.admin.deleted == []
    assert attached.names() == (SUBSCRIPTION,)


def test_a_topic_that_cannot_be_detached_does_not_stop_others_and_is_left_to_the_next_call(
    attached: Attached, detachment: Detachment
) -> None:
    attached.refuse(TOPIC, 412)
    results = detachment.detach(CONFIG)
    assert "412" in str(results[TOPIC])
    assert results[OTHER] is None
    assert attached.names() == (SUBSCRIPTION,)
    attached.refuse(TOPIC, 204)
    assert detachment.detach(CONFIG) == {TOPIC: None}
    assert attached.names() == ()


def test_it_is_refused_while_a_process_is_attached(attached: Attached, detachment: Detachment) -> None:
    with closing(open_metadata(attached.address)) as store:
        lease = open_lease(attached.address, store, PATHS.lease)
        try:
            lease.acquire(None, lambda _: None)  # type: ignore[arg-type] # a file lock does not wait
            with pytest.raises(MetadataInUse):
                detachment.detach(CONFIG)
        finally:
            lease.release()
    assert attached.cluster.admin.deleted == []


def test_a_topic_that_the_cluster_has_deleted_is_not_detached(attached: Attached, detachment: Detachment) -> None:
    for path in ("subscriptions", "internalStats"):
        del attached.cluster.admin.answers[f"persistent/public/other/u/{path}"]
    assert [found.last for found in detachment.topics()] == [Position(7, 19), None]
    assert detachment.detach(CONFIG) == {TOPIC: None}
