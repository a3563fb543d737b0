"""The client of bookies against scripted ones, which fail as real ones do not on demand."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.bookies import (
    BATCH,
    IO_ERROR,
    NO_ENTRY,
    NO_LEDGER,
    READ,
    TOO_MANY,
    UNAUTHORIZED,
    UNKNOWN,
    ScriptedCluster,
    ledger_node,
    stored_entry,
)

from afterglow.errors import (
    AccessDenied,
    ConfigError,
    CorruptBlock,
    EntriesMissing,
    HotLogError,
    HotLogUnavailable,
    InvalidPosition,
    LedgerMissing,
)
from afterglow.format.frames import frame_entries
from afterglow.hot.bookkeeper import BookKeeperLedger, ReadLimits
from afterglow.hot.bookkeeper.connection import BookieConnection, ReadRequest, RequestWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.bookies import (
        Received,
    )

    from afterglow.hot.log import ReadableLedger

ALL = ("b0", "b1", "b2")
PAYLOADS = [b"entry %d " % i * (i % 7 + 1) for i in range(300)]
FRAMES = frame_entries(PAYLOADS)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        yield cluster


def everything(cluster: ScriptedCluster, ledger_id: int, confirmed: int, max_bytes: int = 1 << 20) -> bytes:
    """All frames of a ledger, read in parts."""
    ledger = cluster.client.open(ledger_id, confirmed)
    frames, first = b"", 0
    while first <= confirmed:
        data, count = ledger.read_frames(first, max_bytes)
        assert count
        assert len(data) <= max_bytes or count == 1
        frames += data
        first += count
    return frames


def received(cluster: ScriptedCluster) -> list[Received]:
    return [each for bookie in cluster.bookies.values() for each in bookie.received]


def answering(code: int) -> Callable[[Received], int]:
    return lambda _request: code


# --- reading ---


@settings(max_examples=20)
@given(st.data())
def test_any_placement_is_read_whole_and_in_order(data: st.DataObject) -> None:
    bookies = data.draw(st.integers(1, 5))
    size = data.draw(st.integers(1, bookies))
    quorum = data.draw(st.integers(1, size))
    names = [f"b{number}" for number in range(bookies)]
    firsts = sorted(data.draw(st.sets(st.integers(1, 40), max_size=2)) | {0})
    fragments = {first: data.draw(st.permutations(names))[:size] for first in firsts}
    payloads = data.draw(st.lists(st.binary(max_size=30), min_size=1, max_size=60))
    digest = data.draw(st.sampled_from(["CRC32C", "CRC32", "HMAC", "DUMMY"]))
    with ScriptedCluster(bookies) as cluster:
        for name in data.draw(st.sets(st.sampled_from(names))):
            cluster.bookies[name].is_old = True
        cluster.write(5, payloads, fragments, quorum, digest=digest, password=b"pw")
        assert everything(cluster, 5, len(payloads) - 1, data.draw(st.integers(1, 3000))) == frame_entries(payloads)


def test_a_ledger_has_the_reading_half_of_a_hot_ledger(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 3)
    ledger: ReadableLedger = cluster.client.open(5, 99)
    assert (ledger.ledger_id, ledger.confirmed) == (5, 99)
    assert ledger.size_bytes == sum(map(len, PAYLOADS[:100]))
    assert ledger.read(7, 12) == PAYLOADS[7:13]
    assert ledger.read(97, 5000) == PAYLOADS[97:100]
    assert ledger.read_frames(100, 1 << 20)[1] == 0
    assert isinstance(ledger, BookKeeperLedger)
    ledger.advance(120)
    ledger.advance(110)
    assert ledger.read(119, 5000) == PAYLOADS[119:121]
    offsets = [len(frame_entries(PAYLOADS[:n])) for n in range(40, 62)]
    assert ledger.offsets(40, 60).tolist() == offsets
    with pytest.raises(IndexError, match="not confirmed"):
        ledger.offsets(40, 121)


def test_a_closed_ledger_ends_as_its_metadata_says(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 2)
    ledger = cluster.client.open(5, 10)
    cluster.put_metadata(5, {0: ALL}, 2, 299)
    assert not ledger.closed
    assert ledger.refresh()
    assert (ledger.closed, ledger.confirmed) == (True, 299)
    assert ledger.read(298, 400) == PAYLOADS[298:]
    cluster.store.delete(ledger_node(5), 1)
    assert not ledger.refresh()
    assert ledger.read(0, 1) == PAYLOADS[:2]  # bookies serve deleted ledgers until they collect them


def test_rule_2_nothing_beyond_the_confirmed_entry_is_requested(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 3)
    cluster.write(6, PAYLOADS, {0: ALL}, 2)
    for ledger_id in (5, 6):
        ledger = cluster.client.open(ledger_id, 41)
        assert ledger.read_frames(0, 1 << 30)[1] == 42
        assert ledger.read(30, 299) == PAYLOADS[30:42]
        with pytest.raises(InvalidPosition, match="entry 42 of ledger"):
            ledger.bytes_up_to(42)
    assert received(cluster)
    assert all(each.first + each.entries - 1 <= 41 for each in received(cluster))


def test_rule_2_the_lac_in_an_entry_does_not_move_the_end(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS[:10], {0: ALL}, 3)
    ledger = cluster.client.open(5, 3)
    assert len(ledger.read(0, 9)) == 4
    assert ledger.confirmed == 3


def test_an_entry_has_the_bytes_up_to_it_by_a_single_read(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 2)
    ledger = cluster.client.open(5, 299)
    assert ledger.bytes_up_to(-1) == 0
    assert not received(cluster)
    for entry_id in (0, 1, 150, 299):
        assert ledger.bytes_up_to(entry_id) == sum(map(len, PAYLOADS[: entry_id + 1]))
    assert [each.operation for each in received(cluster)] == [READ] * 4


def test_striped_ledgers_are_read_in_batches_of_the_write_quorum(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 2)
    assert everything(cluster, 5, 299) == FRAMES
    batches = [each for each in received(cluster) if each.operation == BATCH and each.entries > 1]
    assert all(each.entries == 2 for each in batches)
    assert len(batches) == 149  # entry 0 was read alone, to learn the size of entries
    assert len(received(cluster)) < 149 + 20


def test_no_batch_crosses_a_fragment(cluster: ScriptedCluster) -> None:
    fragments = {0: ("b0", "b1"), 100: ("b2", "b1"), 101: ("b0", "b2")}
    cluster.write(5, PAYLOADS, fragments, 2)
    assert everything(cluster, 5, 299) == FRAMES
    for each in received(cluster):
        assert sum(border in range(each.first + 1, each.first + each.entries) for border in (100, 101)) == 0


def test_a_batch_that_comes_short_is_continued(cluster: ScriptedCluster) -> None:
    payloads = [b"s"] * 20 + [random.Random(i).randbytes(200_000) for i in range(20)]
    cluster.write(5, payloads, {0: ["b0"]}, 1)
    assert everything(cluster, 5, 39, 16 << 20) == frame_entries(payloads)


def test_large_entries_are_bounded_in_flight_by_cumulative_lengths(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = [b"s"] * 100 + [bytes(900_000)] * 30
    cluster.write(5, payloads, {0: ALL}, 2)  # striped: the size of an entry is not known before it is read
    peaks = []
    register = BookieConnection._register

    def watched(connection: BookieConnection, request: ReadRequest) -> bytes:
        data = register(connection, request)
        connections = [each._connection for each in cluster.client._bookies.values() if each._connection]
        waiting = [request for each in connections for requests in list(each._pending.values()) for request in requests]
        peaks.append(sum(len(payloads[n]) for each in waiting for n in range(each.first, each.last + 1)))
        return data

    monkeypatch.setattr(BookieConnection, "_register", watched)
    ledger = cluster.client.open(5, len(payloads) - 1)
    frames, first = b"", 0
    while first < len(payloads):
        data, count = ledger.read_frames(first, 64 << 20)
        frames, first = frames + data, first + count
    assert frames == frame_entries(payloads)
    assert 1 << 20 < max(peaks) <= 9 << 20


def test_an_empty_ledger_has_no_entries_and_needs_no_bookie(cluster: ScriptedCluster) -> None:
    cluster.put_metadata(5, {0: ALL}, 3)
    ledger = cluster.client.open(5)
    assert (ledger.confirmed, ledger.size_bytes, ledger.read(0, 9)) == (-1, 0, [])
    assert ledger.read_frames(0, 100)[1] == 0
    assert not received(cluster)


# --- the end of a ledger without a broker ---


def test_a_fresh_ledger_that_no_bookie_knows_is_empty_and_not_lost(cluster: ScriptedCluster) -> None:
    cluster.put_metadata(5, {0: ALL}, 3)
    assert cluster.client.confirmed_by_bookies(5) == -1
    assert len(received(cluster)) == 3


def test_the_largest_lac_of_all_bookies_is_safe_to_read(cluster: ScriptedCluster) -> None:
    cluster.put_metadata(5, {0: ALL, 8: ALL}, 2)
    cluster.bookies["b0"].entries[5, 10] = stored_entry(5, 10, b"x", 99, last_confirmed=6)
    assert cluster.client.confirmed_by_bookies(5) == 7  # a new fragment begins after the last confirmed entry
    cluster.bookies["b1"].entries[5, 12] = stored_entry(5, 12, b"x", 99, last_confirmed=9)
    cluster.bookies["b2"].kill()
    assert cluster.client.confirmed_by_bookies(5) == 9
    cluster.bookies["b1"].entries[5, 12] = b"damaged"
    assert cluster.client.confirmed_by_bookies(5) == 7
    for name in ALL:
        cluster.bookies[name].kill()
    with pytest.raises(HotLogUnavailable, match="cannot be reached"):
        cluster.client.confirmed_by_bookies(5)
    cluster.put_metadata(5, {0: ALL}, 2, 12)
    assert cluster.client.confirmed_by_bookies(5) == 12


# --- rule 6: replicas ---


@pytest.mark.parametrize("code", [NO_LEDGER, NO_ENTRY, IO_ERROR, UNKNOWN, UNAUTHORIZED, 100, 103])
@pytest.mark.parametrize("quorum", [2, 3])
def test_rule_6_a_bookie_without_an_entry_means_the_next_replica(
    cluster: ScriptedCluster, code: int, quorum: int
) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, quorum)
    cluster.bookies["b1"].code_of = answering(code)
    assert everything(cluster, 5, 299) == FRAMES


def test_rule_6_metadata_is_read_again_after_a_missing_entry(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ("b0", "b1")}, 2)
    ledger = cluster.client.open(5, 299)
    cluster.put_metadata(5, {0: ("b0", "b1"), 150: ("b0", "b2")}, 2)  # the writer has replaced a bookie that lives
    for entry_id in range(150, 300):
        cluster.bookies["b2"].entries[5, entry_id] = cluster.bookies["b1"].entries.pop((5, entry_id))
    assert ledger.read(0, 299) == PAYLOADS
    assert len(ledger._replicas.metadata.fragments) == 2


def test_rule_6_single_missing_entries_are_read_elsewhere(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 3)
    for name, entries in zip(ALL, [(0, 50, 51), (1, 60, 299), (49, 100)], strict=True):
        for entry_id in entries:
            del cluster.bookies[name].entries[5, entry_id]
    assert everything(cluster, 5, 299) == FRAMES


def test_rule_6_metadata_is_read_again_before_an_entry_counts_as_lost(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ["b0"]}, 1)
    ledger = cluster.client.open(5, 299)
    assert ledger.read(0, 10) == PAYLOADS[:11]
    entries = cluster.bookies["b0"].entries
    cluster.bookies["b1"].entries, cluster.bookies["b0"].entries = entries, {}
    cluster.put_metadata(5, {0: ["b1"]}, 1)  # as re-replication does, in its position
    assert ledger.read(0, 299) == PAYLOADS


def test_rule_6_an_entry_is_missing_only_if_every_replica_says_so_twice(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 2)
    for name in ("b1", "b2"):
        del cluster.bookies[name].entries[5, 40]
    ledger = cluster.client.open(5, 299)
    cluster.reads.clear()
    with pytest.raises(EntriesMissing, match="entry 40 of ledger 5 is on none of its bookies"):
        ledger.bytes_up_to(40)
    assert cluster.reads.count(ledger_node(5)) == 1
    asked = {name: cluster.bookies[name].received for name in ALL}
    assert [len(asked[name]) for name in ALL] == [0, 2, 2]
    data, count = ledger.read_frames(0, 1 << 20)  # those before it are still served
    assert bytes(data) == frame_entries(PAYLOADS[:count])


@pytest.mark.parametrize("fault", ["dead", "checking"])
def test_rule_6_an_entry_is_not_missing_while_a_replica_does_not_answer(cluster: ScriptedCluster, fault: str) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 2)
    del cluster.bookies["b1"].entries[5, 40]
    if fault == "dead":
        cluster.bookies["b2"].kill()
    else:
        cluster.bookies["b2"].code_of = answering(UNKNOWN)
    with pytest.raises(HotLogUnavailable, match=r"entry 40 of ledger 5 cannot be read: .*b2"):
        cluster.client.open(5, 299).bytes_up_to(40)


def test_a_deleted_ledger_is_missing_once_its_bookies_have_collected_it(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 3)
    ledger = cluster.client.open(5, 299)
    cluster.store.delete(ledger_node(5), 0)
    assert ledger.read(0, 299) == PAYLOADS
    for name in ALL:
        cluster.bookies[name].entries.clear()
    with pytest.raises(LedgerMissing, match="ledger 5 was deleted"):
        ledger.read(0, 0)
    with pytest.raises(LedgerMissing, match="ledger 5 does not exist in BookKeeper"):
        cluster.client.open(5)


def test_without_metadata_an_entry_is_unavailable_and_not_missing(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 3)
    ledger = cluster.client.open(5, 299)
    cluster.store.close()
    for name in ALL:
        cluster.bookies[name].entries.clear()
    with pytest.raises(HotLogUnavailable, match="its metadata cannot be read again"):
        ledger.read(0, 0)


# --- rule 3: damage ---


@pytest.mark.parametrize("quorum", [2, 3])
def test_rule_3_a_damaged_replica_is_not_used(cluster: ScriptedCluster, quorum: int) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, quorum)
    for (ledger_id, entry_id), stored in cluster.bookies["b2"].entries.items():
        cluster.bookies["b2"].entries[ledger_id, entry_id] = stored[:-1] + bytes([stored[-1] ^ 1])
    assert everything(cluster, 5, 299) == FRAMES


def test_rule_3_another_entry_than_the_requested_one_is_damage(cluster: ScriptedCluster) -> None:
    entries = cluster.write(5, PAYLOADS, {0: ["b0"]}, 1)
    for other in (entries[8], stored_entry(6, 7, b"x", 9)):
        cluster.bookies["b0"].entries[5, 7] = other
        with pytest.raises(CorruptBlock, match="entry 7 of ledger 5 is damaged: it says that it is"):
            cluster.client.open(5, 299).read(0, 10)


def test_entries_of_old_metadata_are_verified_by_the_digest_that_fits(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 3, digest="CRC32")
    lines = b"3\n3\n0\n0\tb0\tb1\tb2\n"
    cluster.put(ledger_node(5), b"BookieMetadataFormatVersion\t1\n" + lines)
    assert everything(cluster, 5, 299) == FRAMES


# --- rule 4: the socket is always drained ---


def test_rule_4_a_reader_that_does_not_take_answers_stalls_no_bookie() -> None:
    with ScriptedCluster(1) as cluster:
        payloads = [bytes(500_000)] * 30
        cluster.write(5, payloads, {0: ["b0"]}, 1)
        bookie = cluster.bookies["b0"]
        connection = cluster.client.bookie("b0").connection()
        # 15 MB, far above what the buffers of both sockets hold, and nobody takes them from the queue.
        answers: SimpleQueue[ReadRequest] = SimpleQueue()
        connection.send([ReadRequest(5, n, None, 500_000, 0, answers=answers) for n in range(30)])
        deadline = time.monotonic() + 20
        while bookie.answers_sent < 30 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert bookie.answers_sent == 30
        for _ in range(30):
            answers.get(timeout=20)


def test_rule_4_requests_in_flight_are_bounded_while_a_bookie_does_not_answer() -> None:
    with ScriptedCluster(1, ReadLimits(timeout_s=1, deadline_s=3)) as cluster:
        cluster.write(5, [b"x"] * 5000, {0: ["b0"]}, 1)
        bookie = cluster.bookies["b0"]
        bookie.is_old = True
        ledger = cluster.client.open(5, 4999)
        ledger.read(0, 10)
        bookie.answering.clear()
        before = len(bookie.received)
        with pytest.raises(HotLogUnavailable):
            ledger.read(0, 4999)
        assert len(bookie.received) - before <= 500


# --- rule 5: matching and time-outs ---


def test_rule_5_readers_of_one_connection_get_their_own_answers(cluster: ScriptedCluster) -> None:
    for ledger_id in range(5, 9):
        cluster.write(ledger_id, [b"%d:" % ledger_id + each for each in PAYLOADS], {0: ALL}, 2 + ledger_id % 2)
    found: dict[int, list[bytes | memoryview]] = {}

    def read(number: int) -> None:
        found[number] = cluster.client.open(5 + number % 4, 299).read(0, 299)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(8):
        assert found[number] == [b"%d:" % (5 + number % 4) + each for each in PAYLOADS]


def test_rule_5_answers_out_of_order_are_matched() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connected, _ = listener.accept()
        data = b""
        while len(data) < 3 * 24:
            data += connected.recv(100)
        frames = [data[at : at + 24] for at in range(0, 72, 24)]
        for frame in reversed(frames):  # a rejection overtakes answers, and so do other ledgers
            code = TOO_MANY if frame[8:] == struct.pack(">qq", 5, 2) else 0
            connected.sendall(struct.pack(">I", 25) + frame[4:8] + struct.pack(">i", code) + frame[8:24] + frame[-1:])
        connected.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    connection = BookieConnection("b", ("127.0.0.1", listener.getsockname()[1]), ReadLimits(), RequestWindow(1.0))
    answers: SimpleQueue[ReadRequest] = SimpleQueue()
    requests = [ReadRequest(*each, None, 0, 0, answers=answers) for each in ((5, 1), (5, 2), (6, 1))]
    connection.send(requests)
    responses = [request.wait(5) for request in requests]
    assert [each[1:4] for each in responses] == [(0, 5, 1), (TOO_MANY, 5, 2), (0, 6, 1)]
    assert connection.in_flight == 0
    connection.close()
    listener.close()


def test_rule_5_a_stalled_bookie_counts_as_failed_after_the_timeout() -> None:
    with ScriptedCluster(3, ReadLimits(timeout_s=1, deadline_s=5)) as cluster:
        cluster.write(6, PAYLOADS, {0: ALL}, 3)
        cluster.bookies["b0"].answering.clear()  # ledger 6 prefers it
        assert everything(cluster, 6, 299) == FRAMES
        assert cluster.client.bookie("b0")._failures


def test_rule_5_no_replica_that_answers_is_a_timeout() -> None:
    with ScriptedCluster(1, ReadLimits(timeout_s=0.2, deadline_s=1)) as cluster:
        cluster.write(5, PAYLOADS, {0: ["b0"]}, 1)
        cluster.bookies["b0"].answering.clear()
        with pytest.raises(HotLogUnavailable, match=r"no response from bookie b0 .* within timeout_s=0\.2"):
            cluster.client.open(5, 299).read(0, 0)


# --- dead, old, refusing and overloaded bookies ---


@pytest.mark.parametrize("quorum", [2, 3])
def test_a_bookie_that_dies_in_the_middle_is_replaced_by_its_replicas(cluster: ScriptedCluster, quorum: int) -> None:
    payloads = PAYLOADS * 20
    cluster.write(5, payloads, {0: ALL}, quorum)
    ledger = cluster.client.open(5, len(payloads) - 1)
    frames, first = b"", 0
    while first < len(payloads):
        if first > 1000:
            cluster.bookies["b2"].kill()
        data, count = ledger.read_frames(first, 30_000)
        frames, first = frames + data, first + count
    assert frames == frame_entries(payloads)


def test_a_bookie_that_restarts_elsewhere_is_found_again(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ["b0"]}, 1)
    ledger = cluster.client.open(5, 299)
    assert ledger.read(0, 20) == PAYLOADS[:21]
    cluster.bookies["b0"].kill()
    with pytest.raises(HotLogUnavailable, match="bookie b0"):
        ledger.read(0, 20)
    cluster.bookies["b1"].entries = cluster.bookies["b0"].entries
    cluster.register("b0", cluster.bookies["b1"].port)
    assert ledger.read(0, 299) == PAYLOADS


def test_metadata_is_read_again_after_a_failed_bookie(cluster: ScriptedCluster) -> None:
    cluster.write(6, PAYLOADS, {0: ("b0", "b1")}, 2)
    ledger = cluster.client.open(6, 299)
    cluster.bookies["b0"].kill()
    cluster.bookies["b2"].entries = cluster.bookies["b0"].entries
    cluster.put_metadata(6, {0: ("b2", "b1")}, 2)
    assert ledger.read(0, 299) == PAYLOADS
    assert ledger._replicas.metadata.fragments[0].ensemble == ("b2", "b1")


@pytest.mark.parametrize("quorum", [2, 3])
def test_an_old_bookie_gets_single_reads_after_one_reset(cluster: ScriptedCluster, quorum: int) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, quorum)
    for name in ALL:
        cluster.bookies[name].is_old = True
    assert everything(cluster, 5, 299) == FRAMES
    assert everything(cluster, 5, 299) == FRAMES
    for bookie in cluster.bookies.values():
        assert bookie.count(BATCH) <= 1
        before = [each.operation for each in bookie.received]
        if BATCH in before:
            assert READ in before[: before.index(BATCH)]  # a single read comes first


def test_an_old_bookie_is_used_beside_new_ones(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 2)
    cluster.bookies["b1"].is_old = True
    assert everything(cluster, 5, 299) == FRAMES
    assert cluster.bookies["b1"].count(BATCH) == 1
    assert cluster.bookies["b2"].count(BATCH) > 50


def test_a_bookie_replaced_by_an_older_one_is_probed_again(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ["b0"]}, 1)
    ledger = cluster.client.open(5, 299)
    assert ledger.read(0, 100) == PAYLOADS[:101]
    cluster.bookies["b0"].is_old = True
    assert ledger.read(0, 299) == PAYLOADS


def test_a_bookie_that_requires_authentication_is_refused_plainly(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, 3)
    for name in ALL:
        cluster.bookies[name].is_old = True  # it resets the connection on a batch read too
        cluster.bookies[name].code_of = answering(UNAUTHORIZED)
    with pytest.raises(AccessDenied, match=r"bookie b. requires authentication, .*; read through a broker"):
        cluster.client.open(5, 299).read(0, 299)
    assert not any(bookie.count(BATCH) for bookie in cluster.bookies.values())
    with pytest.raises(AccessDenied, match="requires authentication"):
        cluster.client.confirmed_by_bookies(5)


@pytest.mark.parametrize("quorum", [2, 3])
def test_rejected_requests_are_sent_again_with_fewer_in_flight(cluster: ScriptedCluster, quorum: int) -> None:
    cluster.write(5, PAYLOADS, {0: ALL}, quorum)
    random_source = random.Random(1)
    for name in ALL:
        cluster.bookies[name].code_of = lambda _request: TOO_MANY if random_source.random() < 0.02 else None
    assert everything(cluster, 5, 299) == FRAMES


def test_a_bookie_that_rejects_everything_is_a_timeout() -> None:
    with ScriptedCluster(1, ReadLimits(timeout_s=5, deadline_s=0.3)) as cluster:
        cluster.write(5, PAYLOADS, {0: ["b0"]}, 1)
        cluster.bookies["b0"].code_of = answering(TOO_MANY)
        with pytest.raises(HotLogUnavailable, match="too many requests"):
            cluster.client.open(5, 299).read(0, 299)
        assert len(cluster.bookies["b0"].received) < 30


def test_the_window_is_halved_by_rejections_and_slow_answers_and_grows_again() -> None:
    now = 0.0
    window = RequestWindow(0.5, clock=lambda: now)
    largest = window.limit
    for _ in range(100):
        window.on_rejection()  # of one overload
    assert window.limit == largest // 2
    now = 1.0
    window.on_answer(0.6)
    assert window.limit == largest // 4
    for _ in range(100):
        now += 1
        window.on_rejection()
    assert window.limit == 1
    for _ in range(100_000):
        window.on_answer(0.01)
    assert window.limit == largest


def test_a_server_that_is_not_a_bookie_is_unavailable(cluster: ScriptedCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                connected, _ = listener.accept()
                connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        cluster.write(5, PAYLOADS, {0: ["b0"]}, 1)
        cluster.register("b0", listener.getsockname()[1])
        with pytest.raises(HotLogUnavailable, match=r"bookie b0 .* announced a response of 1213486164 bytes"):
            cluster.client.open(5, 299).read(0, 0)


@settings(max_examples=8)
@given(st.integers(0, 1 << 32), st.integers(1, 3), st.integers(0, 3))
def test_under_random_faults_entries_are_right_or_an_error_is_raised(seed: int, quorum: int, old: int) -> None:
    source = random.Random(seed)
    codes = (NO_LEDGER, NO_ENTRY, IO_ERROR, UNKNOWN, TOO_MANY, 100)

    def code_of(_request: Received) -> int | None:
        return source.choice(codes) if source.random() < 0.05 else None

    with ScriptedCluster(4) as cluster:
        cluster.write(5, PAYLOADS, {0: ALL, 120: ("b3", "b1", "b2")}, quorum)
        for number, bookie in enumerate(cluster.bookies.values()):
            bookie.code_of = code_of
            bookie.is_old = number < old
            for key in source.sample(sorted(bookie.entries), len(bookie.entries) // 20):
                damaged = bytearray(bookie.entries[key])
                damaged[source.randrange(len(damaged))] ^= 1 << source.randrange(8)
                bookie.entries[key] = bytes(damaged)
        ledger = cluster.client.open(5, 299)
        for _ in range(4):
            first = source.randrange(300)
            try:
                data, count = ledger.read_frames(first, source.randrange(1, 20_000))
            except (HotLogError, CorruptBlock):
                continue
            assert count > 0
            assert data == frame_entries(PAYLOADS[first : first + count], first)


# --- rates ---


@pytest.mark.parametrize("limits", [ReadLimits(bytes_per_s=200_000), ReadLimits(bookie_bytes_per_s=100_000)])
def test_reads_keep_the_rate(limits: ReadLimits) -> None:
    with ScriptedCluster(2, limits) as cluster:
        cluster.write(5, [bytes(10_000)] * 40, {0: ("b0", "b1")}, 1)
        start = time.monotonic()
        assert everything(cluster, 5, 39, 50_000) == frame_entries([bytes(10_000)] * 40)
        # 400 kB with one second's worth of 200 kB at once.
        assert time.monotonic() - start > 0.7


def test_a_rate_must_be_positive() -> None:
    with pytest.raises(ConfigError), ScriptedCluster(0, ReadLimits(bytes_per_s=0)):
        pass


def test_a_closed_client_fails_reads_in_progress(cluster: ScriptedCluster) -> None:
    cluster.write(5, PAYLOADS, {0: ["b0"]}, 1)
    ledger = cluster.client.open(5, 299)
    ledger.read(0, 0)
    cluster.bookies["b0"].answering.clear()
    threading.Timer(0.2, cluster.client.close).start()
    with pytest.raises(HotLogUnavailable) as raised:
        ledger.read(0, 299)
    assert "closed" in str(raised.value)
