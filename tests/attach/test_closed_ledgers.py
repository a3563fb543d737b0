"""A ledger that offload reads while its broker writes it, and that the broker then closes with more entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.bookies import ScriptedCluster
from tests.support.clock import ManualClock

from afterglow.attach.hot_ledgers import ClusterLedgers
from afterglow.attach.topic import AttachedTopic
from afterglow.config import BrokerConfig
from afterglow.format.position import Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.topic_metadata import TopicMetadata
from afterglow.metadata.memory import MemoryMetadataStore

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "public/default/persistent/t"


@pytest.fixture
def bookies() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        cluster.write(7, [b"%d" % number * 10 for number in range(10)], {0: ("b0", "b1")}, 2)
        yield cluster


def cluster_list(entries: int | None, *others: int) -> ManagedLedgerInfo:
    """The cluster's list: ledger 7, open or closed, and open ones behind it."""
    info = ManagedLedgerInfo()
    ledger = info.ledgerInfo.add(ledgerId=7)
    if entries is not None:
        ledger.entries, ledger.size, ledger.timestamp = entries, 10 * entries, 1
    for other in others:
        info.ledgerInfo.add(ledgerId=other)
    return info


def test_entries_that_were_written_just_before_a_ledger_was_closed_are_read(bookies: ScriptedCluster) -> None:
    """The ledger stays open here, with the end that was known then: what it was closed with must not stay out."""
    metadata = TopicMetadata(MemoryMetadataStore(), "/m", BrokerConfig(), ManualClock())
    metadata.open(create=True)
    hot = ClusterLedgers(bookies.client)
    topic = AttachedTopic(NAME, metadata, hot)
    topic.follow(cluster_list(None), Position(7, 3))
    assert hot.open(7).confirmed == 3
    topic.follow(cluster_list(10, 8), Position(7, 9))
    assert topic.layout.last == Position(7, 9)
    assert hot.open(7).confirmed == 9
    assert hot.open(7).offsets(9, 9)[0] > 0
    (found,) = topic.reader.read(Position(7, 9), 1, 1)
    assert bytes(found.data) == b"9" * 10


def test_an_empty_closed_ledger_confirms_nothing(bookies: ScriptedCluster) -> None:
    metadata = TopicMetadata(MemoryMetadataStore(), "/m", BrokerConfig(), ManualClock())
    metadata.open(create=True)
    hot = ClusterLedgers(bookies.client)
    topic = AttachedTopic(NAME, metadata, hot)
    topic.follow(cluster_list(None), None)
    topic.follow(cluster_list(0, 8), None)
    assert hot.open(7).confirmed == -1
