"""Entries of an attached cluster that are read from its brokers, which do not deliver all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.attached_topics import AttachedHere, FakeCluster
from tests.support.served_topics import eventually

from afterglow.attach.entry_path import choose_path
from afterglow.attach.hot_ledgers import BrokerLedgers
from afterglow.config.choices import EntryPath
from afterglow.errors import AccessDenied, HotLogError, LedgerMissing, NotSupported
from afterglow.format.frames import FRAME_BYTES
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.hot.bookkeeper import BookKeeperCluster
from afterglow.hot.bookkeeper.protocol import ReturnCode
from afterglow.hot.pulsar import PulsarAddress
from afterglow.metadata.names import TopicName
from afterglow.offload.segments.records import parse_segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bookies import ScriptedCluster

    from afterglow.attach.cluster import AttachedCluster
    from afterglow.attach.entry_path import ChosenPath
    from afterglow.format.proto.afterglow_pb2 import SegmentRecord

TOPIC = "persistent://public/default/t"
PATH = "persistent/public/default/t"
NAME = TopicName.parse(TOPIC).managed_ledger_name
HIDDEN = (Position(7, 3), Position(7, 4), Position(7, 19), Position(9, 0))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with FakeCluster(directory) as cluster:
        cluster.write(TOPIC, 7, 20, closed=True)
        cluster.write(TOPIC, 9, 10)
        for position in HIDDEN:
            del cluster.broker.entries[TOPIC][position]
        yield cluster


def offload(process: AttachedHere) -> None:
    assert process.call("PUT", f"{PATH}/offload", "latest").status == 204


def error_of(process: AttachedHere) -> str:
    """Let the offload work once; the errors of segments."""
    process.offload.tick()
    return str([row.get("error") for row in process.get(f"{PATH}/segments")])


def records(process: AttachedHere) -> list[SegmentRecord]:
    root = process.paths.segments(NAME)
    found = [process.metadata.get(f"{root}/{uuid}") for uuid in process.metadata.children(root)]
    return [parse_segment(each.value, root) for each in found if each is not None]


def test_all_positions_are_in_segments_that_say_what_a_broker_strips(cluster: FakeCluster, tmp_path: Path) -> None:
    with AttachedHere(tmp_path, cluster, from_brokers=True) as process:
        process.attached(TOPIC, 30)
        offload(process)
        process.in_tier(TOPIC)
        (record,) = records(process)
        assert (record.begin.ledger_id, record.begin.entry_id) == (7, 0)
        assert (record.end.ledger_id, record.end.entry_id) == (9, 9)
        assert record.entries == 30
        assert record.markers_stripped
        assert record.broker_metadata_stripped
    assert not any(bookie.received for bookie in cluster.bookies.bookies.values())


def test_entries_behind_the_last_delivered_one_wait(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.broker.last = Position(9, 5)
    with AttachedHere(tmp_path, cluster, from_brokers=True) as process:
        process.attached(TOPIC, 26)
        cluster.broker.last = Position(9, 9)
        process.attached(TOPIC, 30)


def test_undelivered_entries_of_a_trimmed_ledger_are_not_committed(cluster: FakeCluster, tmp_path: Path) -> None:
    with AttachedHere(tmp_path, cluster, from_brokers=True) as process:
        process.attached(TOPIC, 30)
        process.follower.close()
        cluster.trim(TOPIC, 7)
        offload(process)
        eventually(lambda: "has trimmed ledger 7" in error_of(process) or records(process) != [], lambda: "no error")
        assert records(process) == []


def test_a_segment_that_was_begun_on_the_other_path_begins_anew(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.broker.reactions["flow"] = lambda session, _: session.error(wire.AuthorizationError)
    with AttachedHere(tmp_path, cluster, from_brokers=True) as process:
        process.attached(TOPIC, 30)
        offload(process)
        eventually(lambda: "AuthorizationError" in error_of(process), lambda: error_of(process))
        metadata = process.metadata
        process.follower.close()
        cluster.broker.close()
    with FakeBrokerAgain(cluster), AttachedHere(tmp_path, cluster, metadata=metadata) as process:
        process.attached(TOPIC, 30)
        offload(process)
        process.in_tier(TOPIC)
        assert [record.markers_stripped for record in records(process)] == [False]


class FakeBrokerAgain:
    """The broker of a cluster after a restart."""

    def __init__(self, cluster: FakeCluster) -> None:
        before = cluster.broker
        self.broker = type(before)()
        self.broker.last = before.last
        cluster.broker = self.broker

    def __enter__(self) -> None:
        """Nothing has to start."""

    def __exit__(self, *_: object) -> None:
        self.broker.close()


# --- sizes ---


def test_sizes_of_entries_are_estimated_by_that_of_their_ledger() -> None:
    ledgers = BrokerLedgers()
    with pytest.raises(LedgerMissing):
        ledgers.open(7)
    ledgers.confirm(7, 9, 1000)
    assert ledgers.bytes_up_to(7, 4) == 500
    assert ledgers.open(7).offsets(9, 9).tolist() == [900 + 9 * FRAME_BYTES, 1000 + 10 * FRAME_BYTES]
    ledgers.confirm(7, 19, 4000)
    ledgers.confirm(7, 9, 1000)
    assert ledgers.bytes_up_to(7, 19) == 4000
    with pytest.raises(NotSupported):
        ledgers.open(7).offsets(0, 9)
    ledgers.drop(7)
    with pytest.raises(LedgerMissing):
        ledgers.open(7)


# --- choice ---


def choose(wanted: EntryPath, bookies: ScriptedCluster, topics: AttachedCluster, url: str) -> ChosenPath:
    return choose_path(wanted, topics, BookKeeperCluster(bookies), bookies.client, PulsarAddress(url))


@pytest.fixture
def process(cluster: FakeCluster, tmp_path: Path) -> Iterator[AttachedHere]:
    with AttachedHere(tmp_path, cluster) as process:
        yield process


def topics_of(process: AttachedHere) -> AttachedCluster:
    return process.topics._cluster


def test_bookies_are_preferred_if_one_answers(process: AttachedHere, cluster: FakeCluster) -> None:
    cluster.bookies.bookies["b0"].kill()
    found = choose(EntryPath.AUTO, cluster.bookies, topics_of(process), "pulsar://127.0.0.1:1")
    assert str(found) == "entries from bookies (bookie b1 answers)"


def test_brokers_are_used_if_bookies_require_authentication(process: AttachedHere, cluster: FakeCluster) -> None:
    for bookie in cluster.bookies.bookies.values():
        bookie.code_of = lambda _: int(ReturnCode.UNAUTHORIZED)
    found = choose(EntryPath.AUTO, cluster.bookies, topics_of(process), cluster.broker.url)
    assert found.entries is EntryPath.BROKER
    assert "bookie b0 requires authentication" in str(found)
    with pytest.raises(AccessDenied):
        choose(EntryPath.BOOKKEEPER, cluster.bookies, topics_of(process), cluster.broker.url)


def test_brokers_are_used_if_no_bookie_can_be_reached(process: AttachedHere, cluster: FakeCluster) -> None:
    for bookie in cluster.bookies.bookies.values():
        bookie.kill()
    found = choose(EntryPath.AUTO, cluster.bookies, topics_of(process), cluster.broker.url)
    assert str(found).startswith("entries from brokers (bookie b2 at ")
    with pytest.raises(HotLogError):
        choose(EntryPath.BOOKKEEPER, cluster.bookies, topics_of(process), cluster.broker.url)
    with pytest.raises(HotLogError, match=r"127\.0\.0\.1:1"):
        choose(EntryPath.AUTO, cluster.bookies, topics_of(process), "pulsar://127.0.0.1:1")


def test_brokers_are_used_without_a_probe_of_bookies_if_they_are_selected(
    process: AttachedHere, cluster: FakeCluster
) -> None:
    found = choose(EntryPath.BROKER, cluster.bookies, topics_of(process), cluster.broker.url)
    assert str(found) == "entries from brokers (as --entries says)"
    assert not any(bookie.received for bookie in cluster.bookies.bookies.values() if not bookie.entries)
