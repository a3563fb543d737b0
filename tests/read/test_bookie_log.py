"""The hot log of a cluster, read from scripted bookies, and from brokers where these cannot be read."""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from tests.support.bookies import NO_ENTRY, UNAUTHORIZED, ScriptedCluster, ledger_node, stored_entry

from afterglow.errors import DataLost, HotLogUnavailable, LedgerMissing
from afterglow.format.frames import iter_entries, scan_frames
from afterglow.hot.bookkeeper import BookKeeperAddress, ReadLimits
from afterglow.read.bookie_log import BookieLedger, BookieLog, outages
from afterglow.read.hot_readers import HotLocation
from afterglow.testing.memory_hot import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.read.copies import FrameLedger

ENSEMBLE = ("b0", "b1", "b2")
ENTRIES = [b"%d" % number * 30 for number in range(20)]
LAST = len(ENTRIES) - 1
FAST = ReadLimits(timeout_s=2, deadline_s=4)


@pytest.fixture(autouse=True)
def no_outages() -> Iterator[None]:
    outages.clear()
    yield
    outages.clear()


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(name=str(uuid4())) as cluster:
        yield cluster


def address(cluster: ScriptedCluster) -> BookKeeperAddress:
    return BookKeeperAddress(cluster.metadata, limits=FAST)


def write(cluster: ScriptedCluster, ledger_id: int = 7, *, closed: bool = False) -> None:
    cluster.write(ledger_id, ENTRIES, {0: ENSEMBLE}, 2)
    if closed:
        cluster.put_metadata(ledger_id, {0: ENSEMBLE}, 2, LAST)


def brokers() -> MemoryLog:
    """Brokers with other entries in ledger 1, so that it is seen who served."""
    log = MemoryLog()
    ledger = log.create()
    assert ledger.ledger_id == 1
    for _ in ENTRIES:
        ledger.append((b"from a broker",), lambda _: None)
    ledger.close()
    return log


def read(ledger: FrameLedger, first: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while first <= ledger.confirmed:
        data, count = ledger.read_frames(first, 200)
        found += [bytes(entry) for _, entry in iter_entries(data, scan_frames(data, first))]
        assert count
        first += count
    return found


def requests(cluster: ScriptedCluster) -> int:
    return sum(len(bookie.received) for bookie in cluster.bookies.values())


# --- the end of a ledger ---


@pytest.mark.parametrize("closed", [False, True])
def test_no_entry_is_read_that_was_not_confirmed(cluster: ScriptedCluster, *, closed: bool) -> None:
    write(cluster, closed=closed)
    ledger = BookieLog(address(cluster), "t", {7: 12}).open(7)
    assert ledger.closed == closed
    assert read(ledger) == (ENTRIES if closed else ENTRIES[:12])
    if not closed:
        assert ledger.read_frames(12, 1 << 20) == (memoryview(b""), 0)


def test_without_a_broker_an_open_ledger_ends_where_its_bookies_know_it_confirmed(cluster: ScriptedCluster) -> None:
    write(cluster)  # the last entry says that the one before it is confirmed
    assert read(BookieLog(address(cluster), "t", {}).open(7)) == ENTRIES[:LAST]


def test_the_end_of_an_open_ledger_stays_where_it_was_first_seen(cluster: ScriptedCluster) -> None:
    write(cluster)
    log = BookieLog(address(cluster), "t", {})
    assert log.open(7).confirmed == LAST - 1
    later = stored_entry(7, LAST + 1, b"later", 10_000)
    for bookie in cluster.bookies.values():
        bookie.entries[7, LAST + 1] = later
    assert log.open(7).confirmed == LAST - 1
    assert BookieLog(address(cluster), "t", {}).open(7).confirmed == LAST


def test_a_ledger_that_no_entry_has_reached_is_empty_and_not_lost(cluster: ScriptedCluster) -> None:
    cluster.put_metadata(7, {0: ENSEMBLE}, 2)
    ledger = BookieLog(address(cluster), "t", {}).open(7)
    assert ledger.confirmed == -1
    assert ledger.read_frames(0, 100) == (memoryview(b""), 0)


def test_a_split_reads_no_entry_behind_its_last_one(cluster: ScriptedCluster) -> None:
    write(cluster, closed=True)
    location = HotLocation(topic="t", bookies=address(cluster))
    sent = pickle.loads(pickle.dumps(location))
    assert sent == location
    ledger = sent.open(7, 4).open(7)
    assert read(ledger, 3) == ENTRIES[3:5]
    asked = [entry for bookie in cluster.bookies.values() for entry in bookie.received]
    assert max(each.first + each.entries - 1 for each in asked) <= 4


def test_sizes_take_two_reads(cluster: ScriptedCluster) -> None:
    write(cluster)
    ledger = HotLocation(topic="t", bookies=address(cluster)).open(7, LAST).open(7)
    assert isinstance(ledger, BookieLedger)
    assert ledger.frame_bytes(3, 9) == sum(len(entry) + 12 for entry in ENTRIES[3:10])
    assert ledger.frame_bytes(0, LAST) == sum(len(entry) + 12 for entry in ENTRIES)
    assert requests(cluster) == 3


# --- who serves ---


def test_a_dead_bookie_of_several_does_not_matter(cluster: ScriptedCluster) -> None:
    write(cluster, 1, closed=True)
    cluster.bookies["b1"].kill()
    assert read(BookieLog(address(cluster), "t", {1: len(ENTRIES)}, brokers()).open(1)) == ENTRIES


def test_brokers_serve_where_bookies_cannot_be_reached_and_bookies_are_left_alone_for_a_while(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    write(cluster, 1)
    for bookie in cluster.bookies.values():
        bookie.kill()
    log = BookieLog(address(cluster), "t", {1: len(ENTRIES)}, brokers())
    with caplog.at_level(logging.WARNING, "afterglow.read"):
        for each in (log, BookieLog(address(cluster), "u", {1: len(ENTRIES)}, brokers())):
            assert read(each.open(1)) == [b"from a broker"] * len(ENTRIES)
    assert len(caplog.records) == 1
    assert "cannot be read, reading from a broker" in caplog.text
    seen = len(cluster.reads)
    assert read(log.open(1)) == [b"from a broker"] * len(ENTRIES)
    assert len(cluster.reads) == seen


@pytest.mark.parametrize("has_brokers", [False, True])
def test_bookies_that_require_authentication(cluster: ScriptedCluster, *, has_brokers: bool) -> None:
    write(cluster, 1)
    for bookie in cluster.bookies.values():
        bookie.code_of = lambda _: UNAUTHORIZED
    entries = {1: len(ENTRIES)}
    log = BookieLog(address(cluster), "t", entries, brokers() if has_brokers else None, without="no broker runs")
    if has_brokers:
        assert read(log.open(1)) == [b"from a broker"] * len(ENTRIES)
    else:
        with pytest.raises(HotLogUnavailable, match=r"requires authentication.*; no broker runs"):
            read(log.open(1))


def test_metadata_without_bookies_is_that_of_something_else(cluster: ScriptedCluster) -> None:
    other = BookKeeperAddress(cluster.metadata, "/other", FAST)
    entries = {1: len(ENTRIES)}
    assert read(BookieLog(other, "t", entries, brokers()).open(1)) == [b"from a broker"] * len(ENTRIES)
    outages.clear()
    with pytest.raises(HotLogUnavailable, match="no bookies are registered below /other"):
        BookieLog(other, "t", entries).open(1)


# --- lost entries ---


def test_a_ledger_that_vanished_is_lost_by_name_whatever_brokers_have(cluster: ScriptedCluster) -> None:
    write(cluster, 1)
    found = cluster.store.get(ledger_node(1))
    assert found is not None
    cluster.store.delete(ledger_node(1), found.version)
    ledger = BookieLog(address(cluster), "t", {1: len(ENTRIES)}, brokers()).open(1)
    assert (ledger.confirmed, ledger.closed) == (LAST, False)
    with pytest.raises(DataLost, match=r"entries 1:5 to 1:19 of t are lost: the ledger was deleted from BookKeeper"):
        ledger.read_frames(5, 100)


def test_a_vanished_ledger_of_unknown_size_is_missing(cluster: ScriptedCluster) -> None:
    with pytest.raises(LedgerMissing):
        BookieLog(address(cluster), "t", {}).open(7)


def test_an_entry_that_no_bookie_has_is_lost_by_name_after_all_before_it_were_read(cluster: ScriptedCluster) -> None:
    write(cluster, closed=True)
    for bookie in cluster.bookies.values():
        bookie.code_of = lambda request: NO_ENTRY if request.first <= 9 < request.first + request.entries else None
    ledger = BookieLog(address(cluster), "t", {7: len(ENTRIES)}).open(7)
    found: list[bytes] = []
    while len(found) < 9:
        data, _ = ledger.read_frames(len(found), 1 << 20)
        found += [bytes(entry) for _, entry in iter_entries(data, scan_frames(data, len(found)))]
    assert found == ENTRIES[:9]
    with pytest.raises(DataLost, match="entries 7:9 to 7:19 of t are lost: entry 9 of ledger 7 is on none"):
        ledger.read_frames(9, 1 << 20)
