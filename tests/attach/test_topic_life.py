"""Topics of a real cluster that come, grow, are compacted, deleted and created anew while they are attached."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pulsar
import pytest
from tests.support.attach_process import PATHS, Attach, is_streamed, opened, produce, wait_until
from tests.support.pulsar_cluster import PulsarCluster

import afterglow
from afterglow.attach.tier_retention import expired_ledgers
from afterglow.errors import MissingDependency
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.ledger.retention import Retention

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from afterglow.metadata.store import MetadataStore

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

FOUND_S: Final = 10.0
"""Within this time a new topic is attached."""
SLACK_S: Final = 5.0
"""For this machine, which runs the whole cluster."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    settings = {
        "managedLedgerDefaultEnsembleSize": "1",
        "managedLedgerDefaultWriteQuorum": "1",
        "managedLedgerDefaultAckQuorum": "1",
        "managedLedgerMaxEntriesPerLedger": "50",
        "defaultRetentionTimeInMinutes": "0",
        "defaultRetentionSizeInMB": "0",
        "retentionCheckIntervalInSeconds": "5",
        "brokerDeleteInactiveTopicsEnabled": "false",
        "transactionCoordinatorEnabled": "true",
        "systemTopicEnabled": "true",
        "topicLevelPoliciesEnabled": "true",
    }
    try:
        with PulsarCluster(tmp_path_factory.mktemp("cluster"), [{}], settings) as cluster:
            yield cluster
    except MissingDependency as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def stock(cluster: PulsarCluster) -> Iterator[Any]:
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture
def metadata(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'meta.db'}"


@pytest.fixture
def attach(cluster: PulsarCluster, stock: Any, metadata: str, tmp_path: Path) -> Iterator[Attach]:
    produce(stock, "public/default/first", 1)
    with closing(Attach(cluster, metadata, tmp_path / "tier", ".*")) as attach:
        attach.expect("ready")
        yield attach
        assert attach.end() == 0


@pytest.fixture
def store(metadata: str, attach: Attach) -> Iterator[MetadataStore]:
    assert attach.process.poll() is None
    with opened(metadata) as store:
        yield store


def attached(store: MetadataStore, namespace: str = "public/default") -> set[str]:
    return set(store.children(f"{PATHS.managed_ledgers}/{namespace}/persistent"))


def payloads(cluster: PulsarCluster, metadata: str, topic: str) -> list[bytes]:
    """What a reader of source and metadata gets."""
    with afterglow.connect(f"http://127.0.0.1:{cluster._web_port}", metadata=metadata) as source:
        return [bytes(message.payload) for message in source.topic(topic).messages()]


def create_anew(cluster: PulsarCluster, stock: Any, topic: str, count: int) -> None:
    cluster.admin("DELETE", f"persistent/{topic}?force=true")
    produce(stock, topic, count, "later")


def test_new_topics_and_grown_partitions_are_attached_within_ten_seconds(
    cluster: PulsarCluster, stock: Any, store: MetadataStore
) -> None:
    produce(stock, "public/default/new", 5)
    took = wait_until(lambda: "new" in attached(store), "a new topic is not attached")
    assert took < FOUND_S + SLACK_S
    wait_until(lambda: is_streamed(cluster, store, "public/default/new"), "a new topic is not streamed")
    cluster.admin("PUT", "persistent/public/default/grown/partitions", 1)
    produce(stock, "public/default/grown", 5)
    wait_until(lambda: "grown-partition-0" in attached(store), "a partition is not attached")
    cluster.admin("POST", "persistent/public/default/grown/partitions", 3)
    produce(stock, "public/default/grown-partition-2", 5)
    took = wait_until(lambda: "grown-partition-2" in attached(store), "a grown partition is not attached")
    assert took < FOUND_S + SLACK_S
    wait_until(lambda: is_streamed(cluster, store, "public/default/grown-partition-2"), "it is not streamed")


def test_topics_of_the_system_are_left_out_whatever_the_pattern(
    cluster: PulsarCluster, stock: Any, store: MetadataStore
) -> None:
    cluster.admin("POST", "persistent/public/default/first/maxProducers", 100)  # writes __change_events
    produce(stock, "public/default/behind", 1)
    wait_until(lambda: "behind" in attached(store), "a topic that was created later is not attached")
    names = set(cluster.admin("GET", "persistent/public/default?includeSystemTopic=true"))
    assert any("__change_events" in name for name in names)
    assert not [name for name in attached(store) if name.startswith("__") or name.endswith("__transaction_pending_ack")]
    assert set(store.children(PATHS.managed_ledgers)) == {"public"}


def test_a_compacted_topic_is_streamed_with_every_message(
    cluster: PulsarCluster, stock: Any, store: MetadataStore, metadata: str
) -> None:
    topic = "public/default/compacted"
    producer = stock.create_producer(topic, batching_enabled=False)
    for number in range(120):
        producer.send(b"%d" % number, partition_key="same")
    cluster.admin("PUT", f"persistent/{topic}/compaction")
    wait_until(
        lambda: cluster.admin("GET", f"persistent/{topic}/compaction")["status"] == "SUCCESS", "compaction did not end"
    )
    producer.close()
    wait_until(lambda: is_streamed(cluster, store, topic), "the topic is not streamed")
    assert payloads(cluster, metadata, topic) == [b"%d" % number for number in range(120)]


def test_a_topic_that_is_created_anew_continues_its_earlier_life(
    cluster: PulsarCluster, stock: Any, store: MetadataStore, metadata: str
) -> None:
    topic = "public/default/again"
    produce(stock, topic, 120, "earlier")
    wait_until(lambda: is_streamed(cluster, store, topic), "the topic is not streamed")
    create_anew(cluster, stock, topic, 70)
    wait_until(lambda: is_streamed(cluster, store, topic), "the later life is not streamed")
    earlier, later = (
        [b"%s%d" % (life, n) for n in range(count)] for life, count in ((b"earlier", 120), (b"later", 70))
    )
    assert payloads(cluster, metadata, topic) == [*earlier, *later]


def test_the_segments_of_a_deleted_topic_stay_in_the_tier(
    cluster: PulsarCluster, stock: Any, store: MetadataStore, attach: Attach, tmp_path: Path
) -> None:
    topic = "public/default/deleted"
    produce(stock, topic, 120)
    wait_until(lambda: is_streamed(cluster, store, topic), "the topic is not streamed")
    cluster.admin("DELETE", f"persistent/{topic}?force=true")
    wait_until(lambda: f"{topic} was deleted in the cluster" in attach.log.read_text(), "the deletion is not noticed")
    assert attach.end() == 0
    path = PATHS.managed_ledger("public/default/persistent/deleted")
    with closing(Attach(cluster, f"sqlite:{tmp_path / 'meta.db'}", tmp_path / "tier", ".*")) as again:
        again.expect("ready")
        wait_until(
            lambda: "attached persistent://public/default/first" in again.log.read_text(), "no topic is attached"
        )
        found = store.get(path)
        assert found is not None
        segments = store.children(PATHS.segments("public/default/persistent/deleted"))
        assert segments
        for uuid in segments:
            assert list((tmp_path / "tier").rglob(uuid)), "an object is missing"
        assert again.end() == 0


def test_what_the_cluster_has_trimmed_is_read_from_the_tier_until_it_is_past_retention(
    cluster: PulsarCluster, stock: Any, store: MetadataStore, attach: Attach, tmp_path: Path
) -> None:
    metadata = f"sqlite:{tmp_path / 'meta.db'}"
    topic, name = "public/default/trimmed", "public/default/persistent/trimmed"
    produce(stock, topic, 220)
    wait_until(lambda: is_streamed(cluster, store, topic), "the topic is not streamed")
    wait_until(
        lambda: len(cluster.admin("GET", f"persistent/{topic}/internalStats")["ledgers"]) == 1,
        "the cluster does not trim the topic",
    )

    def trimmed() -> list[int]:
        found = store.get(PATHS.managed_ledger(name))
        assert found is not None
        return expired_ledgers(parse_managed_ledger(found.value), Retention.of(0, 0), time.time_ns() // 1_000_000)

    wait_until(lambda: len(trimmed()) >= 4, "the trimming is not noticed")
    assert payloads(cluster, metadata, topic) == [b"m%d" % number for number in range(220)]
    before = set(store.children(PATHS.segments(name)))
    assert attach.end() == 0
    options = ("--tier-retention-time", "0", "--set", "retentionCheckIntervalInSeconds=1")
    with closing(Attach(cluster, metadata, tmp_path / "tier", ".*", *options)) as again:
        again.expect("ready")
        wait_until(lambda: not trimmed(), "the tier keeps ledgers that are past its retention")
        wait_until(lambda: len(store.children(PATHS.segments(name))) < len(before), "no segment is deleted")
        wait_until(lambda: not store.children(PATHS.deletes(name)), "pending deletes are left")
        gone = before.difference(store.children(PATHS.segments(name)))
        assert gone
        assert not [uuid for uuid in gone if list((tmp_path / "tier").rglob(f"{uuid}*"))]
        assert again.end() == 0
    rest = payloads(cluster, metadata, topic)
    assert rest == [b"m%d" % number for number in range(220 - len(rest), 220)]
