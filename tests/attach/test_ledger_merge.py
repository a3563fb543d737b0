"""Merge of a cluster's ledger list into our copy."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from afterglow.attach.ledger_merge import (
    LEFT_TO_CLUSTER,
    LOST,
    Tail,
    committed_end,
    delivered_ledgers,
    lost_ranges,
    merge_ledgers,
    recorded_lost,
    remove_ledgers,
    tail_of,
)
from afterglow.format.objects import ledger_uuid, set_uuid
from afterglow.format.position import LedgerRange, Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.properties import get_text
from afterglow.offload.segments.uncovered import uncovered_ranges

SEGMENT = UUID(int=7)


def ledgers(
    *given: tuple[int, int | None], offloaded: tuple[int, ...] = (), begun: tuple[int, ...] = ()
) -> ManagedLedgerInfo:
    """A list of ledgers given as id and number of entries; None: it is being written."""
    info = ManagedLedgerInfo()
    for ledger_id, entries in given:
        ledger = info.ledgerInfo.add(ledgerId=ledger_id)
        if entries is not None:
            ledger.entries, ledger.size, ledger.timestamp = entries, 100 * entries, 1_000 + ledger_id
        if ledger_id in offloaded or ledger_id in begun:
            set_uuid(ledger.offloadContext, UUID(int=ledger_id))
            ledger.offloadContext.complete = ledger_id in offloaded
    return info


def cover(info: ManagedLedgerInfo, ledger_id: int, end: int, *, complete: bool = True) -> None:
    """Put the entries of a ledger up to ``end`` into a segment."""
    (ledger,) = (ledger for ledger in info.ledgerInfo if ledger.ledgerId == ledger_id)
    segment = ledger.offloadContext.offloadSegment.add(complete=complete)
    if complete:
        segment.endEntryId = end
    set_uuid(segment, SEGMENT)


def merged(own: ManagedLedgerInfo, cluster: ManagedLedgerInfo) -> ManagedLedgerInfo:
    merge_ledgers(own, cluster)
    return own


def ids(info: ManagedLedgerInfo) -> list[int]:
    return [ledger.ledgerId for ledger in info.ledgerInfo]


def test_a_new_copy_has_the_ledgers_of_the_cluster_with_their_ends() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((3, 10), (5, None)))
    assert ids(own) == [3, 5]
    assert (own.ledgerInfo[0].entries, own.ledgerInfo[0].size, own.ledgerInfo[0].timestamp) == (10, 1_000, 1_003)
    assert not own.ledgerInfo[1].HasField("entries")


def test_the_end_of_a_ledger_and_its_successor_are_taken_and_segments_stay() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((3, None)))
    cover(own, 3, 4)
    merged(own, ledgers((3, 10), (5, None)))
    assert ids(own) == [3, 5]
    assert own.ledgerInfo[0].entries == 10
    assert own.ledgerInfo[0].offloadContext.offloadSegment[0].endEntryId == 4


@given(st.booleans())
def test_a_ledger_that_the_cluster_offloads_is_left_to_it_and_its_object_is_not_ours(complete: bool) -> None:  # noqa: FBT001
    mark = {"offloaded": (3,)} if complete else {"begun": (3,)}
    own = merged(ManagedLedgerInfo(), ledgers((3, 10), (4, 10), (5, None), **mark))
    left = own.ledgerInfo[0]
    assert get_text(left, LEFT_TO_CLUSTER) is not None
    assert ledger_uuid(left) is None, "a UUID would let us read or delete the cluster's object"
    (streamed,) = uncovered_ranges(own.ledgerInfo, {3: 10, 4: 10, 5: 2}.get, streaming=True, writing_to=5)
    assert streamed.begin == Position(4, 0)


def test_a_ledger_with_our_segments_stays_ours_when_the_cluster_begins_to_offload_it() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((3, 10), (5, None)))
    cover(own, 3, 4)
    merged(own, ledgers((3, 10), (5, None), offloaded=(3,)))
    assert get_text(own.ledgerInfo[0], LEFT_TO_CLUSTER) is None
    assert not own.ledgerInfo[0].offloadContext.complete


def test_a_trimmed_ledger_stays_while_it_is_in_segments() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((3, 10), (5, None)))
    cover(own, 3, 9)
    cluster = ledgers((5, None))
    assert lost_ranges(own, cluster) == ()
    merged(own, cluster)
    assert ids(own) == [3, 5]
    assert own.ledgerInfo[0].offloadContext.bookkeeperDeleted
    assert get_text(own.ledgerInfo[0], LOST) is None


def test_entries_that_were_trimmed_before_they_were_in_a_segment_are_recorded_as_lost_once() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((3, 10), (4, 10), (5, None)))
    cover(own, 3, 6)
    cluster = ledgers((5, None))
    assert lost_ranges(own, cluster) == (LedgerRange(3, 7, 9), LedgerRange(4, 0, 9))
    merged(own, cluster)
    assert ids(own) == [3, 5]
    assert own.ledgerInfo[0].entries == 7
    assert get_text(own.ledgerInfo[0], LOST) == "7-9"
    assert lost_ranges(own, cluster) == ()
    assert recorded_lost(own) == recorded_lost(merged(own, cluster)) == (LedgerRange(3, 7, 9), LedgerRange(4, 0, 9))


def test_a_trimmed_ledger_of_an_unfinished_segment_stays_until_that_is_committed() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((3, 10), (5, None)))
    cover(own, 3, 0, complete=False)
    merged(own, ledgers((5, None)))
    assert ids(own) == [3, 5]
    assert not own.ledgerInfo[0].offloadContext.bookkeeperDeleted


def test_a_trimmed_ledger_that_was_left_to_the_cluster_leaves_our_list() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((3, 10), (5, None), offloaded=(3,)))
    assert ids(merged(own, ledgers((5, None)))) == [5]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True), st.integers(0, 5), st.integers(0, 5))
def test_a_merge_can_be_repeated(found: list[int], trimmed: int, covered: int) -> None:
    cluster = ledgers(*((ledger_id, 10) for ledger_id in sorted(found)[:-1]), (max(found), None))
    own = merged(ManagedLedgerInfo(), cluster)
    for ledger_id in sorted(found)[:covered]:
        cover(own, ledger_id, 9)
    del cluster.ledgerInfo[: min(trimmed, len(found) - 1)]
    once = merged(own, cluster).SerializeToString(deterministic=True)
    assert merged(own, cluster).SerializeToString(deterministic=True) == once
    assert ids(own) == sorted(ids(own))


def test_the_tail_is_the_ledger_without_an_end_and_never_shrinks() -> None:
    cluster = ledgers((3, 10), (5, None))
    assert tail_of(cluster, Position(5, 8), None) == Tail(5, 9)
    assert tail_of(cluster, Position(3, 9), None) == Tail(5, 0), "the broker may report the end of the ledger before"
    assert tail_of(cluster, None, Tail(5, 9)) == Tail(5, 9)
    assert tail_of(cluster, Position(5, 2), Tail(5, 9)) == Tail(5, 9)
    assert tail_of(cluster, Position(6, 2), Tail(3, 9)) == Tail(5, 0), "the list was read before the topic rolled over"
    assert tail_of(ledgers((3, 10)), Position(3, 9), Tail(3, 9)) is None


def test_only_what_is_committed_without_gaps_is_acknowledged() -> None:
    own = ledgers((3, 10), (4, 0), (5, 10), (6, None))
    assert committed_end(own.ledgerInfo) is None
    cover(own, 3, 4)
    assert committed_end(own.ledgerInfo) == Position(3, 4)
    cover(own, 5, 9)
    assert committed_end(own.ledgerInfo) == Position(3, 4)
    cover(own, 3, 9)
    assert committed_end(own.ledgerInfo) == Position(5, 9)
    cover(own, 6, 2)
    assert committed_end(own.ledgerInfo) == Position(6, 2)


def test_an_unfinished_segment_is_not_acknowledged() -> None:
    own = ledgers((3, 10), (5, None))
    cover(own, 3, 9, complete=False)
    assert committed_end(own.ledgerInfo) is None


def test_ledgers_that_are_left_to_the_cluster_are_acknowledged_with_those_after_them() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((3, 10), (4, 10), (5, None), offloaded=(3,)))
    assert committed_end(own.ledgerInfo) == Position(3, 9)
    cover(own, 4, 9)
    assert committed_end(own.ledgerInfo) == Position(4, 9)


def test_an_earlier_life_of_a_topic_stays_before_the_ledgers_of_the_later_one() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((3, 10), (5, None)))
    own.terminatedPosition.ledgerId, own.terminatedPosition.entryId = 5, -1
    cover(own, 3, 9)
    merged(own, ledgers((8, 4), (9, None)))
    assert ids(own) == [3, 8, 9]
    assert own.ledgerInfo[0].offloadContext.bookkeeperDeleted
    assert not own.HasField("terminatedPosition")


def test_ledgers_that_were_removed_are_not_taken_again() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((0, 10), (3, 10), (5, None)))
    remove_ledgers(own, [0])
    remove_ledgers(own, [0])
    assert ids(merged(own, ledgers((0, 10), (3, 10), (5, None)))) == [3, 5]
    remove_ledgers(own, [3])
    assert ids(merged(own, ledgers((3, 10), (5, 10), (6, None)))) == [5, 6]


# --- what brokers deliver ---


def delivered(
    own: ManagedLedgerInfo, cluster: ManagedLedgerInfo, last: Position | None
) -> list[tuple[int, int | None]]:
    found = delivered_ledgers(own, cluster, last).ledgerInfo
    return [(each.ledgerId, each.entries if each.HasField("entries") else None) for each in found]


def test_ledgers_up_to_the_last_delivered_entry_are_taken() -> None:
    cluster = ledgers((3, 10), (5, 10), (7, None))
    none = ManagedLedgerInfo()
    assert delivered(none, cluster, Position(7, 4)) == [(3, 10), (5, 10), (7, None)]
    assert delivered(none, cluster, Position(5, 9)) == [(3, 10), (5, 10), (7, None)]
    assert delivered(none, cluster, Position(5, 8)) == [(3, 10), (5, None)], "its last entry is not delivered yet"
    assert delivered(none, cluster, Position(3, 9)) == [(3, 10)]
    assert delivered(none, cluster, None) == []
    assert delivered(none, ledgers((3, None)), None) == [(3, None)]
    assert delivered(none, ledgers((3, 0), (5, None)), None) == [(3, 0), (5, None)]


def test_what_was_taken_before_is_not_left_out_again() -> None:
    own = merged(ManagedLedgerInfo(), ledgers((3, 10), (5, None)))
    cover(own, 5, 3)
    cluster = ledgers((3, 10), (5, 10), (7, None))
    assert delivered(own, cluster, None) == [(3, 10), (5, None)]
    assert delivered(own, cluster, Position(5, 4)) == [(3, 10), (5, None)]
    assert ids(merged(own, delivered_ledgers(own, cluster, None))) == [3, 5]
    assert delivered(own, cluster, Position(7, 0)) == [(3, 10), (5, 10), (7, None)]
