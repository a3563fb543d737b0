from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from afterglow.format.position import Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.offload.segments.uncovered import (
    EntryRange,
    PositionRange,
    has_failed_attempt,
    is_assigned,
    uncovered_ranges,
)

KINDS = ("plain", "whole", "segments")


def row(ledger_id: int, *ends: int, whole: bool = False, failed: bool = False) -> ManagedLedgerInfo.LedgerInfo:
    """A ledger with committed segments that end there, with an object of its own, or with a failed attempt at one."""
    made = ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id)
    for end in ends:
        made.offloadContext.offloadSegment.add(complete=True, endEntryId=end)
    if whole:
        made.offloadContext.complete = True
    if whole or failed:
        made.offloadContext.uidMsb = 1
    return made


def positions(uncovered: tuple[PositionRange, ...]) -> list[tuple[str, str]]:
    return [(str(run.begin), str(run.end)) for run in uncovered]


def test_everything_that_is_in_no_segment_is_streamed_in_one_run() -> None:
    counts = {1: 10, 2: 0, 3: 5, 7: 2}
    uncovered = uncovered_ranges(map(row, (7, 3, 1, 2)), counts.get, streaming=True, writing_to=7)
    assert positions(uncovered) == [("1:0", "7:1")]
    assert [entry_range.closed for entry_range in uncovered[0].ranges] == [True, True, False]
    assert uncovered[0].growing


def test_ledgers_with_an_object_of_their_own_cut_the_runs() -> None:
    rows = [row(1), row(2, whole=True), row(3, failed=True), row(4)]
    uncovered = uncovered_ranges(rows, {1: 1, 2: 1, 3: 1, 4: 1}.get, streaming=True, writing_to=4)
    assert positions(uncovered) == [("1:0", "1:0"), ("3:0", "4:0")]
    assert [run.growing for run in uncovered] == [False, True]
    assert [has_failed_attempt(item) for item in rows] == [False, False, True, False]


def test_what_is_covered_or_assigned_is_not_streamed_again() -> None:
    rows = [row(1, 3, 9), row(2, 4), row(3)]
    counts = {1: 10, 2: 10, 3: 10}
    assert positions(uncovered_ranges(rows, counts.get, streaming=True, writing_to=3)) == [("2:5", "3:9")]
    rows[1].offloadContext.offloadSegment.add()
    assert is_assigned(rows[1])
    assert not is_assigned(rows[0])
    found = uncovered_ranges(rows, counts.get, streaming=True, writing_to=3, assigned_to=Position(2, 7))
    assert positions(found) == [("2:8", "3:9")]
    found = uncovered_ranges(rows, counts.get, streaming=True, writing_to=3, assigned_to=Position(3, 9))
    assert found == ()


def test_after_a_switch_back_only_ledgers_with_segments_are_finished() -> None:
    rows = [row(1), row(2, 4), row(3), row(4, 1), row(5)]
    counts = dict.fromkeys(range(1, 6), 10)
    uncovered = uncovered_ranges(rows, counts.get, streaming=False, writing_to=5)
    assert positions(uncovered) == [("2:5", "2:9"), ("4:2", "4:9")]
    assert not any(run.growing for run in uncovered)
    # The one that is being written is rolled over first.
    assert uncovered_ranges([row(4, 1)], {4: 10}.get, streaming=False, writing_to=4) == ()


def test_a_run_is_cut_at_any_entry() -> None:
    run = PositionRange((EntryRange(1, 5, 9, closed=True), EntryRange(2, 0, 3, closed=False)), growing=True)
    assert run.up_to(Position(2, 3)) == PositionRange(run.ranges, growing=False)
    assert run.up_to(Position(1, 9)) == PositionRange((EntryRange(1, 5, 9, closed=True),), growing=False)
    assert run.up_to(Position(1, 6)) == PositionRange((EntryRange(1, 5, 6, closed=False),), growing=False)
    assert run.after(Position(1, 6)) == PositionRange((EntryRange(1, 7, 9, closed=True), run.ranges[1]), growing=True)
    assert run.after(Position(1, 9)) == PositionRange(run.ranges[1:], growing=True)
    assert run.after(Position(2, 3)) is None


@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from(KINDS), st.integers(0, 5)), max_size=8),
    st.booleans(),
)
def test_every_entry_is_streamed_once_or_has_its_copy(ledgers: list[tuple[int, str, int]], streaming: bool) -> None:  # noqa: FBT001
    rows: list[ManagedLedgerInfo.LedgerInfo] = []
    counts: dict[int, int] = {}
    wanted: set[tuple[int, int]] = set()
    for ledger_id, (count, kind, end) in enumerate(ledgers):
        covered = min(end, count - 1) if kind == "segments" and count else -1
        made = row(ledger_id, *([covered] if covered >= 0 else []), whole=kind == "whole")
        rows.append(made)
        counts[ledger_id] = count
        open_one = ledger_id == len(ledgers) - 1
        mine = kind != "whole" if streaming else kind == "segments" and covered >= 0 and not open_one
        if mine:
            wanted.update((ledger_id, entry) for entry in range(covered + 1, count))
    found = [
        (entry_range.ledger_id, entry)
        for run in uncovered_ranges(rows, counts.get, streaming=streaming, writing_to=len(ledgers) - 1)
        for entry_range in run.ranges
        for entry in range(entry_range.first, entry_range.last + 1)
    ]
    assert found == sorted(wanted)
