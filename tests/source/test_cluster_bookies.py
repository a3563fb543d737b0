"""A cluster without brokers, read from scripted bookies, with segments of an attached Afterglow: one topic."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from tests.support.bookies import ScriptedCluster, ledger_node
from tests.support.read_world import TOPIC as NAME
from tests.support.read_world import ReadWorld

from afterglow.config import BrokerConfig
from afterglow.config.choices import EntryPath
from afterglow.errors import DataLost, HotLogUnavailable, LedgerMissing, TopicChanged, TopicMissing
from afterglow.format.entry import encode_broker_metadata, encode_entry
from afterglow.format.position import Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.hot.bookkeeper import BookKeeperAddress
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import managed_ledger_path
from afterglow.metadata.pulsar_cluster import PulsarCluster
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.read.bookie_log import outages
from afterglow.read.split_reader import SplitReader
from afterglow.source.attached_directory import AttachedDirectory
from afterglow.source.cluster_directory import ClusterBrokers, ClusterDirectory
from afterglow.source.cluster_hot import ClusterHot
from afterglow.source.partition import SourceContext
from afterglow.source.topic import SourceTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

ENSEMBLE = ("b0", "b1", "b2")
COMMIT, ABORT = 21, 22
FIRST_MS = 1_000_000


class Cluster:
    """A topic whose entries are on scripted bookies, and in part in segments."""

    def __init__(self, bookies: ScriptedCluster) -> None:
        self.bookies = bookies
        self.world = ReadWorld()
        self.topic = TopicName.from_managed_ledger_name(NAME)
        self._sent = 0
        self.sent: list[bytes] = []
        """Values of all messages, in order."""

    def entry(self, value: bytes | None = None, transaction: int | None = None, marker: int | None = None) -> bytes:
        """The next entry, with broker entry metadata; its time is ``FIRST_MS`` and its number."""
        metadata = MessageMetadata(producer_name="p", sequence_id=self._sent, publish_time=5, marker_type=marker)
        if transaction is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = 1, transaction
        value = b"%d" % self._sent if value is None else value
        made = encode_broker_metadata(FIRST_MS + self._sent, self._sent) + encode_entry(metadata, value)
        self._sent += 1
        if marker is None:
            self.sent.append(value)
        return made

    def write(self, entries: list[bytes], *, closed: bool = True, listed: bool = True) -> ManagedLedgerInfo.LedgerInfo:
        """Write a ledger; ``closed`` in BookKeeper, and ``listed`` as closed in the list too."""
        row = self.world.add(entries, closed=closed and listed)
        self.bookies.write(row.ledgerId, entries, {0: ENSEMBLE}, 2)
        if closed:
            self.bookies.put_metadata(row.ledgerId, {0: ENSEMBLE}, 2, len(entries) - 1)
        return row

    def publish(self, *, trimmed: int = 0, exists: bool = True) -> None:
        """Put the cluster's list, which knows no segments and lacks the first ledgers, and our copy, which has all."""
        theirs = ManagedLedgerInfo()
        theirs.CopyFrom(self.world.info)
        del theirs.ledgerInfo[:trimmed]
        for row in theirs.ledgerInfo:
            del row.offloadContext.offloadSegment[:]
        self.bookies.put(managed_ledger_path(NAME), theirs.SerializeToString() if exists else b"")
        path, metadata = self.world._paths.managed_ledger(NAME), self.world.metadata
        known = metadata.get(path)
        version = MUST_NOT_EXIST if known is None else known.version
        metadata.put(path, self.world.info.SerializeToString(), version)

    def drop(self, ledger_id: int) -> None:
        """Delete a ledger from BookKeeper."""
        found = self.bookies.store.get(ledger_node(ledger_id))
        assert found is not None
        self.bookies.store.delete(ledger_node(ledger_id), found.version)

    def open(self, path: EntryPath = EntryPath.AUTO, *, attached: bool = True) -> SourceTopic:
        cluster = PulsarCluster(self.bookies.store)
        credentials = ClusterCredentials()
        hot = ClusterHot(path, lambda: BookKeeperAddress(self.bookies.metadata), credentials)
        brokers = ClusterBrokers(cluster, credentials, None)
        directory: Any = ClusterDirectory("zk://c", cluster, brokers, hot, BrokerConfig())
        if attached:
            directory = AttachedDirectory(directory, self.world.metadata, self.world._paths)
        context = SourceContext(directory, self.world.tiers, self.world.counters)
        if not directory.exists(self.topic):
            raise TopicMissing(str(self.topic))
        return SourceTopic(self.topic, (self.topic,), context)

    def values(self, **options: Any) -> list[bytes]:
        return read(self.open(**options))


def read(topic: SourceTopic, **options: Any) -> list[bytes]:
    found: list[bytes] = topic.scan(columns=["value"], **options).read_all()["value"].to_pylist()
    return found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    outages.clear()
    with ScriptedCluster(name=str(uuid4())) as bookies:
        made = Cluster(bookies)
        yield made
        made.world.tiers.close()
    outages.clear()


def whole(cluster: Cluster) -> list[ManagedLedgerInfo.LedgerInfo]:
    """Ledgers in a segment, partly in a segment, only on bookies, and open: its last entry is not confirmed yet."""
    rows = [cluster.write([cluster.entry() for _ in range(10)]) for _ in range(3)]
    cluster.world.offload_v2([(rows[0], 0, 9), (rows[1], 0, 3)])
    rows.append(cluster.write([cluster.entry() for _ in range(5)], closed=False))
    del cluster.sent[-1:]
    cluster.publish()
    return rows


@pytest.mark.parametrize("priority", ["bookkeeper-first", "tiered-first"])
def test_segments_and_bookies_are_one_topic_without_any_broker(cluster: Cluster, priority: str) -> None:
    whole(cluster)
    rows = cluster.open().scan(read_priority=priority).read_all().to_pylist()
    assert [row["value"] for row in rows] == cluster.sent
    assert [row["index"] for row in rows] == list(range(len(cluster.sent)))
    hot = 10 if priority == "tiered-first" else 0
    assert [row["tier"] for row in rows[:10]] == ["tiered" if hot else "hot"] * 10
    assert {row["tier"] for row in rows[14:]} == {"hot"}


def test_bookies_alone_have_the_whole_topic(cluster: Cluster) -> None:
    whole(cluster)
    assert cluster.values(attached=False) == cluster.sent


def test_what_the_cluster_has_trimmed_is_read_from_segments(cluster: Cluster) -> None:
    rows = whole(cluster)
    cluster.publish(trimmed=1)
    cluster.drop(rows[0].ledgerId)
    assert cluster.values() == cluster.sent
    assert cluster.values(attached=False) == cluster.sent[10:]


def test_a_topic_that_the_cluster_has_deleted_has_its_segments(cluster: Cluster) -> None:
    whole(cluster)
    cluster.publish(exists=False)
    assert cluster.values() == cluster.sent[:14]
    with pytest.raises(TopicMissing):
        cluster.open(attached=False)


def test_transactions_are_decided_by_markers_on_bookies(cluster: Cluster) -> None:
    write, entry = cluster.write, cluster.entry
    first = write([entry(b"a", 1), entry(b"b", 2), entry(b"c"), entry(b"d", 3), entry(b"e", 4)])
    cluster.world.offload_v2([(first, 0, 4)])
    write([entry(b"", 1, COMMIT), entry(b"", 2, ABORT), entry(b"f", 3), entry(b"", 3, COMMIT)])
    write([entry(b"g", 4), entry(b"h"), entry(b"unconfirmed")], closed=False)
    cluster.publish()
    assert cluster.values() == [b"a", b"c", b"d", b"f", b"h"]


def test_splits_are_read_from_bookies_by_other_processes(cluster: Cluster) -> None:
    whole(cluster)
    splits = list(cluster.open().splits(split_bytes=100))
    assert len([split for split in splits if split.tier_object is None]) > 4
    reader = SplitReader(BrokerConfig())
    tables = [batch for split in splits for batch in reader.batches(pickle.loads(pickle.dumps(split)), ["value"])]
    reader.close()
    assert [value for batch in tables for value in batch.column(0).to_pylist()] == cluster.sent


def test_an_open_ledger_is_divided_by_its_size(cluster: Cluster) -> None:
    cluster.write([cluster.entry() for _ in range(100)], closed=False)
    cluster.publish()
    splits = list(cluster.open().splits(split_bytes=1_000))
    assert 3 < len(splits) < 20
    assert {split.size_bytes > 0 for split in splits} == {True}


def test_a_time_is_found_on_bookies_by_few_reads(cluster: Cluster) -> None:
    row = cluster.write([cluster.entry() for _ in range(1_000)], closed=False)
    cluster.publish()
    topic = cluster.open()
    assert topic.seek(FIRST_MS + 700) == Position(row.ledgerId, 700)
    for bookie in cluster.bookies.bookies.values():
        bookie.received.clear()
    assert read(topic, since=FIRST_MS + 990, until=FIRST_MS + 995) == cluster.sent[990:995]
    asked = [each for bookie in cluster.bookies.bookies.values() for each in bookie.received]
    assert sum(each.entries for each in asked) < 300


def test_segments_of_the_open_ledger_are_read_although_its_bookies_lag_behind(cluster: Cluster) -> None:
    row = cluster.write([cluster.entry() for _ in range(10)], closed=False)
    cluster.world.offload_v2([(row, 0, 9)])
    cluster.publish()
    assert cluster.values() == cluster.sent
    for bookie in cluster.bookies.bookies.values():
        bookie.kill()
    outages.clear()
    assert cluster.values() == cluster.sent


def test_a_ledger_that_was_closed_while_no_broker_runs_ends_where_its_metadata_says(cluster: Cluster) -> None:
    cluster.write([cluster.entry() for _ in range(5)], listed=False)
    cluster.publish()
    assert cluster.values() == cluster.sent


# --- lost ledgers ---


def test_a_ledger_that_vanished_is_an_error_that_names_its_entries(cluster: Cluster) -> None:
    rows = whole(cluster)
    cluster.drop(rows[2].ledgerId)
    ledger = rows[2].ledgerId
    with pytest.raises(DataLost, match=f"entries {ledger}:0 to {ledger}:9 of persistent://public/default/t are lost"):
        cluster.values()
    assert read(cluster.open(), end=f"{ledger}:0") == cluster.sent[:20]
    splits = list(cluster.open().splits(start=f"{ledger}:0", end=f"{ledger}:10"))
    reader = SplitReader(BrokerConfig())
    with pytest.raises(TopicChanged, match=f"entries {ledger}:0 to {ledger}:9"):
        list(reader.batches(splits[0]))
    reader.close()


def test_the_clusters_own_object_of_a_vanished_ledger_is_read(cluster: Cluster) -> None:
    rows = whole(cluster)
    topic = cluster.open()
    pinned = topic._readers[0].pin()
    cluster.world.offload_v1(rows[2])  # the cluster's own offload ends after the read has begun
    cluster.publish()
    cluster.drop(rows[2].ledgerId)
    found = [served.tier for served in pinned.reader.read(Position(rows[2].ledgerId, 0), Position(rows[3].ledgerId, 0))]
    assert set(map(str, found)) == {"tiered"}
    assert cluster.values() == cluster.sent


def test_a_ledger_that_was_trimmed_during_the_read_is_not_lost(cluster: Cluster) -> None:
    rows = whole(cluster)
    pinned = cluster.open(attached=False)._readers[0].pin()
    cluster.publish(trimmed=3)
    cluster.drop(rows[2].ledgerId)
    with pytest.raises(LedgerMissing, match="was trimmed since this read began"):
        list(pinned.reader.read(Position(rows[2].ledgerId, 0), Position(rows[3].ledgerId, 0)))


# --- the path ---


def test_bookies_are_left_alone_if_a_broker_is_asked_for(cluster: Cluster) -> None:
    whole(cluster)
    with pytest.raises(LedgerMissing, match="no broker of zk://c is running"):
        cluster.values(path=EntryPath.BROKER)
    assert not [each for bookie in cluster.bookies.bookies.values() for each in bookie.received]


def test_bookies_that_cannot_be_reached_are_named_if_they_are_asked_for(cluster: Cluster) -> None:
    whole(cluster)
    for bookie in cluster.bookies.bookies.values():
        bookie.kill()
    with pytest.raises(HotLogUnavailable, match=r"cannot be reached.*entries=auto would read from a broker"):
        cluster.values(path=EntryPath.BOOKKEEPER)
